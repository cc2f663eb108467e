"""The verdict on both sides of its limits, the risks of a start-up, and what would fit instead."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from bayplan.planning.layout.alternatives import alternatives, boundaries
from bayplan.planning.memory.plan import plan_memory
from bayplan.planning.memory.request import PlanRequest
from bayplan.planning.memory.verdict import MemoryVerdict, Risk, decide_fit
from bayplan.planning.memory.weights import MeasuredWeights
from bayplan.planning.numbers import GIB
from tests.planning.memory.questions import ask


def exactly(requests: int, **flags: Any) -> PlanRequest:
    """A GPU on which `requests` of 8192 tokens fit to the byte, and the plan on it."""
    step = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    asked = ask(weights=MeasuredWeights(Fraction(15)), concurrency=requests, max_model_len=8192, **step, **flags)
    plan = plan_memory(asked)
    stage = plan.stages[0]
    memory = (stage.used_bytes + plan.needed_cache_bytes(stage)) / plan.utilization / GIB
    return replace(asked, gpu=asked.gpu.overridden(visible_gib=memory))


def test_equal_to_the_budget_fits_and_a_byte_less_does_not() -> None:
    on_the_limit = exactly(30)
    below = replace(
        on_the_limit, gpu=on_the_limit.gpu.overridden(visible_gib=on_the_limit.gpu.visible_gib - Fraction(2, GIB))
    )

    fits, short = decide_fit(on_the_limit), decide_fit(below)

    assert fits.fits
    assert fits.headroom_bytes == 0
    assert fits.plan.max_concurrency == 30
    assert not short.fits
    assert 0 < short.shortfall_gib < Fraction(4, GIB)
    assert short.plan.max_concurrency == 29


def test_a_verdict_within_three_percent_is_marginal_either_way() -> None:
    base = exactly(8)
    memory = base.gpu.visible_gib

    def at(factor: str) -> MemoryVerdict:
        return decide_fit(replace(base, gpu=base.gpu.overridden(visible_gib=memory * Fraction(factor))))

    assert at("1.02").marginal
    assert at("1.02").fits
    assert at("0.98").marginal
    assert not at("0.98").fits
    assert at("0.98").deciding_flag.startswith("--")
    assert not at("1.04").marginal
    assert at("1.04").deciding_flag == ""
    assert not at("0.96").marginal


def risks(request: PlanRequest) -> set[Risk]:
    return {warning.risk for warning in decide_fit(request).warnings}


@pytest.mark.parametrize(("utilization", "warned"), [("0.94", False), ("0.941", True)])
def test_too_little_outside_the_budget_warns_of_graph_capture(utilization: str, warned: bool) -> None:
    """1.87 GiB of 31.38 are 5.96 %: 0.5 GiB and the 1.37 by which vllm#51590 overshot."""
    asked = ask(
        on="RTX PRO 4500 Blackwell", version="0.28.0", max_model_len=4096, gpu_memory_utilization=Fraction(utilization)
    )

    assert (Risk.GRAPH_CAPTURE in risks(asked)) is warned


def test_eager_mode_needs_less_outside() -> None:
    asked = ask(on="RTX 4090", version="0.28.0", max_model_len=4096, gpu_memory_utilization=Fraction(96, 100))

    assert Risk.GRAPH_CAPTURE in risks(asked)
    assert Risk.GRAPH_CAPTURE not in risks(asked.with_flags(enforce_eager=True))


@pytest.mark.parametrize(("utilization", "warned"), [("0.979", False), ("0.98", True)])
def test_a_utilization_from_098_is_a_risk(utilization: str, warned: bool) -> None:
    assert (Risk.UTILIZATION in risks(ask(max_model_len=4096, gpu_memory_utilization=Fraction(utilization)))) is warned


def test_unified_memory_is_a_risk() -> None:
    assert Risk.UNIFIED_MEMORY in risks(ask(on="GB10", max_model_len=4096))
    assert Risk.UNIFIED_MEMORY not in risks(ask(max_model_len=4096))


def test_a_refusal_names_what_would_fit() -> None:
    """vllm#23278: gpt-oss-120b on one H100, loaded through Marlin, is 2.14 GiB short because of the sampler."""
    loaded = MeasuredWeights(Fraction("65.9651"))
    refused = ask("gpt-oss-120b", version="0.10.1", max_model_len=131072, weights=loaded)
    verdict, found = decide_fit(refused), alternatives(refused)

    assert not verdict.fits
    assert float(verdict.stage.cache_bytes / GIB) == pytest.approx(-2.14, abs=0.2)
    assert found.tensor == 2
    assert str(found.changes[0]).startswith("--max-num-seqs")
    for change in found.changes:
        assert decide_fit(change.request).fits


def test_the_longest_length_is_exact() -> None:
    asked = ask(on="RTX 4090", concurrency=1, max_model_len=131072)
    longest = alternatives(asked).max_model_len

    assert longest is not None
    assert decide_fit(asked.with_flags(max_model_len=longest)).fits
    assert not decide_fit(asked.with_flags(max_model_len=longest + 1)).fits


def test_boundaries_are_the_last_values_that_fit() -> None:
    asked = ask(on="RTX 4090", concurrency=2, max_model_len=8192)
    found = {one.setting: one for one in boundaries(asked)}

    assert found["concurrency"].limit == str(decide_fit(asked).plan.max_concurrency)
    names = {"--max-model-len": "max_model_len", "--max-num-batched-tokens": "max_num_batched_tokens"}
    for setting, field in names.items():
        limit = int(found[setting].limit)
        assert found[setting].side == "at most"
        assert decide_fit(asked.with_flags(**{field: limit})).fits
        assert not decide_fit(asked.with_flags(**{field: limit + 1})).fits
    # Sequences beyond the batched tokens of a step are never in it.
    assert found["--max-num-seqs"].limit == "any"
    least = Fraction(found["--gpu-memory-utilization"].limit)
    assert found["--gpu-memory-utilization"].side == "at least"
    assert decide_fit(asked.with_flags(gpu_memory_utilization=least)).fits
    assert not decide_fit(asked.with_flags(gpu_memory_utilization=least - Fraction(1, 100))).fits
    assert found["--tensor-parallel-size"].limit == "1"


def test_a_boundary_without_a_value_is_empty() -> None:
    asked = ask("Llama-3.3-70B-Instruct", on="T4", max_model_len=8192)
    found = {one.setting: one.limit for one in boundaries(asked)}

    assert found["concurrency"] == found["--max-model-len"] == found["--gpu-memory-utilization"] == ""
