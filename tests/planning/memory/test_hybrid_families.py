"""Families whose layers mix attention with states, and those whose norms or windows are their own."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bayplan.planning.memory.architecture import ConvolutionShape, Mixer, ModelArchitecture, UnknownArchitecture
from bayplan.planning.memory.cachelayers import AUTO_STATES, StateTypes, cache_layers, state_bytes
from bayplan.planning.memory.catalogue import catalogue_model
from bayplan.planning.memory.enginerules import vllm_rules
from bayplan.planning.memory.modelconfig import parse_config, reduced_config
from bayplan.planning.memory.pages import PageLayout
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.memory.parameters import parameters_of
from bayplan.planning.memory.plan import layout_of_pages, step_size
from bayplan.planning.memory.request import PlanRequest
from bayplan.planning.numbers import GIB, InvalidInput
from tests.planning.memory.questions import ask

STARTED: dict[str, dict[str, Any]] = {
    family["config"]["architectures"][0]: family["config"]
    for family in json.loads(Path("e2e/conformance/cache_families.json").read_text(encoding="utf-8"))["families"]
}
KIMI = "moonshotai/Kimi-Linear-48B-A3B-Instruct"
DELTA = {
    "kda_layers": [1, 2, 3, 5, 6, 7],
    "full_attn_layers": [4, 8],
    "num_heads": 32,
    "head_dim": 128,
    "short_conv_kernel_size": 4,
}
KIMI_CONFIG: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "hidden_size": 2304,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "intermediate_size": 9216,
    "vocab_size": 163840,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "linear_attn_config": DELTA,
}


def without(config: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != name}


def pages_of(request: PlanRequest) -> PageLayout:
    rules = vllm_rules(request.flags.version)
    return layout_of_pages(request, rules, step_size(request, rules)[0])


def test_kimi_linear_mixes_delta_states_with_latent_vectors() -> None:
    model = catalogue_model(KIMI).architecture
    mixers = [layer.mixer for layer in model.layers]

    assert (mixers.count(Mixer.KIMI_DELTA), mixers.count(Mixer.LATENT)) == (20, 7)
    assert mixers[3] is Mixer.LATENT
    assert mixers[26] is Mixer.LATENT


def test_a_delta_state_is_three_convolutions_and_a_float32_matrix_per_head() -> None:
    """vLLM 0.32 `kda_state_shape`, `kda_state_dtype`: 3 × 4096 × 3 inputs in 16 bits, 32 × 128 × 128 in 32."""
    model = parse_config(KIMI_CONFIG)

    assert state_bytes(model, Mixer.KIMI_DELTA, tensor=1) == 3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4
    assert state_bytes(model, Mixer.KIMI_DELTA, tensor=4) * 4 == state_bytes(model, Mixer.KIMI_DELTA, tensor=1)
    small = StateTypes(mamba_ssm_cache_dtype="bfloat16")
    assert state_bytes(model, Mixer.KIMI_DELTA, tensor=1, states=small) == 3 * 4096 * 3 * 2 + 32 * 128 * 128 * 2


@pytest.mark.parametrize(
    ("version", "tensor", "block"), [("0.26.0", 1, 1920), ("0.26.0", 2, 960), ("0.27.0", 2, 1024), ("0.32.0", 1, 1920)]
)
def test_the_latent_block_grows_to_a_state_in_steps_of_the_release(version: str, tensor: int, block: int) -> None:
    pages = pages_of(ask(KIMI, version=version, ranks=ParallelLayout(tensor=tensor)))

    assert pages.smallest_block_tokens == block
    assert pages.block_bytes == (7 * block * 576 * 2,)
    assert len(pages.groups) == 4


@pytest.mark.parametrize("name", ["linear_attn_config", "kv_lora_rank"])
def test_kimi_linear_without_its_lists_or_ranks_is_refused(name: str) -> None:
    with pytest.raises(UnknownArchitecture, match=name):
        parse_config(without(KIMI_CONFIG, name))


@pytest.mark.parametrize("name", ["num_heads", "head_dim", "short_conv_kernel_size"])
def test_a_missing_part_of_the_delta_heads_is_named(name: str) -> None:
    with pytest.raises(UnknownArchitecture, match=rf"linear_attn_config\.{name}"):
        parse_config({**KIMI_CONFIG, "linear_attn_config": without(DELTA, name)})


@pytest.mark.parametrize(
    "lists",
    [
        {"kda_layers": [1, 2, 3], "full_attn_layers": [4]},
        {"kda_layers": [1, 2, 3, 4, 5, 6, 7], "full_attn_layers": [4, 8]},
        {"kda_layers": "1", "full_attn_layers": [4, 8]},
        {"full_attn_layers": [4, 8]},
    ],
)
def test_every_layer_stands_in_one_list(lists: dict[str, Any]) -> None:
    stated = {**without(without(DELTA, "kda_layers"), "full_attn_layers"), **lists}

    with pytest.raises(InvalidInput, match="linear_attn_config: must list layers 1 to 8"):
        parse_config({**KIMI_CONFIG, "linear_attn_config": stated})


@pytest.mark.parametrize("config", [KIMI_CONFIG, *STARTED.values()], ids=lambda config: config["architectures"][0])
def test_a_reduced_config_is_the_same_architecture(config: dict[str, Any]) -> None:
    assert parse_config(reduced_config(config)) == parse_config(config)


def test_falcon_h1_keeps_both_caches_in_every_layer() -> None:
    model = parse_config(STARTED["FalconH1ForCausalLM"])
    caches = cache_layers(model, ParallelLayout())

    assert model.has_states
    assert len(caches) == 2 * len(model.layers)
    assert {layer.spec.family for layer in caches} == {"attention", Mixer.MAMBA.value}


def test_granite_reads_layers_by_name_and_its_states_in_the_models_type() -> None:
    model = parse_config(STARTED["GraniteMoeHybridForCausalLM"])

    assert [layer.mixer for layer in model.layers][2:4] == [Mixer.MAMBA, Mixer.FULL]
    assert state_bytes(model, Mixer.MAMBA, tensor=1, states=AUTO_STATES) == (3328 * 3 + 48 * 64 * 128) * 2


def test_a_short_convolution_keeps_its_last_inputs_alone() -> None:
    model = parse_config(STARTED["Lfm2ForCausalLM"])

    assert model.convolution == ConvolutionShape(channels=2048, kernel=3)
    assert state_bytes(model, Mixer.SHORT_CONVOLUTION, tensor=1) == 2048 * 2 * 2
    assert [layer.mixer for layer in model.layers].count(Mixer.FULL) == 2


@pytest.mark.parametrize("stated", [[2, 99], ["2"], "25", [True]])
def test_layers_that_are_not_there_are_refused(stated: object) -> None:
    with pytest.raises(InvalidInput, match="full_attn_idxs: must list layers of 0 to 7"):
        parse_config({**STARTED["Lfm2ForCausalLM"], "full_attn_idxs": stated})


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("FalconH1ForCausalLM", "mamba_n_heads"),
        ("FalconH1ForCausalLM", "mamba_d_state"),
        ("GraniteMoeHybridForCausalLM", "layer_types"),
        ("GraniteMoeHybridForCausalLM", "mamba_d_conv"),
        ("Lfm2ForCausalLM", "conv_L_cache"),
        ("Olmo3ForCausalLM", "sliding_window"),
    ],
)
def test_a_missing_field_is_named(name: str, missing: str) -> None:
    with pytest.raises(UnknownArchitecture, match=missing):
        parse_config(without(STARTED[name], missing))


def _in_one_gib(model: ModelArchitecture, version: str) -> tuple[int, int]:
    known = ask(
        "Llama-3.1-8B",
        version=version,
        max_model_len=8192,
        max_num_batched_tokens=1025,
        block_size=32,
        async_scheduling=False,
    )
    request = PlanRequest(model, known.weights, known.gpu, known.ranks, known.flags)
    pages = pages_of(request)
    blocks = pages.blocks_in([Fraction(GIB)])
    return blocks, pages.reported_tokens(blocks, 8192)


def test_a_window_of_cohere_2_is_one_token_more_from_0_29() -> None:
    """Started at 0.32 with batches of 1025 tokens: 4096 blocks, 45221 tokens."""
    model = parse_config(STARTED["Cohere2ForCausalLM"])

    assert _in_one_gib(model, "0.32.0") == (4096, 45221)
    assert _in_one_gib(model, "0.28.0") == (4096, 45405)


def test_the_norms_of_queries_and_keys_count_by_column_where_they_are_wide() -> None:
    config = STARTED["Olmo2ForCausalLM"]
    llama = {**config, "architectures": ["LlamaForCausalLM"]}

    more = parameters_of(parse_config(config)).total - parameters_of(parse_config(llama)).total
    assert more == 8 * 2 * 2048


def test_a_stated_false_takes_the_biases_away() -> None:
    config = STARTED["Glm4ForCausalLM"]
    plain = parse_config({**config, "attention_bias": False})

    assert parameters_of(parse_config(config)).total - parameters_of(plain).total == 6 * (32 + 2 * 2) * 128


def test_nemotron_3_states_its_layers_by_word_and_its_experts_behind_projections() -> None:
    """120.7e9 parameters, as the name says; experts as wide as the model would make it 458e9."""
    large = catalogue_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16")
    words = catalogue_model("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4")
    letters = catalogue_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")

    assert large.architecture.experts is not None
    assert large.architecture.experts.latent_size == 1024
    assert large.parameters == 120668707840
    assert words.architecture.layers == letters.architecture.layers
    assert words.parameters == letters.parameters


@pytest.mark.parametrize(
    ("words", "message"),
    [(["mamba", "conv"], "must be of mamba, attention, mlp, moe, not conv"), ("mamba", "must list all 8 layers")],
)
def test_words_that_are_no_layers_are_refused(words: object, message: str) -> None:
    config = without(STARTED["NemotronHForCausalLM"], "hybrid_override_pattern")

    with pytest.raises(InvalidInput, match=f"layers_block_type: {message}"):
        parse_config({**config, "layers_block_type": words})
    with pytest.raises(UnknownArchitecture, match="hybrid_override_pattern or layers_block_type"):
        parse_config(config)


def test_jamba_keeps_a_state_per_channel_and_attends_in_each_eighth_layer() -> None:
    model = catalogue_model("ai21labs/Jamba-v0.1").architecture

    assert [index for index, layer in enumerate(model.layers) if layer.mixer is Mixer.FULL] == [4, 12, 20, 28]
    assert [layer.feed_forward.value for layer in model.layers[:2]] == ["dense", "experts"]
    assert state_bytes(model, Mixer.MAMBA_1, tensor=1) == 8192 * (3 + 16) * 2
    wide = StateTypes(mamba_ssm_cache_dtype="float32")
    assert state_bytes(model, Mixer.MAMBA_1, tensor=2, states=wide) == 4096 * (3 * 2 + 16 * 4)


def test_a_jamba_of_one_expert_is_dense() -> None:
    model = parse_config({**STARTED["JambaForCausalLM"], "num_experts": 1})

    assert not model.has_experts


@pytest.mark.parametrize("field", ["attn_layer_period", "expert_layer_offset", "mamba_d_state", "mamba_expand"])
def test_a_missing_field_of_jamba_is_named(field: str) -> None:
    with pytest.raises(UnknownArchitecture, match=field):
        parse_config(without(STARTED["JambaForCausalLM"], field))


def test_an_offset_outside_its_period_is_refused() -> None:
    with pytest.raises(InvalidInput, match="attn_layer_period: must be above the offset 8"):
        parse_config({**STARTED["JambaForCausalLM"], "attn_layer_offset": 8})
