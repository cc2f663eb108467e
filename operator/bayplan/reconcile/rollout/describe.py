"""What a Rollout's status says beside the state: one sentence per condition, gates, holds, history. Pure."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from bayplan.api.conditions import ConditionType, Reason, Status, merge_conditions
from bayplan.api.rollout_status import (
    MAX_GATES,
    MAX_HOLDS,
    MAX_REMEMBERED,
    GateStatus,
    HistoryEntry,
    HoldStatus,
    QualityStatus,
    RolloutStatus,
    SurgeStatus,
)
from bayplan.api.rolloutwords import Handling, Outcome, Phase
from bayplan.planning.gates.quality import QualityCounts
from bayplan.planning.gates.records import GateResult
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.state import TRYING, RolloutState
from bayplan.planning.rollout.surge import SurgeDecision, SurgeOutcome
from bayplan.planning.rollout.verdicts import Advance, Decision, Holding, HoldReason, Rest, RestReason, Rollback
from bayplan.planning.rollout.world import World
from bayplan.reconcile.rollout.stored import quality_status, stage_name, status_members, text_of

Verdict = tuple[ConditionType, Status, Reason, str]
NEED_SOMEBODY = frozenset({HoldReason.FROZEN, HoldReason.DEADLINE_EXCEEDED, HoldReason.GATE_INVALID})
"""Holds that end by somebody's doing alone."""
_COUNTING = (Phase.SHADOW, Phase.CANARY, Phase.REPLACING, Phase.RETAINED)
_AT_REST = (Phase.STEADY, Phase.RETAINED, Phase.ROLLED_BACK)
_LEAST, _MOST = Decimal(-(10**9)), Decimal(10**9)


def reason_of(word: str) -> Reason:
    """The reason of that name; hold, rollback and rest reasons are all among them, as a test says."""
    return Reason.REVISION_REJECTED if word == RestReason.REJECTED else Reason(word)


def build_status(
    decision: Decision,
    previous: RolloutStatus,
    policy: RolloutPolicy,
    world: World,
    *,
    generation: int,
    model_generation: int,
    model_uid: str,
    now: datetime,
) -> RolloutStatus:
    """The status after a decision; equal decisions on an equal state give equal bytes."""
    state = decision.state
    gates = tuple(_gate_status(result) for result in decision.gates)[:MAX_GATES]
    if not gates and state.phase is previous.phase:
        gates = previous.gates
    surge = previous.surge if decision.surge is None else _surge_status(decision.surge)
    if state.phase in _AT_REST:
        surge = None
    holds = decision.verdict.holds if isinstance(decision.verdict, Holding) else ()
    shown = tuple(HoldStatus(reason=hold.reason.value, handling=hold.handling, message=hold.message) for hold in holds)[
        :MAX_HOLDS
    ]
    status = RolloutStatus(
        observed_generation=generation,
        observed_model_generation=model_generation,
        model_uid=model_uid,
        quality=_quality(previous, world),
        gates=gates,
        holds=shown,
        surge=surge,
        history=_history(decision, previous, policy, now=world.now_seconds),
        **status_members(state, policy),
    )
    verdicts = _verdicts(decision, status, policy, world)
    return status.model_copy(
        update={"conditions": merge_conditions(previous.conditions, verdicts, generation=generation, now=now)}
    )


def waiting_status(
    previous: RolloutStatus, verdicts: Sequence[Verdict], *, generation: int, keeps_plan: bool, now: datetime
) -> RolloutStatus:
    """The status of a Rollout that cannot act; what it has decided stays only where it still has the say."""
    base = previous if keeps_plan else RolloutStatus(history=previous.history)
    return base.model_copy(
        update={
            "observed_generation": generation,
            "conditions": merge_conditions(previous.conditions, verdicts, generation=generation, now=now),
        }
    )


def _quality(previous: RolloutStatus, world: World) -> tuple[QualityStatus, ...]:
    found: list[QualityCounts | None] = [world.candidate_quality, world.baseline_quality]
    return quality_status(found) if any(found) else previous.quality


def _gate_status(result: GateResult) -> GateStatus:
    measured = result.measured
    # Nine digits: a status must read back as it was written.
    number = Decimal(f"{float(measured):.9g}") if isinstance(measured, Fraction) else None
    return GateStatus(
        name=result.gate.name,
        workload_class=result.gate.workload_class,
        outcome=result.outcome,
        handling=result.handling,
        measured=None if number is None else min(_MOST, max(_LEAST, number)),
        samples=result.samples,
        message=result.message if result.gate.enforce else f"{result.message} (not enforced)",
    )


