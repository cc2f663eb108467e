"""Page layouts against figures that engines printed, each with its source, and rules on both sides of their limits."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.memory.architecture import Mixer
from bayplan.planning.memory.cachelayers import (
    CacheKind,
    CacheLayer,
    CacheSpec,
    StateTypes,
    cache_layers,
    heads_per_rank,
    state_bytes,
)
from bayplan.planning.memory.catalogue import catalogue_model
from bayplan.planning.memory.modelconfig import parse_config
from bayplan.planning.memory.pages import PageRules, page_layout
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.numbers import GIB, InvalidInput
from tests.planning.memory.questions import ask, tokens_in

FULL, SLIDING, STATE = (
    CacheSpec(kind, 1024, reach=64) for kind in (CacheKind.FULL, CacheKind.SLIDING, CacheKind.STATE)
)


def layers(**numbers: int) -> list[CacheLayer]:
    specs = {"full": CacheSpec(CacheKind.FULL, 1024), "sliding": SLIDING, "state": STATE}
    return [CacheLayer(0, specs[name]) for name, number in numbers.items() for _ in range(number)]


@pytest.mark.parametrize(
    ("request_of", "gib", "printed"),
    [
        # vLLM recipes, Kimi-K2-Think: latent vectors, one copy per rank; with DCP 8 the figure is eightfold
        (lambda: ask("Kimi-K2-Thinking", on="H200", version="0.12.0", ranks=ParallelLayout(tensor=8)), "46.8", 715072),
        (
            lambda: ask(
                "Kimi-K2-Thinking", on="H200", version="0.12.0", ranks=ParallelLayout(tensor=8, decode_context=8)
            ),
            "46.8",
            5720576,
        ),
        # rtx6kpro GLM-5.1: sparse MLA in packed fp8 and the indexer's keys
        (
            lambda: ask(
                "GLM-5.1", version="0.20.1", ranks=ParallelLayout(tensor=8), kv_cache_dtype="fp8", max_model_len=202752
            ),
            "19.55",
            341504,
        ),
        # kyuz0 logs: sliding windows in groups (gemma-3, gpt-oss)
        (lambda: ask("gemma-3-12b-it", version="0.13.0", max_model_len=9900), "16.25", 44368),
        # kyuz0 log: a state as large as a page, blocks of 544 tokens
        (
            lambda: ask(
                "Qwen3-Next-80B-A3B-Instruct", version="0.13.0", ranks=ParallelLayout(tensor=2), max_model_len=16384
            ),
            "7.09",
            154496,
        ),
        # vllm#57475: NVFP4 cache of a hybrid
        (
            lambda: ask("Qwen3.8-27B", version="0.29.1", kv_cache_dtype="nvfp4", max_model_len=124000),
            "2.97",
            150745,
        ),
        # datawhalechina/self-llm
        (lambda: ask("Qwen3.5-4B", version="0.23.0", max_model_len=4096), "10.21", 235706),
    ],
)
def test_tokens_agree_with_what_engines_printed(request_of, gib, printed) -> None:  # type: ignore[no-untyped-def]
    """The logs round the pool to 0.01 GiB, which is up to 0.1 %."""
    assert tokens_in(request_of(), gib) == pytest.approx(printed, rel=0.001)


def test_a_latent_cache_is_the_same_on_every_rank() -> None:
    """DeepSeek-V2-Lite: 27 layers × 576 × 2 bytes [vllm#15871: 0.95 GiB for 32,768 tokens]."""
    model = catalogue_model("DeepSeek-V2-Lite").architecture

    for tensor in (1, 2, 4, 8):
        found = cache_layers(model, ParallelLayout(tensor=tensor))
        assert sum(layer.spec.token_bytes for layer in found) == 27 * 576 * 2


@pytest.mark.parametrize(
    ("model", "states", "convolution", "recurrent"),
    [
        # Qwen3-Next says nothing of its states: the model's two bytes, or the flag's
        ("Qwen3-Next-80B-A3B-Instruct", StateTypes(), 2, 2),
        ("Qwen3-Next-80B-A3B-Instruct", StateTypes(mamba_ssm_cache_dtype="float32"), 2, 4),
        ("Qwen3-Next-80B-A3B-Instruct", StateTypes(mamba_cache_dtype="float32"), 4, 4),
        ("Qwen3-Next-80B-A3B-Instruct", StateTypes("float32", "bfloat16"), 4, 2),
        # Qwen3.5 states four bytes for the recurrent part
        ("Qwen3.5-4B", StateTypes(), 2, 4),
        ("Qwen3.5-4B", StateTypes(mamba_cache_dtype="float32"), 4, 4),
        ("Qwen3.5-4B", StateTypes(mamba_ssm_cache_dtype="float16"), 2, 2),
    ],
)
def test_a_state_is_as_wide_as_the_flag_the_model_or_the_rest_says(
    model: str, states: StateTypes, convolution: int, recurrent: int
) -> None:
    architecture = catalogue_model(model).architecture
    linear = architecture.linear
    assert linear is not None
    width = 2 * linear.key_heads * linear.key_head_dim + linear.value_heads * linear.value_head_dim
    matrix = linear.value_heads * linear.value_head_dim * linear.key_head_dim

    found = state_bytes(architecture, Mixer.GATED_DELTA, tensor=1, states=states)

    assert found == width * (linear.conv_kernel - 1) * convolution + matrix * recurrent


@pytest.mark.parametrize("name", ["mamba_cache_dtype", "mamba_ssm_cache_dtype"])
def test_a_type_of_states_that_the_engine_refuses_is_named(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"{name}.*'fp8' must be one of auto, float32, float16, bfloat16"):
        ask("Qwen3.5-4B", **{name: "fp8"})


@pytest.mark.parametrize(("tensor", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_heads_are_copied_once_the_width_exceeds_them(tensor: int, heads: int) -> None:
    assert heads_per_rank(8, tensor) == heads


@pytest.mark.parametrize(
    ("full", "sliding", "groups", "largest"),
    [(10, 20, 3, 10), (10, 14, 2, 14), (10, 15, 3, 10), (12, 13, 2, 13), (1, 5, 6, 1)],
)
def test_the_commoner_kind_sets_the_group_below_one_and_a_half_times(
    full: int, sliding: int, groups: int, largest: int
) -> None:
    layout = page_layout(layers(full=full, sliding=sliding), PageRules())

    assert len(layout.groups) == groups
    assert max(group.layers for group in layout.groups) == largest


def test_before_0_18_the_ratio_was_a_quarter_less() -> None:
    rules = PageRules(padding_ratio=Fraction(5, 4))

    assert len(page_layout(layers(full=10, sliding=12), rules).groups) == 2
    assert len(page_layout(layers(full=10, sliding=13), rules).groups) == 3


def test_windows_are_full_attention_where_the_version_knows_one_kind() -> None:
    assert len(page_layout(layers(full=10, sliding=20), PageRules(groups_by_kind=False)).groups) == 1


def test_a_window_holds_its_tokens_those_in_flight_and_one_block() -> None:
    layout = page_layout(layers(sliding=4), PageRules(in_flight_tokens=129))

    assert layout.blocks_for(10_000) == 192 // 16 + 1
    assert page_layout(layers(sliding=4), PageRules(in_flight_tokens=130)).blocks_for(10_000) == 13 + 1
    assert layout.blocks_for(16) == 2


@pytest.mark.parametrize(("state", "block"), [(1024 * 16, 16), (1024 * 16 + 1, 32), (1024 * 33, 48)])
def test_the_attention_block_grows_until_its_page_holds_a_state(state: int, block: int) -> None:
    found = [*layers(full=1), CacheLayer(0, CacheSpec(CacheKind.STATE, state))]

    layout = page_layout(found, PageRules())

    assert layout.smallest_block_tokens == block
    assert layout.block_bytes == (1024 * block,)


@pytest.mark.parametrize(("extra", "blocks"), [(0, 1), (1, 2), (4, 5)])
def test_states_take_pages_by_the_piece(extra: int, blocks: int) -> None:
    layout = page_layout(layers(full=1, state=1), PageRules(extra_state_blocks=extra))

    assert layout.blocks_for(16) == 1 + blocks
    assert layout.blocks_for(32) == 2 + blocks


def test_the_smallest_stage_pool_binds() -> None:
    found = [CacheLayer(stage, CacheSpec(CacheKind.FULL, 64)) for stage in (0, 0, 1)]
    layout = page_layout(found, PageRules(), stages=2)

    assert layout.block_bytes == (2048, 1024)
    assert layout.blocks_in([Fraction(20480), Fraction(4096)]) == 4
    assert layout.blocks_in([Fraction(-1), Fraction(4096)]) == 0


def test_a_model_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no layer keeps a cache"):
        page_layout([], PageRules())


@given(length=st.integers(1, 10**6), more=st.integers(0, 10**5), batch=st.integers(1, 16384))
def test_a_longer_request_never_takes_fewer_blocks(length: int, more: int, batch: int) -> None:
    layout = page_layout(layers(full=4, sliding=20, state=8), PageRules(in_flight_tokens=batch))

    assert layout.blocks_for(length + more) >= layout.blocks_for(length)


@given(pool=st.integers(0, 2**40), more=st.integers(0, 2**36), length=st.integers(1, 10**6))
def test_a_larger_pool_never_holds_less(pool: int, more: int, length: int) -> None:
    layout = page_layout(layers(full=4, sliding=20), PageRules())
    small, large = (layout.blocks_in([Fraction(size)]) for size in (pool, pool + more))

    assert layout.concurrency(large, length) >= layout.concurrency(small, length)


@pytest.mark.parametrize(
    ("family", "checkpoints", "blocks"), [("Mamba-2", 0, 2), ("Mamba-2", 1, 3), ("gated delta net", 1, 2)]
)
def test_only_mamba_keeps_a_page_for_the_checkpoint_of_its_prompt(family: str, checkpoints: int, blocks: int) -> None:
    found = [*layers(full=1), CacheLayer(0, CacheSpec(CacheKind.STATE, 1024, family=family))]

    layout = page_layout(found, PageRules(extra_state_blocks=1, mamba_checkpoint_blocks=checkpoints))

    assert layout.blocks_for(16) == 1 + blocks


BASE = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
}
ENGINES: dict[str, tuple[dict[str, Any], int, int, int, int]] = {
    "LlamaForCausalLM": ({"num_hidden_layers": 6}, 32, 4096, 10922, 349504),
    "Qwen2ForCausalLM": ({"num_hidden_layers": 5}, 64, 3000, 13107, 836617),
    "Gemma3ForCausalLM": ({"num_hidden_layers": 14, "sliding_window": 512}, 32, 8192, 32768, 488064),
    "DeepseekV2ForCausalLM": (
        {
            "num_hidden_layers": 4,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
        16,
        8192,
        14563,
        233008,
    ),
    "Qwen3NextForCausalLM": (
        {
            "num_hidden_layers": 8,
            "full_attention_interval": 4,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_conv_kernel_dim": 4,
        },
        32,
        8192,
        6553,
        925554,
    ),
    "NemotronHForCausalLM": (
        {
            "num_hidden_layers": 8,
            "hybrid_override_pattern": "M-M*M-M*",
            "mamba_num_heads": 8,
            "mamba_head_dim": 32,
            "ssm_state_size": 64,
            "n_groups": 2,
            "conv_kernel": 4,
        },
        32,
        8192,
        6553,
        925554,
    ),
}
"""Per family: config, block size, longest length, and what vLLM 0.32's CPU build reported for a pool of 1 GiB."""


@pytest.mark.parametrize("name", ENGINES)
def test_pages_are_those_of_a_started_engine(name: str) -> None:
    """Started with dummy weights, 1024 tokens per step, no asynchronous scheduling; blocks and tokens agree exactly."""
    config, block, length, blocks, tokens = ENGINES[name]
    model = parse_config({"architectures": [name], **BASE, **config})
    caching = int(model.has_states)
    rules = PageRules(
        block_tokens=block, in_flight_tokens=1024, extra_state_blocks=caching, mamba_checkpoint_blocks=caching
    )

    layout = page_layout(cache_layers(model, ParallelLayout()), rules)

    assert layout.blocks_in([Fraction(GIB)]) == blocks
    assert layout.reported_tokens(blocks, length) == tokens
