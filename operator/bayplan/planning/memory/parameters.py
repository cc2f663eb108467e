"""A model's parameters by tensor class: exact counts, and how each class is divided over the ranks.

One layer is the sum of its blocks, so that a stage of a pipeline is the sum of its layers. Counts follow the families'
own modules; they match the published totals to the digit (see tests/planning/memory).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from bayplan.planning.memory.architecture import COMPRESSED_MIXERS, FeedForward, Layer, Mixer, ModelArchitecture


class Sharding(StrEnum):
    """How the ranks of one stage share a tensor class."""

    SPLIT = "split"
    """Divided by the tensor width."""
    KV_HEADS = "KV heads"
    """Divided as far as there are KV heads, copied beyond."""
    EXPERTS = "experts"
    """Divided over all ranks that share the experts."""
    COPIED = "copied"
    """Whole on every rank."""


class Content(StrEnum):
    """What a tensor class holds; quantization treats these differently."""

    EMBEDDING = "embedding"
    HEAD = "head"
    LINEAR = "linear"
    EXPERT = "expert"
    SMALL = "small"
    """Norms, biases, routers, states: kept in the model's dtype."""
    VISION = "vision"


@dataclass(frozen=True, slots=True)
class TensorClass:
    """Parameters of one kind in one layer, or outside the layers."""

    content: Content
    sharding: Sharding
    parameters: int
    rows: int = 0
    """Output channels of its matrices together, which carry scales under per-channel quantization."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """All parameters of a model: `outside` the layers (first stage, last stage), each layer, and one MTP layer."""

    embedding: tuple[TensorClass, ...]
    """On the first stage."""
    head: tuple[TensorClass, ...]
    """On the last stage: final norm and output head."""
    layers: tuple[tuple[TensorClass, ...], ...]
    mtp: tuple[TensorClass, ...]
    """All multi-token-prediction layers together; not part of the total."""
    total: int = field(init=False)
    """Number of parameters, without multi-token-prediction layers."""

    def __post_init__(self) -> None:
        items = (*self.embedding, *self.head, *(item for layer in self.layers for item in layer))
        object.__setattr__(self, "total", sum(item.parameters for item in items))


def _linear(parameters: int, rows: int, sharding: Sharding = Sharding.SPLIT) -> TensorClass:
    return TensorClass(Content.LINEAR, sharding, parameters, rows)


def _small(parameters: int, sharding: Sharding = Sharding.COPIED) -> TensorClass:
    return TensorClass(Content.SMALL, sharding, parameters)


def _attention(model: ModelArchitecture, mixer: Mixer) -> Iterator[TensorClass]:
    shape, traits = model.attention, model.traits
    if shape is None:
        return
    kv_heads, head_dim = shape.of(mixer)
    queries = shape.heads * head_dim * (2 if shape.output_gate else 1)
    shared = shape.keys_are_values and mixer is Mixer.FULL and shape.global_head_dim is not None
    keys = kv_heads * head_dim * (1 if shared else 2)
    yield _linear(model.hidden_size * (queries + shape.heads * head_dim), queries + model.hidden_size)
    yield _linear(model.hidden_size * keys, keys, Sharding.KV_HEADS)
    small = 0
    if traits.qkv_bias or traits.all_bias:
        small += queries + keys
    if traits.output_bias or traits.all_bias:
        small += model.hidden_size
    small += traits.sinks * shape.heads
    if traits.wide_qk_norm:
        small += (shape.heads + kv_heads) * head_dim
    elif traits.qk_norm:
        small += 2 * head_dim
    if small:
        yield _small(small)


def _latent(model: ModelArchitecture) -> Iterator[TensorClass]:
    latent, shape, indexer = model.latent, model.attention, model.indexer
    if latent is None or shape is None:
        return
    hidden, heads, rank = model.hidden_size, shape.heads, latent.kv_lora_rank
    head = latent.qk_nope_head_dim + latent.qk_rope_head_dim
    down = latent.cached_elements
    if latent.q_lora_rank is None:
        yield _linear(hidden * heads * head, heads * head)
    else:
        yield _linear(hidden * latent.q_lora_rank, latent.q_lora_rank, Sharding.COPIED)
        yield _linear(latent.q_lora_rank * heads * head, heads * head)
        yield _small(latent.q_lora_rank)
    yield _linear(hidden * down, down, Sharding.COPIED)
    up = heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    yield _linear(rank * up + heads * latent.v_head_dim * hidden, up + hidden)
    yield _small(rank)
    if indexer is not None:
        queries = indexer.heads * indexer.head_dim
        width = latent.q_lora_rank or hidden
        yield _linear(width * queries + hidden * indexer.head_dim, queries + indexer.head_dim, Sharding.COPIED)
        yield _small(hidden * indexer.heads + 2 * indexer.head_dim)


def _compressor(model: ModelArchitecture, mixer: Mixer, width: int) -> Iterator[TensorClass]:
    """Keys and gates of one compressor, its positions and norm; sparse layers have two of each, whose spans overlap."""
    columns, ratio = (2 * width, 4) if mixer is Mixer.LATENT_SPARSE else (width, 128)
    yield _small(2 * model.hidden_size * columns + ratio * columns + width)


def _compressed(model: ModelArchitecture, mixer: Mixer) -> Iterator[TensorClass]:
    """DeepSeek-V4's attention, and the hyper-connections around it and around the feed-forward block."""
    shape, compressed, indexer = model.attention, model.compressed, model.indexer
    if shape is None or compressed is None:
        return
    hidden, queries, rank = model.hidden_size, shape.heads * shape.head_dim, compressed.q_lora_rank
    down, middle = rank + shape.head_dim, compressed.o_groups * compressed.o_lora_rank
    yield _linear(hidden * down, down, Sharding.COPIED)
    yield _linear(rank * queries, queries)
    yield _linear(queries // compressed.o_groups * middle + middle * hidden, middle + hidden)
    yield _small(down + shape.heads)
    streams = compressed.hc_mult
    mixes = (2 + streams) * streams
    yield _small(2 * (mixes * streams * hidden + mixes + 3))
    if mixer is not Mixer.LATENT_WINDOW:
        yield from _compressor(model, mixer, shape.head_dim)
    if mixer is Mixer.LATENT_SPARSE and indexer is not None:
        keys = indexer.heads * indexer.head_dim
        yield _linear(rank * keys, keys, Sharding.COPIED)
        yield _small(hidden * indexer.heads)
        yield from _compressor(model, mixer, indexer.head_dim)


def _gated_delta(model: ModelArchitecture) -> Iterator[TensorClass]:
    shape = model.linear
    if shape is None:
        return
    keys = shape.key_heads * shape.key_head_dim
    values = shape.value_heads * shape.value_head_dim
    rows = 2 * keys + 2 * values
    yield _linear(model.hidden_size * (rows + values), rows + model.hidden_size)
    yield _small(model.hidden_size * 2 * shape.value_heads, Sharding.SPLIT)
    yield _small((2 * keys + values) * shape.conv_kernel + 2 * shape.value_heads, Sharding.SPLIT)
    yield _small(shape.value_head_dim)


def _mamba(model: ModelArchitecture) -> Iterator[TensorClass]:
    shape = model.mamba
    if shape is None:
        return
    inner, states = shape.intermediate_size, shape.groups * shape.state_size
    rows = 2 * inner + 2 * states + shape.heads
    yield _linear(model.hidden_size * (rows + inner), rows + model.hidden_size)
    norm = inner if shape.gated_norm else 0
    yield _small((inner + 2 * states) * (shape.conv_kernel + 1) + 3 * shape.heads + norm, Sharding.SPLIT)


def _first_mamba(model: ModelArchitecture) -> Iterator[TensorClass]:
    """Mamba-1 with the norms of Jamba on time steps and on what enters and leaves the state."""
    shape = model.first_mamba
    if shape is None:
        return
    inner, rank, selected = shape.channels, shape.step_rank, shape.step_rank + 2 * shape.state_size
    yield _linear(3 * model.hidden_size * inner, 2 * inner + model.hidden_size)
    yield _linear(inner * (selected + rank), selected + inner)
    yield _small(inner * (shape.conv_kernel + 1 + 1 + shape.state_size + 1), Sharding.SPLIT)
    yield _small(selected)


def _kimi_delta(model: ModelArchitecture) -> Iterator[TensorClass]:
    """Queries, keys, values and output; two gates through a bottleneck of a head's width [vLLM 0.32 `kimi_gdn`]."""
    shape = model.linear
    if shape is None:
        return
    hidden, width, inner = model.hidden_size, shape.value_head_dim, shape.value_heads * shape.value_head_dim
    yield _linear(4 * hidden * inner, 3 * inner + hidden)
    yield _linear(2 * hidden * width, 2 * width, Sharding.COPIED)
    yield _linear(2 * width * inner, 2 * inner)
    heads = hidden * shape.value_heads + shape.value_heads
    yield _small(heads + 3 * inner * shape.conv_kernel + inner, Sharding.SPLIT)
    yield _small(width)


def _short_convolution(model: ModelArchitecture) -> Iterator[TensorClass]:
    shape = model.convolution
    if shape is None:
        return
    yield _linear(4 * model.hidden_size * shape.channels, 3 * shape.channels + model.hidden_size)
    yield _small(shape.channels * shape.kernel, Sharding.SPLIT)


def _mixer(model: ModelArchitecture, mixer: Mixer) -> Iterator[TensorClass]:
    if mixer is Mixer.LATENT:
        yield from _latent(model)
    elif mixer in COMPRESSED_MIXERS:
        yield from _compressed(model, mixer)
    elif mixer is Mixer.GATED_DELTA:
        yield from _gated_delta(model)
    elif mixer is Mixer.MAMBA_1:
        yield from _first_mamba(model)
    elif mixer is Mixer.KIMI_DELTA:
        yield from _kimi_delta(model)
    elif mixer is Mixer.SHORT_CONVOLUTION:
        yield from _short_convolution(model)
    elif mixer is Mixer.MAMBA:
        yield from _mamba(model)
    elif mixer is Mixer.PARALLEL:
        yield from _mamba(model)
        yield from _attention(model, Mixer.FULL)
    elif mixer is not Mixer.NONE:
        yield from _attention(model, mixer)


def _dense(model: ModelArchitecture, width: int) -> Iterator[TensorClass]:
    matrices = 3 if model.traits.gated_mlp else 2
    yield _linear(matrices * model.hidden_size * width, (matrices - 1) * width + model.hidden_size)
    if model.traits.all_bias:
        yield _small((matrices - 1) * width + model.hidden_size)


def _experts(model: ModelArchitecture) -> Iterator[TensorClass]:
    shape, traits, hidden = model.experts, model.traits, model.hidden_size
    if shape is None:
        return
    matrices = 3 if traits.gated_mlp else 2
    width, number, outer = shape.intermediate_size, shape.experts, shape.latent_size or hidden
    rows = number * ((matrices - 1) * width + outer)
    yield TensorClass(Content.EXPERT, Sharding.EXPERTS, number * matrices * outer * width, rows)
    if shape.latent_size is not None:
        yield _linear(2 * hidden * outer, hidden + outer, Sharding.COPIED)
    if traits.expert_bias:
        yield _small(rows, Sharding.EXPERTS)
    if shape.shared_intermediate_size:
        yield from _dense(model, shape.shared_intermediate_size)
    small = hidden * number + (number if traits.router_bias else 0) + (hidden if traits.shared_expert_gate else 0)
    if traits.router_scales:
        small += hidden + number
    yield _small(small)


def _layer(model: ModelArchitecture, layer: Layer) -> tuple[TensorClass, ...]:
    traits = model.traits
    classes = [*_mixer(model, layer.mixer)]
    if layer.feed_forward is FeedForward.EXPERTS:
        classes += _experts(model)
    if layer.feed_forward is FeedForward.DENSE or (
        layer.feed_forward is FeedForward.EXPERTS and traits.dense_beside_experts
    ):
        classes += _dense(model, layer.intermediate_size or model.intermediate_size or 0)
    norm = model.hidden_size * (2 if traits.norm_bias else 1)
    norms = traits.norms_per_layer
    if traits.norm_per_part:
        norms = (layer.mixer is not Mixer.NONE) + (layer.feed_forward is not FeedForward.NONE)
    classes.append(_small(norms * norm + traits.layer_scalars))
    return tuple(classes)


@lru_cache(maxsize=256)
def parameters_of(model: ModelArchitecture) -> Parameters:
    """Count the parameters of `model` by tensor class.

    Raises nothing: the architecture was validated when it was made.
    """
    hidden, vocabulary, traits = model.hidden_size, model.vocab_size, model.traits
    norm = hidden * (2 if traits.norm_bias or traits.final_norm_bias else 1)
    kinds = {layer: _layer(model, layer) for layer in set(model.layers)}
    embedding = [TensorClass(Content.EMBEDDING, Sharding.SPLIT, vocabulary * hidden, vocabulary)]
    if traits.learned_positions:
        embedding.append(_small(traits.learned_positions * hidden))
    if model.vision_parameters:
        embedding.append(TensorClass(Content.VISION, Sharding.SPLIT, model.vision_parameters))
    head = [_small(norm + (vocabulary if traits.head_bias else 0))]
    if model.compressed is not None:
        streams = model.compressed.hc_mult
        head.append(_small(streams * streams * hidden + streams + 1))
    if not model.tied_embeddings or model.stores_tied_head:
        head.append(TensorClass(Content.HEAD, Sharding.SPLIT, vocabulary * hidden, vocabulary))
    return Parameters(
        embedding=tuple(embedding),
        head=tuple(head),
        layers=tuple(kinds[layer] for layer in model.layers),
        mtp=_mtp(model),
    )


def _mtp(model: ModelArchitecture) -> tuple[TensorClass, ...]:
    """Each MTP layer is a full layer of the model's last kind, a projection of twice the width, and three norms."""
    if not model.mtp_layers:
        return ()
    one = (
        *_layer(model, Layer(model.prediction_mixer, model.layers[-1].feed_forward)),
        _linear(2 * model.hidden_size**2, model.hidden_size, Sharding.COPIED),
        _small(3 * model.hidden_size),
    )
    return one * model.mtp_layers
