"""A candidate on trial: warm, shadow, canaries. What takes its traffic away comes first, what lets it on comes last."""

from dataclasses import replace
from fractions import Fraction

from bayplan.api.rolloutwords import Handling, OnDeadline, Outcome, Phase, StageKind, Waiver
from bayplan.planning.rollout.balance import balanced, carried_percent
from bayplan.planning.rollout.judging import NOTHING_JUDGED, Assessment, assess, counted, without_baseline
from bayplan.planning.rollout.plan import Plan
from bayplan.planning.rollout.policy import RolloutPolicy, Stage
from bayplan.planning.rollout.proof import lagging
from bayplan.planning.rollout.returning import roll_back
from bayplan.planning.rollout.state import RolloutState, StageClock
from bayplan.planning.rollout.verdicts import Advance, Decision, Hold, Holding, HoldReason, RollbackReason
from bayplan.planning.rollout.world import World

SHARE_TOLERANCE = Fraction(5, 100)
"""By so much of all requests the observed share may exceed the weight before something else than the plan routes."""
SHARE_REQUESTS = 10
"""And by so many requests it always may."""
_PHASES = {StageKind.WARM: Phase.WARM, StageKind.SHADOW: Phase.SHADOW, StageKind.CANARY: Phase.CANARY}


def decide(policy: RolloutPolicy, state: RolloutState, world: World) -> Decision:
    """One step of the trial."""
    now = world.now_seconds
    if (gone := interruption(policy, state, world)) is not None:
        return roll_back(state, world, *gone)
    state = _retried(policy, with_current_digest(policy, state, world), world)
    state = _with_clock(state, state.clock.ticked(now, paused=policy.paused))
    stage = policy.stages[state.stage]
    assessment = NOTHING_JUDGED
    if stage.kind is not StageKind.WARM:
        state = counted(state, world)
        assessment = assess(policy, state, world, candidate=state.candidate or "", baseline=state.plan.serving)
    worst = assessment.results
    failing = [result for result in worst if result.rolls_back]
    if failing:
        why = "; ".join(f"{result.gate}: {result.message}" for result in failing)
        return roll_back(state, world, RollbackReason.GATE_FAILED, why, gates=worst)
    if freezing := [result for result in worst if result.freezes]:
        state = state.change(frozen=", ".join(str(result.gate) for result in freezing))
    late = state.clock.passed_at_seconds is None and state.clock.elapsed(now) > stage.deadline_seconds
    if late and not policy.paused:
        if policy.on_deadline is OnDeadline.ROLLBACK:
            why = f"{stage.name} outlasted its {float(stage.deadline_seconds):g} s"
            return roll_back(state, world, RollbackReason.DEADLINE_EXCEEDED, why, gates=worst)
        state = state.change(late=True)
    state = _planned(policy, state, world, stage)
    holds = _holds(policy, state, world, stage, assessment)
    if not holds:
        following = policy.stages[state.stage + 1]
        candidate = state.candidate or world.wanted
        if policy.approved(candidate, following):
            return replace(_advance(policy, state, world), gates=worst)
        passed = state.clock.passed_at_seconds
        state = _with_clock(state, replace(state.clock, passed_at_seconds=now if passed is None else passed))
        holds = [Hold(HoldReason.AWAITING_APPROVAL, f"{candidate} may enter {following.name} once approved")]
    else:
        state = _with_clock(state, replace(state.clock, passed_at_seconds=None))
    return Decision(state, Holding(tuple(holds)), worst)


def interruption(policy: RolloutPolicy, state: RolloutState, world: World) -> tuple[RollbackReason, str] | None:
    """What somebody did that ends the trial."""
    candidate = state.candidate
    if world.deleting:
        return RollbackReason.DELETED, "the Rollout is being deleted"
    if policy.abort is not None and policy.abort == candidate:
        return RollbackReason.ABORTED, f"spec.abort names {candidate}"
    if world.wanted == state.plan.serving:
        return RollbackReason.REVERTED, f"the spec went back to {world.wanted}, which serves"
    if world.wanted != candidate:
        return RollbackReason.SUPERSEDED, f"the spec went on to {world.wanted}"
    return None


