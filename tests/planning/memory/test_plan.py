"""Terms against published figures, the rules of each version, and the verdict on both sides of its limits."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.planning.memory.adapters import AdapterSlots
from bayplan.planning.memory.enginerules import batch_defaults, vllm_rules
from bayplan.planning.memory.otherengines import sglang_cache, tensorrt_llm_cache
from bayplan.planning.memory.overheads import captured_sizes
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.memory.plan import plan_memory
from bayplan.planning.memory.request import EngineFlags
from bayplan.planning.memory.terms import Source
from bayplan.planning.memory.verdict import decide_fit
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.memory.weights import MeasuredWeights
from bayplan.planning.numbers import GIB, InvalidInput
from tests.planning.memory.questions import ask, gpu


def gib(number: Fraction) -> float:
    return float(number / GIB)


@pytest.mark.parametrize(
    ("model", "version", "peak"),
    [
        # llm-d-planner, empirical results and #205: activation peaks with 1024 sequences on an H100
        ("Llama-3.1-8B", "0.11.0", 4.76),
        ("Qwen3-32B", "0.16.0", 5.64),
        ("gpt-oss-20b", "0.11.0", 7.38),
        ("Llama-3.1-8B", "0.19.0", 1.89),
        ("Qwen2.5-7B", "0.17.0", 2.21),
        ("gpt-oss-20b", "0.19.0", 2.87),
    ],
)
def test_the_sampler_binds_on_large_gpus(model: str, version: str, peak: float) -> None:
    stage = plan_memory(ask(model, version=version, max_model_len=8192)).stages[0]

    assert stage.peak is stage.sampler
    assert gib(stage.peak.bytes_per_gpu) == pytest.approx(peak, rel=0.03)


@pytest.mark.parametrize(("length", "peak"), [(20000, 2.07), (29000, 2.99)])
def test_v0_profiles_one_prompt_of_the_longest_length(length: int, peak: float) -> None:
    """vllm#10517: 110.6 kB a token."""
    stage = plan_memory(ask(on="RTX 3090", version="0.6.4", max_model_len=length)).stages[0]

    assert stage.peak is stage.forward
    assert gib(stage.peak.bytes_per_gpu) == pytest.approx(peak, rel=0.01)


def test_the_sampler_is_not_divided_by_the_width() -> None:
    one, four = (
        plan_memory(ask(ranks=ParallelLayout(tensor=tensor), max_model_len=8192)).stages[0] for tensor in (1, 4)
    )

    assert one.sampler is not None
    assert four.sampler is not None
    assert one.sampler.bytes_per_gpu == four.sampler.bytes_per_gpu


@pytest.mark.parametrize(
    ("version", "utilization", "graphs", "by_concurrency"),
    [
        ("0.19.1", "0.9", False, False),
        ("0.20.0rc1", "0.9", False, False),
        ("0.20.0", "0.92", True, False),
        ("0.20.1rc1.dev16", "0.92", True, False),
        ("0.20.1", "0.92", True, True),
        ("0.33.0", "0.92", True, True),
    ],
)
def test_rules_change_with_the_release_that_changed_them(
    version: str, utilization: str, graphs: bool, by_concurrency: bool
) -> None:
    rules = vllm_rules(EngineVersion.parse(version))

    assert rules.default_utilization == Fraction(utilization)
    assert rules.graphs_in_budget is graphs
    assert rules.tokens_by_concurrency is by_concurrency


def test_graphs_leave_the_budget_only_where_the_version_counts_them() -> None:
    before, after = (
        plan_memory(ask(version=version, max_model_len=8192, gpu_memory_utilization=Fraction(9, 10))).stages[0]
        for version in ("0.19.0", "0.20.0")
    )

    assert before.uncounted_bytes == before.graphs.bytes_per_gpu > 0
    assert after.uncounted_bytes == 0
    assert before.cache_bytes - after.cache_bytes == after.graphs.bytes_per_gpu


