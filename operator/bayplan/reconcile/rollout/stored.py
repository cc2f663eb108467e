"""Between the status of a Rollout and the state that decisions go on from, and from its spec to the policy. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from bayplan.api.meta import parse_rfc3339
from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import (
    EvidenceStatus,
    ProofStatus,
    QualityStatus,
    RejectionStatus,
    RolloutStatus,
    StageStatus,
    TallyStatus,
    TrialStatus,
)
from bayplan.api.rolloutwords import Phase
from bayplan.planning.gates.counts import Arm, ArmTally, StageEvidence, Tally, TimedCounts
from bayplan.planning.gates.quality import QualityCounts
from bayplan.planning.gates.records import Gate
from bayplan.planning.gates.thresholds import LeastSamples
from bayplan.planning.numbers import InvalidInput, to_decimal
from bayplan.planning.rollout.plan import Plan
from bayplan.planning.rollout.policy import RolloutPolicy, Stage
from bayplan.planning.rollout.proof import RollbackProof
from bayplan.planning.rollout.state import TRYING, Rejection, RolloutState, StageClock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PROOF_TIMES = ("acknowledged", "drained", "restored", "answered")


def seconds_of(moment: datetime) -> Fraction:
    """Unix seconds, to the microsecond."""
    return Fraction((moment - EPOCH) // timedelta(microseconds=1), 1_000_000)


def text_of(seconds: Fraction) -> str:
    """RFC 3339 with microseconds where there are any."""
    moment = EPOCH + timedelta(microseconds=int(seconds * 1_000_000))
    return moment.isoformat().replace("+00:00", "Z")


def _seconds(text: str) -> Fraction:
    return seconds_of(parse_rfc3339(text))


def _maybe_seconds(text: str | None) -> Fraction | None:
    return None if text is None else _seconds(text)


def _maybe_text(seconds: Fraction | None) -> str | None:
    return None if seconds is None else text_of(seconds)


# --- spec ------------------------------------------------------------------------------------------------------------


def policy_of(spec: RolloutSpec, *, prompt_set: str | None) -> RolloutPolicy:
    """The policy that a spec states; `prompt_set` is the digest of its prompts. Raises InvalidInput."""
    return RolloutPolicy(
        stages=tuple(
            Stage(
                stage.kind,
                Fraction(stage.deadline_seconds),
                weight=stage.weight or 0,
                bake_seconds=Fraction(stage.bake_seconds),
                approval=stage.approval,
            )
            for stage in spec.stages
        ),
        gates=tuple(
            Gate(
                gate.name,
                Fraction(gate.limit),
                workload_class=gate.workload_class,
                enforce=gate.enforce,
                on_regression=gate.on_regression or spec.on_regression,
            )
            for gate in spec.gates
        ),
        least=LeastSamples(requests=spec.samples.requests, prompts=spec.samples.prompts),
        capacity=spec.capacity,
        on_deadline=spec.on_deadline,
        max_surge=spec.max_surge,
        retain_seconds=Fraction(spec.retain_seconds),
        waivers=frozenset(spec.waivers),
        prompt_set=prompt_set,
        max_evidence_age_seconds=Fraction(spec.max_evidence_age_seconds),
        max_quality_age_seconds=Fraction(spec.max_quality_age_seconds),
        paused=spec.paused,
        approvals=frozenset((approval.revision, approval.stage) for approval in spec.approvals),
        abort=spec.abort,
        retry=spec.retry,
    )


# --- status → state --------------------------------------------------------------------------------------------------


def state_of(status: RolloutStatus) -> RolloutState | None:
    """The state that a status holds; None where it holds none, or what nobody could go on from."""
    if status.plan is None or status.phase is None:
        return None
    stage, trial = status.stage, status.trial
    try:
        return RolloutState(
            plan=Plan.of(status.plan),
            phase=status.phase,
            clock=StageClock(Fraction(0)) if stage is None else _clock(stage),
            stage=0 if stage is None else stage.index,
            candidate=_candidate(status),
            attempt=status.attempt,
            digest="" if trial is None else trial.digest,
            judged_since_seconds=Fraction(0) if trial is None else _seconds(trial.judged_since_time),
            settled_at_seconds=_maybe_seconds(status.settled_time),
            evidence=_evidence(status.evidence),
            frozen="" if stage is None else stage.frozen_by,
            late=stage is not None and stage.late,
            drain_first=trial is not None and trial.drain_first,
            retained=status.retained,
            retained_at_seconds=_maybe_seconds(status.retained_time),
            cause=None if status.cause is None else _rejection(status.cause),
            proof=None if status.proof is None else _proof(status.proof),
            proven=status.proven,
            rejected=tuple(map(_rejection, status.rejected)),
            retry_seen=status.retry_seen,
        )
    except (InvalidInput, ValueError):
        return None


def _candidate(status: RolloutStatus) -> str | None:
    """What was promoted is on trial no more."""
    promoted = status.phase in (Phase.REPLACING, Phase.RETAINED)
    if status.trial is None or status.plan is None or (promoted and status.trial.candidate == status.plan.serving):
        return None
    return status.trial.candidate


def _clock(stage: StageStatus) -> StageClock:
    return StageClock(
        _seconds(stage.started_time),
        paused_at_seconds=_maybe_seconds(stage.paused_time),
        paused_seconds=Fraction(stage.paused_seconds),
        passed_at_seconds=_maybe_seconds(stage.passed_time),
    )


def _evidence(status: EvidenceStatus) -> StageEvidence:
    return StageEvidence(
        through_seconds=_maybe_seconds(status.through_time),
        tallies=tuple(
            ArmTally(
                Arm(one.arm),
                one.workload_class,
                Tally(
                    requests=one.requests,
                    errors=one.errors,
                    output_tokens=one.output_tokens,
                    loaded_seconds=Fraction(one.loaded_seconds),
                    ttft=TimedCounts(one.ttft_within, one.ttft_total),
                    tpot=TimedCounts(one.tpot_within, one.tpot_total),
                ),
            )
            for one in status.tallies
        ),
        routed_requests=status.routed_requests,
        candidate_requests=status.candidate_requests,
        windows=status.windows,
        dropped=status.dropped,
        problem=status.problem,
    )


def _rejection(status: RejectionStatus) -> Rejection:
    return Rejection(status.revision, status.reason, status.message, _seconds(status.time))


def _proof(status: ProofStatus) -> RollbackProof:
    times = {f"{name}_at_seconds": _maybe_seconds(getattr(status, f"{name}_time")) for name in _PROOF_TIMES}
    return RollbackProof(since_seconds=_seconds(status.since_time), missing=status.missing, **times)


def quality_of(status: RolloutStatus, revision: str | None) -> QualityCounts | None:
    """The stored answers of a revision; None without."""
    found = next((one for one in status.quality if one.revision == revision), None)
    if found is None:
        return None
    return QualityCounts(
        found.revision,
        found.prompt_set,
        passed=found.passed,
        failed=found.failed,
        unknown=found.unknown,
        observed_at_seconds=_seconds(found.observed_time),
        reason=found.reason,
    )


# --- state → status --------------------------------------------------------------------------------------------------


def status_members(state: RolloutState, policy: RolloutPolicy | None) -> dict[str, Any]:
    """The members of a status that hold the state."""
    running = state.phase not in (Phase.STEADY, Phase.RETAINED, Phase.ROLLED_BACK)
    return {
        "plan": state.plan.to_status(),
        "phase": state.phase,
        "stage": _stage_status(state, policy) if running else None,
        "trial": _trial_status(state),
        "attempt": state.attempt,
        "settled_time": _maybe_text(state.settled_at_seconds),
        "evidence": _evidence_status(state.evidence),
        "retained": state.retained,
        "retained_time": _maybe_text(state.retained_at_seconds),
        "cause": None if state.cause is None else rejection_status(state.cause),
        "proof": None if state.proof is None else _proof_status(state.proof),
        "proven": state.proven,
        "rejected": tuple(map(rejection_status, state.rejected)),
        "retry_seen": state.retry_seen,
    }


def stage_name(state: RolloutState, policy: RolloutPolicy | None) -> str:
    """What messages call the stage: its name in the policy, else the phase."""
    stages = policy.stages if policy is not None and state.phase in TRYING else ()
    return stages[state.stage].name if state.stage < len(stages) else state.phase.value


def _stage_status(state: RolloutState, policy: RolloutPolicy | None) -> StageStatus:
    clock = state.clock
    return StageStatus(
        name=stage_name(state, policy),
        index=state.stage,
        started_time=text_of(clock.started_at_seconds),
        paused_time=_maybe_text(clock.paused_at_seconds),
        paused_seconds=_decimal(clock.paused_seconds),
        passed_time=_maybe_text(clock.passed_at_seconds),
        frozen_by=state.frozen,
        late=state.late,
    )


def _trial_status(state: RolloutState) -> TrialStatus | None:
    """Kept after the promotion, too: gates go on, and their digest with them."""
    candidate = state.candidate
    if candidate is None and state.phase in (Phase.REPLACING, Phase.RETAINED):
        candidate = state.plan.serving
    if candidate is None:
        return None
    return TrialStatus(
        candidate=candidate,
        digest=state.digest,
        judged_since_time=text_of(state.judged_since_seconds),
        drain_first=state.drain_first,
    )


def _evidence_status(evidence: StageEvidence) -> EvidenceStatus:
    return EvidenceStatus(
        through_time=_maybe_text(evidence.through_seconds),
        windows=evidence.windows,
        dropped=evidence.dropped,
        problem=evidence.problem,
        routed_requests=evidence.routed_requests,
        candidate_requests=evidence.candidate_requests,
        tallies=tuple(_tally_status(one) for one in evidence.tallies),
    )


def _tally_status(one: ArmTally) -> TallyStatus:
    tally = one.tally
    return TallyStatus.model_validate(
        {
            "arm": one.arm.value,
            "workload_class": one.workload_class,
            "requests": tally.requests,
            "errors": tally.errors,
            "output_tokens": tally.output_tokens,
            "loaded_seconds": _decimal(tally.loaded_seconds),
            "ttft_within": tally.ttft.within,
            "ttft_total": tally.ttft.total,
            "tpot_within": tally.tpot.within,
            "tpot_total": tally.tpot.total,
        }
    )


def rejection_status(rejection: Rejection) -> RejectionStatus:
    """How a status holds it."""
    return RejectionStatus(
        revision=rejection.revision,
        reason=str(rejection.reason),
        message=rejection.message,
        time=text_of(rejection.at_seconds),
    )


def _proof_status(proof: RollbackProof) -> ProofStatus:
    times = {f"{name}_time": _maybe_text(getattr(proof, f"{name}_at_seconds")) for name in _PROOF_TIMES}
    return ProofStatus(since_time=text_of(proof.since_seconds), missing=proof.missing, **times)


def quality_status(counts: Iterable[QualityCounts | None]) -> tuple[QualityStatus, ...]:
    """How a status holds the answers of both arms."""
    return tuple(
        QualityStatus(
            revision=one.revision,
            prompt_set=one.prompt_set,
            passed=one.passed,
            failed=one.failed,
            unknown=one.unknown,
            observed_time=text_of(one.observed_at_seconds),
            reason=one.reason,
        )
        for one in counts
        if one is not None
    )


def _decimal(number: Fraction) -> Decimal:
    """To the microsecond: a status holds about 15 digits."""
    return to_decimal(Fraction(round(number * 1_000_000), 1_000_000))
