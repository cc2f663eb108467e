"""Taking a candidate's traffic away. No gate and no condition stands in its way."""

from bayplan.api.rolloutwords import Phase
from bayplan.planning.gates.records import GateResult
from bayplan.planning.rollout.proof import RollbackProof
from bayplan.planning.rollout.state import Rejection, RolloutState
from bayplan.planning.rollout.verdicts import REJECTING, Decision, Rollback, RollbackReason
from bayplan.planning.rollout.world import World


def roll_back(
    state: RolloutState, world: World, reason: RollbackReason, message: str, *, gates: tuple[GateResult, ...] = ()
) -> Decision:
    """Give everything back to serving. The candidate's pods stay until nobody can be sending to them.

    Before its pods exist there is nothing to give back, and nothing to prove.
    """
    now, candidate = world.now_seconds, state.candidate or world.wanted
    cause = Rejection(candidate, reason, message, now)
    if reason in REJECTING:
        state = state.with_rejected(cause)
    if state.phase is Phase.PAPER:
        resting = Phase.ROLLED_BACK if reason in REJECTING else Phase.STEADY
        if state.retained is not None:
            resting = Phase.RETAINED
        back = state.restarted(now, phase=resting, candidate=None, cause=cause, proof=None)
    else:
        plan = state.plan.change(weight=0, shadow_share=0, baseline=())
        back = state.restarted(
            now, phase=Phase.ROLLING_BACK, plan=plan, cause=cause, proof=RollbackProof(since_seconds=now)
        )
    return Decision(back, Rollback(reason, message), gates)


def revert(state: RolloutState, world: World, reason: RollbackReason, message: str, *, to: str) -> Decision:
    """After the promotion: `to` serves again, in one pool with what was promoted until it is at full size."""
    now, bad = world.now_seconds, state.plan.serving
    cause = Rejection(bad, reason, message, now)
    if reason in REJECTING:
        state = state.with_rejected(cause)
    back = state.restarted(
        now,
        phase=Phase.REPLACING,
        plan=state.plan.change(serving=to, previous=bad),
        candidate=bad,
        cause=cause,
        proof=None,
        retained=None,
        retained_at_seconds=None,
    )
    return Decision(back, Rollback(reason, message))
