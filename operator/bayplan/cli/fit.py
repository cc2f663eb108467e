"""`bayplan fit`: does a model fit on a GPU, with which layout, and what would make it fit."""

import json
import os
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bayplan.cli import fitjson, fitview
from bayplan.cli.fitanswer import FitAnswer, answer, compared
from bayplan.cli.fitquestion import (
    EngineBudget,
    FitQuestion,
    known_question,
    manifest_question,
    number,
    read_gpu,
    read_manifest,
    read_model,
)
from bayplan.planning.layout.search import Site, Wanted
from bayplan.planning.memory.adapters import AdapterSlots
from bayplan.planning.memory.request import EngineFlags
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.numbers import InvalidInput, count


def readable_number(text: str) -> int:
    """A whole number as vLLM's own flags take it: 8192, 8k (thousand), 8K (1024), 1.5M, 20G.

    Raises BadParameter for anything else, for the command line to name the flag.
    """
    found = re.fullmatch(r"(-?\d{1,18}(?:\.\d{1,9})?)([kKmMgGtT]?)", text.strip())
    if found is not None:
        unit = found[2]
        power: int = (1024 if unit.isupper() else 1000) ** ("kmgt".find(unit.lower()) + 1 if unit else 0)
        number = Fraction(found[1]) * power
        if number.denominator == 1:
            return number.numerator
    raise typer.BadParameter(f"must be a whole number such as 8192, 8k, 8K or 20G, not {text[:40]!r}")


PIPE_WIDTH = 160
DOES_NOT_FIT, INVALID = 1, 2
DEFAULT_NODE = 8
DEFAULT_LORA_RANK = 16
_BESIDE_A_MANIFEST = frozenset(
    {"filename", "gpu", "gpu_memory_gib", "gpus_per_node", "nodes", "compare_gpus", "what_if", "as_json", "strict"}
)
_FLAGS = "Engine flags, by vLLM's names"
_LAYOUT = "Layout; derived as a whole where none of it is stated"


