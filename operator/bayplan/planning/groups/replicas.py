"""Which replica groups to create, drain and remove: the level-triggered heart of an InferenceModel.

`decide` compares the groups that exist with the groups that are wanted. It keeps the floor (ready replicas never fall
below what is asked for because of a replacement), replaces one group at a time, and never launches a second group for
a slot that is already reserved, binding, warming or waiting out its back-off.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from bayplan.api.inferencemodel_status import Stage
from bayplan.planning.groups.assignment import RankAssignment
from bayplan.planning.groups.members import Group, short_revision
from bayplan.planning.groups.victims import Candidate, VictimStage, order_victims
from bayplan.planning.layout.split import Split
from bayplan.planning.measurements import Measured

ALIVE = (Stage.RESERVED, Stage.BINDING, Stage.WARMING, Stage.READY)
SURGE = 1
"""Groups above the wanted count while a replacement runs."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delay before a failed engine is tried again: doubles per failure in a row, up to a bound. Seconds."""

    first_seconds: float = 10.0
    longest_seconds: float = 300.0
    forgiven_after_seconds: float = 600.0
    """A group that was warm for this long starts counting from zero again."""

    def delay(self, failures: int) -> float:
        """Seconds to wait after `failures` earlier failures in a row."""
        return float(min(self.longest_seconds, self.first_seconds * 2 ** min(failures, 30)))


@dataclass(frozen=True, slots=True)
class Target:
    """What every replica should look like: revision, pod template hash, and the layout per GPU product."""

    replicas: int
    revision: str
    template: str
    layouts: tuple[tuple[str, Split], ...] = ()
    """The split on each GPU product that the model may be placed on."""
    frozen: bool = False
    """No group can be created now: nothing that runs counts as outdated, so nothing is taken away for its sake."""
    surge: int = SURGE
    """Groups above the wanted count while a replacement runs."""
    kept_outdated: int = 0
    """Ready groups of the older revision that stay although the present one is at full size."""
    floor: int | None = None
    """Ready groups that stay when outdated ones have to make room for new ones; None: they never have to."""
    grows: bool = True
    """False: no group is added."""

    def matches(self, group: Group) -> bool:
        """Whether a group is what a new one would be. An unknown product's layout is kept."""
        return self.frozen or self.describes(group)

    def describes(self, group: Group) -> bool:
        """Whether the group's pods are made from the present spec."""
        if group.revision != self.revision or group.head.template != self.template or group.assignment is None:
            return False
        for product, split in self.layouts:
            if product == group.assignment.gpu_product:
                return split.sizes == group.assignment.split.sizes
        return True


@dataclass(frozen=True, slots=True)
class Creation:
    """One group to place and reserve."""

    ordinal: int
    attempt: int
    failures: int = 0
    predecessor: str = ""
    """Failed or lost group whose remaining GPUs the new one may take over."""


@dataclass(frozen=True, slots=True)
class Removal:
    """One group to delete at once, with the reason for the event."""

    group: Group
    reason: str


@dataclass(frozen=True, slots=True)
class Actions:
    """What to do now, and when to look again if nothing changes."""

    create: tuple[Creation, ...] = ()
    remove: tuple[Removal, ...] = ()
    drain: tuple[Group, ...] = ()
    yields: tuple[Group, ...] = ()
    """Outdated groups to drain, in this order, if new ones have no room: the ready ones above the floor."""
    undrain: tuple[Group, ...] = ()
    """Draining groups that are wanted again: the cheapest replicas there are, for they are loaded."""
    release: tuple[Group, ...] = ()
    """Complete, gated groups whose reservation is to be rechecked and released to the scheduler."""
    complete: tuple[Group, ...] = ()
    """Gated groups with missing members, still inside the limit."""
    recheck_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Sorted:
    current: list[Group]
    outdated: list[Group]
    leaving: list[Group]
    failed: list[Group]
    lost: list[Group]
    defective: list[Group]