def _surge_status(surge: SurgeDecision) -> SurgeStatus:
    return SurgeStatus(
        outcome=surge.outcome.value,
        peak_replicas=surge.peak_replicas,
        drain_replicas=surge.drain_replicas,
        message=surge.message,
        choices=surge.choices,
    )


def _history(
    decision: Decision, previous: RolloutStatus, policy: RolloutPolicy, *, now: Fraction
) -> tuple[HistoryEntry, ...]:
    state, verdict = decision.state, decision.verdict
    revision = state.candidate or (state.cause.revision if state.cause is not None else state.plan.serving)
    if isinstance(verdict, Advance):
        entry = HistoryEntry(time=text_of(now), revision=revision, to=verdict.to)
    elif isinstance(verdict, Rollback):
        lost = state.cause.revision if state.cause is not None else revision
        entry = HistoryEntry(
            time=text_of(now),
            revision=lost,
            to=stage_name(state, policy),
            reason=verdict.reason.value,
            message=verdict.message,
        )
    else:
        return previous.history
    return (*previous.history, entry)[-MAX_REMEMBERED:]


# --- conditions ------------------------------------------------------------------------------------------------------


def _verdicts(decision: Decision, status: RolloutStatus, policy: RolloutPolicy, world: World) -> list[Verdict]:
    state = decision.state
    found: list[Verdict] = [(ConditionType.ACCEPTED, "True", Reason.VALID, "the spec is valid")]
    if status.surge is not None:
        found.append(_surge_fits(status.surge))
    if state.phase in TRYING:
        found.append(_candidate_warm(state, world))
    if state.phase in _COUNTING:
        found.append(_comparable(state))
    if status.gates and state.phase in (*_COUNTING, Phase.ROLLING_BACK, Phase.ROLLED_BACK):
        found.append(_gates_passed(status))
    if state.phase not in (Phase.STEADY, Phase.ROLLED_BACK):
        found.append(_progressing(decision, policy))
    if state.proof is not None:
        found.append(_proven(state))
    found.append(_ready(decision, policy))
    found += _kstatus(decision, found[-1])
    return found


def _surge_fits(surge: SurgeStatus) -> Verdict:
    kind, message = ConditionType.SURGE_FITS, surge.message
    if surge.outcome == SurgeOutcome.DOES_NOT_FIT:
        choices = "; ".join(surge.choices)
        return kind, "False", Reason.SURGE_DOES_NOT_FIT, f"{message}; choices: {choices}"
    return kind, "True", Reason.FITS if surge.outcome == SurgeOutcome.FITS else Reason.DRAINS_FIRST, message


def _candidate_warm(state: RolloutState, world: World) -> Verdict:
    kind, ready, wanted = ConditionType.CANDIDATE_WARM, len(world.candidate.serving), state.plan.candidate_replicas
    text = f"{ready} of {wanted} replicas of {state.plan.candidate} warm and ready"
    if ready >= wanted:
        return kind, "True", Reason.WARM, text
    if world.candidate.trouble:
        return kind, "False", Reason.CANDIDATE_TROUBLE, f"{text}: {world.candidate.trouble}"
    return kind, "False", Reason.CANDIDATE_NOT_WARM, text


def _comparable(state: RolloutState) -> Verdict:
    kind, evidence = ConditionType.EVIDENCE_COMPARABLE, state.evidence
    if evidence.problem:
        return kind, "False", Reason.EVIDENCE_IN_DOUBT, evidence.problem
    if evidence.windows == 0:
        return kind, "Unknown", Reason.NOTHING_COUNTED, "no window of this stage was counted yet"
    return kind, "True", Reason.COMPARABLE, "both arms are under like load and nothing is in doubt"


_OF_OUTCOME: dict[Outcome, tuple[Status, Reason]] = {
    Outcome.FAILED: ("False", Reason.GATE_FAILED),
    Outcome.INVALID: ("False", Reason.GATE_INVALID),
    Outcome.UNKNOWN: ("Unknown", Reason.INSUFFICIENT_EVIDENCE),
}


