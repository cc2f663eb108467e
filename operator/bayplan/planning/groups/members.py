"""Pods as members of replica groups: what a group is, which state it is in, and why.

A *group* is one engine replica; its pods are ranks, one per node. Everything here is read from the pods themselves
(labels, annotations, gate, status), so a restarted or a second operator sees exactly the same groups.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from bayplan.api.inferencemodel_status import Stage
from bayplan.planning.groups.assignment import Assignment


@dataclass(frozen=True, slots=True)
class EngineExit:
    """How the engine container ended."""

    exit_code: int
    reason: str
    finished: datetime


@dataclass(frozen=True, slots=True)
class Member:
    """One pod with our labels or of an InferenceModel, reduced to what decisions use."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str | None
    model: str
    revision: str
    template: str
    group: str
    rank: int | None
    plan_id: str
    created: datetime
    assignment: Assignment | None = None
    assignment_error: str = ""
    gated: bool = False
    gate_index: int = -1
    """Position of our scheduling gate; -1 when it is gone."""
    affinity_depth: int = 0
    """How much of `spec.affinity.nodeAffinity.required…` exists: 0 none to 3 all of it."""
    required_terms: int = 0
    """Required node selector terms that somebody else (an admission plugin) put there."""
    owned: bool = False
    """Whether its controller is an InferenceModel: without that, annotations are no reservation."""
    astray: bool = False
    """Whether its labels do not name the model that controls it: what selects by them misses it."""
    pinned_node: str | None = None
    """The only node that its affinity allows, once it was released; the scheduler may bind it there at any time."""
    ungated_at: datetime | None = None
    node: str | None = None
    phase: str = "Pending"
    deleting: bool = False
    draining_since: datetime | None = None
    pod_ip: str | None = None
    container_id: str | None = None
    container_started: datetime | None = None
    waiting_reason: str = ""
    waiting_message: str = ""
    failed_reason: str = ""
    exit: EngineExit | None = None
    warm_container_id: str | None = None
    warm_since: datetime | None = None
    warmup_failed: str = ""
    """Why the warm-up of this pod was given up, as its warm condition says; empty while it was not."""
    warmup_failed_at: datetime | None = None
    ready: bool = False
    scheduling_message: str = ""
    gpus: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0
    kv_tokens: int | None = None
    """Tokens that the replica's KV cache holds by its admission bounds; None where they are not there or unreadable."""

    @property
    def terminal(self) -> bool:
        """Failed or Succeeded: holds no resources any more."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def group_key(self) -> str:
        """Group with its namespace: equal specs give equal group names in every namespace."""
        return f"{self.namespace}/{self.group}"

    @property
    def warm(self) -> bool:
        """Warm on exactly the container that runs now; a condition left by another container does not count."""
        return self.warm_container_id is not None and self.warm_container_id == self.container_id


class Defect(StrEnum):
    """Why a group cannot go on and is removed as a whole."""

    NO_RESERVATION = "rank 0 is missing, and with it the reservation"
    UNREADABLE = "the assignment annotation is unreadable"
    MIXED_PLANS = "the members are not those of one plan"
    ASTRAY = "a pod's labels do not name the model that owns it"
    ELSEWHERE = "a pod is bound to another node than its reservation names"
    INCOMPLETE = "the group stayed incomplete past the limit"
    MEMBER_GONE = "a member disappeared after the group was released to the scheduler"
    UNCONFIRMED = "not all members were bound within the limit"


@dataclass(frozen=True, slots=True)
class Group:
    """One replica group as the pods show it at `now`."""

    name: str
    ordinal: int
    members: tuple[Member, ...]
    """By rank; members without a valid rank come last."""
    assignment: Assignment | None
    stage: Stage
    since: datetime
    message: str = ""
    defect: Defect | None = None
    missing_ranks: tuple[int, ...] = ()
    lost_nodes: tuple[str, ...] = ()

    @property
    def head(self) -> Member:
        """Rank 0, or the first member of a group that has lost it."""
        return self.members[0]

    @property
    def key(self) -> str:
        """Name with namespace, by which claims know it."""
        return f"{self.head.namespace}/{self.name}"

    @property
    def revision(self) -> str:
        """Revision that every member carries."""
        return self.head.revision

    @property
    def attempt(self) -> int:
        """0 for the first try at this ordinal."""
        return self.assignment.attempt if self.assignment else attempt_of(self.name)

    @property
    def deleting(self) -> bool:
        """Every member is on its way out."""
        return all(member.deleting for member in self.members)

    @property
    def created(self) -> datetime:
        """When the reservation was made."""
        return self.head.created


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How long a group may stay in a passing state, in seconds."""

    incomplete_seconds: float = 30.0
    confirm_seconds: float = 60.0


