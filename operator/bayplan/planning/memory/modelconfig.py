"""From a model's `config.json` to its architecture.

The file is given as loaded JSON: reading it is the caller's business, so that nothing here touches a disk. Fields are
looked up in `text_config` first, where multimodal models keep those of their language model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from bayplan.planning.memory.architecture import (
    COMPRESSED_MIXERS,
    HEADED_MIXERS,
    AttentionShape,
    ExpertShape,
    FeedForward,
    LatentShape,
    Layer,
    Mixer,
    ModelArchitecture,
    Traits,
    UnknownArchitecture,
)
from bayplan.planning.memory.blockconfig import searched_layers
from bayplan.planning.memory.configfields import DTYPE_BYTES, ConfigFields
from bayplan.planning.memory.families import FAMILIES, Family
from bayplan.planning.memory.layerpattern import every_nth, layer_mixers
from bayplan.planning.memory.mixerconfig import (
    compressed_shape,
    convolution_shape,
    first_mamba_shape,
    indexer_shape,
    latent_shape,
    linear_shape,
    mamba_shape,
)
from bayplan.planning.memory.quantconfig import stated_cache_type
from bayplan.planning.memory.vision import vision_parameters
from bayplan.planning.numbers import InvalidInput, count

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "num_experts_per_token")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")


def class_name(config: Mapping[str, Any]) -> str:
    """The model's class; raises UnknownArchitecture when the file names none or one that is not known."""
    names = config.get("architectures")
    if isinstance(names, Sequence) and not isinstance(names, str):
        for name in names:
            if isinstance(name, str) and name in FAMILIES:
                return name
        if names:
            name = str(names[0])[:80]
            raise UnknownArchitecture(
                name,
                ("architectures",),
                f"{name} is not a known class; use one of its kind that is ({', '.join(sorted(FAMILIES))}), or state "
                "num_hidden_layers, num_attention_heads, num_key_value_heads and head_dim in the spec",
            )
    raise UnknownArchitecture("", ("architectures",), "config.json must name the model's class in architectures")


def parse_config(config: Mapping[str, Any]) -> ModelArchitecture:
    """Read the architecture out of a loaded config.json.

    Raises UnknownArchitecture for a class that is not known, or naming the fields that its layers need; InvalidInput
    for a field of the wrong type or out of its bounds.
    """
    if not isinstance(config, Mapping):
        raise InvalidInput("config", "must be a JSON object")
    name = class_name(config)
    family = FAMILIES[name]
    fields = ConfigFields(config, family.defaults)
    layer_count = _layer_count(fields)
    hidden = fields.needed("hidden_size")
    vocabulary = fields.needed("vocab_size")
    fields.missing += [field for field in family.needs if all(fields.raw(name) is None for name in field.split(" or "))]
    for field in family.unknown_with:
        if fields.raw(field):
            raise UnknownArchitecture(name, (field,), f"{name} with {field} keeps a cache that is not known")
    fields.require(name)
    count(hidden, "hidden_size")
    count(vocabulary, "vocab_size")
    experts = _experts(fields, family)
    latent = latent_shape(fields)
    layers, heads_in_group = _layers(fields, family, name=name, layers=layer_count, hidden=hidden)
    mixers = tuple(layer.mixer for layer in layers)
    attention = _attention(fields, family, hidden=hidden, latent=latent, mixers=mixers, heads_in_group=heads_in_group)
    compressed = compressed_shape(fields, mixers)
    first_mamba = first_mamba_shape(fields, mixers, hidden=hidden)
    convolution = convolution_shape(fields, mixers, hidden=hidden)
    linear, mamba = linear_shape(fields, family, mixers), mamba_shape(fields, family, mixers)
    fields.require(name)
    return ModelArchitecture(
        name=name,
        layers=layers,
        hidden_size=hidden,
        vocab_size=vocabulary,
        attention=attention,
        intermediate_size=max((layer.intermediate_size or 0 for layer in layers), default=0)
        or _dense_width(fields, family),
        latent=latent,
        compressed=compressed,
        indexer=indexer_shape(fields),
        experts=experts,
        linear=linear,
        mamba=mamba,
        first_mamba=first_mamba,
        convolution=convolution,
        mtp_layers=_prediction_layers(fields, family),
        tied_embeddings=_tied(fields, family),
        stores_tied_head=family.stores_tied_head and not fields.flag("new_decoder_architecture"),
        element_bytes=_element_bytes(fields),
        max_position_embeddings=fields.number("max_position_embeddings"),
        vision_parameters=vision_parameters(family.vision, config, hidden_size=hidden),
        traits=_traits(fields, family, has_experts=experts is not None),
    )


