"""What each layer keeps per request on one rank: bytes per token, or a state of fixed size."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from bayplan.planning.memory.architecture import COMPRESSED_MIXERS, STATE_MIXERS, Mixer, ModelArchitecture
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.numbers import InvalidInput, count

INDEXER_GROUP = 128
"""Elements of the sparse indexer's keys that share a 4-byte scale; the keys themselves are fp8."""
NVFP4_GROUP = 16
"""Elements that share an fp8 scale in an NVFP4 cache."""
PACKED_LATENT_GROUP = 128

_ELEMENT_BYTES: Mapping[str, int | None] = MappingProxyType(
    {
        "auto": None,
        "bfloat16": None,
        "bf16": None,
        "float16": None,
        "fp16": None,
        "float32": 4,
        "fp8": 1,
        "fp8_e4m3": 1,
        "fp8_e5m2": 1,
        "fp8_ds_mla": 1,
        "nvfp4": 0,
    }
)
"""Bytes of an element by `--kv-cache-dtype`; None follows the model, 0 is packed in groups."""


_STATE_ELEMENT_BYTES: Mapping[str, int | None] = MappingProxyType(
    {"auto": None, "float32": 4, "float16": 2, "bfloat16": 2}
)
"""Bytes of an element of a state by `--mamba-cache-dtype` and `--mamba-ssm-cache-dtype`."""