def group_name(*, model: str, revision: str, ordinal: int, attempt: int) -> str:
    """Deterministic group name; rank pods append `-<rank>`. Two operators that decide alike collide on purpose."""
    return f"{model}-{short_revision(revision)}-{ordinal}-{attempt}"


def short_revision(revision: str) -> str:
    """The part of a revision that names carry; two revisions of a model may share it."""
    return revision[:5]


def attempt_of(name: str) -> int:
    """Read the attempt back from a group name; 0 when the name is foreign."""
    tail = name.rsplit("-", 1)[-1]
    return int(tail) if tail.isdecimal() and len(tail) < 7 else 0


def ordinal_of(name: str) -> int:
    """Read the ordinal back from a group name; 0 when the name is foreign."""
    parts = name.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() and len(parts[1]) < 7 else 0


def build_groups(
    members: Iterable[Member],
    *,
    now: datetime,
    lost_nodes: Mapping[str, datetime],
    limits: GroupLimits,
) -> tuple[Group, ...]:
    """Assemble groups from the pods of ONE model (already filtered by owner uid), in name order.

    `lost_nodes` maps each lost node to the time since which it counts as lost. Never raises: nonsense in labels or
    annotations becomes a group with a defect.
    """
    by_name: dict[str, list[Member]] = defaultdict(list)
    for member in members:
        by_name[member.group or member.name].append(member)
    return tuple(_assemble(name, by_name[name], now, lost_nodes, limits) for name in sorted(by_name))


@dataclass(slots=True)
class _Draft:
    """Facts about one group that the stage is decided from."""

    name: str
    members: tuple[Member, ...]
    assignment: Assignment | None = None
    missing: tuple[int, ...] = ()
    lost: dict[str, datetime] = field(default_factory=dict)


def _assemble(
    name: str, found: list[Member], now: datetime, lost_nodes: Mapping[str, datetime], limits: GroupLimits
) -> Group:
    members = tuple(sorted(found, key=lambda m: (m.rank is None, m.rank or 0, m.name)))
    head = members[0]
    draft = _Draft(
        name=name,
        members=members,
        assignment=head.assignment if head.rank == 0 else None,
        lost={m.node: lost_nodes[m.node] for m in members if m.node and m.node in lost_nodes and not m.terminal},
    )
    if draft.assignment is not None:
        present = {member.rank for member in members}
        draft.missing = tuple(rank for rank in range(len(draft.assignment.ranks)) if rank not in present)
    stage, since, message, defect = _stage(draft, now, limits)
    return Group(
        name=name,
        ordinal=ordinal_of(name),
        members=members,
        assignment=draft.assignment,
        stage=stage,
        since=since,
        message=message,
        defect=defect,
        missing_ranks=draft.missing,
        lost_nodes=tuple(sorted(draft.lost)),
    )


_Verdict = tuple[Stage, datetime, str, Defect | None]


