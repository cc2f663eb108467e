"""The recheck before a reserved group is released to the scheduler.

A reservation is the group's gated pods; between planning and release the world may have moved: a node tainted,
cordoned or gone, a foreign pod bound, a second operator's group on the same GPUs. The recheck looks at live reads that
began after the group's last POST and decides: release, wait, or give the whole group back.

The yield rule: a gated group gives way to every bound or already released pod and to every older group; two groups
reserved in the same second (the resolution of creationTimestamp) both give way and plan again with jitter. So no two
operators, however they interleave, can both keep the same GPUs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bayplan.planning.inventory import Node
from bayplan.planning.members import Group, Member


@dataclass(frozen=True, slots=True)
class LivePod:
    """A pod as the live read shows it. `member` is set for pods that carry our labels and a readable owner."""

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
    """Node name → pods that are bound to it or assigned to it, terminal ones left out."""

    @classmethod
    def of(cls, nodes: Iterable[Node], pods: Iterable[LivePod]) -> "LiveReads":
        """Index the reads. An unbound member's place is what the reservation on its group's rank 0 says."""
        by_uid = {pod.uid: pod for pod in pods}
        heads = {
            pod.member.group: pod.member.assignment.ranks
            for pod in by_uid.values()
            if pod.member is not None and pod.member.rank == 0 and pod.member.assignment is not None
        }
        by_place: dict[str, list[LivePod]] = defaultdict(list)
        for pod in by_uid.values():
            place = pod.node
            if place is None and pod.member is not None and pod.member.rank is not None:
                ranks = heads.get(pod.member.group, ())
                place = ranks[pod.member.rank].node if pod.member.rank < len(ranks) else None
            if place is not None and not pod.terminal:
                by_place[place].append(pod)
        return cls(nodes={node.name: node for node in nodes}, by_uid=by_uid, by_place=by_place)


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
    this group takes over: their pods do not count against it, but a rank waits while one still holds its node.
    """
    assignment = group.assignment
    if assignment is None:
        return Recheck(RecheckVerdict.CHANGED, "the reservation is gone")
    changed = _changed(group, assignment.plan_id, reads)
    if changed:
        return Recheck(RecheckVerdict.CHANGED, changed)
    ours = {member.uid for member in group.members}
    givers = frozenset(predecessors)
    waiting: set[int] = set()
    for rank, place in enumerate(assignment.ranks):
        load, held = _load_ahead(group, reads.by_place.get(place.node, ()), ours, givers)
        if held:
            waiting.add(rank)
        member = next(m for m in group.members if m.rank == rank)
        load.add(gpus=member.gpus, cpu_millis=member.cpu_millis, memory_bytes=member.memory_bytes)
        problem = _node_problem(place.node, reads.nodes, admits) or _overload(reads.nodes[place.node], load)
        if problem:
            return Recheck(RecheckVerdict.GIVE_BACK, problem)
    free = tuple(rank for rank in range(len(assignment.ranks)) if rank not in waiting)
    if waiting:
        nodes = ", ".join(assignment.ranks[rank].node for rank in sorted(waiting))
        return Recheck(RecheckVerdict.WAIT, f"the previous group still holds {nodes}", free)
    return Recheck(RecheckVerdict.RELEASE, ranks=free)


def _changed(group: Group, plan_id: str, reads: LiveReads) -> str:
    for member in group.members:
        seen = reads.by_uid.get(member.uid)
        if seen is None or seen.member is None or seen.member.plan_id != plan_id:
            return f"pod {member.name} is not what was reserved"
        if seen.terminal or seen.member.deleting:
            return f"pod {member.name} is ending"
    return ""


def _node_problem(name: str, nodes: Mapping[str, Node], admits: Mapping[str, str]) -> str:
    if name not in nodes:
        return f"node {name} is gone"
    reason = admits.get(name, "")
    return f"node {name}: {reason}" if reason else ""


def _load_ahead(group: Group, pods: Sequence[LivePod], ours: set[str], givers: frozenset[str]) -> tuple[_Load, bool]:
    """Sum what goes before this group on a node; and whether a predecessor still holds it."""
    load, held = _Load(), False
    for pod in pods:
        member = pod.member
        if pod.uid in ours:
            continue
        if member is not None and member.group in givers:
            held = True
        elif pod.node is None and member is not None and member.gated and member.created > group.created:
            continue
        else:
            load.add(gpus=pod.gpus, cpu_millis=pod.cpu_millis, memory_bytes=pod.memory_bytes)
    return load, held


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