def _layers(
    fields: ConfigFields, family: Family, *, name: str, layers: int, hidden: int
) -> tuple[tuple[Layer, ...], int | None]:
    """The layers, and the query heads that share a KV head where only the layers say it."""
    if "block_configs" in family.needs:
        return searched_layers(fields.raw("block_configs"), name=name, layers=layers, hidden=hidden)
    latent = fields.number("kv_lora_rank") is not None
    mixers = layer_mixers(fields, family, layers=layers, latent=latent)
    has_experts = (fields.number(*_EXPERT_COUNTS) or 0) >= family.least_experts
    blocks = _feed_forwards(fields, layers=layers, has_experts=has_experts, name=name)
    return tuple(Layer(mixer, block) for mixer, block in zip(mixers, blocks, strict=True)), None


def _prediction_layers(fields: ConfigFields, family: Family) -> int:
    stated = fields.number("num_nextn_predict_layers", "mtp_num_hidden_layers")
    return family.prediction_layers if stated is None else stated


def _layer_count(fields: ConfigFields) -> int:
    listed = fields.raw("layers_block_type")
    layers = len(listed) if isinstance(listed, list | tuple) and listed else fields.needed("num_hidden_layers")
    if not 0 < layers <= 4096:
        raise InvalidInput("num_hidden_layers", f"must be 1 to 4096, not {layers}")
    return layers


def _element_bytes(fields: ConfigFields) -> int:
    dtype = str(fields.raw("torch_dtype") or fields.raw("dtype") or "bfloat16").removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise InvalidInput("torch_dtype", f"must be one of {', '.join(DTYPE_BYTES)}, not {dtype[:40]}")
    return DTYPE_BYTES[dtype]


def _attention(
    fields: ConfigFields,
    family: Family,
    *,
    hidden: int,
    latent: LatentShape | None,
    mixers: Sequence[Mixer],
    heads_in_group: int | None,
) -> AttentionShape | None:
    if not set(mixers) & HEADED_MIXERS:
        return None
    heads = fields.needed("num_attention_heads")
    if heads < 1:
        raise InvalidInput("num_attention_heads", f"must be at least 1, not {heads}")
    kv_heads = fields.number(*_KV_HEADS)
    if heads_in_group is not None:
        if heads % heads_in_group:
            raise InvalidInput("block_configs.n_heads_in_group", f"{heads_in_group} must divide the {heads} heads")
        kv_heads = heads // heads_in_group
    if family.multi_query and not fields.flag("new_decoder_architecture") and fields.flag("multi_query", default=True):
        kv_heads = 1
    head_dim = None if family.heads_divide_hidden else fields.number("head_dim")
    if latent is not None:
        kv_heads, head_dim = heads, latent.qk_nope_head_dim + latent.qk_rope_head_dim
    if head_dim is None and hidden % heads:
        fields.missing.append("head_dim")
    return AttentionShape(
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=hidden // heads if head_dim is None else head_dim,
        window=fields.number("sliding_window") if {Mixer.SLIDING, *COMPRESSED_MIXERS} & set(mixers) else None,
        own_token_beside_window=family.own_token_beside_window,
        chunk=fields.number("attention_chunk_size") if Mixer.CHUNKED in mixers else None,
        global_kv_heads=fields.number("num_global_key_value_heads"),
        global_head_dim=fields.number("global_head_dim"),
        keys_are_values=fields.flag("attention_k_eq_v"),
        output_gate=family.output_gate or fields.flag("attn_output_gate"),
    )


def _tied(fields: ConfigFields, family: Family) -> bool:
    """LFM2 spells it in its own way."""
    own = fields.flag("tie_embedding", default=family.tied_by_default)
    return fields.flag("tie_word_embeddings", default=own)


