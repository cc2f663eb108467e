"""What each model family's code adds to its config.json: the facts that the file leaves to the class.

One entry per class of the `architectures` field. A class that is not here is refused, never guessed: two families with
equal field names can differ in what a field means (`intermediate_size` is the expert's width in gpt-oss and MiniMax).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from bayplan.planning.memory.architecture import Traits


@dataclass(frozen=True, slots=True)
class Family:
    """How to read the config.json of one class."""

    traits: Traits = field(default_factory=Traits)
    layer_period: int | None = None
    """Every n-th layer has full attention where the file names no layers; the others slide."""
    window_always: bool = True
    """`sliding_window` applies whenever it is set; False: only with `use_sliding_window`."""
    expert_width: str = "moe_intermediate_size"
    """Field with the inner width of one expert."""
    shared_width: str = ""
    """Field with the inner width of the shared experts; "" for n_shared_experts × the expert's width."""
    dense_width: str = "intermediate_size"
    """Field with the inner width of dense layers."""
    tied_by_default: bool = False
    stores_tied_head: bool = False
    output_gate: bool = False
    multi_query: bool = False
    """Without a number of KV heads there is one."""
    heads_divide_hidden: bool = False
    """The class takes hidden / heads and ignores a stated head_dim (seen on a started engine)."""
    default_state_bytes: int | None = None
    """Bytes per element of recurrent states where the file states none; None follows the model's dtype."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """What the class assumes where the file is silent: files are saved without the fields that equal them."""
    parallel_mamba: bool = False
    """Every layer has attention and Mamba-2."""
    own_token_beside_window: bool = False
    """A window is the stated number of tokens before the present one."""
    wide_norm_by_flag: bool = False
    """`use_qk_norm` gives each column of queries and keys a weight."""
    needs: tuple[str, ...] = ()
    """Fields without which the layers' kinds would be guessed; one of those joined by "or" is enough."""
    least_experts: int = 1
    """With fewer there is a dense block."""
    unknown_with: tuple[str, ...] = ()
    """Fields that, where they are set, change the cache or the tensors in ways that are not known."""
    prediction_layers: int = 0
    """Layers of multi-token prediction that the checkpoint has where the file states none [vLLM `speculative.py`]."""
    vision: str = ""
    """Which vision tower comes with it: "siglip", "pixtral", "qwen2" or "qwen"; "" for none that is counted."""