def test_versions_before_the_first_rules_are_refused() -> None:
    assert vllm_rules(EngineVersion.parse("0.4.0")).since == "0.4.0"
    with pytest.raises(InvalidInput, match="older than the first known rules"):
        vllm_rules(EngineVersion.parse("0.3.3"))


@pytest.mark.parametrize("text", ["", "x", "0.1.dev20073+g8e685d198", "1", "0.19.0.0.0"])
def test_a_version_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="engine_version"):
        EngineVersion.parse(text)


def test_an_unknown_or_newer_version_is_remarked() -> None:
    newer = plan_memory(ask(version="0.40.0", max_model_len=8192))
    unknown = plan_memory(replace(ask(), flags=EngineFlags(max_model_len=8192)))

    assert any("newer than the newest known rules" in remark for remark in newer.remarks)
    assert any("engine version not stated" in remark for remark in unknown.remarks)


@pytest.mark.parametrize(
    ("name", "size", "version", "tokens", "sequences"),
    [
        ("H100", "69.9", "0.19.0", 2048, 256),
        ("H100", "70", "0.19.0", 8192, 1024),
        ("A100", "79.2", "0.19.0", 2048, 256),
        ("A100", "79.2", "0.8.5", 8192, 1024),
        ("B200", "160", "0.27.0", 8192, 1024),
        ("B200", "160", "0.28.0", 16384, 1024),
        ("B200", "159.9", "0.28.0", 8192, 1024),
        ("GB10", "121.6", "0.32.0", 8192, 1024),
        ("GB10", "121.6", "0.33.0", 2048, 256),
    ],
)
def test_batch_defaults_follow_the_gpu_class(name: str, size: str, version: str, tokens: int, sequences: int) -> None:
    found = batch_defaults(
        vllm_rules(EngineVersion.parse(version)), gpu_name=name, gpu_gib=Fraction(size), max_model_len=8192
    )

    assert (found.batched_tokens, found.sequences) == (tokens, sequences)


def test_sizes_that_are_captured_go_up_to_twice_the_sequences() -> None:
    step = plan_memory(ask(max_model_len=8192, max_num_seqs=64)).step

    assert captured_sizes(step) == 19
    assert captured_sizes(replace(step, sequences=256)) == captured_sizes(replace(step, sequences=1024)) == 51
    assert captured_sizes(replace(step, sequences=1)) == 2


def test_attention_ranks_have_caches_of_their_own() -> None:
    one, four = (
        plan_memory(
            ask(
                "Qwen3-30B-A3B",
                weights=MeasuredWeights(Fraction(20)),
                ranks=ParallelLayout(data=data),
                max_model_len=8192,
                max_num_seqs=256,
            )
        )
        for data in (1, 4)
    )

    assert one.blocks == four.blocks
    assert four.max_concurrency == 4 * one.max_concurrency


def test_experts_are_shared_by_all_ranks_and_attention_is_not() -> None:
    whole, spread = (
        plan_memory(ask("Qwen3-30B-A3B", ranks=ParallelLayout(data=data), max_model_len=8192)).stages[0].weights
        for data in (1, 4)
    )

    assert whole.bytes_per_gpu / 4 < spread.bytes_per_gpu < whole.bytes_per_gpu / 3


def test_adapter_slots_are_a_term() -> None:
    """Llama-3.1-8B, one slot of rank 16: 41.9 M elements of 2 bytes (the published size of such an adapter)."""
    stage = plan_memory(ask(max_model_len=8192, adapters=AdapterSlots(max_loras=1, max_lora_rank=16))).stages[0]

    (slots,) = stage.extras
    assert slots.bytes_per_gpu == 41_943_040 * 2
    assert slots in stage.terms


def test_a_stated_cache_is_taken_as_it_is() -> None:
    asked = ask(max_model_len=8192, kv_cache_memory_bytes=10 * GIB)
    plan = plan_memory(asked)

    assert plan.stages[0].cache_bytes == 10 * GIB
    assert decide_fit(asked).fits
    assert not decide_fit(asked.with_flags(kv_cache_memory_bytes=70 * GIB)).fits