def with_current_digest(policy: RolloutPolicy, state: RolloutState, world: World) -> RolloutState:
    """Start the stage again, with empty counts, when gates or stages are not those of the candidate's first sight.

    The stage is the last one whose weight the candidate has already had; never a later one.
    """
    if policy.digest == state.digest:
        return state
    stage = 0
    if state.phase in (Phase.SHADOW, Phase.CANARY):
        phase = StageKind.SHADOW if state.phase is Phase.SHADOW else StageKind.CANARY
        kept = [
            index
            for index, one in enumerate(policy.stages)
            if one.kind is phase and (phase is StageKind.SHADOW or one.weight <= max(state.plan.weight, 1))
        ]
        earliest = next(
            index for index, one in enumerate(policy.stages) if one.kind in (StageKind.SHADOW, StageKind.CANARY)
        )
        stage = kept[-1] if kept else earliest
    phase_of_stage = state.phase if state.phase is Phase.PAPER else _PHASES[policy.stages[stage].kind]
    return state.restarted(
        world.now_seconds,
        phase=phase_of_stage,
        stage=stage,
        digest=policy.digest,
        judged_since_seconds=world.now_seconds,
        plan=_share_of(state, policy, stage),
    )


def invalid_gates(policy: RolloutPolicy, world: World) -> list[Hold]:
    """Gates that nothing can judge, named one by one; those that are only watched hold nobody."""
    names = {gate.key for gate in policy.gates}
    found = [result for result in world.invalid if result.gate.enforce and result.gate.key in names]
    return [Hold(HoldReason.GATE_INVALID, f"{result.gate}: {result.message}") for result in found]


def _share_of(state: RolloutState, policy: RolloutPolicy, stage: int) -> Plan:
    """The plan without a share that the stage at which it starts again does not give."""
    one = policy.stages[stage]
    if one.kind is StageKind.CANARY:
        return state.plan.change(shadow_share=0, weight=min(state.plan.weight, one.weight))
    return state.plan.change(weight=0, shadow_share=0, baseline=())


def _with_clock(state: RolloutState, clock: StageClock) -> RolloutState:
    return state if clock == state.clock else state.change(clock=clock)


def _retried(policy: RolloutPolicy, state: RolloutState, world: World) -> RolloutState:
    if not policy.retry or policy.retry == state.retry_seen:
        return state
    state = state.change(retry_seen=policy.retry)
    return state.restarted(world.now_seconds) if state.frozen or state.late else state


def _planned(policy: RolloutPolicy, state: RolloutState, world: World, stage: Stage) -> RolloutState:
    """Scale first, then shift: the plan with the share that ready capacity carries, and the baseline as large."""
    stopped = policy.paused or bool(state.frozen) or state.late
    plan = balanced(state.plan, stage, world, may_grow=not stopped)
    return state if plan is state.plan else state.change(plan=plan)


def _holds(
    policy: RolloutPolicy, state: RolloutState, world: World, stage: Stage, assessment: Assessment
) -> list[Hold]:
    """Everything that keeps the candidate in its stage, what stopped it first."""
    holds = []
    if state.frozen:
        holds.append(Hold(HoldReason.FROZEN, f"by {state.frozen}, until a retry, an abort or another revision"))
    if state.late:
        message = f"{stage.name} outlasted its {float(stage.deadline_seconds):g} s; a retry starts it again"
        holds.append(Hold(HoldReason.DEADLINE_EXCEEDED, message))
    if policy.paused:
        holds.append(Hold(HoldReason.PAUSED, "by spec.paused"))
    holds += invalid_gates(policy, world)
    holds += _capacity(policy, state, world, stage)
    if stage.kind is not StageKind.WARM:
        holds += _evidence(policy, state, world, stage, assessment)
    elapsed = state.clock.elapsed(world.now_seconds)
    if elapsed < stage.bake_seconds:
        holds.append(Hold(HoldReason.BAKING, f"{stage.name} lasts at least {float(stage.bake_seconds):g} s"))
    return holds


