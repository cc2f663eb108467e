"""The recheck before a reserved group is released to the scheduler.

A reservation is the group's gated pods; between planning and release the world may have moved: a node tainted,
cordoned or gone, a foreign pod bound, a second operator's group on the same GPUs. The recheck looks at live reads that
began after the group's last POST and decides: release, wait, or give the whole group back.

The yield rule: a gated group gives way to every bound or already released pod and to every older group; two groups
reserved in the same second (the resolution of creationTimestamp) both give way and plan again with jitter. A group is
as old as its rank 0, because creating that pod reserved the whole group. So no two operators, however they interleave,
can both keep the same GPUs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from bayplan.planning.groups.members import Group, Member
from bayplan.planning.placement.inventory import Node


@dataclass(frozen=True, slots=True)
class LivePod:
    """A pod as the live read shows it. `member` is set for pods with our labels that an InferenceModel controls."""

    uid: str
    node: str | None
    gpus: int
    cpu_millis: int
    memory_bytes: int
    terminal: bool
    member: Member | None = None


@dataclass(frozen=True, slots=True)
class LiveReads:
    """One set of reads, begun after the last POST of every group it serves."""

    nodes: Mapping[str, Node]
    by_uid: Mapping[str, LivePod]
    by_place: Mapping[str, Sequence[LivePod]]
    """Node name → pods that are bound, pinned or assigned to it, terminal ones left out; ranks that a reservation has
    still to create count as pods."""
    reserved_at: Mapping[str, datetime]
    """Group key → creation of its rank 0."""

    @classmethod
    def of(cls, nodes: Iterable[Node], pods: Iterable[LivePod]) -> "LiveReads":
        """Index the reads; of a pod that is listed twice the later entry counts.

        The place of a pod is the node it is bound to, else the one it was released to, else what the reservation on
        its group's rank 0 says.
        """
        by_uid = {pod.uid: pod for pod in pods}
        heads = {
            pod.member.group_key: pod
            for pod in by_uid.values()
            if pod.member is not None and pod.member.rank == 0 and pod.member.assignment is not None
        }
        by_place: dict[str, list[LivePod]] = defaultdict(list)
        for pod in (*by_uid.values(), *_uncreated(heads, by_uid.values())):
            place = _place_of(pod, heads)
            if place is not None and not pod.terminal:
                by_place[place].append(pod)
        return cls(
            nodes={node.name: node for node in nodes},
            by_uid=by_uid,
            by_place=by_place,
            reserved_at={key: head.member.created for key, head in heads.items() if head.member is not None},
        )


def _place_of(pod: LivePod, heads: Mapping[str, LivePod]) -> str | None:
    member = pod.member
    if pod.node is not None or member is None:
        return pod.node
    if member.pinned_node is not None and not member.gated:
        return member.pinned_node
    head = heads.get(member.group_key)
    if head is None or head.member is None or head.member.assignment is None or member.rank is None:
        return None
    ranks = head.member.assignment.ranks
    return ranks[member.rank].node if member.rank < len(ranks) else None


def _uncreated(heads: Mapping[str, LivePod], pods: Iterable[LivePod]) -> Iterable[LivePod]:
    """Ranks that exist only in the reservation on a gated rank 0 so far."""
    present = {(pod.member.group_key, pod.member.rank) for pod in pods if pod.member is not None}
    for key, head in heads.items():
        member = head.member
        if member is None or member.assignment is None or not member.gated or member.deleting:
            continue
        for rank, place in enumerate(member.assignment.ranks):
            if (key, rank) not in present:
                uid = f"{head.uid}/{rank}"
                yield replace(head, uid=uid, gpus=place.gpus, member=replace(member, uid=uid, rank=rank))


class RecheckVerdict(StrEnum):
    """What the recheck decides about one group."""

    RELEASE = "Release"
    WAIT = "Wait"
    GIVE_BACK = "GiveBack"
    CHANGED = "Changed"


@dataclass(frozen=True, slots=True)
class Recheck:
    """The verdict, why, and which ranks may be released now (all of them unless a predecessor still holds a node)."""

    verdict: RecheckVerdict
    reason: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(slots=True)
class _Load:
    gpus: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0
    pods: int = 0

    def add(self, *, gpus: int, cpu_millis: int, memory_bytes: int) -> None:
        self.gpus += gpus
        self.cpu_millis += cpu_millis
        self.memory_bytes += memory_bytes
        self.pods += 1


def recheck_group(
    group: Group, reads: LiveReads, *, admits: Mapping[str, str], predecessors: Iterable[str] = ()
) -> Recheck:
    """Decide whether `group` may be released.

    `admits` gives, per node name, the reason why the node no longer admits the group (taint, cordon, labels), or ""
    where it does; it comes from the same rule that placement uses. `predecessors` are names of groups whose GPUs
    this group takes over (in its namespace): their pods do not count against it, but a rank waits while one still
    holds its node. Ranks that were released earlier are neither judged nor named again.
    """
    assignment = group.assignment
    if assignment is None:
        return Recheck(RecheckVerdict.CHANGED, "the reservation is gone")
    changed = _changed(group, assignment.plan_id, reads)
    if changed:
        return Recheck(RecheckVerdict.CHANGED, changed)
    givers = frozenset(f"{group.head.namespace}/{name}" for name in predecessors)
    gated = [member for member in group.members if _is_gated(member, reads)]
    waiting: list[int] = []
    for member in gated:
        rank = member.rank or 0
        place = assignment.ranks[rank].node
        load, held = _load_ahead(group, place, reads, givers)
        if held:
            waiting.append(rank)
        load.add(gpus=member.gpus, cpu_millis=member.cpu_millis, memory_bytes=member.memory_bytes)
        problem = _node_problem(place, reads.nodes, admits) or _overload(reads.nodes[place], load)
        if problem:
            return Recheck(RecheckVerdict.GIVE_BACK, problem)
    free = tuple(member.rank or 0 for member in gated if member.rank not in waiting)
    if waiting:
        nodes = ", ".join(assignment.ranks[rank].node for rank in waiting)
        return Recheck(RecheckVerdict.WAIT, f"the previous group still holds {nodes}", free)
    return Recheck(RecheckVerdict.RELEASE, ranks=free)


def _is_gated(member: Member, reads: LiveReads) -> bool:
    """Whether the pod still waits for us; what was released before is not ours to judge any more."""
    seen = reads.by_uid[member.uid].member
    return seen is not None and seen.gated


def _changed(group: Group, plan_id: str, reads: LiveReads) -> str:
    for member in group.members:
        seen = reads.by_uid.get(member.uid)
        if seen is None or seen.member is None or seen.member.plan_id != plan_id or member.rank is None:
            return f"pod {member.name} is not what was reserved"
        if seen.terminal or seen.member.deleting:
            return f"pod {member.name} is ending"
    return ""


def _node_problem(name: str, nodes: Mapping[str, Node], admits: Mapping[str, str]) -> str:
    if name not in nodes:
        return f"node {name} is gone"
    reason = admits.get(name, "")
    return f"node {name}: {reason}" if reason else ""


def _load_ahead(group: Group, place: str, reads: LiveReads, givers: frozenset[str]) -> tuple[_Load, bool]:
    """Sum what goes before this group on a node; and whether a predecessor still holds it."""
    load, held = _Load(), False
    ours = {member.uid for member in group.members}
    for pod in reads.by_place.get(place, ()):
        member = pod.member
        key = member.group_key if member is not None else ""
        if pod.uid in ours:
            continue
        if key in givers:
            held = True
        elif pod.node is None and member is not None and member.gated and _is_younger(key, group, reads):
            continue
        else:
            load.add(gpus=pod.gpus, cpu_millis=pod.cpu_millis, memory_bytes=pod.memory_bytes)
    return load, held


def _is_younger(key: str, group: Group, reads: LiveReads) -> bool:
    reserved_at = reads.reserved_at.get(key)
    return reserved_at is not None and reserved_at > group.created


def _overload(node: Node, load: _Load) -> str:
    """Name the first resource that would be over-committed; equal to the limit passes."""
    for name, used, limit in (
        ("GPUs", load.gpus, node.gpus),
        ("millicores of CPU", load.cpu_millis, node.cpu_millis),
        ("bytes of memory", load.memory_bytes, node.memory_bytes),
        ("pods", load.pods, node.pods),
    ):
        if used > limit:
            return f"node {node.name} would hold {used} of {limit} {name}"
    return ""
