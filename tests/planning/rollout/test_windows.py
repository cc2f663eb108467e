"""Counters become counts of a stage, or a reason why they do not."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from bayplan.api.rolloutwords import GateName, Outcome
from bayplan.planning.gates.counts import (
    Arm,
    ArmPods,
    Row,
    Snapshot,
    SourceCounts,
    StageEvidence,
    Tally,
    TimedCounts,
    Window,
    class_measures,
    count_window,
)
from bayplan.planning.gates.measures import EdgeCounts
from bayplan.planning.gates.records import EVERY_CLASS, Gate
from bayplan.planning.gates.servicemetrics import Histogram
from bayplan.planning.gates.validity import check_gates
from bayplan.planning.gates.windows import CandidateRows
from bayplan.planning.measurements import Unknown
from bayplan.planning.numbers import InvalidInput
from tests.planning.rollout.counters import (
    BASELINE_PODS,
    CANDIDATE_PODS,
    EDGES,
    GATES,
    histogram,
    row,
    rows,
    snapshot,
    window,
)


def tally(found: Window, arm: Arm = Arm.CANDIDATE, name: str = EVERY_CLASS) -> Tally:
    return count(found).tally(arm, name)


def count(*windows: Window, since: Any = 0, now: Any = 1000) -> StageEvidence:
    evidence = StageEvidence()
    for one in windows:
        evidence = count_window(evidence, one, since_seconds=since, now_seconds=now)
    return evidence


class TestWindows:
    def test_it_holds_the_increase_of_both_arms_at_the_gates_edges(self) -> None:
        found = window(snapshot(0, rows(100, late=3)), snapshot(10, rows(160, late=8)))

        assert (found.start_seconds, found.end_seconds, found.problem) == (0, 10, "")
        assert tally(found) == Tally(120, 0, 1200, Fraction(120), TimedCounts(110, 120), TimedCounts(120, 120))
        assert tally(found, name="chat").ttft == TimedCounts(110, 120)
        assert tally(found, Arm.BASELINE).ttft == TimedCounts(120, 120)
        assert (found.routed_requests, found.candidate_requests) == (240, 120)

    def test_a_pod_that_started_since_counts_from_zero(self) -> None:
        earlier = [one for one in rows(100) if one.pod != "c1"] + [row("c1", Arm.CANDIDATE, 0)]
        absent = [one for one in rows(100) if one.pod != "c1"]
        later = [row(pod, Arm.CANDIDATE, made) for pod, made in (("c0", 160), ("c1", 60))]
        later += [row(pod, Arm.BASELINE, 160) for pod in BASELINE_PODS]

        for before in (earlier, absent):
            assert tally(window(snapshot(0, before), snapshot(10, later))).requests == 120

    def test_requests_of_unwarmed_pods_enter_no_count_but_the_share(self) -> None:
        pods = ArmPods(candidate=frozenset({"c0"}), baseline=frozenset(BASELINE_PODS))

        found = window(snapshot(0, rows(0)), snapshot(10, rows(50, late=50)), pods=pods)

        assert tally(found).requests == 50
        assert found.candidate_requests == 100

    def test_what_serving_pods_outside_the_baseline_do_is_routed_and_compared_with_nothing(self) -> None:
        serving = [row("s9", Arm.SERVING, 0)], [row("s9", Arm.SERVING, 700, late=700)]

        found = window(snapshot(0, [*rows(0), *serving[0]]), snapshot(10, [*rows(50), *serving[1]]))

        assert tally(found, Arm.BASELINE).ttft == TimedCounts(100, 100)
        assert found.routed_requests == 900

    def test_copies_are_the_candidates_counts_in_a_shadow_stage_alone_and_route_nothing(self) -> None:
        before, after = snapshot(0, rows(0, arm=Arm.SHADOW)), snapshot(10, rows(50, arm=Arm.SHADOW))

        assert tally(window(before, after, source=CandidateRows.COPIES)).requests == 100
        assert window(before, after, source=CandidateRows.COPIES).candidate_requests == 0
        assert window(before, after).problem.startswith("unlike load: 0 requests per candidate pod")

    def test_after_the_promotion_every_request_at_either_revision_counts(self) -> None:
        def pool(made: int) -> list[Row]:
            ours = [row(pod, Arm.SERVING, made, late=made) for pod in CANDIDATE_PODS]
            return [*ours, *(row(pod, Arm.SERVING, made) for pod in BASELINE_PODS), row("c0", Arm.SHADOW, made)]

        before, after = snapshot(0, pool(0)), snapshot(10, pool(50))
        found = window(before, after, source=CandidateRows.POOL)

        assert tally(found).ttft == TimedCounts(0, 100)
        assert tally(found, Arm.BASELINE).ttft == TimedCounts(100, 100)
        assert window(before, after).tallies == ()

    def test_classes_are_counted_apart_and_together(self) -> None:
        given = [*rows(50), *rows(50, late=50, workload_class="batch")]

        found = window(snapshot(0, []), snapshot(10, given))

        assert tally(found, name="chat").ttft == TimedCounts(100, 100)
        assert tally(found).ttft == TimedCounts(100, 200)
        assert tally(found, name="batch") == Tally()  # no gate protects it

    def test_several_gateways_add_up_and_the_oldest_dates_the_window(self) -> None:
        def both(at: int, made: int) -> Snapshot:
            return Snapshot({uid: SourceCounts(at + late, "1", rows(made)) for uid, late in (("g", 0), ("h", 3))})

        found = window(both(0, 0), both(10, 50), expected=["g", "h"])

        assert tally(found).requests == 200
        assert (found.start_seconds, found.end_seconds) == (0, 10)


SOME, MORE = rows(100), rows(160)


class TestDoubt:
    def dropped(self, earlier: Snapshot, later: Snapshot, **of: Any) -> str:
        found = window(earlier, later, **of)
        evidence = count(found)
        assert (evidence.tallies, evidence.windows, evidence.dropped) == ((), 0, 1)
        assert evidence.problem == found.problem
        return found.problem

    @pytest.mark.parametrize(
        ("earlier", "later", "why"),
        [
            (snapshot(0, SOME), snapshot(10, rows(5), incarnation="2"), "gateway g started anew"),
            (snapshot(10, SOME), snapshot(10, MORE), "gateway g: the later counts are not later"),
            (snapshot(10, SOME), snapshot(9, MORE), "gateway g: the later counts are not later"),
            (snapshot(0, SOME), snapshot(10, MORE[1:]), "gateway g: the counts of pod c0 are gone"),
            (snapshot(0, MORE), snapshot(10, SOME), "gateway g: counts of pod c0 fell"),
            (snapshot(0, SOME), Snapshot({"g": Unknown("timed out")}), "gateway g now: timed out"),
            (Snapshot({"g": Unknown("NaN")}), snapshot(10, MORE), "gateway g before: NaN"),
            (Snapshot({}), snapshot(10, MORE), "gateway g before: was not there"),
            (snapshot(0, SOME), Snapshot({}), "gateway g now: was not there"),
            (snapshot(0, SOME), snapshot(10, [*MORE, MORE[0]]), "gateway g: a row stands there twice"),
            (Snapshot({}), Snapshot({}), "gateway g before: was not there"),
        ],
    )
    def test_it_drops_the_window_whole(self, earlier: Snapshot, later: Snapshot, why: str) -> None:
        assert self.dropped(earlier, later).startswith(why)

    def test_a_gateway_that_nobody_expects_any_more_has_taken_counts_with_it(self) -> None:
        both = Snapshot({"g": SourceCounts(0, "1", SOME), "h": SourceCounts(0, "1", SOME)})  # type: ignore[arg-type]

        assert self.dropped(both, snapshot(10, MORE)) == "gateway h now: was not there"

    def test_without_a_live_gateway_nothing_is_known(self) -> None:
        assert self.dropped(snapshot(0, SOME), snapshot(10, MORE), expected=[]) == "no gateway is live"

    @pytest.mark.parametrize("name", ["requests", "errors", "output_tokens", "loaded_seconds"])
    def test_any_counter_that_fell_is_seen(self, name: str) -> None:
        high = [replace(one, **{name: 500}) for one in SOME]

        assert "fell" in self.dropped(snapshot(0, high), snapshot(10, [replace(one, **{name: 499}) for one in high]))

    def test_a_bucket_that_fell_or_an_edge_that_moved_is_seen(self) -> None:
        fewer = [replace(one, ttft=histogram(one.requests, late=70)) for one in MORE]
        moved = [replace(one, tpot=Histogram((Fraction(1),), (160,), 160)) for one in MORE]

        for later in (fewer, moved):
            assert "fell" in self.dropped(snapshot(0, SOME), snapshot(10, later))

    @pytest.mark.parametrize("arm", ["candidate", "baseline"])
    def test_without_a_warm_pod_of_an_arm_nothing_is_compared(self, arm: str) -> None:
        pods = replace(ArmPods(frozenset(CANDIDATE_PODS), frozenset(BASELINE_PODS)), **{arm: frozenset()})

        assert self.dropped(snapshot(0, SOME), snapshot(10, MORE), pods=pods) == f"{arm} has no warm pod"

    def test_a_baseline_that_is_knowingly_not_there_is_not_missed(self) -> None:
        pods = ArmPods(frozenset(CANDIDATE_PODS), frozenset())

        found = window(snapshot(0, SOME), snapshot(10, MORE), pods=pods, compared=False)

        assert tally(found).requests == 120

    @pytest.mark.parametrize(
        ("ours", "theirs", "like"),
        [(500, 400, True), (502, 400, False), (400, 500, True), (398, 500, False), (9, 3, True), (0, 5, False)],
    )
    def test_load_per_pod_must_be_alike_as_far_as_the_counts_can_tell(self, ours: int, theirs: int, like: bool) -> None:
        later = [row(pod, Arm.CANDIDATE, ours) for pod in CANDIDATE_PODS]
        later += [row(pod, Arm.BASELINE, theirs) for pod in BASELINE_PODS]

        found = window(snapshot(0, []), snapshot(10, later))

        assert (found.problem == "") == like
        assert bool(found.tallies) == like

    def test_a_limit_that_is_no_edge_names_the_nearest(self) -> None:
        with pytest.raises(InvalidInput, match=r"nearest are 0\.5 and 1"):
            window(snapshot(0, SOME), snapshot(10, MORE), gates=[Gate(GateName.TTFT, Fraction(7, 10))])


def made(start: Any, end: Any, requests: int = 60) -> Window:
    return window(snapshot(start, rows(0)), snapshot(end, rows(requests)))


class TestCounting:
    def test_windows_in_order_add_up(self) -> None:
        evidence = count(made(0, 10), made(10, 20), made(25, 30))

        assert evidence.tally(Arm.CANDIDATE, EVERY_CLASS).requests == 360
        assert (evidence.through_seconds, evidence.windows, evidence.dropped) == (30, 3, 0)

    @pytest.mark.parametrize("again", [made(0, 10), made(9, 20), made(0, 20), made(-5, 5), made(9, 10)])
    def test_no_moment_counts_twice(self, again: Window) -> None:
        evidence = count(made(0, 10), again, since=-10)

        assert evidence.tally(Arm.CANDIDATE, EVERY_CLASS).requests == 120
        assert evidence.problem == "the window, or a part of it, was counted already"

    @pytest.mark.parametrize(("since", "counted"), [(10, 1), (Fraction(10001, 1000), 0)])
    def test_what_began_before_the_plan_was_acknowledged_is_of_another_stage(self, since: Any, counted: int) -> None:
        assert count(made(10, 20), since=since).windows == counted

    @pytest.mark.parametrize("end", [10, 9])
    def test_a_window_that_spans_no_time_counts_nothing(self, end: int) -> None:
        evidence = count(replace(made(10, 20), end_seconds=Fraction(end)))

        assert (evidence.windows, evidence.problem) == (0, "the window spans no time")

    @pytest.mark.parametrize(("now", "counted"), [(20, 1), (19, 0)])
    def test_the_future_does_not_count(self, now: int, counted: int) -> None:
        assert count(made(10, 20), now=now).windows == counted

    def test_a_good_window_clears_the_problem_of_the_last(self) -> None:
        evidence = count(made(0, 10), made(0, 10), made(10, 20))

        assert (evidence.problem, evidence.dropped) == ("", 1)

    def test_gates_read_shares_rates_and_edges(self) -> None:
        evidence = count(window(snapshot(0, rows(0)), snapshot(10, rows(50, late=3, errors=2))))

        measures = class_measures(evidence, Arm.CANDIDATE, GATES)

        assert set(measures) == {EVERY_CLASS, "chat"}
        assert measures[EVERY_CLASS].p95_ttft == EdgeCounts(Fraction(1), 94, 100)
        assert measures["chat"].p95_ttft == EdgeCounts(Fraction(1, 2), 94, 100)
        assert measures["chat"].p95_tpot == Unknown("not measured")
        assert measures[EVERY_CLASS].error_rate == Fraction(4, 100)
        assert measures[EVERY_CLASS].output_tokens_per_second == 10

    def test_nothing_counted_is_unknown_and_no_zero(self) -> None:
        measures = class_measures(StageEvidence(), Arm.CANDIDATE, GATES)[EVERY_CLASS]

        assert isinstance(measures.error_rate, Unknown)
        assert isinstance(measures.output_tokens_per_second, Unknown)


class TestRows:
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, True, "5", 1.5])
    @pytest.mark.parametrize("name", ["requests", "errors", "output_tokens"])
    def test_a_count_that_is_none_is_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(InvalidInput, match=name):
            replace(row("c0", Arm.CANDIDATE, 5), **{name: value})

    @pytest.mark.parametrize("value", [float("nan"), float("-inf"), -1])
    def test_a_time_that_is_none_is_refused_by_name(self, value: Any) -> None:
        with pytest.raises(InvalidInput, match="loaded_seconds"):
            replace(row("c0", Arm.CANDIDATE, 5), loaded_seconds=value)
        with pytest.raises(InvalidInput, match="pod"):
            Row("", Arm.CANDIDATE, "chat", 0, 0, 0, Fraction(0), histogram(0), histogram(0))


class TestValidity:
    def check(self, *gates: Gate, has_prompts: bool = True) -> dict[str, str]:
        found = check_gates(gates, ttft_edges=EDGES, tpot_edges=EDGES[:1], has_prompts=has_prompts)
        assert all(result.outcome is Outcome.INVALID for result in found)
        return {str(result.gate): result.message for result in found}

    def test_an_slo_between_two_edges_is_refused_with_both(self) -> None:
        found = self.check(
            Gate(GateName.TTFT, Fraction(7, 10)), Gate(GateName.TTFT, Fraction(1), workload_class="chat")
        )

        assert list(found) == ["ttft"]
        assert found["ttft"].endswith("the nearest are 0.5 and 1")

    def test_beyond_the_outermost_edges_there_is_one_nearest(self) -> None:
        assert self.check(Gate(GateName.TPOT, Fraction(1)))["tpot"].endswith("the nearest are 0.5")
        assert self.check(Gate(GateName.TTFT, Fraction(1, 10)))["ttft"].endswith("the nearest are 0.5")

    def test_quality_without_prompts_names_its_gate_and_disturbs_no_other(self) -> None:
        gates = Gate(GateName.QUALITY_FLOOR, Fraction(1, 2)), Gate(GateName.ERROR_RATE, Fraction(0))

        assert self.check(*gates, has_prompts=False) == {"quality-floor": "no prompt set measures quality"}
        assert self.check(*gates) == {}
