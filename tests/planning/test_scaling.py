"""The policy Seed: both sides of its limits, what Unknown may do, and what no history may cause."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.groups.victims import Candidate, VictimStage, order_victims
from bayplan.planning.measurements import CounterSample, Measured, Unknown, measured, total_of, total_rate
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.scaling.seed import (
    Observation,
    ScalingDecision,
    ScalingPolicy,
    ScalingReason,
    ScalingState,
    decide_scaling,
)

POLICY = ScalingPolicy(
    min_replicas=1,
    max_replicas=10,
    service_tokens_per_second=Fraction(100),
    target_utilization=Fraction(8, 10),
    queue_drain_seconds=Fraction(10),
    scale_up_cooldown_seconds=Fraction(5),
    scale_down_stabilization_seconds=Fraction(60),
    max_sample_gap_seconds=Fraction(15),
    max_sample_age_seconds=Fraction(20),
)
LOST = Unknown("scrape failed")


def seen(at: float, rate: Measured | float = 0, queued: Measured | float = 0, **fields: Any) -> Observation:
    return Observation(at_seconds=at, arrival_tokens_per_second=rate, queued_tokens=queued, **fields)  # type: ignore[arg-type]


def window(*rates: float, end: float = 100, step: float = 15) -> list[Observation]:
    """One observation every `step` seconds, the last at `end`."""
    return [seen(end - step * back, rate) for back, rate in enumerate(reversed(rates))]


def decide(
    observations: list[Observation], *, desired: int = 3, policy: ScalingPolicy = POLICY, now: float = 100, **state: Any
) -> ScalingDecision:
    given_state = ScalingState(**({"desired_replicas": desired, "ready_replicas": desired} | state))
    return decide_scaling(observations, given_state, policy, now_seconds=now)  # type: ignore[arg-type]


IDLE = window(20, 20, 20, 20, 20)


class TestDemand:
    def test_both_parts_round_up_on_their_own_and_stand_beside_the_clamp(self) -> None:
        decision = decide([seen(100, 801, 9001)])

        assert (decision.rate_replicas, decision.queue_replicas) == (11, 10)
        assert (decision.raw_demand_replicas, decision.demand_replicas, decision.target_replicas) == (21, 10, 10)

    def test_an_exact_multiple_needs_no_further_replica(self) -> None:
        assert decide([seen(100, 240)]).rate_replicas == 3
        assert decide([seen(100, 240.001)]).rate_replicas == 4

    @pytest.mark.parametrize(
        ("queued", "ready", "replicas"), [(100, 1, 0), (100.001, 1, 1), (300, 3, 0), (1, 0, 1), (2001, 3, 3)]
    )
    def test_what_is_served_within_a_moment_is_no_queue(self, queued: float, ready: int, replicas: int) -> None:
        patient = replace(POLICY, passing_queue_seconds=Fraction(1))
        decision = decide([seen(100, 240, queued)], policy=patient, ready_replicas=ready)

        assert decision.queue_replicas == replicas

    @pytest.mark.parametrize(("queued", "replicas"), [(80, 0), (81, 1)])
    def test_of_a_covered_part_the_whole_queue_is_judged(self, queued: int, replicas: int) -> None:
        patient = replace(POLICY, passing_queue_seconds=Fraction(1))
        decision = decide([seen(100, 0, queued, coverage=Fraction(8, 10))], policy=patient, ready_replicas=1)

        assert decision.queue_replicas == replicas

    def test_a_passing_queue_keeps_nobody_from_leaving(self) -> None:
        patient = replace(POLICY, passing_queue_seconds=Fraction(1))
        quiet = [seen(100 - 15 * back, 20, 50) for back in range(5)]

        assert decide(quiet, desired=3, policy=patient).target_replicas == 1
        assert decide(quiet, desired=3).target_replicas == 2


class TestUp:
    @pytest.mark.parametrize(("since", "target"), [(5, 4), (4.999, 3)])
    def test_the_cooldown_is_inclusive(self, since: float, target: int) -> None:
        decision = decide([seen(100, 320)], last_scale_at_seconds=100 - since)

        assert decision.target_replicas == target

    def test_a_backlog_that_grows_while_replicas_are_coming_does_not_ask_again(self) -> None:
        coming = {"desired": 4, "ready_replicas": 1, "warming_replicas": 2, "pending_replicas": 1}

        decision = decide([seen(100, 240, 9000)], last_queue_replicas=1, **coming)

        assert (decision.target_replicas, decision.reason) == (4, ScalingReason.STEADY)
        assert (decision.queue_replicas, decision.counted_queue_replicas) == (9, 1)
        assert decide([seen(100, 320, 9000)], last_queue_replicas=1, **coming).target_replicas == 5

    @pytest.mark.parametrize(("ready_since", "target"), [(9.999, 4), (10, 10)])
    def test_the_backlog_has_its_drain_time_once_they_are_ready(self, ready_since: float, target: int) -> None:
        decision = decide(
            [seen(100, 240, 9000)], desired=4, last_queue_replicas=1, last_ready_at_seconds=100 - ready_since
        )

        assert decision.target_replicas == target

    def test_a_rise_can_be_made_to_wait_for_a_second_sample(self) -> None:
        careful = replace(POLICY, scale_up_samples=2)

        first = decide([seen(85, 80), seen(100, 400)], policy=careful)
        assert (first.target_replicas, first.reason) == (3, ScalingReason.HOLD_UNCONFIRMED)
        assert decide([seen(85, 400), seen(100, 720)], policy=careful).target_replicas == 9


class TestDown:
    def test_it_stops_at_the_highest_demand_of_a_complete_window(self) -> None:
        decision = decide(window(20, 20, 160, 20, 20), desired=6)

        assert (decision.target_replicas, decision.reason) == (2, ScalingReason.SCALE_DOWN)
        assert decision.window_complete

    @pytest.mark.parametrize(("hole", "target"), [(15, 1), (15.001, 3)])
    def test_a_hole_in_the_window_holds(self, hole: float, target: int) -> None:
        observations = [*window(20, 20, 20, end=100 - 15 - hole), *window(20, 20, end=100)]

        decision = decide([seen(20, 20), *observations])

        assert decision.target_replicas == target

    def test_a_window_that_something_unknown_lies_in_is_not_complete(self) -> None:
        observations = [*IDLE[:-2], seen(IDLE[-2].at_seconds, LOST), seen(100, 20)]

        assert decide(observations).reason is not ScalingReason.SCALE_DOWN
        assert decide([*window(20, 20, 20, 20), seen(70, 20, LOST), seen(40, 20)]).target_replicas == 3

    @pytest.mark.parametrize(("since", "target"), [(60, 1), (59.999, 3)])
    def test_after_a_restart_one_window_passes_first(self, since: float, target: int) -> None:
        decision = decide(IDLE, observing_since_seconds=100 - since)

        assert decision.target_replicas == target

    def test_surplus_replicas_that_still_drain_are_a_state_like_any_other(self) -> None:
        decision = decide([seen(100, 160)], desired=2, ready_replicas=3)

        assert (decision.target_replicas, decision.reason) == (2, ScalingReason.STEADY)
        assert decision.ready_capacity_tokens_per_second == 240


class TestUnknown:
    @pytest.mark.parametrize(("age", "target"), [(20, 5), (20.001, 3)])
    def test_an_old_sample_decides_nothing(self, age: float, target: int) -> None:
        decision = decide([seen(100 - age, 400)])

        assert decision.target_replicas == target
        assert decision.demand_known == (target == 5)

    def test_what_is_known_may_still_raise(self) -> None:
        assert decide([seen(100, LOST, 9000)]).target_replicas == 9
        assert decide([seen(100, 400, LOST)]).target_replicas == 5

    def test_what_is_not_known_never_lowers_and_says_why(self) -> None:
        decision = decide([*window(20, 20, 20, 20, 20, end=85), seen(100, 20, LOST)])

        assert (decision.target_replicas, decision.reason) == (3, ScalingReason.HOLD_UNKNOWN_METRICS)
        assert "scrape failed" in decision.message

    @pytest.mark.parametrize(("coverage", "target"), [("0.7", 1), ("0.69", 3)])
    def test_enough_of_the_sources_must_have_answered(self, coverage: str, target: int) -> None:
        observations = [replace(one, coverage=Fraction(coverage)) for one in IDLE]

        assert decide(observations).target_replicas == target

    def test_a_sufficient_part_is_scaled_to_the_whole(self) -> None:
        assert decide([seen(100, 240, coverage=Fraction(3, 4))]).rate_replicas == 4
        assert decide([seen(100, 240, coverage=Fraction(1, 4))]).rate_replicas == 3

    def test_the_ceiling_is_the_users_and_counts_all_the_same(self) -> None:
        decision = decide([seen(100, LOST, LOST)], desired=20)

        assert (decision.target_replicas, decision.clamped) == (10, True)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, True])
    def test_a_number_that_is_none_is_refused(self, bad: float) -> None:
        with pytest.raises(InvalidInput, match="arrival_tokens_per_second"):
            seen(100, bad)

    def test_an_observation_from_the_future_is_refused_and_so_is_none_at_all(self) -> None:
        with pytest.raises(InvalidInput, match="after now"):
            decide([seen(100.001)])
        with pytest.raises(InvalidInput, match="observations"):
            decide([])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_replicas", 0),
        ("max_replicas", 0),
        ("service_tokens_per_second", 0),
        ("target_utilization", 0),
        ("target_utilization", Fraction(101, 100)),
        ("queue_drain_seconds", 0),
        ("passing_queue_seconds", -1),
        ("scale_up_cooldown_seconds", -1),
        ("scale_up_samples", 0),
        ("max_sample_age_seconds", 0),
        ("least_coverage", 0),
        ("scale_down_stabilization_seconds", Fraction(14)),
    ],
)
def test_an_invalid_policy_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(POLICY, **{field: value})

    assert caught.value.field == field


def test_a_window_as_long_as_the_largest_gap_is_allowed() -> None:
    assert replace(POLICY, scale_down_stabilization_seconds=Fraction(15)).clamp(99) == 10


NUMBERS = st.integers(0, 2000)
SIGNALS = st.one_of(NUMBERS.map(Fraction), st.just(LOST))
HISTORIES = st.lists(st.tuples(st.integers(0, 100), SIGNALS, SIGNALS), min_size=1, max_size=12)


def history(rows: list[tuple[int, Measured, Measured]], *, shift: int = 0, more: int = 0) -> list[Observation]:
    def raised(value: Measured) -> Measured:
        return value if isinstance(value, Unknown) else value + more

    return [seen(at + shift, raised(rate), raised(queued)) for at, rate, queued in rows]


@pytest.mark.property
class TestProperties:
    @given(rows=HISTORIES, desired=st.integers(1, 10))
    def test_a_newest_observation_that_is_not_known_never_lowers(
        self, rows: list[tuple[int, Measured, Measured]], desired: int
    ) -> None:
        assert decide([*history(rows), seen(101, LOST, 1)], desired=desired, now=101).target_replicas >= desired

    @given(rows=HISTORIES, desired=st.integers(1, 10), shift=st.integers(-(10**9), 10**9))
    def test_the_origin_of_time_does_not_matter(
        self, rows: list[tuple[int, Measured, Measured]], desired: int, shift: int
    ) -> None:
        here = decide(history(rows), desired=desired, last_scale_at_seconds=90)
        there = decide(history(rows, shift=shift), desired=desired, now=100 + shift, last_scale_at_seconds=90 + shift)

        assert (here.target_replicas, here.reason) == (there.target_replicas, there.reason)

    @given(rows=HISTORIES, desired=st.integers(1, 10), more=st.integers(0, 500))
    def test_more_demand_never_gives_fewer_replicas(
        self, rows: list[tuple[int, Measured, Measured]], desired: int, more: int
    ) -> None:
        calm, busy = (decide(history(rows, more=extra), desired=desired) for extra in (0, more))

        assert busy.target_replicas >= calm.target_replicas

    @given(rows=HISTORIES, desired=st.integers(0, 20))
    def test_the_target_is_always_within_the_bounds(
        self, rows: list[tuple[int, Measured, Measured]], desired: int
    ) -> None:
        assert 1 <= decide(history(rows), desired=desired).target_replicas <= 10


class TestMeasurements:
    @pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -1, -0.5])
    def test_what_is_no_number_of_at_least_zero_is_unknown_with_its_name(self, value: float | None) -> None:
        found = measured(value, "queue")

        assert isinstance(found, Unknown)
        assert "queue" in found.reason

    def test_zero_is_known(self) -> None:
        assert measured(0.0, "queue") == 0

    def sample(self, at: int, value: int, incarnation: str = "one") -> CounterSample:
        return CounterSample(at_seconds=Fraction(at), value=Fraction(value), incarnation=incarnation)

    def test_rates_add_up_over_the_sources_that_are_expected(self) -> None:
        earlier = {"a": self.sample(0, 100), "b": self.sample(5, 0), "gone": self.sample(0, 7)}
        later = {"a": self.sample(10, 200), "b": self.sample(10, 50), "gone": self.sample(10, 99)}

        total = total_rate(earlier, later, {"a", "b"})

        assert (total.value, total.coverage) == (20, 1)

    @pytest.mark.parametrize(("value", "incarnation"), [(30, "two"), (30, "one")])
    def test_a_restarted_counter_is_a_lower_bound_that_covers_nothing(self, value: int, incarnation: str) -> None:
        total = total_rate({"a": self.sample(0, 100)}, {"a": self.sample(10, value, incarnation)}, {"a"})

        assert (total.value, total.coverage) == (3, 0)

    def test_a_clock_that_goes_back_and_a_new_source_are_not_covered(self) -> None:
        earlier = {"a": self.sample(10, 100), "b": self.sample(0, 0)}
        later = {"a": self.sample(10, 200), "b": self.sample(10, 10), "new": self.sample(10, 5)}

        total = total_rate(earlier, later, {"a", "b", "new"})

        assert (total.value, total.coverage) == (1, Fraction(1, 3))

    def test_nothing_from_anybody_is_unknown_not_zero(self) -> None:
        assert isinstance(total_rate({}, {}, {"a"}).value, Unknown)
        assert isinstance(total_of({"a": LOST}, {"a"}).value, Unknown)
        assert total_of({}, set()).value == 0

    def test_gauges_add_up_over_those_that_answered(self) -> None:
        total = total_of({"a": Fraction(3), "b": LOST, "gone": Fraction(50)}, {"a", "b"})

        assert (total.value, total.coverage) == (3, Fraction(1, 2))


def test_who_serves_nobody_leaves_first_and_then_who_has_the_least_left() -> None:
    def one(name: str, stage: VictimStage, since: int, tokens: Measured = Fraction(0)) -> Candidate:
        return Candidate(name, stage, Fraction(since), tokens)

    order = order_victims(
        [
            one("busy", VictimStage.READY, 9, Fraction(500)),
            one("unknown", VictimStage.READY, 9, LOST),
            one("quiet", VictimStage.READY, 1, Fraction(5)),
            one("quiet-young", VictimStage.READY, 2, Fraction(5)),
            one("warming-old", VictimStage.WARMING, 1),
            one("warming-young", VictimStage.WARMING, 5),
            one("pending-old", VictimStage.PENDING, 1),
            one("pending-young", VictimStage.PENDING, 2),
        ]
    )

    assert order == (
        "pending-young",
        "pending-old",
        "warming-young",
        "warming-old",
        "quiet-young",
        "quiet",
        "busy",
        "unknown",
    )
