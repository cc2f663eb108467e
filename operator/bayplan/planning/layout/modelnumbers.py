"""What is known of the model of a spec: an architecture with its weights, five numbers, or nothing.

Sources, best first: the spec's own config, a name of the catalogue, five numbers; without any, the name of an hf://
address is looked up in the catalogue. Nothing is guessed: what is not known says which fields would make it known.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from bayplan.api.inferencemodel import Architecture, InferenceModelSpec, Model, WeightBytes
from bayplan.planning.layout.engineflags import engine_flags, read_arguments
from bayplan.planning.layout.knownmodel import KnownModel, from_catalogue, from_config, named_format
from bayplan.planning.layout.links import StepFacts
from bayplan.planning.layout.rules import RuleFacts
from bayplan.planning.memory import ModelShape
from bayplan.planning.memory.architecture import UnknownArchitecture
from bayplan.planning.memory.catalogue import find_model
from bayplan.planning.memory.formats import WeightFormat, weight_format
from bayplan.planning.memory.safetensors import CheckpointSizes, load_json
from bayplan.planning.memory.weights import LEAST_BITS_PER_WEIGHT, MOST_BITS_PER_WEIGHT
from bayplan.planning.numbers import InvalidInput

if TYPE_CHECKING:
    from bayplan.api.validation import FieldError

MAX_CONFIG_BYTES = 16 * 2**20
_FIELD = "model.architecture"
_NO_NUMBERS = (
    "state model.architecture with a catalogue name, a config (`bayplan fit --config FILE --write` makes it), or "
    "parameters, layers, attentionHeads, kvHeads and headDim"
)


@dataclass(frozen=True, slots=True)
class CountedModel:
    """Five numbers: exact for weights and grouped heads, silent about everything else."""

    shape: ModelShape
    facts: RuleFacts


@dataclass(frozen=True, slots=True)
class UnknownModel:
    """No numbers at all; `message` says what would make them known."""

    message: str
    needs: tuple[str, ...] = ()


ModelNumbers = KnownModel | CountedModel | UnknownModel


def read_model(spec: InferenceModelSpec) -> ModelNumbers:
    """The numbers of the spec's model. Raises InvalidInput, naming the field, for numbers that contradict."""
    return _read(spec.model, _runtime_format(spec))


def _runtime_format(spec: InferenceModelSpec) -> str:
    """The format of `--quantization` or `--dtype float32` among the engine's own arguments; "" without one."""
    return read_arguments(spec.engine.args).get("--quantization", "")


@lru_cache(maxsize=512)
def _read(model: Model, runtime: str) -> ModelNumbers:
    stated = model.architecture
    if stated is None:
        return _from_address(model, runtime)
    if stated.parameters is not None:
        return _counted(stated)
    if stated.name is not None:
        found = find_model(stated.name)
        if found is None:
            return UnknownModel(
                f"UnknownArchitecture: {stated.name!r} is not in the catalogue; {_NO_NUMBERS}", ("config",)
            )
        try:
            return from_catalogue(found, stated=_format(stated), sizes=_sizes(stated), quantization=_packed_by(runtime))
        except InvalidInput as error:
            raise InvalidInput(f"{_FIELD}.weightBytes", error.message) from error
    return _from_config(stated, runtime)


def _from_address(model: Model, runtime: str) -> ModelNumbers:
    scheme, _, name = model.uri.partition("://")
    found = find_model(name) if scheme == "hf" else None
    if found is None:
        return UnknownModel(f"UnknownArchitecture: nothing is known of {model.uri}; {_NO_NUMBERS}", ("architecture",))
    kind = None if found.name.lower() == name.lower() else named_format(name)
    packed = None if kind is None else weight_format(kind)
    return from_catalogue(found, stated=packed, quantization=_packed_by(runtime))


def _from_config(stated: Architecture, runtime: str) -> ModelNumbers:
    field = f"{_FIELD}.config"
    document = load_json((stated.config or "").encode(), name=field, limit=MAX_CONFIG_BYTES)
    try:
        return from_config(document, stated=_format(stated), sizes=_sizes(stated), quantization=_packed_by(runtime))
    except UnknownArchitecture as error:
        return UnknownModel(f"UnknownArchitecture: {error.message}", error.needs)
    except InvalidInput as error:
        raise InvalidInput(field, str(error)) from error


def _sizes(stated: Architecture) -> CheckpointSizes | None:
    return None if stated.weight_bytes is None else checkpoint(stated.weight_bytes)


def _format(stated: Architecture) -> WeightFormat | None:
    return None if stated.weight_format is None else weight_format(stated.weight_format)


def _packed_by(runtime: str) -> str:
    """`--quantization` as far as its bits are known; the engine will refuse what nobody knows."""
    try:
        return weight_format(runtime).name if runtime else ""
    except InvalidInput:
        return ""


def checkpoint(stated: WeightBytes) -> CheckpointSizes:
    """The bytes of a spec as header sums."""
    return CheckpointSizes(stated.embedding, stated.head, stated.layers, stated.prediction)


def _counted(stated: Architecture) -> CountedModel:
    parameters, layers = stated.parameters or 1, stated.layers or 1
    kv_heads, heads = stated.kv_heads or 1, stated.attention_heads
    bits = Fraction(stated.weight_bits)
    if stated.weight_bytes is not None:
        sizes = checkpoint(stated.weight_bytes)
        if len(sizes.layer_bytes) != layers:
            raise InvalidInput(
                f"{_FIELD}.weightBytes.layers", f"lists {len(sizes.layer_bytes)} layers, and layers is {layers}"
            )
        bits = Fraction(8 * sizes.total_bytes, parameters)
        if not LEAST_BITS_PER_WEIGHT <= bits <= MOST_BITS_PER_WEIGHT:
            raise InvalidInput(
                f"{_FIELD}.weightBytes",
                f"{sizes.total_bytes} bytes contradict {parameters} parameters: {float(bits):.2f} bits for each",
            )
    shape = ModelShape(
        parameters=parameters,
        weight_bits=bits,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=stated.head_dim or 1,
    )
    return CountedModel(shape, RuleFacts(layers=layers, heads=heads, kv_heads=(kv_heads,)))


def counted_step(model: CountedModel, *, sequences: int) -> StepFacts:
    """What a decode step of `sequences` moves, as far as five numbers tell: the heads stand for the hidden size."""
    width = (model.facts.heads or 1) * model.shape.head_dim
    return StepFacts(width, model.shape.layers, 0, width, sequences)


def model_faults(spec: InferenceModelSpec) -> "list[FieldError]":
    """What is wrong with the numbers of model and engine, for the condition `Accepted`: no schema sees it."""
    found = []
    try:
        read_model(spec)
    except InvalidInput as error:
        found.append((f"spec.{error.field}", error.message))
    try:
        engine_flags(spec)
    except InvalidInput as error:
        found.append(("spec.engine.args", str(error)))
    if not found:
        return []
    from bayplan.api.validation import FieldError  # noqa: PLC0415 - it loads the schemas of all kinds

    return [FieldError(path=path, message=message) for path, message in found]
