"""Known accept and refuse cases of vLLM's divisibility rules, each with its source."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.layout.knownmodel import from_catalogue
from bayplan.planning.layout.rules import Rule, RuleFacts, broken_rule, facts_for, keeps_rules, valid_widths
from bayplan.planning.layout.split import Split
from bayplan.planning.memory.catalogue import catalogue_model
from bayplan.planning.memory.formats import weight_format


def named(model: str, weights: str | None = None) -> RuleFacts:
    """The facts of a catalogue model, in the format of its own checkpoint or another."""
    found = catalogue_model(model)
    return facts_for(found.architecture, found.weights if weights is None else weight_format(weights))


def heads(number: int, kv_heads: int | None = None) -> RuleFacts:
    return RuleFacts(layers=40, heads=number, kv_heads=(kv_heads or number,))


class Known(NamedTuple):
    facts: RuleFacts
    split: Split
    rule: Rule | None
    """The rule that refuses it; None: vLLM starts."""
    next_size: str
    source: str


_VERIFY = "vLLM 0.33 config/model.py verify_with_parallel_config"
_QKV = "vLLM 0.33 QKVParallelLinear"
_LLAMA_8B, _LLAMA_70B = named("Llama-3.1-8B"), named("Llama-3.3-70B-Instruct")
_QWEN_MOE, _QWEN_LARGE = "Qwen3-30B-A3B", "Qwen3-235B-A22B"

KNOWN = [
    # 1: attention heads
    Known(heads(52), Split(8), Rule.ATTENTION_HEADS, "tensor=13", "vllm#2652"),
    Known(heads(52), Split(4), None, "", "vllm#2652"),
    Known(heads(25), Split(2), Rule.ATTENTION_HEADS, "tensor=5", "vllm#1705"),
    Known(heads(25), Split(5), None, "", "vllm#1705"),
    Known(heads(40), Split(3), Rule.ATTENTION_HEADS, "tensor=4", "vllm#414"),
    Known(heads(40), Split(6), Rule.ATTENTION_HEADS, "tensor=8", "vllm#596"),
    Known(_LLAMA_8B, Split(3), Rule.ATTENTION_HEADS, "tensor=4", _VERIFY),
    Known(_LLAMA_8B, Split(6), Rule.ATTENTION_HEADS, "tensor=8", _VERIFY),
    Known(_LLAMA_8B, Split(64), Rule.ATTENTION_HEADS, "tensor=32", _VERIFY),
    Known(_LLAMA_8B, Split(8), None, "", "llm-d-planner#205"),
    Known(named("gemma-3-27b-it"), Split(3), Rule.ATTENTION_HEADS, "tensor=4", "gpustack#2259"),
    Known(named("gemma-3-27b-it"), Split(4), None, "", _VERIFY),
    Known(named("falcon-7b"), Split(2), Rule.ATTENTION_HEADS, "tensor=1", "71 heads; " + _VERIFY),
    Known(named("Qwen2.5-0.5B"), Split(4), Rule.ATTENTION_HEADS, "tensor=2", "14 heads; " + _VERIFY),
    Known(
        named("DeepSeek-V4-Flash"), Split(16), Rule.ATTENTION_HEADS, "tensor=8", "8 groups; deepseek_v4/attention.py"
    ),
    Known(named("DeepSeek-V4-Flash"), Split(8), None, "", "one group of outputs a rank; deepseek_v4/attention.py"),
    # 2: KV heads
    Known(named("Phi-3-medium-4k-instruct"), Split(4), Rule.KV_HEADS, "tensor=2", "vllm#5951"),
    Known(named("Phi-3-medium-4k-instruct"), Split(2), None, "", "vllm#5951"),
    Known(heads(40, 10), Split(8), Rule.KV_HEADS, "tensor=10", "vllm#5951"),
    Known(heads(24, 6), Split(8), Rule.KV_HEADS, "tensor=12", _QKV),
    Known(heads(24, 6), Split(12), None, "", _QKV + ": each head copied twice"),
    Known(heads(64, 1), Split(8), None, "", _QKV + ": one head copied"),
    Known(_LLAMA_70B, Split(16), None, "", _QKV + ": 8 heads copied twice"),
    Known(named(_QWEN_LARGE), Split(8), None, "", _QKV + ": 4 heads copied twice"),
    # 3: padded vocabulary
    Known(named("Qwen3-14B"), Split(5), Rule.VOCABULARY, "tensor=8", "llm-d-planner#205"),
    Known(named("GLM-4.5"), Split(6), Rule.VOCABULARY, "tensor=8", "vllm#31474"),
    Known(named("Qwen3-14B"), Split(8), None, "", "llm-d-planner#205"),
    # 4: quantized shards
    Known(named(_QWEN_MOE, "awq-4bit"), Split(4), Rule.QUANTIZED_BLOCKS, "expert parallelism", "vllm#17604"),
    Known(named(_QWEN_MOE, "awq-4bit"), Split(2), None, "", "vllm#17604"),
    Known(named(_QWEN_MOE, "awq-4bit"), Split(4, expert=True), None, "", "vllm#17604: whole experts"),
    Known(named(_QWEN_LARGE, "fp8-block"), Split(8), Rule.QUANTIZED_BLOCKS, "expert parallelism", "fp8.py block_n"),
    Known(named(_QWEN_LARGE, "fp8-block"), Split(4), None, "", "fp8.py block_n: 1536 / 4 = 3 × 128"),
    Known(named(_QWEN_LARGE, "fp8-block"), Split(8, expert=True), None, "", "Qwen3-235B-A22B-FP8 model card"),
    Known(named(_QWEN_LARGE), Split(8), None, "", "bf16 has no blocks"),
    Known(named("MiniMax-M2.5"), Split(8), Rule.QUANTIZED_BLOCKS, "expert parallelism", "vLLM recipes MiniMax-M2"),
    Known(named("MiniMax-M2.5"), Split(4), None, "", "vLLM recipes MiniMax-M2"),
    Known(named("MiniMax-M2.5"), Split(8, expert=True), None, "", "vLLM recipes MiniMax-M2"),
    Known(named("DeepSeek-V3"), Split(8), None, "", "vLLM recipes DeepSeek-V3"),
    Known(named("DeepSeek-V3"), Split(16), None, "", "vLLM recipes DeepSeek-V3: 2048 / 16 = 128"),
    Known(named("DeepSeek-V3"), Split(32), Rule.QUANTIZED_BLOCKS, "tensor=16", "18432 / 32 = 4.5 × 128"),
    Known(named("Qwen2.5-72B", "gptq-4bit"), Split(8), Rule.QUANTIZED_BLOCKS, "tensor=1", "Qwen2.5 docs: pads 29,568"),
    Known(
        named("Qwen2.5-0.5B", "gptq-4bit"), Split(2), Rule.QUANTIZED_BLOCKS, "tensor=1", "auto_awq.py: 896 / 2 = 448"
    ),
    Known(named("Qwen2.5-0.5B"), Split(2), None, "", "nothing is packed"),
    Known(named("Llama-3.2-1B", "awq-4bit"), Split(8), None, "", "auto_awq.py: 2048 / 8 = 2 × 128"),
    Known(named("gpt-oss-120b"), Split(8), None, "", "vLLM recipes gpt-oss: MXFP4 is padded"),
    # 5: experts
    Known(named("Mixtral-8x7B-v0.1"), Split(4, expert=True), None, "", "vLLM expert parallel docs"),
    Known(named("Mixtral-8x7B-v0.1"), Split(16, expert=True), Rule.EXPERTS, "tensor=8", "vllm#52435"),
    Known(_LLAMA_8B, Split(2, expert=True), Rule.EXPERTS, "leave expert parallelism out", "EP is for experts only"),
    Known(named("DeepSeek-V3"), Split(1, data=8, expert=True), None, "", "vLLM recipes DeepSeek-V3"),
    Known(named("DeepSeek-V3"), Split(1, data=3, expert=True), Rule.EXPERTS, "data=4", "vllm#52435"),
    # 6: stages
    Known(named("Qwen3-8B"), Split(1, 3), None, "", "llm-d-planner#205"),
    Known(_LLAMA_8B, Split(1, 32), None, "", "get_pp_indices"),
    Known(_LLAMA_8B, Split(1, 33), Rule.STAGES, "pipeline=32", "get_pp_indices"),
    # 7: decode context
    Known(named("Kimi-K2-Thinking"), Split(8, decode_context=8), None, "", "vLLM recipes Kimi-K2-Think"),
    Known(named("Kimi-K2-Thinking"), Split(8, decode_context=3), Rule.DECODE_CONTEXT, "decodeContext=2", _VERIFY),
    Known(_LLAMA_70B, Split(8, decode_context=2), Rule.DECODE_CONTEXT, "decodeContext=1", _VERIFY),
    Known(_LLAMA_70B, Split(16, decode_context=2), None, "", _VERIFY),
    Known(_LLAMA_70B, Split(16, decode_context=4), Rule.DECODE_CONTEXT, "decodeContext=2", _VERIFY),
    Known(named(_QWEN_LARGE), Split(8, decode_context=2), None, "", _VERIFY),
    Known(named("gemma-3-27b-it"), Split(32, decode_context=2), Rule.DECODE_CONTEXT, "leave decode", _VERIFY),
]


@pytest.mark.parametrize("known", KNOWN, ids=[f"{index}-{case.source}" for index, case in enumerate(KNOWN)])
def test_the_engines_answer_is_known_before_it_starts(known: Known) -> None:
    broken = broken_rule(known.facts, known.split)

    assert (None if broken is None else broken.rule) == known.rule
    assert keeps_rules(known.facts, known.split) == (known.rule is None)
    if broken is not None:
        assert known.next_size in str(broken)


def test_there_are_enough_known_cases_on_both_sides() -> None:
    refused = [known for known in KNOWN if known.rule is not None]

    assert len(KNOWN) >= 40
    assert len(KNOWN) - len(refused) >= 20
    assert {known.rule for known in refused} >= set(Rule) - {Rule.INNER_WIDTH}


def test_an_inner_width_that_does_not_divide_is_refused() -> None:
    facts = RuleFacts(layers=2, heads=6, kv_heads=(6,), dense_widths=(100,))

    broken = broken_rule(facts, Split(6))

    assert broken is not None
    assert broken.rule is Rule.INNER_WIDTH
    assert str(broken) == "tensor=6 does not divide the inner width of 100; the next valid size is tensor=2"


def test_blocks_of_a_dense_width_are_not_judged_by_another_checkpoints_config() -> None:
    """The published GPTQ checkpoint of Qwen2.5-72B pads its inner width; the catalogue has that of the plain one."""
    packed = from_catalogue(catalogue_model("Qwen2.5-72B"), stated=weight_format("gptq-4bit"))

    assert keeps_rules(packed.facts, Split(8))


@given(st.sampled_from(KNOWN), st.integers(1, 64))
def test_the_next_size_that_a_refusal_names_is_valid(known: Known, tensor: int) -> None:
    split = Split(tensor, known.split.pipeline if known.split.pipeline <= known.facts.layers else 1)
    broken = broken_rule(known.facts, split)
    if broken is None or "the next valid size is tensor=" not in broken.way_out:
        return
    size = int(broken.way_out.partition("tensor=")[2].partition(",")[0])

    assert keeps_rules(known.facts, Split(size, split.pipeline))
    assert size in valid_widths(known.facts, up_to=64)
