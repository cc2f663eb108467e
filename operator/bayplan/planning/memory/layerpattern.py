"""Which kind of layer stands where: config.json files say it in half a dozen ways."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bayplan.planning.memory.architecture import Mixer
from bayplan.planning.memory.families import Family
from bayplan.planning.numbers import InvalidInput

if TYPE_CHECKING:
    from bayplan.planning.memory.modelconfig import ConfigFields

_LAYER_TYPES = {
    "full_attention": Mixer.FULL,
    "attention": Mixer.FULL,
    "sliding_attention": Mixer.SLIDING,
    "chunked_attention": Mixer.CHUNKED,
    "linear_attention": Mixer.GATED_DELTA,
}
_NEMOTRON = {"M": Mixer.MAMBA, "*": Mixer.FULL, "-": Mixer.NONE, "E": Mixer.NONE}


def layer_mixers(fields: "ConfigFields", family: Family, *, layers: int, latent: bool) -> tuple[Mixer, ...]:
    """The mixer of each layer, first to last.

    In this order: a Nemotron pattern string, `layer_types`, an interval of full attention, MLA, and the window or chunk
    of the family. Raises InvalidInput for a list that does not have `layers` entries or has an unknown one.
    """
    pattern = fields.raw("hybrid_override_pattern")
    if pattern is not None:
        return _by_letter(pattern, layers)
    types = fields.raw("layer_types")
    if types is not None:
        # A class with latent attention keeps one vector per token in its "full" layers too.
        named = _by_name(types, layers)
        return tuple(Mixer.LATENT if latent and mixer is Mixer.FULL else mixer for mixer in named)
    if latent:
        return (Mixer.LATENT,) * layers
    interval = fields.number("full_attention_interval")
    if interval is not None:
        return _every(interval, "full_attention_interval", Mixer.GATED_DELTA, layers)
    if fields.number("attention_chunk_size") is not None:
        return _every(family.layer_period or 1, "no_rope_layer_interval", Mixer.CHUNKED, layers)
    return _windowed(fields, family, layers)


def _by_letter(pattern: object, layers: int) -> tuple[Mixer, ...]:
    if not isinstance(pattern, str) or len(pattern) != layers or set(pattern) - set(_NEMOTRON):
        raise InvalidInput("hybrid_override_pattern", f"must be {layers} letters of {''.join(_NEMOTRON)}")
    return tuple(_NEMOTRON[letter] for letter in pattern)


def _by_name(types: object, layers: int) -> tuple[Mixer, ...]:
    if not isinstance(types, Sequence) or isinstance(types, str) or len(types) != layers:
        raise InvalidInput("layer_types", f"must list all {layers} layers")
    unknown = [name for name in types if not isinstance(name, str) or name not in _LAYER_TYPES]
    if unknown:
        raise InvalidInput("layer_types", f"must be one of {', '.join(_LAYER_TYPES)}, not {str(unknown[0])[:40]}")
    return tuple(_LAYER_TYPES[name] for name in types)


def _windowed(fields: "ConfigFields", family: Family, layers: int) -> tuple[Mixer, ...]:
    window = fields.number("sliding_window")
    if window is None or not (family.window_always or fields.flag("use_sliding_window")):
        return (Mixer.FULL,) * layers
    first = fields.number("max_window_layers") or 0
    if not family.window_always and first:
        return tuple(Mixer.FULL if index < first else Mixer.SLIDING for index in range(layers))
    period = fields.number("sliding_window_pattern") or family.layer_period
    if period is None:
        return (Mixer.SLIDING,) * layers
    return _every(period, "sliding_window_pattern", Mixer.SLIDING, layers)


def _every(period: int, name: str, other: Mixer, layers: int) -> tuple[Mixer, ...]:
    """Full attention in each `period`-th layer, `other` elsewhere."""
    if period < 1:
        raise InvalidInput(name, f"must be at least 1, not {period}")
    return tuple(Mixer.FULL if (index + 1) % period == 0 else other for index in range(layers))
