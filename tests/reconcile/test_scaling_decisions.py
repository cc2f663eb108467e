"""From a spec and a stored status to a decision: dates and clocks that lie, and what is written of it."""

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.autoscaling import Autoscaling, ScalingReason, ScalingStatus
from bayplan.api.inferencemodel_status import InferenceModelStatus, Stage
from bayplan.api.meta import rfc3339
from bayplan.planning.scaling.policy import pace_of, policy_of
from bayplan.planning.scaling.seed import Observation, ScalingDecision
from bayplan.reconcile.scaling.decide import Standing, decide_replicas, standing_of
from bayplan.reconcile.scaling.describe import scaling_status
from tests.planning.replicagroups import NOW, ago, assignment, build_one, in_stage, ready, running

SPEC = Autoscaling(
    max_replicas=5, service_tokens_per_second=Decimal(100), scale_down_stabilization_seconds=60, sample_seconds=10
)
CLOCK = Fraction(5000)


def seen(at: float, rate: float, queued: float = 0) -> Observation:
    return Observation(Fraction(at), queued_tokens=Fraction(queued), arrival_tokens_per_second=Fraction(rate))


def quiet(rate: float = 0, *, end: float = 5000) -> list[Observation]:
    """A window in which nothing changed."""
    return [seen(end - 10 * back, rate) for back in range(8, -1, -1)]


def decide(observations: list[Observation], *, clock: Fraction = CLOCK, **standing: Any) -> ScalingDecision:
    how = {"desired": 3, "ready": 3, "pending": 0, "warming": 0} | standing
    return decide_replicas(
        observations, Standing(**how), policy_of(SPEC), since_seconds=Fraction(0), clock_seconds=clock, now=NOW
    )


def test_a_quiet_window_lowers_and_a_clock_that_went_back_does_not() -> None:
    assert decide(quiet()).target_replicas == 1

    back = decide(quiet(), clock=CLOCK - 1)
    assert (back.target_replicas, back.reason) == (3, ScalingReason.HOLD_UNKNOWN_METRICS)
    assert "the clock went back" in back.message


def test_nothing_measured_holds_whatever_was_desired() -> None:
    decision = decide([])

    assert (decision.target_replicas, decision.reason) == (3, ScalingReason.HOLD_UNKNOWN_METRICS)
    assert "nothing was measured yet" in decision.message


@pytest.mark.parametrize(("ahead", "reason"), [(0, "HoldCooldown"), (3600, "HoldCooldown"), (-15, "ScaleUp")])
def test_a_last_change_in_the_future_was_just_now(ahead: float, reason: str) -> None:
    decision = decide(quiet(300), last_scale=NOW + timedelta(seconds=ahead))

    assert decision.reason == reason


@given(
    least=st.integers(1, 10_000),
    more=st.integers(0, 9_999),
    rate=st.decimals(min_value=Decimal("1e-9"), max_value=10**9, allow_nan=False),
    share=st.decimals(min_value=Decimal("1e-9"), max_value=1, allow_nan=False),
    drain=st.integers(1, 86400),
    cooldown=st.integers(0, 3600),
    sample=st.integers(1, 300),
    window=st.integers(2, 3600),
)
def test_every_spec_that_the_schema_takes_is_a_policy(  # noqa: PLR0917
    least: int, more: int, rate: Decimal, share: Decimal, drain: int, cooldown: int, sample: int, window: int
) -> None:
    found = policy_of(
        Autoscaling(
            min_replicas=least,
            max_replicas=min(10_000, least + more),
            service_tokens_per_second=rate,
            target_utilization=share,
            queue_drain_seconds=drain,
            scale_up_cooldown_seconds=cooldown,
            sample_seconds=sample,
            scale_down_stabilization_seconds=max(window, 2 * sample),
        )
    )

    assert found.max_sample_gap_seconds is not None
    assert 2 * sample <= found.max_sample_gap_seconds <= found.scale_down_stabilization_seconds