def _capacity(policy: RolloutPolicy, state: RolloutState, world: World, stage: Stage) -> list[Hold]:
    ready, needed = world.candidate.serving, state.plan.candidate_replicas
    holds = []
    if len(ready) < needed:
        reason = HoldReason.CANDIDATE_TROUBLE if world.candidate.trouble else HoldReason.CANDIDATE_NOT_WARM
        trouble = f": {world.candidate.trouble}" if world.candidate.trouble else ""
        holds.append(Hold(reason, f"{len(ready)} of {needed} candidate replicas warm and ready{trouble}"))
    nodes = {head.node for head in ready}
    if Waiver.SINGLE_REPLICA not in policy.waivers and len(ready) >= needed and len(nodes) < policy.least_candidates:
        where = ", ".join(sorted(nodes)) or "none"
        holds.append(Hold(HoldReason.SINGLE_REPLICA, f"all candidate pods on {where}: a slow node would look like it"))
    if stage.kind is StageKind.WARM:
        return holds
    if not world.serving.serving and not without_baseline(policy, world):
        holds.append(Hold(HoldReason.NO_BASELINE, "no serving replica to compare with"))
    carried = carried_percent(world)
    share = state.plan.weight if stage.kind is StageKind.CANARY else state.plan.shadow_share
    if share < stage.weight:
        message = f"{share} of {stage.weight} %: ready capacity carries {carried} %"
        holds.append(Hold(HoldReason.CAPACITY_NOT_READY, message))
    if lag := lagging(world.gateways, state.plan.epoch):
        holds.append(Hold(HoldReason.PLAN_NOT_ACKNOWLEDGED, f"epoch {state.plan.epoch} by {', '.join(lag[:3])}"))
    return holds


def _evidence(
    policy: RolloutPolicy, state: RolloutState, world: World, stage: Stage, assessment: Assessment
) -> list[Hold]:
    evidence, holds = state.evidence, []
    routed, own = evidence.routed_requests, evidence.candidate_requests
    weight = Fraction(max(state.plan.weight, stage.weight if stage.kind is StageKind.CANARY else 0), 100)
    if own > weight * routed + SHARE_REQUESTS and own > (weight + SHARE_TOLERANCE) * routed:
        message = f"{own} of {routed} requests went to the candidate, {float(100 * weight):g} % should"
        holds.append(Hold(HoldReason.SHARE_EXCEEDED, message))
    blocking = [result for result in assessment.results if result.blocks]
    for result in blocking:
        if result.outcome is Outcome.FAILED and result.handling is Handling.TUNE_SERVING:
            holds.append(Hold(HoldReason.GATE_SHARED, f"{result.gate}: {result.message}"))
    if evidence.problem:
        holds.append(Hold(HoldReason.NOT_COMPARABLE, evidence.problem))
    unknown = [f"{result.gate}: {result.message}" for result in blocking if result.outcome is Outcome.UNKNOWN]
    if missing := [*assessment.thin, *unknown]:
        holds.append(Hold(HoldReason.INSUFFICIENT_EVIDENCE, "; ".join(missing)))
    through = evidence.through_seconds
    age = None if through is None else world.now_seconds - through
    if age is None or age > policy.max_evidence_age_seconds:
        message = (
            "nothing counted yet"
            if age is None
            else f"the last window ended more than {float(policy.max_evidence_age_seconds):g} s ago"
        )
        holds.append(Hold(HoldReason.EVIDENCE_STALE, message))
    return holds


def _advance(policy: RolloutPolicy, state: RolloutState, world: World) -> Decision:
    now, following = world.now_seconds, policy.stages[state.stage + 1]
    candidate = state.candidate or world.wanted
    if following.kind is StageKind.PROMOTE:
        plan = state.plan.change(
            serving=candidate,
            previous=state.plan.serving,
            candidate=None,
            weight=0,
            shadow_share=0,
            cohort_salt="",
            stable_min=0,
            candidate_replicas=0,
            baseline=(),
        )
        promoted = state.with_proven(candidate).restarted(
            now, phase=Phase.REPLACING, stage=state.stage + 1, plan=plan, candidate=None, drain_first=False
        )
        return Decision(promoted, Advance(following.name))
    beside = max(state.plan.stable_min, len(world.serving.serving))
    wanted = min(policy.max_surge, policy.replicas_for(following, serving_replicas=beside))
    plan = state.plan.change(
        candidate_replicas=max(state.plan.candidate_replicas, wanted),
        shadow_share=0,
    )
    entered = state.restarted(now, phase=_PHASES[following.kind], stage=state.stage + 1, plan=plan)
    return Decision(entered, Advance(following.name))