def _dense_width(fields: ConfigFields, family: Family) -> int | None:
    """Inner width of dense layers; LFM2 states it before gating and rounds it up."""
    width = fields.number(family.dense_width, "intermediate_size")
    if "conv_L_cache" not in family.needs:
        return width
    width = fields.number("block_ff_dim") or width
    if width is None or not fields.flag("block_auto_adjust_ff_dim", default=True):
        return width
    scale = Fraction(str(fields.raw("block_ffn_dim_multiplier") or 1))
    multiple = fields.number("block_multiple_of") or 256
    return -(-int(2 * width // 3 * scale) // multiple) * multiple


def _experts(fields: ConfigFields, family: Family) -> ExpertShape | None:
    experts = fields.number(*_EXPERT_COUNTS) or 0
    if experts < family.least_experts:
        return None
    width = fields.needed(family.expert_width)
    shared = fields.number("n_shared_experts", "num_shared_experts") or 0
    return ExpertShape(
        experts=experts,
        per_token=fields.needed(*_EXPERTS_PER_TOKEN),
        intermediate_size=width,
        shared_intermediate_size=_shared_width(fields, family, width=width, shared=shared),
        latent_size=fields.number("moe_latent_size"),
    )


def _shared_width(fields: ConfigFields, family: Family, *, width: int, shared: int) -> int:
    named = fields.number("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size")
    if named is not None:
        return named
    return fields.needed(family.shared_width) if family.shared_width else shared * width


def _feed_forwards(fields: ConfigFields, *, layers: int, has_experts: bool, name: str) -> list[FeedForward]:
    """Dense or experts, layer by layer; Nemotron states it by letter or by word."""
    words = fields.raw("layers_block_type")
    if isinstance(words, list | tuple):
        named_blocks = {"mlp": FeedForward.DENSE, "moe": FeedForward.EXPERTS}
        return [named_blocks.get(str(word), FeedForward.NONE) for word in words]
    pattern = fields.raw("hybrid_override_pattern")
    if isinstance(pattern, str):
        kinds = {"-": FeedForward.DENSE, "E": FeedForward.EXPERTS}
        return [kinds.get(letter, FeedForward.NONE) for letter in pattern]
    if not has_experts:
        return [FeedForward.DENSE] * layers
    types = fields.raw("mlp_layer_types")
    if types is not None:
        named = {"dense": FeedForward.DENSE, "sparse": FeedForward.EXPERTS}
        if not isinstance(types, list | tuple) or len(types) != layers or not all(str(kind) in named for kind in types):
            raise InvalidInput("mlp_layer_types", f"must list all {layers} layers as dense or sparse")
        return [named[str(kind)] for kind in types]
    period = fields.number("expert_layer_period")
    if period is not None:
        chosen = every_nth(period, fields.number("expert_layer_offset") or 0, "expert_layer_period", layers)
        return [FeedForward.EXPERTS if own else FeedForward.DENSE for own in chosen]
    first = fields.number("first_k_dense_replace") or 0
    step = fields.number("interleave_moe_layer_step", "moe_layer_freq", "decoder_sparse_step") or 1
    dense_only = fields.raw("mlp_only_layers") or ()
    if not isinstance(dense_only, list | tuple):
        raise InvalidInput("mlp_only_layers", f"must list layer numbers, not {str(dense_only)[:40]!r}")
    if step < 1:
        raise UnknownArchitecture(name, ("decoder_sparse_step",), f"{name} states its expert layers in an unknown way")
    return [
        FeedForward.EXPERTS
        if index >= first and (index + 1 - first) % step == 0 and index not in dense_only
        else FeedForward.DENSE
        for index in range(layers)
    ]


def _traits(fields: ConfigFields, family: Family, *, has_experts: bool) -> Traits:
    traits = family.traits
    if fields.flag("use_qk_norm"):
        traits = replace(traits, qk_norm=True, wide_qk_norm=family.wide_norm_by_flag)
    if not fields.flag("attention_bias", default=True):
        traits = replace(traits, qkv_bias=False)
    if fields.flag("new_decoder_architecture"):
        traits = replace(traits, norms_per_layer=2)
    if family.dense_width == "ffn_dim":
        # OPT shifts its learned positions by two.
        traits = replace(traits, learned_positions=(fields.number("max_position_embeddings") or 0) + 2)
    if has_experts and traits.layer_scalars:
        traits = replace(traits, norms_per_layer=7, dense_beside_experts=True, router_scales=True)
    return traits


class _Recorder(dict[str, Any]):
    """A config.json that notes which of its fields are looked at."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.seen: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def kept(self) -> dict[str, Any]:
        """The fields that were looked at and are there."""
        found = {}
        for name in sorted(self.seen & set(self)):
            value = self[name]
            if isinstance(value, _Recorder):
                value = value.kept()
            elif isinstance(value, Mapping):
                value = {key: number for key, number in value.items() if isinstance(number, int | float | str | list)}
            if value is not None:
                found[name] = value
        return found


def reduced_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config.json that decide its architecture and the type of its cache, and no others.

    Raises as `parse_config` does. The result parses to the same architecture.
    """
    recorder = _Recorder(config)
    for name in ("text_config", "llm_config"):
        if isinstance(config.get(name), Mapping):
            recorder[name] = _Recorder(config[name])
    parse_config(recorder)
    found = recorder.kept()
    stated = config.get("quantization_config")
    if isinstance(stated, Mapping) and stated_cache_type(config) != "auto":
        bits = 8 if stated_cache_type(config) == "fp8" else 4
        found["quantization_config"] = {
            "quant_method": str(stated.get("quant_method")),
            "kv_cache_scheme": {"num_bits": bits, "type": "float"},
        }
    return found