def _gates_passed(status: RolloutStatus) -> Verdict:
    kind = ConditionType.GATES_PASSED
    gates = [gate for gate in status.gates if not gate.message.endswith("(not enforced)")]
    worst = next((gate for gate in gates if gate.outcome is not Outcome.PASSED), None)
    if worst is None:
        return kind, "True", Reason.ALL_PASSED, f"{len(gates)} gates pass"
    verdict, reason = _OF_OUTCOME[worst.outcome]
    if worst.outcome is Outcome.FAILED and worst.handling is Handling.TUNE_SERVING:
        reason = Reason.GATE_SHARED
    told = "; ".join(f"{gate.name}: {gate.message}" for gate in gates if gate.outcome is worst.outcome)
    return kind, verdict, reason, told


def _progressing(decision: Decision, policy: RolloutPolicy) -> Verdict:
    kind, state, verdict = ConditionType.PROGRESSING, decision.state, decision.verdict
    match verdict:
        case Holding(holds):
            first = holds[0]
            stops = first.reason in NEED_SOMEBODY or first.handling is Handling.TUNE_SERVING
            stops = stops or first.reason in (HoldReason.PAUSED, HoldReason.AWAITING_APPROVAL)
            text = f"{stage_name(state, policy)}: {first.message}"
            return kind, "False" if stops else "True", reason_of(first.reason.value), text
        case Rollback(reason, message):
            return kind, "False", reason_of(reason.value), message
        case Advance(to):
            return kind, "True", Reason.ADVANCED, f"entered {to}"
        case Rest(reason, message):
            return kind, "True", reason_of(reason.value), message


def _proven(state: RolloutState) -> Verdict:
    kind, proof = ConditionType.ROLLBACK_PROVEN, state.proof
    assert proof is not None
    if proof.proven:
        since = text_of(proof.since_seconds)
        return kind, "True", Reason.PROVEN, f"traffic was taken away {since}; status.proof has the times of each part"
    return kind, "False", Reason.PROVING, "; ".join(proof.missing) or "the proof has just begun"


def _ready(decision: Decision, policy: RolloutPolicy) -> Verdict:
    kind, state, verdict = ConditionType.READY, decision.state, decision.verdict
    if state.phase is Phase.ROLLED_BACK or (isinstance(verdict, Rest) and verdict.reason is RestReason.REJECTED):
        cause = state.rejected[-1] if state.rejected else state.cause
        if isinstance(verdict, Rest) and verdict.message:
            return kind, "False", Reason.REVISION_REJECTED, f"{verdict.message}; {state.plan.serving} serves"
        told = f"{cause.revision}: {cause.reason}: {cause.message}" if cause is not None else "rejected"
        return kind, "False", Reason.REVISION_REJECTED, f"{told}; {state.plan.serving} serves"
    if state.phase in _AT_REST:
        proven = "proven" if state.plan.serving in state.proven else "not proven"
        return kind, "True", Reason.CURRENT, f"{state.plan.serving} serves, {proven}"
    _, _, reason, message = _progressing(decision, policy)
    return kind, "False", reason, message


def _kstatus(decision: Decision, ready: Verdict) -> list[Verdict]:
    _, status, reason, message = ready
    if status == "True":
        return []
    verdict = decision.verdict
    stuck = isinstance(verdict, Holding) and verdict.holds[0].reason in NEED_SOMEBODY
    if reason is Reason.REVISION_REJECTED or stuck:
        return [(ConditionType.STALLED, "True", reason, message)]
    return [(ConditionType.RECONCILING, "True", reason, message)]


_QUIET = (ConditionType.RECONCILING, ConditionType.STALLED, ConditionType.EVIDENCE_COMPARABLE)
"""They repeat others, or go to and fro with every window."""


def news_of(before: RolloutStatus, after: RolloutStatus) -> list[tuple[str, str, bool]]:
    """What is worth an event, as (reason, message, whether it is a warning): each change of stage, and each condition
    that turns out otherwise than before and is not just fine.
    """
    news: list[tuple[str, str, bool]] = []
    for entry in after.history[len(before.history) if len(before.history) < MAX_REMEMBERED else -1 :]:
        if entry not in before.history:
            text = f"{entry.revision}: {entry.to}{f': {entry.message}' if entry.message else ''}"
            news.append((entry.reason or Reason.ADVANCED, text, bool(entry.reason)))
    told = {reason for reason, _, _ in news}
    old = {condition.type: (condition.status, condition.reason) for condition in before.conditions}
    for condition in after.conditions:
        same = old.get(condition.type) == (condition.status, condition.reason)
        fine = condition.status == "True" and condition.type != ConditionType.ROLLBACK_PROVEN
        if same or fine or condition.type in _QUIET or condition.reason in told:
            continue
        told.add(condition.reason)
        news.append((condition.reason, condition.message, condition.status == "False"))
    return news