@pytest.mark.parametrize(("sample", "window", "pace"), [(1, 240, 1), (1, 241, 2), (15, 300, 15), (1, 3600, 15)])
def test_a_window_holds_no_more_samples_than_a_decision_can_look_at(sample: int, window: int, pace: int) -> None:
    changes = {"sample_seconds": sample, "scale_down_stabilization_seconds": window}

    assert pace_of(SPEC.model_copy(update=changes)) == pace


@pytest.mark.parametrize(
    ("status", "desired"),
    [
        (InferenceModelStatus(), 1),
        (InferenceModelStatus(desired_replicas=4), 4),
        (InferenceModelStatus(desired_replicas=9), 5),
    ],
)
def test_a_model_without_a_decision_begins_where_it_was_within_its_bounds(
    status: InferenceModelStatus, desired: int
) -> None:
    groups = [build_one(ready(assignment(ordinal=number))) for number in range(3)]

    assert standing_of(groups, status, SPEC).desired == desired


def test_what_became_of_a_decision_is_read_from_the_groups() -> None:
    last = ScalingStatus(
        desired_replicas=5,
        reason=ScalingReason.SCALE_UP,
        decided_time=rfc3339(NOW),
        observed_time=rfc3339(NOW),
        last_scale_time=rfc3339(ago(30)),
        last_rise_queue_replicas=2,
    )
    groups = [
        build_one(ready(assignment(ordinal=0), since=ago(20))),
        build_one(ready(assignment(ordinal=1), since=ago(5))),
        build_one(running(assignment(ordinal=2))),
        *(
            build_one(in_stage(stage, assignment(ordinal=3 + n)))
            for n, stage in enumerate((Stage.RESERVED, Stage.DRAINING))
        ),
    ]

    found = standing_of(groups, InferenceModelStatus(scaling=last), SPEC)

    assert (found.desired, found.ready, found.warming, found.pending) == (5, 2, 1, 2)
    assert (found.last_ready, found.last_rise_queue) == (ago(5), 2)
    assert found.last_scale == ago(30).replace(microsecond=0)


def status_of(decision: ScalingDecision, previous: ScalingStatus | None = None) -> ScalingStatus:
    return scaling_status(decision, previous, quiet(300), clock_seconds=CLOCK, now=NOW)


def test_the_first_decision_has_no_change_behind_it() -> None:
    found = status_of(decide(quiet(300), desired=4))

    assert (found.desired_replicas, found.reason, found.last_scale_time) == (4, ScalingReason.STEADY, None)
    assert (found.arrival_tokens_per_second, found.queued_tokens, found.coverage) == (300, 0, 1)
    assert (found.rate_replicas, found.queue_replicas, found.demand_replicas) == (4, 0, 4)


def test_a_decision_is_written_when_target_or_reason_differ_and_not_before() -> None:
    steady = status_of(decide(quiet(300), desired=4))
    again = scaling_status(
        decide(quiet(310), desired=4), steady, quiet(310), clock_seconds=CLOCK, now=NOW + timedelta(hours=1)
    )
    assert again is steady

    risen = status_of(decide(quiet(380), desired=4), steady)
    assert (risen.desired_replicas, risen.reason) == (5, ScalingReason.SCALE_UP)
    assert (risen.last_scale_time, risen.last_rise_queue_replicas) == (rfc3339(NOW), 0)

    calm = status_of(decide(quiet(380), desired=5), risen)
    assert (calm.desired_replicas, calm.reason) == (5, ScalingReason.STEADY)
    assert (calm.last_scale_time, calm.last_rise_queue_replicas) == (risen.last_scale_time, 0)


def test_numbers_that_are_not_known_are_absent() -> None:
    found = scaling_status(decide([]), None, [], clock_seconds=CLOCK, now=NOW)

    wire = found.to_wire()
    assert {"arrivalTokensPerSecond", "queuedTokens", "rateReplicas", "queueReplicas"}.isdisjoint(wire)
    assert wire["coverage"] == 0


def test_numbers_beyond_the_schema_are_cut() -> None:
    huge = [seen(5000 - 10 * back, 10**30, 10**30) for back in range(3)]
    found = scaling_status(decide(huge), None, huge, clock_seconds=CLOCK, now=NOW)

    assert InferenceModelStatus.model_validate({"scaling": found.to_wire()}).scaling == found
