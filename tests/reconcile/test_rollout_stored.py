"""What a Rollout's status holds is what decisions go on from: the same state, to the microsecond; and its policy."""

from dataclasses import replace
from fractions import Fraction

import pytest

from bayplan.api.conditions import Reason
from bayplan.api.meta import parse_rfc3339
from bayplan.api.reasons import REASON_HELP
from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.rolloutwords import Phase
from bayplan.api.validation import parse_rollout_spec
from bayplan.planning.gates.counts import Arm, ArmTally, StageEvidence, Tally, TimedCounts
from bayplan.planning.rollout.plan import Plan
from bayplan.planning.rollout.proof import RollbackProof
from bayplan.planning.rollout.state import Rejection, RolloutState, StageClock
from bayplan.planning.rollout.verdicts import HoldReason, RestReason, RollbackReason
from bayplan.reconcile.rollout.describe import reason_of
from bayplan.reconcile.rollout.stored import policy_of, seconds_of, state_of, status_members, text_of
from tests.api.rolloutspecs import FULL_ROLLOUT, MINIMAL_ROLLOUT
from tests.planning.rollout.fleet import Fleet, at
from tests.planning.rollout.policies import POLICY

NOW = Fraction(1_770_000_000_123_456, 1_000_000)
FULL = RolloutState(
    plan=Plan(
        epoch=7,
        serving="r1",
        candidate="r2",
        weight=10,
        cohort_salt="salt",
        stable_min=3,
        candidate_replicas=2,
        baseline=("u1", "u2"),
    ),
    phase=Phase.CANARY,
    clock=StageClock(NOW, NOW + 1, Fraction(3, 2), NOW + 2),
    stage=2,
    candidate="r2",
    attempt=4,
    digest="0123",
    judged_since_seconds=NOW - 5,
    settled_at_seconds=NOW + 3,
    evidence=StageEvidence(
        NOW + 4,
        (ArmTally(Arm.CANDIDATE, "chat", Tally(9, 1, 80, Fraction(5, 4), TimedCounts(7, 8), TimedCounts(6, 8))),),
        routed_requests=100,
        candidate_requests=9,
        windows=3,
        dropped=1,
        problem="gateway g started anew",
    ),
    frozen="ttft",
    late=True,
    drain_first=True,
    retained="r0",
    retained_at_seconds=NOW - 9,
    cause=Rejection("r9", "GateFailed", "ttft: 9 of 10", NOW - 8),
    proof=RollbackProof(NOW - 7, NOW - 6, None, NOW - 5, None, ("serving is silent",)),
    proven=("r1",),
    rejected=(Rejection("r9", "GateFailed", "ttft: 9 of 10", NOW - 8),),
    retry_seen="again",
)


def stored(state: RolloutState) -> RolloutStatus:
    """The state as it comes back from the API server."""
    wire = RolloutStatus(**status_members(state, POLICY)).to_wire()
    return RolloutStatus.model_validate(wire)


def test_everything_comes_back_to_the_microsecond() -> None:
    assert state_of(stored(FULL)) == FULL


def test_a_whole_life_comes_back_after_every_decision() -> None:
    fleet, seen = Fleet(policy=replace(POLICY, retain_seconds=Fraction(45))), set()
    for _ in range(70):
        fleet.step()
        seen.add(fleet.phase)
        back = state_of(stored(fleet.stored))
        assert back is not None
        if fleet.phase not in (Phase.STEADY, Phase.RETAINED, Phase.ROLLED_BACK):
            assert back == fleet.stored
        fleet.state = back
    assert seen == set(Phase) - {Phase.ROLLING_BACK, Phase.ROLLED_BACK}
    assert (fleet.plan.serving, fleet.stored.proven) == ("r2", ("r2",))


def test_a_rollback_goes_on_from_the_status_alone() -> None:
    fleet = at("canary-10", errors=200)
    for _ in range(20):
        fleet.step()
        fleet.state = state_of(stored(fleet.stored))
    assert fleet.phase is Phase.ROLLED_BACK
    assert fleet.stored.proof is not None
    assert fleet.stored.proof.proven


def test_what_was_promoted_is_no_candidate_any_more() -> None:
    promoted = RolloutState(Plan(epoch=3, serving="r2", previous="r1"), Phase.REPLACING, StageClock(NOW), digest="d")

    back = state_of(stored(promoted))

    assert back is not None
    assert (back.candidate, back.digest) == (None, "d")


@pytest.mark.parametrize("missing", ["plan", "phase"])
def test_a_status_without_plan_or_phase_holds_no_state(missing: str) -> None:
    assert state_of(stored(FULL).model_copy(update={missing: None})) is None


def test_a_plan_that_nobody_could_carry_out_holds_no_state() -> None:
    status = stored(FULL)
    assert status.plan is not None
    broken = status.plan.model_copy(update={"candidate": None})

    assert state_of(status.model_copy(update={"plan": broken})) is None


def test_times_are_written_with_microseconds_where_there_are_any() -> None:
    assert text_of(Fraction(0)) == "1970-01-01T00:00:00Z"
    assert text_of(Fraction(1, 4)) == "1970-01-01T00:00:00.250000Z"
    assert seconds_of(parse_rfc3339("1970-01-01T00:00:00.25Z")) == Fraction(1, 4)


def test_a_spec_becomes_the_policy_that_it_states() -> None:
    spec = parse_rollout_spec(FULL_ROLLOUT)
    assert isinstance(spec, RolloutSpec)

    policy = policy_of(spec, prompt_set="0123")

    assert [stage.name for stage in policy.stages] == ["warm", "shadow", "canary-5", "canary-25", "promote"]
    assert all(stage.approval for stage in policy.stages)
    assert [(str(gate), gate.limit, gate.enforce, gate.on_regression) for gate in policy.gates] == [
        ("ttft[chat]", 1, False, "Freeze"),
        ("tpot[chat]", Fraction(5, 100), False, "Freeze"),
        ("quality-floor", Fraction(8, 10), False, "Freeze"),
    ]
    assert (policy.least.requests, policy.least.prompts) == (500, 50)
    assert (policy.capacity, policy.on_deadline, policy.max_surge, policy.retain_seconds) == (
        "Surge",
        "Rollback",
        4,
        600,
    )
    assert policy.waivers == {"SingleReplica", "NoBaseline"}
    assert (policy.max_evidence_age_seconds, policy.max_quality_age_seconds) == (30, 3600)
    assert (policy.paused, policy.abort, policy.retry) == (True, "0123abc", "second try")
    assert policy.approvals == {("0123abc", "canary-25")}
    assert policy.prompt_set == "0123"


def test_a_gate_without_a_word_of_its_own_does_what_the_spec_says_of_all() -> None:
    gates = [{"name": "ttft", "limit": 1}, {"name": "tpot", "limit": 1, "onRegression": "Rollback"}]
    spec = parse_rollout_spec({**MINIMAL_ROLLOUT, "onRegression": "Freeze", "gates": gates})
    assert isinstance(spec, RolloutSpec)

    assert [gate.on_regression for gate in policy_of(spec, prompt_set=None).gates] == ["Freeze", "Rollback"]


@pytest.mark.parametrize("word", [*HoldReason, *RollbackReason, *RestReason])
def test_every_reason_of_a_decision_is_one_of_the_closed_list(word: str) -> None:
    assert reason_of(word) in REASON_HELP
    assert isinstance(reason_of(word), Reason)
