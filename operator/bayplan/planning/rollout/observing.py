"""From two looks at the gateways to the window that a decision counts: which pods and rows stand for which arm."""

from dataclasses import dataclass

from bayplan.api.rolloutwords import Phase
from bayplan.planning.gates.counts import ArmPods, Snapshot, Window
from bayplan.planning.gates.windows import CandidateRows, window_between
from bayplan.planning.rollout.judging import without_baseline
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.state import RolloutState
from bayplan.planning.rollout.world import World

_ROWS = {
    Phase.SHADOW: CandidateRows.COPIES,
    Phase.CANARY: CandidateRows.REQUESTS,
    Phase.REPLACING: CandidateRows.POOL,
    Phase.RETAINED: CandidateRows.POOL,
}
"""The phases that count anything, and what."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the gateways said, and the heads that could take requests at that moment."""

    snapshot: Snapshot
    serving: frozenset[str]


def take_look(world: World, snapshot: Snapshot) -> Look:
    """Keep what a later look is compared with."""
    heads = (*world.serving.serving, *world.previous.serving, *world.candidate.serving)
    return Look(snapshot, frozenset(head.uid for head in heads))


def window_of(policy: RolloutPolicy, state: RolloutState, world: World, earlier: Look, later: Look) -> Window | None:
    """The window between two looks, for the phase of the stored state; None in a phase that counts nothing.

    A pod counts if it could take requests at both ends: its uid would be another after a restart. Gates that nothing
    can judge are left out.
    """
    rows = _ROWS.get(state.phase)
    if rows is None:
        return None
    if rows is CandidateRows.POOL:
        candidate, baseline = world.serving.serving, {head.uid for head in world.previous.serving}
        compared = bool(baseline)
    else:
        candidate, baseline = world.candidate.serving, set(state.plan.baseline)
        compared = not without_baseline(policy, world)
    throughout = earlier.serving & later.serving
    invalid = {result.gate.key for result in world.invalid}
    return window_between(
        earlier.snapshot,
        later.snapshot,
        expected=[gateway.uid for gateway in world.gateways if gateway.live],
        pods=ArmPods(throughout & {head.uid for head in candidate}, throughout & baseline),
        gates=[gate for gate in policy.gates if gate.key not in invalid],
        source=rows,
        compared=compared,
    )
