"""The fleet as the caches show it: nodes, everybody's pods, and the reservations being made right now.

A decision and its subtraction are one step, with nothing in between that waits, so no two share a GPU: first as an
assumed claim, then, once the cache shows it, as the reservation itself.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bayplan.api.meta import parse_rfc3339
from bayplan.cluster.cache import Store, version_number
from bayplan.cluster.resources import NODES, PODS, Key
from bayplan.planning.groups.assignment import Assignment
from bayplan.planning.groups.members import Group, GroupLimits, Member, build_groups
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.placement.inventory import Claim, ClaimState, Inventory, Node
from bayplan.planning.placement.nodes import node_from_api
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY, Topology
from bayplan.reconcile.foreign import ForeignClaims, claim_of
from bayplan.reconcile.pods import PodView

BY_OWNER = "owner"
BY_NODE = "node"
BY_MODEL = "model"


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the cache keeps of a node."""

    key: Key
    uid: str
    resource_version: int
    node: Node
    not_ready_since: datetime | None


def view_node(raw: Mapping[str, Any], topology: Topology = DEFAULT_TOPOLOGY) -> NodeView:
    """Project one node of the API server."""
    meta = raw["metadata"]
    since = None
    for condition in (raw.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            since = _time(condition.get("lastTransitionTime"))
    return NodeView(
        key=Key("", meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        node=node_from_api(raw, topology=topology),
        not_ready_since=since,
    )


def _time(text: object) -> datetime | None:
    try:
        return parse_rfc3339(text) if isinstance(text, str) else None
    except ValueError:
        return None


def pod_store() -> Store[PodView]:
    """Return an empty pod cache with the indexes that reconcilers use."""
    return Store(
        PODS,
        indexes={
            BY_OWNER: lambda pod: (pod.member.owner_uid or "",) if pod.member else (),
            BY_NODE: lambda pod: (pod.node or "",),
            BY_MODEL: lambda pod: (f"{pod.key.namespace}/{pod.member.model}",) if pod.member else (),
        },
    )


def node_store() -> Store[NodeView]:
    """Return an empty node cache."""
    return Store(NODES)


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """When a node counts as lost or as leaving, in seconds."""

    lost_node_seconds: float = 30.0
    old_cordon_seconds: float = 600.0


class Fleet:
    """Nodes, pods and assumed claims; answers what placement and groups ask.

    What questions need is kept up to date as nodes and pods change, because every reconcile asks and large fleets have
    thousands of pods that are nobody's model.
    """

    def __init__(
        self,
        *,
        nodes: Store[NodeView],
        pods: Store[PodView],
        is_ours: Callable[[str], bool],
        now: Callable[[], datetime],
        limits: FleetLimits,
        gpus: tuple[Gpu, ...] = (),
    ) -> None:
        self.nodes = nodes
        self._gpus = gpus
        self.pods = pods
        self.limits = limits
        self.nodes_version = 0
        """Counts changes of what decisions see of nodes; heartbeats are none."""
        self._is_ours = is_ours
        self._now = now
        self._assumed: dict[str, tuple[Claim, ...]] = {}
        self._assumed_version = 0
        self._freed: list[Callable[[], None]] = []
        self._cordoned_since: dict[str, datetime] = {}
        self._gone_since: dict[str, datetime] = {}
        self._not_ready: dict[str, datetime] = {}
        self._leaving: set[str] = set()
        self._unknown: set[str] = set()
        """Nodes that pods name, or named once, and that are not (yet, any more) in the cache."""
        self._members: dict[Key, None] = {}
        """Pods with our labels, whoever owns them."""
        self._foreign = ForeignClaims()
        self._nodes_alone: tuple[int, Inventory] | None = None
        self._occupied: tuple[tuple[int, int], Inventory] | None = None
        self._snapshot: tuple[tuple[int, int, int], Inventory] | None = None
        nodes.subscribe(self._node_changed)
        pods.subscribe(self._pod_changed)

    # --- reservations under way ----------------------------------------------------------------------------------

    def assume(self, group: str, claims: Iterable[Claim]) -> None:
        """Subtract a decision whose reservation is being written."""
        self._assumed[group] = tuple(claims)
        self._assumed_version += 1

    def settle(self, group: str, *, reserved: bool) -> None:
        """Drop the assumption: the reservation is in the cache, or nothing was reserved.

        What was not reserved is free again, and no event says so: whoever was told "no room" meanwhile is.
        """
        if self._assumed.pop(group, None) is None:
            return
        self._assumed_version += 1
        if not reserved:
            for listener in self._freed:
                listener()

    def subscribe_freed(self, listener: Callable[[], None]) -> None:
        """Call when GPUs become free without a change of any pod or node."""
        self._freed.append(listener)

    def inventory(self) -> Inventory:
        """Return the snapshot that the next decision is made on."""
        version = (self.nodes_version, self.pods.revision, self._assumed_version)
        if self._snapshot is None or self._snapshot[0] != version:
            claims = self._claims()
            shown = {claim.owner for claim in claims}  # the watch may show a reservation before its create answers
            claims += [claim for group, assumed in self._assumed.items() if group not in shown for claim in assumed]
            name = f"nodes {self.nodes.stream_version}, pods {self.pods.stream_version}"
            self._snapshot = (version, self._occupied_inventory().with_claims(claims, version=name))
        return self._snapshot[1]

    def node_inventory(self) -> Inventory:
        """Return the nodes alone: what fit and layout are decided on, whoever uses the GPUs now."""
        if self._nodes_alone is None or self._nodes_alone[0] != self.nodes_version:
            inventory = Inventory(nodes=tuple(view.node for view in self.nodes.values()), gpus=self._gpus)
            self._nodes_alone = (self.nodes_version, inventory)
        return self._nodes_alone[1]

    def pods_on(self, node: str) -> list[PodView]:
        """Return the pods bound to a node."""
        return self.pods.by_index(BY_NODE, node)

    def groups_of(self, owner_uid: str, limits: GroupLimits) -> tuple[Group, ...]:
        """Return the groups of one model as its pods show them now."""
        pods = self.pods.by_index(BY_OWNER, owner_uid)
        members = (pod.member for pod in pods if pod.member is not None)
        return build_groups(members, now=self._now(), lost_nodes=self.lost_nodes(), limits=limits)

    def _occupied_inventory(self) -> Inventory:
        """The nodes with other people's pods."""
        version = (self.nodes_version, self._foreign.version)
        if self._occupied is None or self._occupied[0] != version:
            self._occupied = (version, self.node_inventory().with_claims(self._foreign.claims()))
        return self._occupied[1]

    def _claims(self) -> list[Claim]:
        """Claims of all pods with our labels."""
        claims: list[Claim] = []
        ranks: dict[str, tuple[Assignment, Member]] = {}
        waiting: list[PodView] = []
        seen: dict[str, set[int]] = {}
        for pod in filter(None, map(self.pods.get, self._members)):
            member = pod.member if pod.member is not None and self._is_ours(pod.member.owner_uid or "") else None
            if member is not None and member.rank is not None:
                seen.setdefault(member.group_key, set()).add(member.rank)
                if member.rank == 0 and member.assignment is not None and not member.terminal and not member.deleting:
                    ranks[member.group_key] = (member.assignment, member)
            if pod.terminal:
                continue
            if pod.node is not None:
                owner = member.group_key if member is not None else str(pod.key)
                claims.append(claim_of(pod, pod.node, owner, ClaimState.BOUND))
            elif member is not None:
                waiting.append(pod)
        for pod in waiting:
            place = _place_of(pod.member, ranks) if pod.member is not None else None
            if pod.member is not None and place is not None:
                claims.append(claim_of(pod, place, pod.member.group_key, ClaimState.ASSIGNED))
        for group, (assignment, head) in ranks.items():
            # Creating rank 0 reserved the whole group: ranks that are still to be created count already.
            claims += [
                Claim(
                    node=place.node,
                    gpus=place.gpus,
                    cpu_millis=head.cpu_millis,
                    memory_bytes=head.memory_bytes,
                    owner=group,
                    state=ClaimState.ASSIGNED,
                )
                for rank, place in enumerate(assignment.ranks)
                if rank not in seen[group]
            ]
        return claims

    # --- node states ---------------------------------------------------------------------------------------------

    def lost_nodes(self) -> Mapping[str, datetime]:
        """Nodes whose pods are to be replaced, with the time since which they count as lost.

        A node that was seen to be deleted is lost at once. One that pods name and nobody has seen may only be news
        that is still under way, so it has the time that a silent node has.
        """
        now, after = self._now(), timedelta(seconds=self.limits.lost_node_seconds)
        self._unknown = {name for name in self._unknown if self.pods.has_index_value(BY_NODE, name)}
        self._gone_since = {name: self._gone_since.get(name, now + after) for name in self._unknown}
        lost = {name: since for name, since in self._gone_since.items() if since <= now}
        lost |= {name: since + after for name, since in self._not_ready.items() if since + after <= now}
        return lost

    def moving_nodes(self) -> frozenset[str]:
        """Nodes that are to be emptied by moving their groups first."""
        now, after = self._now(), timedelta(seconds=self.limits.old_cordon_seconds)
        old = (name for name, since in self._cordoned_since.items() if since + after <= now)
        return frozenset((*self._leaving, *old))

    def next_node_change_seconds(self, name: str) -> float | None:
        """Seconds until a node's state changes by time alone, or None."""
        changes = [self._gone_since.get(name)]
        if name in self._not_ready:
            changes.append(self._not_ready[name] + timedelta(seconds=self.limits.lost_node_seconds))
        if name in self._cordoned_since:
            changes.append(self._cordoned_since[name] + timedelta(seconds=self.limits.old_cordon_seconds))
        waits = [(change - self._now()).total_seconds() for change in changes if change is not None]
        return min((wait for wait in waits if wait > 0), default=None)

    # --- keeping up ----------------------------------------------------------------------------------------------

    def _node_changed(self, old: NodeView | None, new: NodeView | None) -> None:
        if old is None or new is None or old.node != new.node:
            self.nodes_version += 1
        if new is None:
            if old is not None:
                self._node_gone(old.node.name)
            return
        name = new.node.name
        self._unknown.discard(name)
        self._gone_since.pop(name, None)
        if new.not_ready_since is None:
            self._not_ready.pop(name, None)
        else:
            self._not_ready[name] = new.not_ready_since
        if new.node.leaving:
            self._leaving.add(name)
        else:
            self._leaving.discard(name)
        if not new.node.cordoned:
            self._cordoned_since.pop(name, None)
        else:
            self._cordoned_since.setdefault(name, self._now())

    def _node_gone(self, name: str) -> None:
        self._cordoned_since.pop(name, None)
        self._not_ready.pop(name, None)
        self._leaving.discard(name)
        self._unknown.add(name)
        self._gone_since[name] = self._now()

    def _pod_changed(self, old: PodView | None, new: PodView | None) -> None:
        if new is not None and new.node is not None and Key("", new.node) not in self.nodes:
            self._unknown.add(new.node)
        self._foreign.change(old, new)
        pod = new or old
        if pod is not None:
            self._members.pop(pod.key, None)
        if new is not None and new.member is not None:
            self._members[new.key] = None


def _place_of(member: Member, reservations: Mapping[str, tuple[Assignment, Member]]) -> str | None:
    """Where an unbound member will be: the node that it was released to, else its place in the reservation."""
    if member.pinned_node is not None:
        return member.pinned_node
    if member.group_key not in reservations or member.rank is None:
        return None
    places = reservations[member.group_key][0].ranks
    return places[member.rank].node if member.rank < len(places) else None
