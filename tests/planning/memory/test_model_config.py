"""config.json files of every spelling, and what is refused."""

from typing import Any

import pytest

from bayplan.planning.memory.architecture import FeedForward, Mixer, UnknownArchitecture
from bayplan.planning.memory.families import FAMILIES
from bayplan.planning.memory.modelconfig import parse_config, reduced_config
from bayplan.planning.memory.quantconfig import stated_cache_type, stated_format
from bayplan.planning.numbers import InvalidInput

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}


def llama(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**LLAMA, **changes}.items() if value is not ...}


def test_heads_default_to_hidden_over_heads() -> None:
    shape = parse_config(LLAMA).attention

    assert shape is not None
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (32, 8, 128)


def test_a_stated_head_size_wins() -> None:
    shape = parse_config(llama(head_dim=64)).attention

    assert shape is not None
    assert shape.head_dim == 64


def test_fields_of_a_multimodal_model_are_nested() -> None:
    nested = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": llama(sliding_window=1024)}

    model = parse_config(nested)

    assert [layer.mixer for layer in model.layers[:6]] == [Mixer.SLIDING] * 5 + [Mixer.FULL]
    assert model.vision_parameters > 400_000_000
    assert parse_config({**nested, "vision_config": {}}).vision_parameters == 0


def test_layer_types_are_taken_as_listed() -> None:
    types = ["full_attention", "sliding_attention"] * 16
    model = parse_config(llama(layer_types=types, sliding_window=128))

    assert [layer.mixer for layer in model.layers[:2]] == [Mixer.FULL, Mixer.SLIDING]
    with pytest.raises(InvalidInput, match="must list all 32 layers"):
        parse_config(llama(layer_types=types[:-1], sliding_window=128))
    with pytest.raises(InvalidInput, match="not banded"):
        parse_config(llama(layer_types=["banded"] * 32))


def test_a_window_of_qwen_needs_its_switch() -> None:
    qwen = llama(architectures=["Qwen2ForCausalLM"], sliding_window=4096)

    assert {layer.mixer for layer in parse_config(qwen).layers} == {Mixer.FULL}
    assert Mixer.SLIDING in {layer.mixer for layer in parse_config({**qwen, "use_sliding_window": True}).layers}


def test_experts_go_by_several_names() -> None:
    deepseek = llama(
        architectures=["DeepseekV3ForCausalLM"],
        n_routed_experts=64,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        n_shared_experts=2,
        first_k_dense_replace=1,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
    )
    oss = llama(architectures=["GptOssForCausalLM"], num_local_experts=32, experts_per_token=4, sliding_window=128)

    model = parse_config(deepseek)
    assert [layer.feed_forward for layer in model.layers[:2]] == [FeedForward.DENSE, FeedForward.EXPERTS]
    assert model.experts is not None
    assert model.experts.shared_intermediate_size == 2816
    other = parse_config(oss).experts
    assert other is not None
    assert (other.experts, other.per_token, other.intermediate_size) == (32, 4, 14336)


def test_a_pattern_of_letters_names_each_layer() -> None:
    nemotron = llama(
        architectures=["NemotronHForCausalLM"],
        num_hidden_layers=4,
        hybrid_override_pattern="M-*E",
        mamba_num_heads=64,
        mamba_head_dim=64,
        ssm_state_size=128,
        n_groups=8,
        conv_kernel=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=512,
    )

    model = parse_config(nemotron)

    assert [layer.mixer for layer in model.layers] == [Mixer.MAMBA, Mixer.NONE, Mixer.FULL, Mixer.NONE]
    assert model.mamba is not None
    assert model.mamba.state_bytes == 4
    with pytest.raises(InvalidInput, match="must be 4 letters"):
        parse_config({**nemotron, "hybrid_override_pattern": "M-*"})


def test_an_unknown_class_names_what_it_needs() -> None:
    with pytest.raises(UnknownArchitecture, match="num_key_value_heads") as refused:
        parse_config(llama(architectures=["BananaForCausalLM"]))

    assert refused.value.architecture == "BananaForCausalLM"
    with pytest.raises(UnknownArchitecture, match="architectures"):
        parse_config(llama(architectures=...))


@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "num_hidden_layers"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(UnknownArchitecture) as refused:
        parse_config(llama(**{field: ...}))

    assert field in refused.value.needs


