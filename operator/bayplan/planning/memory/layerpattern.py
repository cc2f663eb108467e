"""Which kind of layer stands where: config.json files say it in half a dozen ways."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from bayplan.planning.memory.architecture import Mixer
from bayplan.planning.memory.configfields import ConfigFields
from bayplan.planning.memory.families import Family
from bayplan.planning.numbers import InvalidInput

_LAYER_TYPES = {
    "full_attention": Mixer.FULL,
    "attention": Mixer.FULL,
    "sliding_attention": Mixer.SLIDING,
    "chunked_attention": Mixer.CHUNKED,
    "linear_attention": Mixer.GATED_DELTA,
    "mamba": Mixer.MAMBA,
    "conv": Mixer.SHORT_CONVOLUTION,
}
_RATIOS = {0: Mixer.LATENT_WINDOW, 1: Mixer.LATENT_WINDOW, 4: Mixer.LATENT_SPARSE, 128: Mixer.LATENT_HEAVY}
_NEMOTRON_WORDS = {"mamba": Mixer.MAMBA, "attention": Mixer.FULL, "mlp": Mixer.NONE, "moe": Mixer.NONE}
_NEMOTRON = {"M": Mixer.MAMBA, "*": Mixer.FULL, "-": Mixer.NONE, "E": Mixer.NONE}


def layer_mixers(fields: ConfigFields, family: Family, *, layers: int, latent: bool) -> tuple[Mixer, ...]:
    """The mixer of each layer, first to last.

    In this order: a list of all layers, an interval of full attention, MLA, and the window or chunk
    of the family. Raises InvalidInput for a list that does not have `layers` entries or has an unknown one.
    """
    if family.parallel_mamba:
        return (Mixer.PARALLEL,) * layers
    for field, listed in _LISTED.items():
        stated = fields.raw(field)
        if stated is not None:
            # A class with latent attention keeps one vector per token in its "full" layers too.
            named = listed(stated, layers)
            return tuple(Mixer.LATENT if latent and mixer is Mixer.FULL else mixer for mixer in named)
    if latent:
        return (Mixer.LATENT,) * layers
    periodic = _periodic(fields, layers)
    if periodic:
        return periodic
    if fields.number("attention_chunk_size") is not None:
        return _every(family.layer_period or 1, "no_rope_layer_interval", Mixer.CHUNKED, layers)
    return _windowed(fields, family, layers)


def _by_letter(pattern: object, layers: int) -> tuple[Mixer, ...]:
    if not isinstance(pattern, str) or len(pattern) != layers or set(pattern) - set(_NEMOTRON):
        raise InvalidInput("hybrid_override_pattern", f"must be {layers} letters of {''.join(_NEMOTRON)}")
    return tuple(_NEMOTRON[letter] for letter in pattern)


def _by_word(words: object, layers: int) -> tuple[Mixer, ...]:
    if not isinstance(words, Sequence) or isinstance(words, str) or len(words) != layers:
        raise InvalidInput("layers_block_type", f"must list all {layers} layers")
    unknown = [word for word in words if not isinstance(word, str) or word not in _NEMOTRON_WORDS]
    if unknown:
        raise InvalidInput("layers_block_type", f"must be of {', '.join(_NEMOTRON_WORDS)}, not {str(unknown[0])[:40]}")
    return tuple(_NEMOTRON_WORDS[word] for word in words)


def _by_ratio(ratios: object, layers: int) -> tuple[Mixer, ...]:
    """DeepSeek-V4; the list may go on with the layers of multi-token prediction."""
    if not isinstance(ratios, Sequence) or isinstance(ratios, str) or len(ratios) < layers:
        raise InvalidInput("compress_ratios", f"must list all {layers} layers")
    unknown = [ratio for ratio in ratios[:layers] if isinstance(ratio, bool) or ratio not in _RATIOS]
    if unknown:
        raise InvalidInput("compress_ratios", f"must be of {', '.join(map(str, _RATIOS))}, not {str(unknown[0])[:40]}")
    return tuple(_RATIOS[ratio] for ratio in ratios[:layers])


def _by_name(types: object, layers: int) -> tuple[Mixer, ...]:
    if not isinstance(types, Sequence) or isinstance(types, str) or len(types) != layers:
        raise InvalidInput("layer_types", f"must list all {layers} layers")
    unknown = [name for name in types if not isinstance(name, str) or name not in _LAYER_TYPES]
    if unknown:
        raise InvalidInput("layer_types", f"must be one of {', '.join(_LAYER_TYPES)}, not {str(unknown[0])[:40]}")
    return tuple(_LAYER_TYPES[name] for name in types)


def _by_number(stated: object, layers: int) -> tuple[Mixer, ...]:
    """Kimi-Linear lists layers of each kind, counted from 1."""
    lists = [stated.get(name) if isinstance(stated, Mapping) else None for name in ("kda_layers", "full_attn_layers")]
    kinds: dict[object, Mixer] = {}
    for numbers, mixer in zip(lists, (Mixer.KIMI_DELTA, Mixer.FULL), strict=True):
        if isinstance(numbers, Sequence) and not isinstance(numbers, str):
            kinds.update({number: mixer for number in numbers if type(number) is int})
    if set(kinds) != set(range(1, layers + 1)) or sum(map(len, filter(None, lists))) != layers:
        raise InvalidInput("linear_attn_config", f"must list layers 1 to {layers} in kda_layers or full_attn_layers")
    return tuple(kinds[number] for number in range(1, layers + 1))


def _by_attention(stated: object, layers: int) -> tuple[Mixer, ...]:
    """LFM2 lists the layers with attention, counted from 0."""
    numbers = stated if isinstance(stated, Sequence) and not isinstance(stated, str) else [None]
    if any(type(number) is not int or not 0 <= number < layers for number in numbers):
        raise InvalidInput("full_attn_idxs", f"must list layers of 0 to {layers - 1}")
    return tuple(Mixer.FULL if index in numbers else Mixer.SHORT_CONVOLUTION for index in range(layers))


_LISTED: Mapping[str, Callable[[object, int], tuple[Mixer, ...]]] = MappingProxyType(
    {
        "hybrid_override_pattern": _by_letter,
        "layers_block_type": _by_word,
        "compress_ratios": _by_ratio,
        "linear_attn_config": _by_number,
        "layer_types": _by_name,
        "full_attn_idxs": _by_attention,
    }
)
"""Fields that say it layer by layer, the first one that is there counts."""


def _windowed(fields: ConfigFields, family: Family, layers: int) -> tuple[Mixer, ...]:
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


def _periodic(fields: ConfigFields, layers: int) -> tuple[Mixer, ...]:
    """Full attention at an interval among layers with states; Jamba says where the first one stands."""
    interval, period = fields.number("full_attention_interval"), fields.number("attn_layer_period")
    if interval is not None:
        return _every(interval, "full_attention_interval", Mixer.GATED_DELTA, layers)
    if period is None:
        return ()
    chosen = every_nth(period, fields.number("attn_layer_offset") or 0, "attn_layer_period", layers)
    return tuple(Mixer.FULL if own else Mixer.MAMBA_1 for own in chosen)


def every_nth(period: int, offset: int, name: str, layers: int) -> tuple[bool, ...]:
    """Which layers stand at `offset` in each `period`; raises InvalidInput for one outside."""
    if not 0 <= offset < period:
        raise InvalidInput(name, f"must be above the offset {offset} and at least 1, not {period}")
    return tuple(index % period == offset for index in range(layers))


def _every(period: int, name: str, other: Mixer, layers: int) -> tuple[Mixer, ...]:
    """Full attention in each `period`-th layer, `other` elsewhere."""
    if period < 1:
        raise InvalidInput(name, f"must be at least 1, not {period}")
    return tuple(Mixer.FULL if (index + 1) % period == 0 else other for index in range(layers))
