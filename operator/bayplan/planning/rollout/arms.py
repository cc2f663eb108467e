"""Which revisions have replica groups, and how many each: what the plan means for the pods.

Without a plan one revision takes the place of all others. With one, groups of a revision that the plan does not name
serve nobody and leave at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bayplan.api.rolloutwords import CapacityMode, Phase
from bayplan.planning.groups.replicas import SURGE
from bayplan.planning.numbers import InvalidInput, count
from bayplan.planning.rollout.plan import serving_groups
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.state import TRYING, RolloutState


@dataclass(frozen=True, slots=True)
class Arms:
    """Raises InvalidInput that names the field."""

    serving: str
    serving_groups: int
    replaced: frozenset[str] | None = None
    """Revisions whose groups `serving` replaces one by one, above the floor; None: all that no arm has."""
    kept_replaced: int = 0
    """Groups of them that stay all the same, to be retained."""
    surge: int = SURGE
    """Groups above `serving_groups` while others are replaced."""
    floor: int | None = None
    """Ready groups that stay when replaced ones have to make room; None: they never have to."""
    candidate: str | None = None
    candidate_groups: int = 0
    candidate_grows: bool = True
    """False: its ready groups stay until nobody can be sending to them, and no group is added."""
    retained: str | None = None
    retained_groups: int = 0
    pool: frozenset[str] = field(init=False)
    """Revisions that requests go to as one pool."""

    def __post_init__(self) -> None:
        for name in ("serving_groups", "kept_replaced", "surge", "candidate_groups", "retained_groups"):
            count(getattr(self, name), name, least=0)
        named = [name for name in (self.serving, self.candidate, self.retained) if name is not None]
        if len(set(named)) != len(named):
            raise InvalidInput("candidate", "must differ from serving and retained, and they from each other")
        object.__setattr__(self, "pool", frozenset({self.serving, *(self.replaced or ())}))

    @property
    def revisions(self) -> frozenset[str]:
        """Every revision that may have groups by name."""
        others = {name for name in (self.candidate, self.retained) if name is not None}
        return self.pool | others

    def pools(self, revision: str) -> bool:
        """Whether groups of that revision count as serving ones."""
        return revision in self.pool or (self.replaced is None and revision not in (self.candidate, self.retained))


def arms_without_plan(
    target: str, served: Sequence[str], *, replaces_plainly: bool, rejected: bool, desired: int
) -> Arms:
    """What a model has that no Rollout has a say over.

    `served` are the revisions that serve, the latest first. Plainly, the target takes the place of everything else,
    unless it was rejected. Otherwise what serves goes on serving, and a replacement that has begun goes on; where
    nothing serves yet, the target does.
    """
    if not served or (replaces_plainly and not rejected):
        return Arms(target, desired, replaced=None if replaces_plainly else frozenset())
    serving = target if target in served and not rejected else next((one for one in served if one != target), target)
    return Arms(serving, desired, replaced=frozenset(served) - {serving})


def arms_of(policy: RolloutPolicy | None, state: RolloutState, *, desired: int, min_ready: int | None) -> Arms:
    """What the stored state asks for while demand asks for `desired` replicas.

    Without a policy (what the user asks for is not valid) everything stays and nothing of the candidate is added.
    `min_ready` is the declared floor; without one replicas that demand needs never make room.
    """
    plan, phase = state.plan, state.phase
    promoted = phase is Phase.REPLACING and policy is not None
    surge = policy.max_surge if policy is not None else SURGE
    retains = promoted and state.cause is None and policy is not None and policy.retain_seconds > 0
    drains = policy is not None and policy.capacity is not CapacityMode.SURGE
    makes_room = promoted and drains and min_ready is not None
    return Arms(
        serving=plan.serving,
        serving_groups=serving_groups(plan, desired=desired, drain_first=state.drain_first),
        replaced=frozenset() if plan.previous is None else frozenset({plan.previous}),
        kept_replaced=surge if retains else 0,
        surge=surge if promoted else SURGE,
        floor=min_ready if makes_room else None,
        candidate=plan.candidate,
        candidate_groups=plan.candidate_replicas,
        candidate_grows=phase in TRYING and policy is not None,
        retained=state.retained,
        retained_groups=surge if state.retained is not None else 0,
    )