def decide(
    groups: Sequence[Group],
    target: Target,
    *,
    now: datetime,
    moving_nodes: Iterable[str] = (),
    backoff: Backoff | None = None,
    remaining_tokens: Mapping[str, Measured] | None = None,
    others: Iterable[Group] = (),
) -> Actions:
    """Decide for one model, or for one arm of it; `others` are the groups of its other arms, whose names are taken.

    `moving_nodes` are nodes to be emptied: their groups count as outdated, so a replacement comes first and the floor
    holds. `remaining_tokens` is what serving groups have still to do, by name; on the way down `victims` orders them.
    """
    backoff = backoff or Backoff()
    groups = sorted(groups, key=lambda g: g.name)
    wanted = target.replicas
    moving = frozenset(moving_nodes)
    kinds = _sort(groups, target, frozenset() if target.frozen else moving)
    attempts = _highest_attempts(groups)
    outdated_ready = [g for g in kinds.outdated if g.stage is Stage.READY]
    ready_current = [g for g in kinds.current if g.stage is Stage.READY]

    kept, dropped = _kept_failures(kinds.failed, target, attempts, wanted - len(kinds.current))
    waits = {g.name: _due_in(g, now, backoff) for g in kept}
    holding = sum(1 for wait in waits.values() if wait > 0)
    occupied = len(kinds.current) + holding

    removals = [Removal(group, group.message) for group in (*kinds.defective, *dropped)]
    removals += [Removal(g, g.message) for g in kinds.lost if not g.deleting]
    removals += [Removal(g, "replaced before it served") for g in kinds.outdated if g.stage is not Stage.READY]
    removals += _surplus_unready(kinds.current, len(kinds.current) - wanted)

    room = wanted - occupied
    outdated_leaving = [g for g in kinds.leaving if not target.matches(g) and not g.deleting]
    if outdated_ready or outdated_leaving:
        room = min(room, wanted + target.surge - occupied - len(outdated_ready) - len(outdated_leaving))
    if not target.grows:
        room = 0
    retries = [
        _retry(g, attempts, _failures(g, backoff) + 1) for g in kept if waits[g.name] <= 0 and target.describes(g)
    ]
    retries += [
        _retry(g, attempts, g.assignment.failures if g.assignment else 0)
        for g in kinds.lost
        if target.describes(g) and not _superseded(g, attempts)
    ]

    returning = _returning(kinds.leaving, target, moving)[: max(0, room)]
    removed = {removal.group.name for removal in removals}
    reserved = [g for g in kinds.current if g.stage is Stage.RESERVED and g.name not in removed]
    return Actions(
        create=_creations([*groups, *others], target, retries, max(0, room - len(returning))),
        remove=tuple(sorted(removals, key=lambda removal: removal.group.name)),
        drain=tuple(_surplus_ready(outdated_ready, ready_current, target, remaining_tokens or {})),
        yields=() if outdated_leaving else _yields(outdated_ready, len(ready_current), target),
        undrain=tuple(returning),
        release=tuple(g for g in reserved if not g.missing_ranks),
        # Never with pods of another spec: such a group runs into its limit.
        complete=tuple(g for g in reserved if g.missing_ranks and target.describes(g)),
        recheck_after_seconds=min((wait for wait in waits.values() if wait > 0), default=None),
    )


def _sort(groups: Sequence[Group], target: Target, moving: frozenset[str]) -> _Sorted:
    kinds = _Sorted([], [], [], [], [], [])
    for group in groups:
        if group.defect is not None:
            kinds.defective.append(group)
        elif group.stage is Stage.FAILED:
            kinds.failed.append(group)
        elif group.stage is Stage.LOST:
            kinds.lost.append(group)
        elif group.stage is Stage.DRAINING:
            kinds.leaving.append(group)
        elif target.matches(group) and not any(rank.node in moving for rank in _ranks(group)):
            kinds.current.append(group)
        else:
            kinds.outdated.append(group)
    return kinds


def _ranks(group: Group) -> tuple[RankAssignment, ...]:
    return group.assignment.ranks if group.assignment else ()


def _highest_attempts(groups: Sequence[Group]) -> dict[tuple[int, str], int]:
    highest: dict[tuple[int, str], int] = {}
    for group in groups:
        slot = (group.ordinal, group.revision)
        highest[slot] = max(highest.get(slot, 0), group.attempt)
    return highest


def _superseded(group: Group, attempts: dict[tuple[int, str], int]) -> bool:
    """Whether a later attempt at the same slot is already there, in whatever state."""
    return attempts[(group.ordinal, group.revision)] > group.attempt


def _retry(group: Group, attempts: dict[tuple[int, str], int], failures: int) -> Creation:
    """The next attempt at a slot. Pods of the old one may still hold GPUs (a hung engine, a survivor on the second
    node): the new one counts them as its own and is released node by node as they go.
    """
    attempt = attempts[(group.ordinal, group.revision)] + 1
    return Creation(ordinal=group.ordinal, attempt=attempt, failures=failures, predecessor=group.name)


