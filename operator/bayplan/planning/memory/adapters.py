"""Adapter slots: memory that LoRA takes before any adapter is loaded."""

from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.memory.architecture import FeedForward, Mixer, ModelArchitecture
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.numbers import count

_ATTENTION = frozenset({Mixer.FULL, Mixer.SLIDING, Mixer.CHUNKED})


@dataclass(frozen=True, slots=True)
class AdapterSlots:
    """`--max-loras` and `--max-lora-rank`. Raises InvalidInput below 1."""

    max_loras: int
    max_lora_rank: int

    def __post_init__(self) -> None:
        count(self.max_loras, "max_loras")
        count(self.max_lora_rank, "max_lora_rank")


def adapter_bytes(model: ModelArchitecture, slots: AdapterSlots, ranks: ParallelLayout, stage: range) -> Fraction:
    """Bytes of all slots on one rank of a stage.

    Each adapted matrix in × out has slots × rank × (in + out) elements. The first factor of a column-parallel layer
    (query, key, value, gate, up) is copied to every rank and its second is divided; a row-parallel layer (output, down)
    has it the other way round [vLLM `lora/layers`]. Experts and states are not adapted.
    """
    shape, hidden, tensor = model.attention, model.hidden_size, ranks.tensor
    elements = Fraction(0)
    for index in stage:
        layer = model.layers[index]
        if shape is not None and layer.mixer in _ATTENTION:
            kv_heads, head_dim = shape.of(layer.mixer)
            queries, keys = shape.heads * head_dim, kv_heads * head_dim
            elements += 3 * hidden + Fraction(queries, tensor) + 2 * Fraction(keys, min(tensor, kv_heads))
            elements += Fraction(queries, tensor) + hidden
        if layer.feed_forward is FeedForward.DENSE and model.intermediate_size is not None:
            width = Fraction(model.intermediate_size, tensor)
            columns = 2 if model.traits.gated_mlp else 1
            elements += columns * (hidden + width) + width + hidden
    return slots.max_loras * slots.max_lora_rank * elements * model.element_bytes
