"""Weights on one rank: from a start log, from the checkpoint's headers, or from the format of each tensor class."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.memory.architecture import ModelArchitecture
from bayplan.planning.memory.formats import ExpertPadding, WeightFormat
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.memory.parameters import Content, Parameters, Sharding, TensorClass, parameters_of
from bayplan.planning.memory.safetensors import CheckpointSizes
from bayplan.planning.memory.terms import WEIGHTS, PlanTerm, Source
from bayplan.planning.numbers import GIB, InvalidInput, positive

VOCABULARY_PADDING = 64
"""The engine pads the vocabulary to this multiple before dividing it [vLLM `VocabParallelEmbedding`]."""
MOST_BITS_PER_WEIGHT = 66
LEAST_BITS_PER_WEIGHT = Fraction(1)


@dataclass(frozen=True, slots=True)
class MeasuredWeights:
    """What the engine's log says that one GPU loaded, in GiB, for exactly the layout that is asked about."""

    gib_per_gpu: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "gib_per_gpu", positive(self.gib_per_gpu, "weights_gib_per_gpu"))


WeightNumbers = MeasuredWeights | CheckpointSizes | WeightFormat
"""Where the weights' size comes from, best first."""


def check_consistent(model: ModelArchitecture, checkpoint: CheckpointSizes) -> None:
    """Raise InvalidInput when the bytes cannot be this model: below 1 or above 66 bits a weight, or other layers."""
    parameters = parameters_of(model).total
    bits = Fraction(8 * checkpoint.total_bytes, parameters)
    if not LEAST_BITS_PER_WEIGHT <= bits <= MOST_BITS_PER_WEIGHT:
        raise InvalidInput(
            "weights",
            f"{checkpoint.total_bytes} bytes contradict {parameters} parameters: {float(bits):.2f} bits for each",
        )
    if len(checkpoint.layer_bytes) != len(model.layers):
        raise InvalidInput(
            "num_hidden_layers", f"is {len(model.layers)} in config.json and {len(checkpoint.layer_bytes)} in the files"
        )


def class_bytes(
    items: Iterable[TensorClass],
    model: ModelArchitecture,
    weights: WeightFormat,
    ranks: ParallelLayout | None,
    padding: ExpertPadding | None = None,
) -> Fraction:
    """Bytes of tensor classes on one rank; without `ranks` all of them, unpadded and undivided."""
    total = Fraction(0)
    for item in items:
        bits = weights.bits(item, element_bytes=model.element_bytes, has_experts=model.has_experts)
        size = item.parameters * bits / 8 + weights.scale_bytes(item)
        if ranks is not None:
            size = size * _share(item, model, ranks)
            if item.content is Content.EXPERT and padding is not None and model.experts is not None:
                slices = 1 if ranks.expert_parallel else ranks.expert_ranks
                width = Fraction(model.experts.intermediate_size, slices)
                size *= padding.factor(intermediate=width, hidden=model.hidden_size)
        total += size
    return total