def _stage(draft: _Draft, now: datetime, limits: GroupLimits) -> _Verdict:  # noqa: PLR0911 - one return per stage
    members, head = draft.members, draft.members[0]
    failed = [m for m in members if m.terminal]
    if failed and not all(m.deleting for m in members):
        worst = min(failed, key=lambda m: (m.exit.finished if m.exit else m.created, m.rank or 0))
        return Stage.FAILED, worst.exit.finished if worst.exit else worst.created, describe_failure(worst), None
    if draft.lost:
        since = min(draft.lost.values())
        return Stage.LOST, since, f"node {', '.join(sorted(draft.lost))} is lost", None
    if any(m.deleting for m in members) or head.draining_since is not None:
        return Stage.DRAINING, head.draining_since or head.created, "", None
    defect = _defect(draft, now, limits)
    if defect is not None:
        return Stage.FAILED, head.created, _defect_text(defect, members), defect
    if draft.missing or any(m.gated for m in members):
        return Stage.RESERVED, head.created, "", None
    unbound = [m for m in members if m.node is None]
    if unbound:
        since = min((m.ungated_at or m.created) for m in members)
        return Stage.BINDING, since, next((m.scheduling_message for m in unbound if m.scheduling_message), ""), None
    if head.warmup_failed:
        return Stage.FAILED, head.warmup_failed_at or head.created, head.warmup_failed, None
    if all(m.warm for m in members) and head.ready:
        return Stage.READY, max((m.warm_since or m.created) for m in members), "", None
    started = head.container_started or head.created
    return Stage.WARMING, started, next((_waiting(m) for m in members if m.waiting_reason), ""), None


def _defect(draft: _Draft, now: datetime, limits: GroupLimits) -> Defect | None:  # noqa: PLR0911
    members, head = draft.members, draft.members[0]
    if any(m.astray for m in members):
        return Defect.ASTRAY
    if head.rank != 0:
        return Defect.NO_RESERVATION
    if draft.assignment is None:
        return Defect.UNREADABLE
    assignment = draft.assignment
    ranks = [m.rank for m in members]
    if (
        len(set(ranks)) != len(ranks)
        or any(rank is None or rank >= len(assignment.ranks) for rank in ranks)
        or any(_plan_of(m) != (assignment.plan_id, assignment.revision, assignment.template) for m in members)
        or assignment.group != draft.name
    ):
        return Defect.MIXED_PLANS
    if any(m.node is not None and m.rank is not None and m.node != assignment.ranks[m.rank].node for m in members):
        return Defect.ELSEWHERE
    released = any(not m.gated for m in members)
    if draft.missing and released:
        return Defect.MEMBER_GONE
    if draft.missing and (now - head.created).total_seconds() > limits.incomplete_seconds:
        return Defect.INCOMPLETE
    if any(m.node is None and not m.gated for m in members):
        since = min(m.ungated_at or m.created for m in members if not m.gated)
        if (now - since).total_seconds() > limits.confirm_seconds:
            return Defect.UNCONFIRMED
    return None


def _plan_of(member: Member) -> tuple[str, str, str]:
    """What annotation and labels say of a member's plan; the labels are there for selectors and must not differ."""
    return member.plan_id, member.revision, member.template


def _defect_text(defect: Defect, members: tuple[Member, ...]) -> str:
    cause = members[0].assignment_error
    if defect is Defect.UNCONFIRMED:
        cause = next((m.scheduling_message for m in members if m.node is None and m.scheduling_message), cause)
    return f"{defect.value}: {cause}" if cause else defect.value


def _waiting(member: Member) -> str:
    return f"{member.waiting_reason}: {member.waiting_message}" if member.waiting_message else member.waiting_reason


def describe_failure(member: Member) -> str:
    """One sentence on why a pod failed, with the exit code where there is one."""
    if member.exit is not None:
        return f"pod {member.name}: engine exited with code {member.exit.exit_code} ({member.exit.reason})"
    return f"pod {member.name} failed: {member.failed_reason or 'no reason given'}"