class CacheKind(StrEnum):
    """How a layer's need grows with a request."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class PageShape:
    """A page that is not block × bytes of a token: a block of its own, several tokens in one entry, an alignment."""

    block_tokens: int | None = None
    """Tokens of a block; None for the engine's block size."""
    entry_tokens: int = 1
    alignment: int = 1

    def page_bytes(self, entry_bytes: int, block_tokens: int) -> int:
        """Bytes of one page."""
        size = (self.block_tokens or block_tokens) // self.entry_tokens * entry_bytes
        return -(-size // self.alignment) * self.alignment


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The cache of one layer on one rank."""

    kind: CacheKind
    token_bytes: int
    """Bytes per token; for a state, bytes of the whole state; with a `page`, bytes of one of its entries."""
    reach: int = 0
    """Tokens of the window or chunk."""
    family: str = "attention"
    """Layers of equal kind and another family still share blocks, but not a page size: heads, latent, indexer."""
    page: PageShape | None = None
    """Where a page has a shape of its own, all groups are packed side by side (`packedpages`)."""


@dataclass(frozen=True, slots=True)
class StateTypes:
    """What the engine is told about states: of all of them, and of the recurrent part alone.

    Raises InvalidInput for a type that the engine would refuse.
    """

    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        for name in ("mamba_cache_dtype", "mamba_ssm_cache_dtype"):
            value = getattr(self, name)
            if value not in _STATE_ELEMENT_BYTES:
                raise InvalidInput(name, f"{value[:30]!r} must be one of {', '.join(_STATE_ELEMENT_BYTES)}")

    def convolution_bytes(self, *, model: int) -> int:
        """Bytes per element of the convolution's inputs, for a model of `model` bytes per element."""
        return _STATE_ELEMENT_BYTES[self.mamba_cache_dtype] or model

    def recurrent_bytes(self, *, stated: int | None, model: int) -> int:
        """Bytes per element of the recurrent state: the flag, what the model states, the convolution's.

        [vLLM `_mamba_state_dtype`]
        """
        return _STATE_ELEMENT_BYTES[self.mamba_ssm_cache_dtype] or stated or self.convolution_bytes(model=model)


AUTO_STATES = StateTypes()


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """A cache and the pipeline stage that holds it."""

    stage: int
    spec: CacheSpec


def kv_element_bytes(kv_cache_dtype: str, *, model_element_bytes: int) -> int:
    """Bytes per element, 0 for NVFP4. Raises InvalidInput for a type that is not known."""
    if kv_cache_dtype not in _ELEMENT_BYTES:
        raise InvalidInput("kv_cache_dtype", f"{kv_cache_dtype[:30]!r} must be one of {', '.join(_ELEMENT_BYTES)}")
    size = _ELEMENT_BYTES[kv_cache_dtype]
    return model_element_bytes if size is None else size


def vector_bytes(elements: int, element_bytes: int) -> int:
    """Bytes of one cached vector; NVFP4 packs two elements a byte and adds an fp8 scale per 16."""
    if element_bytes:
        return elements * element_bytes
    return elements // 2 + elements // NVFP4_GROUP


def heads_per_rank(kv_heads: int, tensor: int) -> int:
    """KV heads on one rank: divided while they last, then one copy each [vLLM `get_num_kv_heads`]."""
    return max(1, kv_heads // tensor)


def _attention_spec(
    model: ModelArchitecture, mixer: Mixer, *, element_bytes: int, tensor: int, own_token: bool
) -> CacheSpec:
    shape = model.attention
    if shape is None:
        raise InvalidInput("num_attention_heads", "is needed by attention layers")
    kv_heads, head_dim = shape.of(mixer)
    token = 2 * heads_per_rank(kv_heads, tensor) * vector_bytes(head_dim, element_bytes)
    if mixer is Mixer.SLIDING:
        return CacheSpec(CacheKind.SLIDING, token, reach=(shape.window or 0) + own_token)
    if mixer is Mixer.CHUNKED:
        return CacheSpec(CacheKind.CHUNKED, token, reach=shape.chunk or 0)
    return CacheSpec(CacheKind.FULL, token)


def _latent_specs(model: ModelArchitecture, *, element_bytes: int) -> tuple[CacheSpec, ...]:
    """MLA keeps one vector per token, the same on every rank; sparse MLA adds the indexer's keys.

    With an fp8 cache sparse MLA packs the compressed part in fp8 with 4-byte scales per 128, the rotary part in 16 bits
    (656 bytes for 512 + 64) [vLLM `mla_attention.py`].
    """
    latent, indexer = model.latent, model.indexer
    if latent is None:
        raise InvalidInput("kv_lora_rank", "is needed by latent attention")
    token = vector_bytes(latent.cached_elements, element_bytes)
    if indexer is None:
        return (CacheSpec(CacheKind.FULL, token, family="latent"),)
    if element_bytes == 1:
        rank = latent.kv_lora_rank
        token = rank + 4 * -(-rank // PACKED_LATENT_GROUP) + 2 * latent.qk_rope_head_dim
    keys = indexer.head_dim + 4 * -(-indexer.head_dim // INDEXER_GROUP)
    return (
        CacheSpec(CacheKind.FULL, token, family="latent"),
        CacheSpec(CacheKind.FULL, keys, family="indexer"),
    )


_PACKED_ALIGNMENT = 576
"""Bytes that FlashMLA's fp8 pages are rounded up to."""
_SLIDING_BLOCK = 64
_COMPRESSORS: Mapping[Mixer, tuple[int, int, int]] = MappingProxyType(
    {Mixer.LATENT_SPARSE: (4, 2, 4), Mixer.LATENT_HEAVY: (128, 1, 8)}
)
"""Tokens per entry, windows that overlap, and tokens of the compressor's block."""


def _compressed_specs(model: ModelArchitecture, mixer: Mixer, *, kv_cache_dtype: str) -> tuple[CacheSpec, ...]:
    """DeepSeek-V4: vectors of the window, compressed ones, the indexer's keys, and what compressors have not yet done.

    Vectors are fp8 with an 8-bit scale per 64 and a rotary part in 16 bits (584 bytes for 448 + 64); compressors keep
    keys and scores in float32 [vLLM 0.20 to 0.32 `models/deepseek_v4`: attention.py, compressor.py; `sparse_swa.py`].
    """
    shape, compressed, indexer = model.attention, model.compressed, model.indexer
    if shape is None or compressed is None:
        raise InvalidInput("o_lora_rank", "is needed by compressed attention")
    if kv_cache_dtype not in {"auto", "fp8", "fp8_e4m3", "fp8_ds_mla"}:
        raise InvalidInput("kv_cache_dtype", f"{kv_cache_dtype[:30]!r} must be auto or fp8 for {model.name}")
    plain = shape.head_dim - compressed.qk_rope_head_dim
    vector = plain + plain // 64 + 1 + 2 * compressed.qk_rope_head_dim
    window = PageShape(_SLIDING_BLOCK, alignment=_PACKED_ALIGNMENT)
    found = [CacheSpec(CacheKind.SLIDING, vector, reach=shape.window or 0, family="window", page=window)]
    if mixer not in _COMPRESSORS:
        return tuple(found)
    ratio, overlap, block = _COMPRESSORS[mixer]
    entries = PageShape(entry_tokens=ratio, alignment=_PACKED_ALIGNMENT)
    undone = PageShape(block, alignment=_PACKED_ALIGNMENT)
    widths = [shape.head_dim]
    found.append(CacheSpec(CacheKind.FULL, vector, family=f"latent of {ratio}", page=entries))
    if mixer is Mixer.LATENT_SPARSE and indexer is not None:
        keys = indexer.head_dim + 4 * (indexer.head_dim // INDEXER_GROUP)
        found.append(CacheSpec(CacheKind.FULL, keys, family="indexer", page=entries))
        widths.append(indexer.head_dim)
    found += [
        CacheSpec(CacheKind.SLIDING, 4 * 2 * overlap * width, reach=overlap * ratio, family="compressor", page=undone)
        for width in widths
    ]
    return tuple(found)


def state_bytes(
    model: ModelArchitecture,
    mixer: Mixer,
    *,
    tensor: int,
    speculative_tokens: int = 0,
    states: StateTypes = AUTO_STATES,
) -> int:
    """Bytes of one layer's state on one rank: the convolution's last inputs and the recurrent state.

    Formulas of vLLM's `MambaStateShapeCalculator`; the convolution keeps kernel − 1 inputs, and one more per
    speculative token. Groups that do not divide over the ranks are copied.
    """
    count(tensor, "tensor")
    if mixer is Mixer.SHORT_CONVOLUTION and model.convolution is not None:
        inputs = model.convolution.kernel - 1 + speculative_tokens
        return model.convolution.channels // tensor * inputs * states.convolution_bytes(model=model.element_bytes)
    if mixer is Mixer.MAMBA_1 and model.first_mamba is not None:
        first = model.first_mamba
        recurrent = states.recurrent_bytes(stated=None, model=model.element_bytes) * first.state_size
        inputs = (first.conv_kernel - 1) * states.convolution_bytes(model=model.element_bytes)
        return first.channels // tensor * (inputs + recurrent)
    if mixer is Mixer.MAMBA and model.mamba is not None:
        mamba = model.mamba
        groups = mamba.groups if mamba.groups % tensor == 0 else mamba.groups + tensor - mamba.groups
        width = (mamba.intermediate_size + 2 * groups * mamba.state_size) // tensor
        state = mamba.heads // tensor * mamba.head_dim * mamba.state_size
        kernel, stated = mamba.conv_kernel, mamba.state_bytes
    elif model.linear is not None:
        linear = model.linear
        keys = linear.key_heads * linear.key_head_dim
        width = (2 * keys + linear.value_heads * linear.value_head_dim) // tensor
        state = linear.value_heads // tensor * linear.value_head_dim * linear.key_head_dim
        kernel, stated = linear.conv_kernel, linear.state_bytes
    else:
        raise InvalidInput("linear_num_value_heads", "is needed by layers with a state")
    element = model.element_bytes
    convolution = width * (kernel - 1 + speculative_tokens) * states.convolution_bytes(model=element)
    return convolution + state * states.recurrent_bytes(stated=stated, model=element)


def cache_layers(
    model: ModelArchitecture,
    ranks: ParallelLayout,
    *,
    kv_cache_dtype: str = "auto",
    states: StateTypes = AUTO_STATES,
    speculative_tokens: int = 0,
    draft: tuple[CacheSpec, ...] = (),
    own_token_beside_window: bool = True,
) -> tuple[CacheLayer, ...]:
    """The caches of all layers on one rank of each stage, in layer order.

    With `speculative_tokens` the model's own MTP layers are part of the pool, on the last stage; `draft` adds the
    layers of a separate draft model there. `own_token_beside_window`: the release counts a window of Cohere 2's kind as
    one token more. Raises InvalidInput for a cache type that is not known.
    """
    element_bytes = kv_element_bytes(kv_cache_dtype, model_element_bytes=model.element_bytes)
    tensor = ranks.tensor
    specs: dict[Mixer, tuple[CacheSpec, ...]] = {}
    own_token = own_token_beside_window and model.attention is not None and model.attention.own_token_beside_window
    kinds = {layer.mixer for layer in model.layers}
    if speculative_tokens and model.compressed is not None:
        kinds.add(model.prediction_mixer)
    if Mixer.PARALLEL in kinds:
        kinds |= {Mixer.FULL, Mixer.MAMBA}
    for mixer in kinds - {Mixer.PARALLEL}:
        if mixer in STATE_MIXERS:
            size = state_bytes(model, mixer, tensor=tensor, speculative_tokens=speculative_tokens, states=states)
            specs[mixer] = (CacheSpec(CacheKind.STATE, size, family=mixer.value),)
        elif mixer in COMPRESSED_MIXERS:
            specs[mixer] = _compressed_specs(model, mixer, kv_cache_dtype=kv_cache_dtype)
        elif mixer is Mixer.LATENT:
            specs[mixer] = _latent_specs(model, element_bytes=element_bytes)
        elif mixer is not Mixer.NONE:
            specs[mixer] = (
                _attention_spec(model, mixer, element_bytes=element_bytes, tensor=tensor, own_token=own_token),
            )
    if Mixer.PARALLEL in kinds:
        specs[Mixer.PARALLEL] = specs[Mixer.FULL] + specs[Mixer.MAMBA]
    found = [
        CacheLayer(stage, spec)
        for stage, indices in enumerate(ranks.stages(len(model.layers)))
        for index in indices
        for spec in specs.get(model.layers[index].mixer, ())
    ]
    last = ranks.pipeline - 1
    if speculative_tokens:
        own = specs.get(model.prediction_mixer, ())
        found += [CacheLayer(last, spec) for spec in own * model.mtp_layers]
    return (*found, *(CacheLayer(last, spec) for spec in draft))
