"""Each gate on both sides of its limit and on it; whose fault a miss is; what is thin or unknown."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.rolloutwords import GateName, Handling, OnRegression, Outcome
from bayplan.planning.gates.measures import ArmMeasures, ClassMeasures, EdgeCounts
from bayplan.planning.gates.records import EVERY_CLASS, Gate, GateResult, require_distinct, worst_first
from bayplan.planning.gates.release import (
    ReleaseAction,
    ReleaseHold,
    ReleaseMeasurement,
    ReleaseRequirements,
    decide_release,
)
from bayplan.planning.gates.servicemetrics import nearest_rank
from bayplan.planning.gates.thresholds import LeastSamples, judge, judge_all
from bayplan.planning.measurements import Unknown
from bayplan.planning.numbers import InvalidInput

LEAST = LeastSamples(requests=100, prompts=10)
TTFT = Gate(GateName.TTFT, Fraction(1))
ERRORS = Gate(GateName.ERROR_RATE, Fraction(1, 100))
THROUGHPUT = Gate(GateName.THROUGHPUT, Fraction(95, 100))
FLOOR = Gate(GateName.QUALITY_FLOOR, Fraction(85, 100))
DROP = Gate(GateName.QUALITY_DROP, Fraction(3, 100))
GOOD: dict[str, Any] = {
    "requests": 1000,
    "p95_ttft": EdgeCounts(1, 1000, 1000),  # type: ignore[arg-type]
    "error_rate": 0,
    "output_tokens_per_second": 100,
}


def arm(
    workload_class: str = EVERY_CLASS, quality: Any = Fraction(9, 10), prompts: int = 100, **of: Any
) -> ArmMeasures:
    return ArmMeasures({workload_class: ClassMeasures(**(GOOD | of))}, quality=quality, prompts=prompts)


def late(beyond: int, total: int = 1000) -> dict[str, Any]:
    return {"p95_ttft": EdgeCounts(1, total - beyond, total)}  # type: ignore[arg-type]


def outcome(gate: Gate, candidate: ArmMeasures, baseline: ArmMeasures | None = None) -> tuple[Outcome, Handling]:
    result = judge(gate, candidate, arm() if baseline is None else baseline, LEAST)
    return result.outcome, result.handling


PASSED = (Outcome.PASSED, Handling.WAIT)
ROLL_BACK = (Outcome.FAILED, Handling.ROLL_BACK)
TUNE = (Outcome.FAILED, Handling.TUNE_SERVING)
COLLECT = (Outcome.UNKNOWN, Handling.COLLECT)


class TestLimits:
    @pytest.mark.parametrize(
        ("beyond", "total", "wanted"), [(50, 1000, PASSED), (51, 1000, ROLL_BACK), (5, 119, PASSED)]
    )
    def test_ttft_passes_while_at_most_a_twentieth_is_above_the_edge(
        self, beyond: int, total: int, wanted: tuple[Outcome, Handling]
    ) -> None:
        assert outcome(TTFT, arm(**late(beyond, total))) == wanted

    @given(st.lists(st.integers(0, 30), min_size=20, max_size=60))
    def test_the_edge_verdict_is_the_nearest_rank_verdict(self, times: list[int]) -> None:
        edge = Fraction(15)
        gate = Gate(GateName.TTFT, edge)
        counts = EdgeCounts(edge, sum(time <= 15 for time in times), len(times))

        result = judge(gate, arm(p95_ttft=counts), arm(), LeastSamples(20))

        assert (result.outcome is Outcome.PASSED) == (nearest_rank(map(Fraction, times)) <= edge)

    @pytest.mark.parametrize(("rate", "wanted"), [(Fraction(1, 100), PASSED), (Fraction(10001, 10**6), ROLL_BACK)])
    def test_the_error_rate_may_equal_its_limit(self, rate: Fraction, wanted: tuple[Outcome, Handling]) -> None:
        assert outcome(ERRORS, arm(error_rate=rate)) == wanted

    @pytest.mark.parametrize(("rate", "wanted"), [(95, PASSED), (Fraction(949, 10), ROLL_BACK), (0, ROLL_BACK)])
    def test_the_throughput_may_equal_its_part_of_the_baselines(
        self, rate: Fraction, wanted: tuple[Outcome, Handling]
    ) -> None:
        assert outcome(THROUGHPUT, arm(output_tokens_per_second=rate)) == wanted

    @pytest.mark.parametrize(
        ("quality", "floor", "drop"),
        [
            (Fraction(87, 100), PASSED, PASSED),
            (Fraction(86, 100), PASSED, ROLL_BACK),
            (Fraction(85, 100), PASSED, ROLL_BACK),
            (Fraction(84, 100), ROLL_BACK, ROLL_BACK),
            (Fraction(99, 100), PASSED, PASSED),
        ],
    )
    def test_quality_has_a_floor_and_a_drop_of_its_own(
        self, quality: Fraction, floor: tuple[Outcome, Handling], drop: tuple[Outcome, Handling]
    ) -> None:
        assert (outcome(FLOOR, arm(quality=quality)), outcome(DROP, arm(quality=quality))) == (floor, drop)


class TestWhoseFaultItIs:
    def test_a_miss_that_the_baseline_shares_wants_tuning_and_lets_nobody_on(self) -> None:
        assert outcome(TTFT, arm(**late(100)), arm(**late(80))) == TUNE
        assert judge(TTFT, arm(**late(100)), arm(**late(80)), LEAST).blocks

    def test_a_candidate_that_is_worse_than_a_failing_baseline_is_rolled_back(self) -> None:
        assert outcome(TTFT, arm(**late(101)), arm(**late(80))) == ROLL_BACK
        assert outcome(ERRORS, arm(error_rate=Fraction(1, 2)), arm(error_rate=Fraction(2, 100))) == ROLL_BACK
        assert outcome(ERRORS, arm(error_rate=Fraction(2, 100)), arm(error_rate=Fraction(2, 100))) == TUNE

    def test_a_baseline_that_just_meets_the_limit_excuses_nothing(self) -> None:
        assert outcome(TTFT, arm(**late(51)), arm(**late(50))) == ROLL_BACK
        assert outcome(ERRORS, arm(error_rate=Fraction(11, 1000)), arm(error_rate=Fraction(1, 100))) == ROLL_BACK

    def test_a_thin_baseline_excuses_nothing(self) -> None:
        assert outcome(TTFT, arm(**late(100)), arm(**late(9, 99))) == ROLL_BACK
        assert (
            outcome(ERRORS, arm(error_rate=Fraction(1, 10)), arm(error_rate=Fraction(1, 10), requests=99)) == ROLL_BACK
        )

    def test_a_weak_baseline_authorises_nothing_below_the_floor(self) -> None:
        weak = arm(quality=Fraction(80, 100))

        assert outcome(FLOOR, weak, weak) == TUNE
        assert outcome(FLOOR, arm(quality=Fraction(79, 100)), weak) == ROLL_BACK


class TestUnknown:
    @pytest.mark.parametrize(("requests", "wanted"), [(99, COLLECT), (100, ROLL_BACK)])
    def test_too_few_requests_decide_nothing_however_bad(self, requests: int, wanted: tuple[Outcome, Handling]) -> None:
        assert outcome(TTFT, arm(**late(requests, requests))) == wanted
        assert outcome(ERRORS, arm(requests=requests, error_rate=1)) == wanted
        assert outcome(THROUGHPUT, arm(requests=requests, output_tokens_per_second=1)) == wanted

    def test_a_relative_gate_needs_the_baselines_samples_too(self) -> None:
        assert outcome(THROUGHPUT, arm(), arm(requests=99)) == COLLECT
        assert outcome(DROP, arm(), arm(prompts=9)) == COLLECT

    def test_below_twenty_requests_there_is_no_p95_whatever_was_asked_for(self) -> None:
        few = LeastSamples(1)

        assert judge(TTFT, arm(**late(19, 19)), arm(), few).outcome is Outcome.UNKNOWN
        assert judge(TTFT, arm(**late(20, 20)), arm(), few).outcome is Outcome.FAILED

    @pytest.mark.parametrize("gate", [TTFT, ERRORS, THROUGHPUT, FLOOR, DROP])
    def test_what_was_not_measured_passes_nowhere(self, gate: Gate) -> None:
        assert outcome(gate, ArmMeasures()) == COLLECT

    def test_counts_at_another_edge_say_nothing(self) -> None:
        assert outcome(TTFT, arm(p95_ttft=EdgeCounts(Fraction(2), 1000, 1000))) == COLLECT

    def test_unknown_keeps_its_reason(self) -> None:
        result = judge(FLOOR, arm(quality=Unknown("the scorer raised KeyError")), arm(), LEAST)

        assert result.message == "the scorer raised KeyError"

    def test_a_slow_class_neither_fails_nor_hides_behind_another(self) -> None:
        gate = Gate(GateName.TTFT, Fraction(1), workload_class="chat")

        assert outcome(gate, arm("batch", **late(900)), arm("batch")) == COLLECT
        assert outcome(gate, arm("chat", **late(900)), arm("chat")) == ROLL_BACK


class TestOrder:
    def test_what_rolls_back_stands_before_what_is_further_off_but_shared(self) -> None:
        gates = [Gate(GateName.ERROR_RATE, Fraction(1, 100)), TTFT, FLOOR, DROP]
        candidate = arm(error_rate=Fraction(5, 100), quality=Fraction(80, 100), **late(500))

        worst = worst_first(judge_all(gates, candidate, arm(**late(500)), LEAST))

        # 5 times the errors, 10/3 of the drop, the floor by a sixteenth; ten times the late requests, but shared.
        assert [result.gate.name for result in worst] == ["error-rate", "quality-drop", "quality-floor", "ttft"]
        assert [result.excess for result in worst] == [5, Fraction(10, 3), Fraction(17, 16), 10]

    def test_a_limit_of_zero_is_exceeded_without_end(self) -> None:
        none = Gate(GateName.ERROR_RATE, Fraction(0))

        assert outcome(none, arm(error_rate=0)) == PASSED
        assert (
            worst_first([judge(DROP, arm(quality=0), arm(), LEAST), judge(none, arm(error_rate=1), arm(), LEAST)])[
                0
            ].gate
            == none
        )


class TestChoices:
    def result(self, **of: Any) -> GateResult:
        return judge(Gate(GateName.ERROR_RATE, Fraction(1, 100), **of), arm(error_rate=1), arm(), LEAST)

    def test_an_observed_gate_decides_nothing(self) -> None:
        watched = self.result(enforce=False)

        assert watched.outcome is Outcome.FAILED
        assert not any((watched.failed, watched.rolls_back, watched.freezes, watched.blocks))

    def test_freeze_stops_without_taking_traffic_away(self) -> None:
        frozen = self.result(on_regression=OnRegression.FREEZE)

        assert (frozen.freezes, frozen.rolls_back, frozen.blocks) == (True, False, True)
        assert (self.result().freezes, self.result().rolls_back) == (False, True)

    def test_two_gates_on_one_thing_are_refused(self) -> None:
        require_distinct([TTFT, Gate(GateName.TTFT, Fraction(1), workload_class="chat")])
        with pytest.raises(InvalidInput, match="gates: ttft stands there twice"):
            require_distinct([TTFT, Gate(GateName.TTFT, Fraction(2))])

    @pytest.mark.parametrize("limit", [float("nan"), float("inf"), -1, True, "1"])
    def test_a_limit_that_nothing_could_fail_or_meet_is_refused(self, limit: Any) -> None:
        with pytest.raises(InvalidInput, match="limit"):
            Gate(GateName.TTFT, limit)

    def test_a_quality_gate_has_no_class(self) -> None:
        with pytest.raises(InvalidInput, match="workload_class"):
            Gate(GateName.QUALITY_FLOOR, Fraction(1, 2), workload_class="chat")

    @pytest.mark.parametrize("name", ["p95_ttft", "error_rate", "output_tokens_per_second"])
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, True])
    def test_a_measure_that_is_no_number_is_refused(self, name: str, value: Any) -> None:
        with pytest.raises(InvalidInput, match=name):
            arm(**{name: value})


SUMMARY: dict[str, Any] = {
    "revision": "r",
    "mode": "canary",
    "warmed": True,
    "sample_count": 1000,
    "quality_score": Fraction(9, 10),
    "p95_ttft_seconds": Fraction(8, 10),
    "p95_tpot_seconds": Fraction(1, 10),
    "output_tokens_per_second": 100,
    "error_rate": Fraction(1, 1000),
}
WANTED = ReleaseRequirements(
    min_sample_count=500,
    min_quality_score=Fraction(85, 100),
    max_quality_drop=Fraction(3, 100),
    max_p95_ttft_seconds=Fraction(1),
    max_p95_tpot_seconds=Fraction(15, 100),
    min_relative_throughput=Fraction(95, 100),
    max_error_rate=Fraction(1, 100),
)


class TestRelease:
    def decide(self, baseline: dict[str, Any] | None = None, **candidate: Any) -> Any:
        given = ReleaseMeasurement(**(SUMMARY | (baseline or {})))
        return decide_release(given, ReleaseMeasurement(**(SUMMARY | candidate)), WANTED)

    def test_an_unwarmed_and_thin_candidate_holds_for_both_reasons_however_bad(self) -> None:
        decision = self.decide(warmed=False, sample_count=0, quality_score=0, error_rate=1)

        assert decision.action is ReleaseAction.HOLD
        assert decision.holds == (ReleaseHold.NOT_WARMED, ReleaseHold.INSUFFICIENT_SAMPLES)

    def test_every_failure_is_named_the_worst_first(self) -> None:
        decision = self.decide(quality_score=Fraction(1, 2), p95_tpot_seconds=Fraction(3, 2), error_rate=Fraction(1, 4))

        names = [result.gate.name for result in decision.failed]
        assert decision.action is ReleaseAction.ROLLBACK
        assert names == ["error-rate", "quality-drop", "tpot", "quality-floor"]

    def test_a_baseline_that_misses_the_ceilings_excuses_no_summary(self) -> None:
        decision = self.decide({"p95_ttft_seconds": 9, "sample_count": 0}, p95_ttft_seconds=9)

        assert decision.action is ReleaseAction.ROLLBACK

    def test_a_shadow_never_promotes(self) -> None:
        assert self.decide(mode="shadow").holds == (ReleaseHold.SHADOW_NEEDS_CANARY,)
        assert self.decide().action is ReleaseAction.PROMOTE

    @pytest.mark.parametrize(("field", "value"), [("mode", "mirror"), ("warmed", 1), ("sample_count", 1.5)])
    def test_what_cannot_be_meant_is_refused(self, field: str, value: Any) -> None:
        with pytest.raises(InvalidInput, match=field):
            self.decide(**{field: value})