def test_a_part_that_layers_need_is_named() -> None:
    with pytest.raises(UnknownArchitecture) as refused:
        parse_config(llama(intermediate_size=...))

    assert refused.value.needs == ("intermediate_size",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_attention_heads", 0),
        ("num_key_value_heads", 0),
        ("head_dim", 0),
        ("hidden_size", float("nan")),
        ("hidden_size", float("inf")),
        ("hidden_size", 4096.5),
        ("hidden_size", "4096"),
        ("hidden_size", True),
        ("vocab_size", -1),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", -5),
        ("sliding_window", -1),
        ("intermediate_size", 10**18),
        ("tie_word_embeddings", "yes"),
        ("torch_dtype", "int1"),
        ("max_position_embeddings", -1),
    ],
)
def test_a_senseless_number_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput):
        parse_config(llama(**{field: value}))


@pytest.mark.parametrize("config", [None, [], "x", 3])
def test_something_that_is_no_object_is_refused(config: Any) -> None:
    with pytest.raises(InvalidInput, match="JSON object"):
        parse_config(config)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_known_class_says_what_it_lacks(name: str) -> None:
    with pytest.raises(UnknownArchitecture) as refused:
        parse_config({"architectures": [name]})

    assert refused.value.needs


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layer_types": [["full_attention"]] * 32}, "layer_types"),
        ({"mlp_only_layers": "0", **EXPERTS}, "mlp_only_layers"),
        ({"text_config": "LlamaForCausalLM"}, "text_config"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_key_value_heads": 64}, "num_key_value_heads"),
    ],
)
def test_a_field_of_the_wrong_form_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_config(llama(**changes))

    assert refused.value.field == field


@pytest.mark.parametrize(
    "stated",
    [
        {"quant_method": "gptq", "bits": [4]},
        {"quant_method": "awq", "bits": "4"},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": [4]}}}},
        {"quant_method": ["fp8"]},
    ],
)
def test_a_format_of_the_wrong_form_is_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="quantization_config"):
        stated_format({"quantization_config": stated})


def test_layers_of_latent_attention_are_called_full_in_some_files() -> None:
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    model = parse_config(llama(architectures=["DeepseekV3ForCausalLM"], layer_types=["full_attention"] * 32, **latent))

    assert {layer.mixer for layer in model.layers} == {Mixer.LATENT}


FP8_CACHE = {"num_bits": 8, "type": "float", "dynamic": False}


@pytest.mark.parametrize(
    ("stated", "cache"),
    [
        ({"quant_method": "modelopt", "kv_cache_scheme": FP8_CACHE}, "fp8"),
        ({"quant_method": "modelopt_fp4", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": FP8_CACHE}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"}, "auto"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": [8], "type": "float"}}, "auto"),
        ({"quant_method": "fp8", "kv_cache_scheme": FP8_CACHE}, "auto"),
        ({"quant_method": "modelopt"}, "auto"),
        (None, "auto"),
    ],
)
def test_a_checkpoint_declares_the_type_of_its_cache(stated: dict[str, Any] | None, cache: str) -> None:
    assert stated_cache_type({"quantization_config": stated}) == cache
    assert stated_cache_type({"text_config": {"quantization_config": stated}}) == cache
    if cache != "auto":
        reduced = reduced_config(llama(quantization_config=stated))
        assert stated_cache_type(reduced) == cache


def test_what_a_file_leaves_to_its_class_is_filled_in() -> None:
    """Gemma 3's published files leave out the vocabulary, and the 4B and 12B the size of a head."""
    text = {"hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "sliding_window": 1024}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8}
    model = parse_config({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {**text, **heads}})
    silent = parse_config({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}).attention

    assert model.attention is not None
    assert silent is not None
    assert (model.vocab_size, model.attention.head_dim, model.max_position_embeddings) == (262208, 256, 131072)
    assert (model.attention.kv_heads, silent.heads, silent.kv_heads) == (8, 8, 4)


def test_expert_layers_are_named_one_by_one() -> None:
    types = ["dense", *["sparse"] * 31]
    model = parse_config(llama(architectures=["Qwen3MoeForCausalLM"], mlp_layer_types=types, **EXPERTS))

    assert [layer.feed_forward for layer in model.layers[:2]] == [FeedForward.DENSE, FeedForward.EXPERTS]
    for wrong in (types[:-1], "dense", [["dense"]] * 32):
        with pytest.raises(InvalidInput, match="mlp_layer_types"):
            parse_config(llama(architectures=["Qwen3MoeForCausalLM"], mlp_layer_types=wrong, **EXPERTS))
