"""What `bayplan fit` asks: a model, a GPU and an engine's flags, from a command line or a manifest.

Nothing here needs a cluster or a network. The API's schemas are loaded only for a manifest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayplan.cli.modelfiles import read_checkpoint, read_config
from bayplan.planning.layout.knownmodel import KnownModel, from_catalogue, from_config, named_format
from bayplan.planning.layout.links import StepFacts, step_facts
from bayplan.planning.layout.rules import RuleFacts
from bayplan.planning.layout.search import Site, Wanted
from bayplan.planning.layout.split import Layout
from bayplan.planning.memory.catalogue import catalogue_model
from bayplan.planning.memory.formats import WeightFormat, weight_format
from bayplan.planning.memory.gpucatalogue import Gpu, gpu_catalogue, gpus_spelt, unlisted_gpu
from bayplan.planning.memory.modelconfig import parse_config
from bayplan.planning.memory.replica import SplitMemory, replica_memory
from bayplan.planning.memory.request import EngineFlags, PlanRequest
from bayplan.planning.memory.safetensors import CheckpointSizes
from bayplan.planning.memory.weights import WeightNumbers
from bayplan.planning.numbers import InvalidInput, exact, positive

if TYPE_CHECKING:
    from bayplan.api.inferencemodel import InferenceModelSpec

MAX_MANIFEST_BYTES = 4 * 2**20


ENGINES = ("vllm", "sglang", "tensorrt-llm")


@dataclass(frozen=True, slots=True)
class EngineBudget:
    """Which engine divides the GPU, and the share that its own flag gives the cache. Raises InvalidInput."""

    engine: str = "vllm"
    fraction: Fraction | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise InvalidInput("engine", f"must be one of {', '.join(ENGINES)}, not {self.engine[:30]!r}")
        if self.fraction is not None and self.engine == "vllm":
            raise InvalidInput("engine", "vLLM takes --gpu-memory-utilization instead of a fraction")


@dataclass(frozen=True, slots=True)
class FitQuestion:
    """One model on one GPU product, with whatever layout is left open."""

    gpu: Gpu
    site: Site
    wanted: Wanted
    facts: RuleFacts
    step: StepFacts | None
    memory_of: Callable[[Layout], SplitMemory]
    flags: EngineFlags
    weights: WeightNumbers | None
    """None where only five numbers are known."""
    source: str
    known: KnownModel | None = None
    remarks: tuple[str, ...] = ()
    concurrency: int = 1
    overhead_gib: Fraction | None = None
    budget: EngineBudget = field(default_factory=EngineBudget)

    def on(self, gpu: Gpu, gpus_per_node: int) -> "FitQuestion":
        """The same question about another GPU; only for a model whose architecture is known."""
        if self.known is None:
            raise InvalidInput(
                "compare-gpus", "needs a model whose architecture is known: a config or a catalogue name"
            )
        return known_question(
            self.known,
            gpu,
            site=Site((gpus_per_node,), gpu=gpu.name),
            wanted=self.wanted,
            flags=self.flags,
            concurrency=self.concurrency,
            overhead_gib=self.overhead_gib,
            budget=self.budget,
        )


def known_question(
    known: KnownModel,
    gpu: Gpu,
    *,
    site: Site,
    wanted: Wanted,
    flags: EngineFlags,
    concurrency: int,
    overhead_gib: Fraction | None = None,
    budget: EngineBudget | None = None,
) -> FitQuestion:
    """The question about a model whose architecture is known.

    Raises InvalidInput for speculation with prediction layers that the model does not have.
    """
    if flags.speculative_tokens and not known.architecture.mtp_layers:
        raise InvalidInput(
            "speculative-tokens",
            f"{known.architecture.name} states no prediction layers of its own; leave the flag out",
        )

    def memory_of(layout: Layout) -> SplitMemory:
        return replica_memory(
            PlanRequest(
                known.architecture,
                known.weights,
                gpu,
                layout.ranks,
                flags,
                concurrency,
                overhead_gib=overhead_gib,
                checkpoint_cache_dtype=known.cache_dtype,
            )
        )

    return FitQuestion(
        gpu=gpu,
        site=site,
        wanted=wanted,
        facts=known.facts,
        step=step_facts(known.architecture, sequences=concurrency),
        memory_of=memory_of,
        flags=flags,
        weights=known.weights,
        source=known.source,
        known=known,
        concurrency=concurrency,
        overhead_gib=overhead_gib,
        budget=budget or EngineBudget(),
    )


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What of a model was read: its config.json or its name in the catalogue, and its tensor headers."""

    config: Mapping[str, Any] | None
    name: str
    stated: WeightFormat | None
    sizes: CheckpointSizes | None

    def known(self) -> KnownModel:
        """The model. Raises InvalidInput and UnknownArchitecture."""
        if self.config is not None:
            return from_config(self.config, stated=self.stated, sizes=self.sizes)
        return from_catalogue(catalogue_model(self.name), stated=self.stated, sizes=self.sizes)


