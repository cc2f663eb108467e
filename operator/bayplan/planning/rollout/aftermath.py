"""After the verdict: replacing the rest, retaining what was replaced, and proving a rollback."""

from dataclasses import replace
from fractions import Fraction

from bayplan.api.rolloutwords import OnDeadline, Phase
from bayplan.planning.gates.counts import StageEvidence
from bayplan.planning.rollout.judging import assess, counted
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.proof import RollbackProof, lagging, prove
from bayplan.planning.rollout.returning import revert
from bayplan.planning.rollout.state import RolloutState
from bayplan.planning.rollout.verdicts import Advance, Decision, Hold, HoldReason, RollbackReason, hold
from bayplan.planning.rollout.world import World


def replace_rest(policy: RolloutPolicy, state: RolloutState, world: World) -> Decision:
    """Both revisions serve until the promoted one is at full size; a third revision waits for that."""
    now, serving, previous = world.now_seconds, state.plan.serving, state.plan.previous
    returning = state.cause is not None
    if not returning:
        state = _counted(policy, state, world)
        if (back := _called_back(policy, state, world)) is not None:
            return back
    ready = len(world.serving.serving)
    if ready >= world.desired and state.settled_at_seconds is not None:
        return _replaced(policy, state, now, returning=returning)
    message = f"{ready} of {world.desired} replicas of {serving} ready; {previous} serves beside them"
    promote = policy.stages[-1]
    if not returning and state.clock.elapsed(now) > promote.deadline_seconds:
        if policy.on_deadline is OnDeadline.ROLLBACK and previous is not None:
            why = f"the rest was not replaced within {float(promote.deadline_seconds):g} s: {message}"
            return revert(state, world, RollbackReason.DEADLINE_EXCEEDED, why, to=previous)
        return hold(state, Hold(HoldReason.DEADLINE_EXCEEDED, message), Hold(HoldReason.REPLACING, message))
    return hold(state, Hold(HoldReason.REPLACING, message))


def _replaced(policy: RolloutPolicy, state: RolloutState, now: Fraction, *, returning: bool) -> Decision:
    plan, previous = state.plan.change(previous=None), state.plan.previous
    if returning:
        proof = RollbackProof(since_seconds=now)
        return Decision(state.change(phase=Phase.ROLLING_BACK, plan=plan, proof=proof), Advance(Phase.ROLLING_BACK))
    if policy.retain_seconds > 0:
        kept = state.restarted(now, phase=Phase.RETAINED, plan=plan, retained=previous, retained_at_seconds=now)
        return Decision(kept, Advance(Phase.RETAINED))
    return Decision(state.change(phase=Phase.STEADY, plan=plan), Advance(Phase.STEADY))


def retain(policy: RolloutPolicy, state: RolloutState, world: World) -> Decision | None:
    """Keep what was replaced for its time, unless it is called back. None: another revision is wanted."""
    serving, retained, since = state.plan.serving, state.retained, state.retained_at_seconds
    state = _counted(policy, state, world)
    if (back := _called_back(policy, state, world)) is not None:
        return back
    left = Fraction(0) if since is None else since + policy.retain_seconds - world.now_seconds
    if left <= 0:
        done = state.change(phase=Phase.STEADY, retained=None, retained_at_seconds=None)
        return Decision(done, Advance(Phase.STEADY))
    if world.wanted == serving:
        return hold(state, Hold(HoldReason.RETAINING, f"{retained} is kept for {float(policy.retain_seconds):g} s"))
    return None


def _counted(policy: RolloutPolicy, state: RolloutState, world: World) -> RolloutState:
    """The promoted revision is still watched; counts at the edges of other gates would say nothing of these."""
    if policy.digest != state.digest:
        state = state.change(digest=policy.digest, evidence=StageEvidence())
    return counted(state, world)


def _called_back(policy: RolloutPolicy, state: RolloutState, world: World) -> Decision | None:
    """Whether what served before serves again.

    By an abort; by the spec, if it still serves or is proven; or because the promoted revision fails a gate now that it
    has all the load.
    """
    serving, other = state.plan.serving, state.plan.previous or state.retained
    if other is None:
        return None
    if policy.abort == serving:
        return revert(state, world, RollbackReason.ABORTED, f"spec.abort names {serving}", to=other)
    if world.wanted == other and (other == state.plan.previous or other in state.proven):
        return revert(state, world, RollbackReason.REVERTED, f"the spec went back to {other}", to=other)
    results = assess(policy, state, world, candidate=serving, baseline=other).results
    failing = [result for result in results if result.rolls_back]
    if not failing:
        return None
    why = "; ".join(f"{result.gate}: {result.message}" for result in failing)
    return replace(revert(state, world, RollbackReason.GATE_FAILED, why, to=other), gates=results)


def prove_rollback(policy: RolloutPolicy, state: RolloutState, world: World) -> Decision:
    """Let the candidate's pods go once nobody can be sending to them, and rest once serving is seen to do its work.

    A proof that cannot be completed does not stand in the way of a fix: once the candidate is gone, another revision
    may begin.
    """
    now = world.now_seconds
    lag = lagging(world.gateways, _returned_epoch(state))
    proof = prove(
        state.proof or RollbackProof(since_seconds=now),
        lagging_gateways=lag,
        candidate_streams=world.leaving_streams,
        serving_ready=len(world.serving.serving),
        full_size=world.desired,
        answered_at_seconds=world.answered_at_seconds,
        now_seconds=now,
    )
    state = state.change(proof=proof)
    if state.plan.candidate is not None:
        if proof.returned:
            gone = state.plan.change(candidate=None, candidate_replicas=0, cohort_salt="")
            return hold(state.change(plan=gone), Hold(HoldReason.PROVING, "the candidate's pods may go"))
        return hold(state, Hold(HoldReason.PROVING, "; ".join(proof.missing)))
    if proof.proven or _fix_waits(policy, state, world):
        rejected = state.rejection(world.wanted) is not None
        phase = Phase.ROLLED_BACK if rejected else Phase.STEADY
        plan = state.plan.change(stable_min=0)
        rested = state.change(phase=phase, plan=plan, candidate=None, drain_first=False)
        return Decision(rested, Advance(phase))
    return hold(state, Hold(HoldReason.PROVING, "; ".join(proof.missing)))


def _fix_waits(policy: RolloutPolicy, state: RolloutState, world: World) -> bool:
    """Whether another revision could begin now: neither the one that left, nor one that would not be tried."""
    wanted = world.wanted
    others = {state.plan.serving, state.cause.revision if state.cause is not None else None, policy.abort}
    may = not (policy.paused or world.deleting)
    return may and wanted not in others and state.rejection(wanted) is None


def _returned_epoch(state: RolloutState) -> int:
    """The epoch that took the traffic away: the next one only lets the pods go."""
    return state.plan.epoch - (state.plan.candidate is None and state.proof is not None and state.proof.returned)