def _kept_failures(
    failed: list[Group], target: Target, attempts: dict[tuple[int, str], int], slots: int
) -> tuple[list[Group], list[Group]]:
    """Split failed groups into those whose slot is still wanted and the rest.

    A kept one stays visible through its back-off, because its pod's log is the evidence; it holds no GPU.
    """
    open_slots = [g for g in failed if target.matches(g) and not _superseded(g, attempts)]
    kept = sorted(open_slots, key=lambda g: g.ordinal)[: max(0, slots)]
    names = {g.name for g in kept}
    return kept, [g for g in failed if g.name not in names]


def _failures(group: Group, backoff: Backoff) -> int:
    """Failures in a row before this one: forgotten after the group had served for long enough."""
    earlier = group.assignment.failures if group.assignment else 0
    warm = group.head.warm_since
    if warm is not None and (group.since - warm).total_seconds() >= backoff.forgiven_after_seconds:
        return 0
    return earlier


def _due_in(group: Group, now: datetime, backoff: Backoff) -> float:
    """Seconds until the failed group may be tried again; zero or less means now."""
    return (group.since + timedelta(seconds=backoff.delay(_failures(group, backoff))) - now).total_seconds()


def _returning(leaving: list[Group], target: Target, moving: frozenset[str]) -> list[Group]:
    """Groups whose drain can be taken back, those first that began to leave last: whole, running, and as wanted."""
    found = [
        group
        for group in leaving
        if target.describes(group)
        and group.head.draining_since is not None
        and not group.missing_ranks
        and all(m.container_id is not None and not m.deleting and not m.terminal for m in group.members)
        and not any(rank.node in moving for rank in _ranks(group))
    ]
    return sorted(found, key=lambda g: (-(g.head.draining_since or g.created).timestamp(), g.name))


_VICTIM_STAGES = {
    Stage.RESERVED: VictimStage.PENDING,
    Stage.BINDING: VictimStage.PENDING,
    Stage.WARMING: VictimStage.WARMING,
    Stage.READY: VictimStage.READY,
}


def _victims(groups: Iterable[Group], remaining_tokens: Mapping[str, Measured]) -> list[Group]:
    """Groups in the order in which they leave."""
    by_name = {group.name: group for group in groups if group.stage in _VICTIM_STAGES}
    order = order_victims(
        Candidate(
            name=group.name,
            stage=_VICTIM_STAGES[group.stage],
            since_seconds=Fraction(group.since.timestamp()),
            remaining_tokens=remaining_tokens.get(group.name, Fraction(0)),
        )
        for group in by_name.values()
    )
    return [by_name[name] for name in order]


def _surplus_ready(
    outdated: list[Group], current: list[Group], target: Target, remaining_tokens: Mapping[str, Measured]
) -> list[Group]:
    """Ready groups above the wanted count: outdated ones but those that are kept, oldest first; then present ones."""
    surplus = min(len(outdated) + len(current) - target.replicas, len(outdated) - target.kept_outdated)
    excess = len(current) - target.replicas
    victims = _victims(current, remaining_tokens)[:excess] if excess > 0 else []
    return [*_oldest_first(outdated)[: max(0, surplus)], *victims]


def _yields(outdated: list[Group], current: int, target: Target) -> tuple[Group, ...]:
    if target.floor is None:
        return ()
    return tuple(_oldest_first(outdated)[: max(0, len(outdated) + current - target.floor)])


def _oldest_first(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda g: (g.created, g.name))


def _surplus_unready(current: list[Group], surplus: int) -> list[Removal]:
    """Groups above the wanted count that do not serve yet."""
    if surplus <= 0:
        return []
    waiting = _victims((g for g in current if g.stage is not Stage.READY), {})
    return [Removal(g, "scaled down before it served") for g in waiting[:surplus]]


def _creations(groups: Sequence[Group], target: Target, retries: list[Creation], room: int) -> tuple[Creation, ...]:
    """Retries first, then new ordinals: the lowest whose name no visible group bears."""
    used = {g.ordinal for g in groups if short_revision(g.revision) == short_revision(target.revision)}
    chosen = sorted(retries, key=lambda c: c.ordinal)[:room]
    ordinal = 0
    while len(chosen) < room:
        if ordinal not in used:
            chosen.append(Creation(ordinal=ordinal, attempt=0))
        ordinal += 1
    return tuple(chosen)