def fit(
    context: typer.Context,
    *,
    filename: Annotated[Path | None, typer.Option("--filename", "-f", help="Manifest of an InferenceModel.")] = None,
    config: Annotated[Path | None, typer.Option(help="The model's config.json.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Name in the catalogue, or a folder with the model's files.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Folder with safetensors files, whose headers are read.")] = None,
    quantization: Annotated[
        str | None, typer.Option("--quantization", "-q", help="Weight format; that of the checkpoint without it.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU: a product label or a short name.")] = None,
    gpu_memory_gib: Annotated[str | None, typer.Option(help="GiB that the driver shows, instead of the known.")] = None,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one node.")] = DEFAULT_NODE,
    nodes: Annotated[int, typer.Option(help="Nodes that one replica may use.")] = 1,
    concurrency: Annotated[int, typer.Option(help="Requests of full length to hold at the same time.")] = 1,
    engine: Annotated[str, typer.Option(help="vllm, sglang or tensorrt-llm: who divides the GPU.")] = "vllm",
    mem_fraction_static: Annotated[str | None, typer.Option(help="SGLang's flag.")] = None,
    free_gpu_memory_fraction: Annotated[str | None, typer.Option(help="TensorRT-LLM's setting.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="vLLM release; the newest known without it.")] = None,
    tensor: Annotated[
        int | None,
        typer.Option("--tensor-parallel-size", "--tensor-parallel", "-tp", help="Ranks.", rich_help_panel=_LAYOUT),
    ] = None,
    pipeline: Annotated[
        int | None,
        typer.Option("--pipeline-parallel-size", "--pipeline-parallel", "-pp", help="Stages.", rich_help_panel=_LAYOUT),
    ] = None,
    data: Annotated[
        int | None,
        typer.Option("--data-parallel-size", "--data-parallel", "-dp", help="Ranks.", rich_help_panel=_LAYOUT),
    ] = None,
    expert: Annotated[
        bool | None,
        typer.Option("--enable-expert-parallel/--no-enable-expert-parallel", "-ep", rich_help_panel=_LAYOUT),
    ] = None,
    decode_context: Annotated[
        int | None, typer.Option("--decode-context-parallel-size", "-dcp", help="Ways.", rich_help_panel=_LAYOUT)
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(parser=readable_number, metavar="NUMBER", rich_help_panel=_FLAGS)
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(rich_help_panel=_FLAGS)] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(parser=readable_number, metavar="NUMBER", rich_help_panel=_FLAGS)
    ] = None,
    gpu_memory_utilization: Annotated[str | None, typer.Option(rich_help_panel=_FLAGS)] = None,
    kv_cache_dtype: Annotated[str, typer.Option(rich_help_panel=_FLAGS)] = "auto",
    mamba_cache_dtype: Annotated[str, typer.Option(help="Of states.", rich_help_panel=_FLAGS)] = "auto",
    mamba_ssm_cache_dtype: Annotated[
        str, typer.Option(help="Of the recurrent part of states.", rich_help_panel=_FLAGS)
    ] = "auto",
    dtype: Annotated[str, typer.Option(rich_help_panel=_FLAGS)] = "auto",
    block_size: Annotated[int | None, typer.Option(rich_help_panel=_FLAGS)] = None,
    kv_cache_memory_bytes: Annotated[
        int | None, typer.Option(parser=readable_number, metavar="NUMBER", rich_help_panel=_FLAGS)
    ] = None,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", rich_help_panel=_FLAGS)] = False,
    enable_prefix_caching: Annotated[
        bool | None, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", rich_help_panel=_FLAGS)
    ] = None,
    async_scheduling: Annotated[
        bool | None, typer.Option("--async-scheduling/--no-async-scheduling", rich_help_panel=_FLAGS)
    ] = None,
    speculative_tokens: Annotated[
        int, typer.Option(help="Of the model's own prediction layers.", rich_help_panel=_FLAGS)
    ] = 0,
    attention_backend: Annotated[str, typer.Option(rich_help_panel=_FLAGS)] = "",
    max_loras: Annotated[int | None, typer.Option(rich_help_panel=_FLAGS)] = None,
    max_lora_rank: Annotated[int, typer.Option(rich_help_panel=_FLAGS)] = DEFAULT_LORA_RANK,
    compare_gpus: Annotated[bool, typer.Option("--compare-gpus", help="The same on every known GPU.")] = False,
    what_if: Annotated[bool, typer.Option("--what-if", help="How far each setting can go.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Print the architecture block of a manifest, and nothing else.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="A fit within 3 % of the budget is none.")] = False,
) -> None:
    """Tell whether a model fits, with which layout, and what would make it fit. No cluster, no network.

    Exit code 0: it fits; 1: it does not; 2: the question is invalid.
    """
    try:
        if write:
            typer.echo(_architecture_block(config, model, weights, quantization), nl=False)
            return
        wanted = _wanted(tensor, pipeline, data, expert=expert, decode_context=decode_context)
        _check_sizes(wanted, gpus_per_node=gpus_per_node, nodes=nodes, concurrency=concurrency)
        if filename is not None:
            _check_alone(context)
            questions = _of_manifest(filename, gpu, gpu_memory_gib, gpus_per_node=gpus_per_node, nodes=nodes)
        else:
            flags = EngineFlags(
                version=None if engine_version is None else EngineVersion.parse(engine_version),
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                gpu_memory_utilization=None
                if gpu_memory_utilization is None
                else number(gpu_memory_utilization, "gpu-memory-utilization"),
                kv_cache_dtype=kv_cache_dtype,
                mamba_cache_dtype=mamba_cache_dtype,
                mamba_ssm_cache_dtype=mamba_ssm_cache_dtype,
                dtype=dtype,
                block_size=block_size,
                kv_cache_memory_bytes=kv_cache_memory_bytes,
                enforce_eager=enforce_eager,
                enable_prefix_caching=enable_prefix_caching,
                async_scheduling=async_scheduling,
                speculative_tokens=speculative_tokens,
                attention_backend=attention_backend,
                adapters=None if max_loras is None else AdapterSlots(max_loras, max_lora_rank),
            )
            files = read_model(config=config, model=model, weights=weights, quantization=quantization)
            name = gpu if gpu is not None or not compare_gpus else "H100"
            found = read_gpu(name, memory_gib=gpu_memory_gib)
            site = Site((gpus_per_node,) * nodes, gpu=found.name)
            budget = _budget(engine, mem_fraction_static, free_gpu_memory_fraction)
            questions = [
                known_question(
                    files.known(), found, site=site, wanted=wanted, flags=flags, concurrency=concurrency, budget=budget
                )
            ]
        code = _show(
            questions, compare_gpus=compare_gpus, what_if=what_if, as_json=as_json, strict=strict, node=gpus_per_node
        )
    except InvalidInput as error:
        typer.echo(f"bayplan fit: {error}", err=True)
        raise typer.Exit(INVALID) from None
    raise typer.Exit(code)


def _budget(engine: str, static: str | None, free: str | None) -> EngineBudget:
    own = {"sglang": ("mem-fraction-static", static), "tensorrt-llm": ("free-gpu-memory-fraction", free)}
    for name, (flag, value) in own.items():
        if value is not None and name != engine:
            raise InvalidInput(flag, f"belongs to --engine {name}")
    flag, text = own.get(engine, ("", None))
    return EngineBudget(engine, None if text is None else number(text, flag))


def _wanted(
    tensor: int | None, pipeline: int | None, data: int | None, *, expert: bool | None, decode_context: int | None
) -> Wanted:
    """Sizes as vLLM takes them: once one is stated, the others are 1."""
    if tensor is None and pipeline is None and data is None and decode_context is None:
        return Wanted(expert=expert)
    sizes = {"tensor": tensor, "pipeline": pipeline, "data": data, "decode_context": decode_context}
    return Wanted(expert=expert, **{name: 1 if size is None else size for name, size in sizes.items()})


def _check_alone(context: typer.Context) -> None:
    """Beside a manifest only the GPU, its nodes and the form of the answer may be stated; nothing is ignored."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in _BESIDE_A_MANIFEST:
            flag = max(parameter.opts, key=len)
            raise InvalidInput("filename", f"a manifest states model, engine and layout itself: leave {flag} out")


def _check_sizes(wanted: Wanted, *, gpus_per_node: int, nodes: int, concurrency: int) -> None:
    sizes = {
        "gpus-per-node": gpus_per_node,
        "nodes": nodes,
        "concurrency": concurrency,
        "tensor-parallel-size": wanted.tensor,
        "pipeline-parallel-size": wanted.pipeline,
        "data-parallel-size": wanted.data,
        "decode-context-parallel-size": wanted.decode_context,
    }
    for name, value in sizes.items():
        most = 10**6 if name == "concurrency" else 1024
        if value is not None and count(value, name) > most:
            raise InvalidInput(name, f"must be at most {most}, not {value}")


def _of_manifest(
    path: Path, gpu: str | None, memory_gib: str | None, *, gpus_per_node: int, nodes: int
) -> list[FitQuestion]:
    """One question for each product that the manifest accepts, or for `--gpu` alone."""
    spec = read_manifest(path)
    products = [gpu] if gpu is not None else list(spec.placement.gpu_products)
    if not products:
        raise InvalidInput("gpu", "the manifest names no placement.gpuProducts: state --gpu NAME")
    found = [read_gpu(product, memory_gib=memory_gib) for product in products]
    return [manifest_question(spec, one, Site((gpus_per_node,) * nodes, gpu=one.name)) for one in found]


def _show(
    questions: list[FitQuestion], *, compare_gpus: bool, what_if: bool, as_json: bool, strict: bool, node: int
) -> int:
    # A pipe has no width; it gets everything, and what reads it may cut.
    console = Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=PIPE_WIDTH)
    if compare_gpus:
        rows = list(compared(questions[0], gpus_per_node=node))
        if as_json:
            typer.echo(json.dumps(fitjson.comparison_json(rows), indent=2))
        else:
            console.print(fitview.comparison_table(rows))
        return 0 if any(_passes(found, strict=strict) for _, found in rows) else DOES_NOT_FIT
    answers = [answer(question) for question in questions]
    if as_json:
        shown = [_json(found, what_if=what_if) for found in answers]
        typer.echo(json.dumps(shown[0] if len(shown) == 1 else shown, indent=2))
    else:
        for found in answers:
            console.print(fitview.answer_screen(found))
            if what_if and found.exact is not None:
                console.print(fitview.boundary_table(found.boundaries))
    return 0 if any(_passes(found, strict=strict) for found in answers) else DOES_NOT_FIT


def _json(found: FitAnswer, *, what_if: bool) -> dict[str, Any]:
    shown = fitjson.answer_json(found)
    return shown | {"whatIf": fitjson.boundaries_json(found.boundaries)} if what_if else shown


def _passes(found: FitAnswer, *, strict: bool) -> bool:
    return found.fits and not (strict and found.marginal)


def _architecture_block(config: Path | None, model: str | None, weights: Path | None, quantization: str | None) -> str:
    from bayplan.cli.fitwrite import architecture_block  # noqa: PLC0415 - YAML is loaded for this alone

    return architecture_block(read_model(config=config, model=model, weights=weights, quantization=quantization))