def read_model(*, config: Path | None, model: str | None, weights: Path | None, quantization: str | None) -> ModelFiles:
    """The model of `--config` or `--model`, with the tensor headers of `--weights`.

    `--model` is a name of the catalogue, or a folder with config.json and safetensors files. Raises InvalidInput and
    UnknownArchitecture.
    """
    if (config is None) == (model is None):
        raise InvalidInput("model", "state one of --config FILE, --model NAME or FOLDER, or a manifest with --filename")
    name = model or ""
    if Path(name).is_dir() and (Path(name) / "config.json").is_file():
        config = Path(name) / "config.json"
        weights = Path(name) if weights is None and any(Path(name).glob("*.safetensors")) else weights
    document = None if config is None else read_config(config)
    stated = None if quantization is None else weight_format(quantization)
    if document is None:
        found = catalogue_model(name)
        packed = named_format(name) if stated is None and found.name.lower() != name.lower() else None
        stated = stated if packed is None else weight_format(packed)
        model_of = found.architecture
    else:
        model_of = parse_config(document)
    sizes = None
    if weights is not None:
        sizes = read_checkpoint(weights, layers=len(model_of.layers), prediction_layers=model_of.mtp_layers)
    return ModelFiles(document, name, stated, sizes)


def read_gpu(name: str | None, *, memory_gib: str | None) -> Gpu:
    """The GPU of `--gpu`; `--gpu-memory-gib` overrides what the driver shows, and is enough for an unknown one.

    Raises InvalidInput for a name that is not known and no memory, naming the known ones.
    """
    if name is None:
        raise InvalidInput("gpu", "state --gpu NAME; --compare-gpus lists the known ones")
    memory = None if memory_gib is None else positive(number(memory_gib, "gpu-memory-gib"), "gpu-memory-gib")
    found = gpus_spelt(name)
    if not found:
        if memory is None:
            known = ", ".join(gpu.name for gpu in gpu_catalogue())
            raise InvalidInput("gpu", f"{name[:60]!r} is not known; state --gpu-memory-gib, or use one of {known}")
        return unlisted_gpu(name, memory)
    return found[0] if memory is None else found[0].overridden(visible_gib=memory)


def number(text: str, name: str) -> Fraction:
    """A number as written. Raises InvalidInput for anything that is none."""
    try:
        return exact(Decimal(text), name)
    except InvalidOperation:
        raise InvalidInput(name, f"must be a number, not {text[:40]!r}") from None


def read_manifest(path: Path) -> "InferenceModelSpec":
    """The spec of the one InferenceModel in a YAML or JSON file. Raises InvalidInput with every fault of the spec."""
    import yaml  # noqa: PLC0415 - loaded for a manifest alone

    from bayplan.api.inferencemodel import InferenceModelSpec  # noqa: PLC0415
    from bayplan.api.names import INFERENCEMODEL_KIND  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise InvalidInput(str(path), f"is longer than {MAX_MANIFEST_BYTES} bytes")
    try:
        documents = [one for one in yaml.safe_load_all(data) if isinstance(one, dict)]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidInput(str(path), f"is not valid YAML: {str(error)[:200]}") from error
    models = [one for one in documents if one.get("kind") == INFERENCEMODEL_KIND]
    if len(models) != 1:
        raise InvalidInput(str(path), f"holds {len(models)} objects of kind {INFERENCEMODEL_KIND}; one is needed")
    raw = models[0].get("spec")
    try:
        return InferenceModelSpec.model_validate(raw, by_alias=True, by_name=False)
    except ValueError:
        from bayplan.api.validation import parse_spec  # noqa: PLC0415 - its words, and the schemas of all kinds

        faults = parse_spec(raw)
        text = "; ".join(str(fault) for fault in faults) if isinstance(faults, list) else "is not valid"
        raise InvalidInput(str(path), text) from None


def manifest_question(spec: "InferenceModelSpec", gpu: Gpu, site: Site) -> FitQuestion:
    """The question that the operator would ask about `spec` on nodes of `gpu`.

    Raises InvalidInput for numbers that contradict each other, and where nothing is known of the model.
    """
    from bayplan.planning.layout.asked import wanted_of  # noqa: PLC0415 - the API's schemas, for a manifest alone
    from bayplan.planning.layout.engineflags import engine_flags  # noqa: PLC0415
    from bayplan.planning.layout.memorytext import counted_memory  # noqa: PLC0415
    from bayplan.planning.layout.modelnumbers import UnknownModel, counted_step, model_faults  # noqa: PLC0415
    from bayplan.planning.layout.modelnumbers import read_model as read_numbers  # noqa: PLC0415

    faults = model_faults(spec)
    if faults:
        raise InvalidInput("manifest", "; ".join(str(fault) for fault in faults))
    numbers, flags, wanted = read_numbers(spec), engine_flags(spec), wanted_of(spec)
    overhead = spec.engine.memory_overhead_gib
    if isinstance(numbers, UnknownModel):
        raise InvalidInput("model.architecture", numbers.message)
    if isinstance(numbers, KnownModel):
        return known_question(
            numbers,
            gpu,
            site=site,
            wanted=wanted,
            flags=flags,
            concurrency=spec.concurrency,
            overhead_gib=None if overhead is None else Fraction(overhead),
        )
    return FitQuestion(
        gpu=gpu,
        site=site,
        wanted=wanted,
        facts=numbers.facts,
        step=counted_step(numbers, sequences=spec.concurrency),
        memory_of=lambda layout: counted_memory(spec, numbers, gpu_memory_gib=gpu.visible_gib, split=layout),
        flags=flags,
        weights=None,
        source="five numbers of the manifest",
        remarks=("five numbers say nothing of activation, sampler and graphs: one estimate stands for them",),
        concurrency=spec.concurrency,
    )