def _share(item: TensorClass, model: ModelArchitecture, ranks: ParallelLayout) -> Fraction:
    if item.sharding is Sharding.COPIED:
        return Fraction(1)
    if item.sharding is Sharding.EXPERTS:
        return Fraction(1, ranks.expert_ranks)
    if item.sharding is Sharding.KV_HEADS and model.attention is not None:
        return Fraction(1, min(ranks.tensor, model.attention.kv_heads))
    if item.content in {Content.EMBEDDING, Content.HEAD}:
        padded = -(-item.rows // VOCABULARY_PADDING) * VOCABULARY_PADDING
        return Fraction(padded, item.rows * ranks.tensor)
    return Fraction(1, ranks.tensor)


def stage_weights(
    model: ModelArchitecture,
    weights: WeightNumbers,
    ranks: ParallelLayout,
    *,
    padding: ExpertPadding | None = None,
    draft_layers: bool = False,
) -> tuple[PlanTerm, ...]:
    """The weights term of each pipeline stage.

    `draft_layers` loads the multi-token-prediction layers too, on the last stage. A measured load counts for every
    stage: the log of one GPU says nothing about the others. Raises InvalidInput for a checkpoint of another model.
    """
    stages = ranks.stages(len(model.layers))
    if isinstance(weights, MeasuredWeights):
        return tuple(
            PlanTerm(WEIGHTS, weights.gib_per_gpu * GIB, Source.MEASURED, "load size in the engine's log")
            for _ in stages
        )
    if isinstance(weights, CheckpointSizes):
        check_consistent(model, weights)
    seen: dict[int, tuple[tuple[TensorClass, ...], Fraction]] = {}
    return tuple(
        _stage(model, weights, ranks, stage, padding=padding, draft_layers=draft_layers, seen=seen) for stage in stages
    )


Part = tuple[tuple[TensorClass, ...], int]
"""Tensor classes, and their bytes in the checkpoint's headers."""


def _stage(
    model: ModelArchitecture,
    weights: CheckpointSizes | WeightFormat,
    ranks: ParallelLayout,
    stage: range,
    *,
    padding: ExpertPadding | None,
    draft_layers: bool,
    seen: dict[int, tuple[tuple[TensorClass, ...], Fraction]],
) -> PlanTerm:
    """The term of one stage; `seen` holds what layers of a kind take on a rank, the same on every stage."""
    sizes = weights if isinstance(weights, CheckpointSizes) else None
    parts = _parts(model, sizes, ranks, stage, draft_layers=draft_layers)
    inputs = (
        ("parameters", str(parameters_of(model).total)),
        ("tensor", str(ranks.tensor)),
        ("stage layers", f"{stage.start} to {stage.stop - 1}"),
    )
    if isinstance(weights, CheckpointSizes):
        return PlanTerm(
            WEIGHTS,
            sum((size * _rank_share(items, model, ranks, padding) for items, size in parts), start=Fraction(0)),
            Source.HEADER_SUM,
            "bytes in the tensor headers, divided over the ranks as their classes are",
            (*inputs, ("header bytes", str(weights.total_bytes))),
        )
    # Layers of a kind are one tuple: counted by identity, which is cheaper than by their many classes.
    number = Counter(id(items) for items, _ in parts)
    for items, _ in parts:
        if id(items) not in seen:
            seen[id(items)] = (items, class_bytes(items, model, weights, ranks, padding))
    total = sum((times * seen[kind][1] for kind, times in number.items()), start=Fraction(0))
    return PlanTerm(
        WEIGHTS,
        total,
        Source.ESTIMATED,
        f"parameters by tensor class × bits of {weights.name}, divided over the ranks",
        (*inputs, ("format", weights.name)),
        band_bytes=total * weights.band,
    )


def _parts(
    model: ModelArchitecture,
    sizes: CheckpointSizes | None,
    ranks: ParallelLayout,
    stage: range,
    *,
    draft_layers: bool,
) -> list[Part]:
    """What one stage loads. A tied embedding is needed on the first stage and, as the head, on the last."""
    counted = parameters_of(model)
    first, last = stage.start == 0, stage.stop == len(model.layers)
    parts: list[Part] = []
    if first or (last and model.tied_embeddings and ranks.pipeline > 1):
        parts.append((counted.embedding, sizes.embedding_bytes if sizes else 0))
    parts += _layer_parts(counted, sizes, stage)
    if last:
        kept = tuple(item for item in counted.head if not (model.stores_tied_head and item.content is Content.HEAD))
        parts.append((kept, 0 if sizes is None or model.stores_tied_head else sizes.head_bytes))
        if draft_layers:
            parts.append((counted.mtp, sizes.mtp_bytes if sizes else 0))
    return parts


def _layer_parts(counted: Parameters, sizes: CheckpointSizes | None, stage: range) -> list[Part]:
    """The layers of a stage; with headers, layers of equal classes are added up."""
    if sizes is None:
        return [(counted.layers[index], 0) for index in stage]
    by_kind: dict[tuple[TensorClass, ...], int] = {}
    for index in stage:
        items = counted.layers[index]
        by_kind[items] = by_kind.get(items, 0) + sizes.layer_bytes[index]
    return list(by_kind.items())


_PLAIN = WeightFormat("plain", everything_bits=Fraction(8))


def _rank_share(
    items: tuple[TensorClass, ...], model: ModelArchitecture, ranks: ParallelLayout, padding: ExpertPadding | None
) -> Fraction:
    """Part of these tensors that one rank holds."""
    whole = class_bytes(items, model, _PLAIN, None)
    return Fraction(1) if not whole else class_bytes(items, model, _PLAIN, ranks, padding) / whole


def measured_for(
    weights: MeasuredWeights, model: ModelArchitecture, *, measured: ParallelLayout, wanted: ParallelLayout
) -> MeasuredWeights:
    """A measured load carried over to another layout, in proportion to what the first stage's rank holds."""

    def held(ranks: ParallelLayout) -> Fraction:
        stage = ranks.stages(len(model.layers))[0]
        parts = _parts(model, None, ranks, stage, draft_layers=False)
        return sum((class_bytes(items, model, _PLAIN, ranks) for items, _ in parts), start=Fraction(0))

    return MeasuredWeights(weights.gib_per_gpu * held(wanted) / held(measured))
