"""vLLM's command line, as far as it changes what a client or an operator sees of an engine.

A flag that vLLM does not have ends the process with status 2, as it ends vLLM: a typing error in `engine.args` must not
look like a working model here. Flags of vLLM without an effect here are accepted; their names are logged and their
values are not (an API key may be among them).
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DEFAULT_PORT = 8000
DEFAULT_MASTER_PORT = 29501


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags that have an effect here, under vLLM's names."""

    model: str
    served_model_name: tuple[str, ...]
    host: str
    port: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    block_size: int
    enable_prefix_caching: bool
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    headless: bool
    shutdown_timeout: int
    enable_server_load_tracking: bool
    ignored: tuple[str, ...]


def parse_flags(arguments: Sequence[str]) -> Flags:
    """Read `[serve] [MODEL] --flag value …`; both `--max-model-len` and `--max_model_len` will do.

    Exits with status 2 and a message that names the flag, as argparse does, also where vLLM has no such flag.
    """
    parser = engine_parser()
    words = arguments[1:] if arguments and arguments[0] == "serve" else arguments
    space = parser.parse_intermixed_args([normal for word in words for normal in _normal(word)])
    model = space.model_flag or space.model
    if not model:
        parser.error("no model: pass `serve MODEL` or `--model MODEL`")
    if space.headless != (space.node_rank > 0):
        parser.error(f"--headless: goes with --node-rank above 0 and only with it, got --node-rank {space.node_rank}")
    if space.node_rank >= space.nnodes:
        parser.error(f"--node-rank: {space.node_rank} is not below --nnodes {space.nnodes}")
    if space.headless and not space.master_addr:
        parser.error("--master-addr: a headless rank needs the address of rank 0")
    if space.gpu_memory_utilization > 1:
        parser.error(f"--gpu-memory-utilization: {space.gpu_memory_utilization} is not in (0, 1]")
    batched = space.max_num_batched_tokens
    return Flags(
        model=model,
        served_model_name=tuple(space.served_model_name or (model,)),
        host=space.host,
        port=space.port,
        max_model_len=space.max_model_len,
        max_num_seqs=space.max_num_seqs,
        max_num_batched_tokens=max(2048, space.max_num_seqs) if batched is None else batched,
        gpu_memory_utilization=space.gpu_memory_utilization,
        kv_cache_dtype=space.kv_cache_dtype,
        block_size=space.block_size,
        enable_prefix_caching=space.enable_prefix_caching,
        tensor_parallel_size=space.tensor_parallel_size,
        pipeline_parallel_size=space.pipeline_parallel_size,
        data_parallel_size=space.data_parallel_size,
        nnodes=space.nnodes,
        node_rank=space.node_rank,
        master_addr=space.master_addr,
        master_port=space.master_port,
        headless=space.headless,
        shutdown_timeout=space.shutdown_timeout,
        enable_server_load_tracking=space.enable_server_load_tracking,
        ignored=space.ignored,
    )


def engine_parser() -> argparse.ArgumentParser:
    """Return the parser with every spelling of every flag that the engine has."""
    parser = argparse.ArgumentParser(
        prog="enginesim",
        usage="%(prog)s [serve] [MODEL] [flags of vLLM]",
        description="A look-alike of vLLM's server. Speed, load times and faults: see e2e/enginesim/settings.py.",
        epilog="Other flags of vLLM are accepted and have no effect.",
    )
    parser.set_defaults(ignored=())
    parser.add_argument("model", nargs="?", help="model, after the optional word `serve`")
    parser.add_argument("--model", dest="model_flag")
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--host", default="127.0.0.1", help="default %(default)s (vLLM: every interface)")
    parser.add_argument("--port", type=_bounded(0), default=DEFAULT_PORT)
    parser.add_argument("--max-model-len", type=_tokens, default=8192)
    parser.add_argument("--max-num-seqs", type=_tokens, default=128)
    parser.add_argument("--max-num-batched-tokens", type=_tokens)
    parser.add_argument("--gpu-memory-utilization", "--device-memory-utilization", type=_positive_float, default=0.92)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--block-size", type=_bounded(1), default=16)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--tensor-parallel-size", "-tp", type=_bounded(1), default=1)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=_bounded(1), default=1)
    parser.add_argument("--data-parallel-size", "-dp", type=_bounded(1), default=1)
    parser.add_argument("--nnodes", "-n", type=_bounded(1), default=1)
    parser.add_argument("--node-rank", "-r", type=_bounded(0), default=0)
    parser.add_argument("--master-addr", default="")
    parser.add_argument("--master-port", type=_bounded(1), default=DEFAULT_MASTER_PORT)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--shutdown-timeout", type=_bounded(0), default=0)
    parser.add_argument("--enable-server-load-tracking", action=argparse.BooleanOptionalAction, default=False)
    for takes, *spellings in _ignored_flags():
        nargs = {"0": 0, "1": None}.get(takes, takes)
        parser.add_argument(*spellings, action=_Ignored, nargs=nargs, help=argparse.SUPPRESS)
    return parser


@cache
def _ignored_flags() -> tuple[tuple[str, ...], ...]:
    """(values that it takes, spellings…) of each flag without an effect."""
    lines = Path(__file__).with_name("vllm_flags.txt").read_text(encoding="utf-8").splitlines()
    return tuple(tuple(line.split()) for line in lines if line and not line.startswith("#"))


class _Ignored(argparse.Action):
    """Keeps the name of a flag without an effect, and not its value."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, **options)

    def __call__(self, _parser: object, namespace: argparse.Namespace, _values: Any, option: str | None = None) -> None:
        namespace.ignored = (*namespace.ignored, option)


def _normal(word: str) -> tuple[str, ...]:
    """The word as argparse shall see it: dashes in a flag's name, `--flag.member` as the flag, `-O3` spelled out."""
    name, equals, value = word.partition("=")
    if name.startswith("-O") and len(word) > 2:
        return "--optimization-level", value if equals else name[2:]
    if name.startswith("--"):
        return (name.partition(".")[0].replace("_", "-") + equals + value,)
    short, dot, _ = name.partition(".")
    return (short + equals + value if dot and re.fullmatch("-[a-z]+", short) else word,)


def _bounded(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is not at least {least}")
        return value

    convert.__name__ = "int"
    return convert


def _positive_float(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def _tokens(text: str) -> int:
    """A count such as 8192, 8k (thousands) or 8K (1024s), as vLLM reads them."""
    factors = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}
    factor = factors.get(text[-1:], 1)
    try:
        value = float(text[:-1]) * factor if factor > 1 else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count such as 8192, 8k or 8K") from None
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(value)