def test_prediction_layers_join_the_pool() -> None:
    """rtx6kpro: 329,792 tokens in 19.12 GiB with MTP are 79 layers; 78 without."""
    ranks = ParallelLayout(tensor=8)
    without, with_mtp = (
        plan_memory(
            ask(
                "GLM-5.1", version="0.20.1", ranks=ranks, kv_cache_dtype="fp8", max_model_len=8192, speculative_tokens=n
            )
        ).pages
        for n in (0, 3)
    )

    assert with_mtp.block_bytes[0] * 78 == without.block_bytes[0] * 79


def test_every_term_says_where_it_comes_from() -> None:
    plan = plan_memory(ask("Qwen3-30B-A3B", ranks=ParallelLayout(tensor=2, pipeline=2), max_model_len=8192))

    for stage in plan.stages:
        for term in (*stage.terms, stage.graphs, plan.cache_term(stage)):
            assert term.bytes_per_gpu >= 0
            assert isinstance(term.source, Source)
            assert term.formula
        assert stage.cache_bytes == stage.budget_bytes - sum(term.bytes_per_gpu for term in stage.terms)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("max_model_len", -1),
        ("max_model_len", 0),
        ("max_model_len", 10**10),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 1.5),
        ("gpu_memory_utilization", float("nan")),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.01),
        ("kv_cache_dtype", "fp3"),
        ("dtype", "int8"),
        ("block_size", 0),
        ("speculative_tokens", -1),
    ],
)
def test_a_flag_that_no_engine_takes_is_refused_by_name(flag: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        ask(**{flag: value})

    assert refused.value.field == flag


def test_an_unknown_length_is_asked_for() -> None:
    asked = ask()
    unknown = replace(asked, model=replace(asked.model, max_position_embeddings=None))

    with pytest.raises(InvalidInput, match="max_model_len"):
        plan_memory(unknown)


@settings(max_examples=40)
@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    length=st.integers(64, 131072),
    sequences=st.integers(1, 1024),
    tokens=st.integers(512, 16384),
    version=st.sampled_from(["0.8.5", "0.12.0", "0.17.0", "0.20.0", "0.26.0", "0.33.0"]),
)
def test_more_memory_never_holds_less(tensor: int, length: int, sequences: int, tokens: int, version: str) -> None:
    asked = ask(
        "gemma-3-27b-it",
        version=version,
        ranks=ParallelLayout(tensor=tensor),
        max_model_len=length,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
    )
    larger = replace(asked, gpu=asked.gpu.overridden(visible_gib=asked.gpu.visible_gib + 8))

    assert plan_memory(larger).max_concurrency >= plan_memory(asked).max_concurrency


@settings(max_examples=40)
@given(sequences=st.integers(1, 1023), tokens=st.integers(512, 16383))
def test_larger_steps_never_leave_more_cache(sequences: int, tokens: int) -> None:
    small = ask(max_model_len=8192, max_num_seqs=sequences, max_num_batched_tokens=tokens)
    large = small.with_flags(max_num_seqs=sequences + 1, max_num_batched_tokens=tokens + 1)

    assert plan_memory(large).stages[0].cache_bytes <= plan_memory(small).stages[0].cache_bytes


def test_other_engines_are_bands_or_their_own_rule() -> None:
    h100 = gpu()
    band = sglang_cache(h100, weights_gib=Fraction(15))
    stated = sglang_cache(h100, weights_gib=Fraction(15), fraction=Fraction(8, 10))

    assert band.source is Source.UNKNOWN
    assert band.least_gib < band.most_gib
    assert stated.least_gib == stated.most_gib == h100.visible_gib * Fraction(8, 10) - 15
    left = tensorrt_llm_cache(h100, weights_gib=Fraction(15), activation_gib=Fraction(2))
    assert left.most_gib == (h100.visible_gib - 17) * Fraction(9, 10)
    with pytest.raises(InvalidInput, match="mem_fraction_static"):
        sglang_cache(h100, weights_gib=Fraction(15), fraction=Fraction(11, 10))
