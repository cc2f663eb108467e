"""Models whose layers were searched one by one: DeciLM, which Nemotron-Super and Nemotron-Ultra are of."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from bayplan.planning.memory.architecture import FeedForward, Layer, Mixer, UnknownArchitecture
from bayplan.planning.numbers import InvalidInput, whole

_WIDTH_MULTIPLE = 256


def searched_layers(blocks: object, *, name: str, layers: int, hidden: int) -> tuple[tuple[Layer, ...], int | None]:
    """The layers, and how many query heads share a KV head; None where no layer has attention.

    Raises InvalidInput for a list that is not one object per layer, UnknownArchitecture for kinds of layers whose cache
    is not known: linear ones, windows, and groups of heads that differ between layers.
    """
    if not isinstance(blocks, Sequence) or isinstance(blocks, str) or len(blocks) != layers:
        raise InvalidInput("block_configs", f"must list all {layers} layers")
    groups: set[int] = set()
    found = []
    for block in blocks:
        attention, feed_forward = (_part(block, part) for part in ("attention", "ffn"))
        for part in (attention, feed_forward):
            unknown = [field for field in ("replace_with_linear", "window_length", "sparsify") if part.get(field)]
            if unknown:
                raise UnknownArchitecture(name, ("block_configs",), f"{name} has blocks with {unknown[0]}")
        mixer = Mixer.NONE
        if not attention.get("no_op"):
            mixer = Mixer.FULL
            groups.add(_positive(attention, "n_heads_in_group"))
        width = None if feed_forward.get("no_op") else _width(feed_forward, hidden)
        found.append(Layer(mixer, FeedForward.NONE if width is None else FeedForward.DENSE, width))
    if len(groups) > 1:
        raise UnknownArchitecture(name, ("block_configs",), f"{name} has layers that differ in n_heads_in_group")
    return tuple(found), next(iter(groups), None)


def _part(block: object, name: str) -> Mapping[str, Any]:
    part = block.get(name) if isinstance(block, Mapping) else None
    if not isinstance(part, Mapping):
        raise InvalidInput("block_configs", f"must have an object {name} in every layer")
    return part


def _positive(part: Mapping[str, Any], name: str) -> int:
    value = whole(part.get(name), f"block_configs.{name}")
    if value < 1:
        raise InvalidInput(f"block_configs.{name}", f"must be at least 1, not {value}")
    return value


def _width(part: Mapping[str, Any], hidden: int) -> int:
    """Inner width: stated, or 2/3 of a multiple of the hidden size, rounded up [vLLM `nemotron_nas.py`]."""
    factor = part.get("ffn_mult")
    if factor is None:
        return _positive(part, "intermediate_size")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < _WIDTH_MULTIPLE:
        raise InvalidInput("block_configs.ffn_mult", f"must be a number above 0, not {str(factor)[:40]}")
    width = int(2 * Fraction(factor) * hidden / 3)
    return -(-width // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
