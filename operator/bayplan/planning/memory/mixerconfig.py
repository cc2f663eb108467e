"""From config.json to the shapes of the mixers that are not plain heads: latent and linear attention, Mamba."""

from collections.abc import Sequence

from bayplan.planning.memory.architecture import (
    COMPRESSED_MIXERS,
    CompressedShape,
    ConvolutionShape,
    FirstMambaShape,
    IndexerShape,
    LatentShape,
    LinearShape,
    MambaShape,
    Mixer,
)
from bayplan.planning.memory.configfields import DTYPE_BYTES, ConfigFields
from bayplan.planning.memory.families import Family


def latent_shape(fields: ConfigFields) -> LatentShape | None:
    """Ranks and head sizes of MLA; None for a model without it."""
    rank = fields.number("kv_lora_rank")
    if rank is None:
        return None
    return LatentShape(
        kv_lora_rank=rank,
        qk_rope_head_dim=fields.needed("qk_rope_head_dim"),
        qk_nope_head_dim=fields.needed("qk_nope_head_dim"),
        v_head_dim=fields.needed("v_head_dim"),
        q_lora_rank=fields.number("q_lora_rank"),
    )


def compressed_shape(fields: ConfigFields, mixers: Sequence[Mixer]) -> CompressedShape | None:
    """DeepSeek-V4's ranks and streams; None for other models."""
    if not set(mixers) & COMPRESSED_MIXERS:
        return None
    return CompressedShape(
        qk_rope_head_dim=fields.needed("qk_rope_head_dim"),
        q_lora_rank=fields.needed("q_lora_rank"),
        o_lora_rank=fields.needed("o_lora_rank"),
        o_groups=fields.needed("o_groups"),
        hc_mult=fields.needed("hc_mult"),
    )


def indexer_shape(fields: ConfigFields) -> IndexerShape | None:
    """The sparse indexer; None for a model without one."""
    head_dim = fields.number("index_head_dim")
    return None if head_dim is None else IndexerShape(heads=fields.needed("index_n_heads"), head_dim=head_dim)


def linear_shape(fields: ConfigFields, family: Family, mixers: Sequence[Mixer]) -> LinearShape | None:
    """Heads and states of linear attention; None for a model without it."""
    if Mixer.KIMI_DELTA in mixers:
        stated = fields.raw("linear_attn_config")
        own = ConfigFields(stated, {})
        heads, width, kernel = (own.needed(name) for name in ("num_heads", "head_dim", "short_conv_kernel_size"))
        fields.missing += [f"linear_attn_config.{name}" for name in own.missing]
        return LinearShape(heads, heads, width, width, kernel, _state_bytes(fields, family))
    if Mixer.GATED_DELTA not in mixers:
        return None
    return LinearShape(
        key_heads=fields.needed("linear_num_key_heads"),
        value_heads=fields.needed("linear_num_value_heads"),
        key_head_dim=fields.needed("linear_key_head_dim"),
        value_head_dim=fields.needed("linear_value_head_dim"),
        conv_kernel=fields.needed("linear_conv_kernel_dim"),
        state_bytes=_state_bytes(fields, family),
    )


def mamba_shape(fields: ConfigFields, family: Family, mixers: Sequence[Mixer]) -> MambaShape | None:
    """Heads and states of Mamba-2; None for a model without it."""
    if not set(mixers) & {Mixer.MAMBA, Mixer.PARALLEL}:
        return None
    return MambaShape(
        heads=fields.needed("mamba_num_heads", "mamba_n_heads"),
        head_dim=fields.needed("mamba_head_dim", "mamba_d_head"),
        state_size=fields.needed("ssm_state_size", "mamba_d_state"),
        groups=fields.needed("n_groups", "mamba_n_groups"),
        conv_kernel=fields.needed("conv_kernel", "mamba_d_conv"),
        state_bytes=_state_bytes(fields, family),
        gated_norm=not family.parallel_mamba or fields.flag("mamba_rms_norm"),
    )


def first_mamba_shape(fields: ConfigFields, mixers: Sequence[Mixer], *, hidden: int) -> FirstMambaShape | None:
    """Channels and states of Mamba-1; None for a model without it."""
    if Mixer.MAMBA_1 not in mixers:
        return None
    automatic = fields.raw("mamba_dt_rank") in {None, "auto"}
    return FirstMambaShape(
        channels=fields.needed("mamba_expand") * hidden,
        state_size=fields.needed("mamba_d_state"),
        conv_kernel=fields.needed("mamba_d_conv"),
        step_rank=-(-hidden // 16) if automatic else fields.needed("mamba_dt_rank"),
    )


def convolution_shape(fields: ConfigFields, mixers: Sequence[Mixer], *, hidden: int) -> ConvolutionShape | None:
    """Channels and kernel of short convolutions; None for a model without them."""
    if Mixer.SHORT_CONVOLUTION not in mixers:
        return None
    return ConvolutionShape(fields.number("conv_dim") or hidden, fields.needed("conv_L_cache"))


def _state_bytes(fields: ConfigFields, family: Family) -> int | None:
    stated = fields.raw("mamba_ssm_dtype") or fields.raw("mamba_ssm_cache_dtype")
    return family.default_state_bytes if stated is None else DTYPE_BYTES.get(str(stated), family.default_state_bytes)