_QK_NORM = Traits(qk_norm=True)
_OLMO = Traits(wide_qk_norm=True)
_COHERE = Traits(norms_per_layer=1)
"""Attention and feed-forward block share one norm."""
_QKV_BIAS = Traits(qkv_bias=True)
_GEMMA = Family(tied_by_default=True)
_GEMMA3_DEFAULTS: Mapping[str, int] = MappingProxyType(
    {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
    }
)
"""Gemma3TextConfig of transformers; the published 4B, 12B and 27B leave these out."""
_GEMMA3 = Family(
    traits=Traits(qk_norm=True, norms_per_layer=4), layer_period=6, tied_by_default=True, defaults=_GEMMA3_DEFAULTS
)
_DEEPSEEK_V3 = Family(traits=Traits(router_bias=True))
_QWEN3_5 = Family(traits=Traits(qk_norm=True), output_gate=True, default_state_bytes=4, vision="qwen")
_QWEN3_5_MOE = Family(
    traits=Traits(qk_norm=True, shared_expert_gate=True),
    shared_width="shared_expert_intermediate_size",
    output_gate=True,
    default_state_bytes=4,
    vision="qwen",
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "CohereForCausalLM": Family(traits=_COHERE, tied_by_default=True, wide_norm_by_flag=True),
        "Cohere2ForCausalLM": Family(
            traits=_COHERE,
            layer_period=4,
            tied_by_default=True,
            own_token_beside_window=True,
            defaults=MappingProxyType({"sliding_window": 4096}),
        ),
        "DeciLMForCausalLM": Family(traits=Traits(norm_per_part=True), needs=("block_configs",)),
        "DeepseekV2ForCausalLM": Family(),
        "DeepseekV3ForCausalLM": _DEEPSEEK_V3,
        "DeepseekV32ForCausalLM": _DEEPSEEK_V3,
        "DeepseekV4ForCausalLM": Family(traits=Traits(router_bias=True), needs=("compress_ratios",)),
        "FalconH1ForCausalLM": Family(parallel_mamba=True, needs=("mamba_n_heads", "mamba_d_head")),
        "FalconForCausalLM": Family(
            traits=Traits(gated_mlp=False, norms_per_layer=1, norm_bias=True),
            tied_by_default=True,
            stores_tied_head=True,
            multi_query=True,
        ),
        "GemmaForCausalLM": _GEMMA,
        "Gemma2ForCausalLM": Family(traits=Traits(norms_per_layer=4), layer_period=2, tied_by_default=True),
        "Gemma3ForCausalLM": _GEMMA3,
        "Gemma3ForConditionalGeneration": Family(
            traits=_GEMMA3.traits, layer_period=6, tied_by_default=True, vision="siglip", defaults=_GEMMA3_DEFAULTS
        ),
        "Gemma4ForConditionalGeneration": Family(
            traits=Traits(qk_norm=True, norms_per_layer=4, layer_scalars=1),
            layer_period=6,
            tied_by_default=True,
            unknown_with=("num_kv_shared_layers", "hidden_size_per_layer_input"),
        ),
        "GraniteForCausalLM": Family(tied_by_default=True),
        "GraniteMoeHybridForCausalLM": Family(
            expert_width="intermediate_size",
            shared_width="shared_intermediate_size",
            dense_width="shared_intermediate_size",
            needs=("layer_types",),
        ),
        "Glm4ForCausalLM": Family(traits=Traits(qkv_bias=True, norms_per_layer=4)),
        "Glm4MoeLiteForCausalLM": _DEEPSEEK_V3,
        "Glm4MoeForCausalLM": Family(traits=Traits(qkv_bias=True, router_bias=True)),
        "GlmMoeDsaForCausalLM": _DEEPSEEK_V3,
        "GptOssForCausalLM": Family(
            traits=Traits(qkv_bias=True, output_bias=True, sinks=True, router_bias=True, expert_bias=True),
            layer_period=2,
            expert_width="intermediate_size",
        ),
        "JambaForCausalLM": Family(
            expert_width="intermediate_size",
            least_experts=2,
            needs=("attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset"),
        ),
        "KimiK25ForConditionalGeneration": _DEEPSEEK_V3,
        "KimiLinearForCausalLM": Family(
            traits=Traits(router_bias=True), default_state_bytes=4, needs=("linear_attn_config", "kv_lora_rank")
        ),
        "Lfm2ForCausalLM": Family(traits=_QK_NORM, tied_by_default=True, needs=("conv_L_cache",)),
        "LlamaForCausalLM": Family(),
        "Llama4ForConditionalGeneration": Family(
            layer_period=4,
            expert_width="intermediate_size",
            shared_width="intermediate_size",
            dense_width="intermediate_size_mlp",
        ),
        "MiniCPMForCausalLM": Family(tied_by_default=True, expert_width="intermediate_size"),
        "MiniMaxM2ForCausalLM": Family(traits=Traits(qk_norm=True, router_bias=True), expert_width="intermediate_size"),
        "MistralForCausalLM": Family(),
        "Mistral3ForConditionalGeneration": Family(vision="pixtral"),
        "MixtralForCausalLM": Family(expert_width="intermediate_size"),
        "NemotronHForCausalLM": Family(
            traits=Traits(gated_mlp=False, norms_per_layer=1, router_bias=True),
            default_state_bytes=4,
            needs=("hybrid_override_pattern or layers_block_type",),
        ),
        "Olmo2ForCausalLM": Family(traits=_OLMO),
        "Olmo3ForCausalLM": Family(traits=_OLMO, layer_period=4, needs=("sliding_window",)),
        "OPTForCausalLM": Family(
            traits=Traits(gated_mlp=False, all_bias=True, norm_bias=True),
            tied_by_default=True,
            dense_width="ffn_dim",
        ),
        "PhiForCausalLM": Family(
            traits=Traits(gated_mlp=False, all_bias=True, norms_per_layer=1, norm_bias=True, head_bias=True)
        ),
        "Phi3ForCausalLM": Family(),
        "Qwen2ForCausalLM": Family(traits=_QKV_BIAS, window_always=False, heads_divide_hidden=True),
        "Qwen2MoeForCausalLM": Family(
            traits=Traits(qkv_bias=True, shared_expert_gate=True),
            shared_width="shared_expert_intermediate_size",
            window_always=False,
        ),
        "Qwen2_5_VLForConditionalGeneration": Family(
            traits=_QKV_BIAS, window_always=False, heads_divide_hidden=True, vision="qwen2"
        ),
        "Qwen3VLForConditionalGeneration": Family(traits=_QK_NORM, window_always=False, vision="qwen"),
        "Qwen3VLMoeForConditionalGeneration": Family(traits=_QK_NORM, window_always=False, vision="qwen"),
        "Qwen3ForCausalLM": Family(traits=_QK_NORM, window_always=False),
        "Qwen3MoeForCausalLM": Family(traits=_QK_NORM, window_always=False),
        "Qwen3NextForCausalLM": Family(
            traits=_QWEN3_5_MOE.traits,
            shared_width=_QWEN3_5_MOE.shared_width,
            output_gate=True,
            prediction_layers=1,
        ),
        "Qwen3_5ForCausalLM": _QWEN3_5,
        "Qwen3_5MoeForCausalLM": _QWEN3_5_MOE,
        "Qwen3_5ForConditionalGeneration": _QWEN3_5,
        "Qwen3_5MoeForConditionalGeneration": _QWEN3_5_MOE,
    }
)
