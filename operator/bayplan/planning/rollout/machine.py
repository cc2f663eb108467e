"""The rollout's state machine: one decision from what is asked for, stored and observed.

Every call makes at most one transition and is safe to repeat: it reads no clock but the world's and keeps nothing. What
takes traffic away is looked at first, in every phase, and the way back has no gates. Going on needs everything.
"""

from dataclasses import replace

from bayplan.api.rolloutwords import Phase
from bayplan.planning.rollout import aftermath, trial
from bayplan.planning.rollout.cohort import derive_salt
from bayplan.planning.rollout.paper import PaperOutcome
from bayplan.planning.rollout.plan import Plan
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.proof import lagging
from bayplan.planning.rollout.returning import roll_back
from bayplan.planning.rollout.state import Rejection, RolloutState, StageClock
from bayplan.planning.rollout.surge import SurgeOutcome, decide_surge
from bayplan.planning.rollout.verdicts import (
    Advance,
    Decision,
    Hold,
    Holding,
    HoldReason,
    Rest,
    RestReason,
    RollbackReason,
    hold,
)
from bayplan.planning.rollout.world import World


def decide(policy: RolloutPolicy, state: RolloutState | None, world: World, *, rollout_uid: str) -> Decision:
    """Decide the next state and plan. `rollout_uid` seeds the salt of the cohorts.

    Deterministic; invalid input has raised in the records already.
    """
    if state is None:
        return _first_sight(policy, world)
    decision = _decide(policy, _with_acknowledgements(state, world), world, rollout_uid)
    return replace(decision, state=_of_one_epoch(state.plan, decision.state))


def _decide(policy: RolloutPolicy, state: RolloutState, world: World, rollout_uid: str) -> Decision:
    match state.phase:
        case Phase.PAPER:
            return _paper(policy, state, world, rollout_uid)
        case Phase.WARM | Phase.SHADOW | Phase.CANARY:
            return trial.decide(policy, state, world)
        case Phase.REPLACING:
            return aftermath.replace_rest(policy, state, world)
        case Phase.ROLLING_BACK:
            return aftermath.prove_rollback(policy, state, world)
    kept = aftermath.retain(policy, state, world) if state.phase is Phase.RETAINED else None
    return kept or _rest(policy, state, world)


def _of_one_epoch(before: Plan, state: RolloutState) -> RolloutState:
    """The state whose plan is of the next epoch if it differs from the one before, however it came about."""
    if state.plan.epoch <= before.epoch + 1:
        return state
    plan = replace(state.plan, epoch=before.epoch)
    return replace(state, plan=plan if plan == before else replace(plan, epoch=before.epoch + 1))


def _first_sight(policy: RolloutPolicy, world: World) -> Decision:
    """What serves goes on serving, as not proven: Git may name a revision that nobody has tried.

    Of a model that was made anew gateways may still say what they knew of the old one: no such epoch is used again.
    """
    serving = world.served or world.wanted
    epoch = 1 + max((gateway.epoch for gateway in world.gateways), default=0)
    state = RolloutState(
        plan=Plan(epoch=epoch, serving=serving),
        phase=Phase.STEADY,
        clock=StageClock(world.now_seconds),
        retry_seen=policy.retry,
    )
    return Decision(state, Rest(RestReason.CURRENT, f"{serving} serves, not proven"))


def _with_acknowledgements(state: RolloutState, world: World) -> RolloutState:
    if state.settled_at_seconds is None and not lagging(world.gateways, state.plan.epoch):
        return state.change(settled_at_seconds=world.now_seconds)
    return state


def _rest(policy: RolloutPolicy, state: RolloutState, world: World) -> Decision:
    """Nothing is on trial: begin what is wanted, unless it serves or was rejected."""
    now, wanted = world.now_seconds, world.wanted
    if policy.retry and policy.retry != state.retry_seen:
        state = state.without_rejected(wanted).change(retry_seen=policy.retry)
    if world.deleting:
        return Decision(state, Rest(RestReason.DELETED))
    if wanted == state.plan.serving:
        proven = "proven" if wanted in state.proven else "not proven"
        return Decision(state.change(phase=Phase.STEADY), Rest(RestReason.CURRENT, f"{wanted} serves, {proven}"))
    if policy.abort == wanted and state.rejection(wanted) is None:
        state = state.with_rejected(Rejection(wanted, RollbackReason.ABORTED, "aborted before it began", now))
    rejection = state.rejection(wanted)
    if rejection is not None:
        at_rest = state if state.phase is Phase.RETAINED else state.change(phase=Phase.ROLLED_BACK)
        return Decision(at_rest, Rest(RestReason.REJECTED, f"{wanted}: {rejection.reason}: {rejection.message}"))
    if policy.paused:
        return hold(state, Hold(HoldReason.PAUSED, f"{wanted} begins when the pause ends"))
    begun = state.restarted(
        now,
        phase=Phase.PAPER,
        stage=0,
        candidate=wanted,
        attempt=state.attempt + 1,
        digest=policy.digest,
        judged_since_seconds=now,
        cause=None,
        proof=None,
    )
    return Decision(begun, Advance(Phase.PAPER))


def _paper(policy: RolloutPolicy, state: RolloutState, world: World, rollout_uid: str) -> Decision:
    """Before a GPU is touched: is it still wanted, do its measurements stand, can its gates be judged, does it fit?"""
    if (gone := trial.interruption(policy, state, world)) is not None:
        return roll_back(state, world, *gone)
    if world.paper.outcome is PaperOutcome.REJECTED:
        return roll_back(state, world, RollbackReason.STAGING_REJECTED, "; ".join(world.paper.messages))
    state = trial.with_current_digest(policy, state, world)
    holds = []
    if policy.paused:
        holds.append(Hold(HoldReason.PAUSED, "by spec.paused"))
    if not world.paper.passes:
        holds.append(Hold(HoldReason.PAPER_MISSING, "; ".join(world.paper.messages)))
    holds += trial.invalid_gates(policy, world)
    surge = None
    if world.surge is None:
        holds.append(Hold(HoldReason.SURGE_UNKNOWN, "placement has not answered yet"))
    else:
        serving = len(world.serving.serving)
        surge = decide_surge(policy, world.surge, serving_replicas=serving, floor=min(world.floor, serving))
        if not surge.fits:
            choices = "; ".join(surge.choices)
            holds.append(Hold(HoldReason.SURGE_DOES_NOT_FIT, f"{surge.message}; choices: {choices}"))
    warm = policy.stages[0]
    candidate = state.candidate or world.wanted
    if not policy.approved(candidate, warm):
        holds.append(Hold(HoldReason.AWAITING_APPROVAL, f"{candidate} may enter {warm.name} once approved"))
    if holds or surge is None:
        return Decision(state, Holding(tuple(holds)), surge=surge)
    plan = state.plan.change(
        candidate=candidate,
        candidate_replicas=policy.replicas_for(warm, serving_replicas=surge.stable_min),
        cohort_salt=derive_salt(rollout_uid=rollout_uid, revision=candidate, attempt=state.attempt),
        stable_min=surge.stable_min,
    )
    started = state.restarted(
        world.now_seconds,
        phase=Phase.WARM,
        plan=plan,
        drain_first=surge.outcome is SurgeOutcome.DRAINS_FIRST,
        retained=None,
        retained_at_seconds=None,
    )
    return Decision(started, Advance(warm.name), surge=surge)
