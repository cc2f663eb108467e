"""From a wanted group to a released one: place, reserve, complete, recheck, release - or give back.

The whole group is placed before any of its pods exists, its first pod is the reservation, and nothing reaches the
scheduler before a recheck on live reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel_status import Stage
from bayplan.cluster.errors import ApiError, Forbidden, Invalid
from bayplan.cluster.resources import PODS, Key
from bayplan.planning.groups.assignment import MAX_FACT, Assignment, RankAssignment
from bayplan.planning.groups.members import Group, group_name
from bayplan.planning.groups.replicas import ALIVE, Creation
from bayplan.planning.groups.reservation import RecheckVerdict
from bayplan.planning.placement.eligibility import admission_problem
from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Node
from bayplan.planning.placement.place import PlacementDecision, groups_per_domain, place, place_apart
from bayplan.planning.placement.quota import quota_shortfall
from bayplan.planning.quantities import PodRequest
from bayplan.reconcile.inferencemodel.children import NameTakenError
from bayplan.reconcile.inferencemodel.groups import WorldChangedError
from bayplan.reconcile.inferencemodel.manifests import pod_name
from bayplan.reconcile.inferencemodel.status import Blocker
from bayplan.reconcile.inferencemodel.tools import Findings, Hold, Tools, Wish
from bayplan.reconcile.pods import PodView

LOOK_AGAIN_SECONDS = 0.5
PREDECESSOR_POLL_SECONDS = 5.0
"""The predecessor's last pod wakes the model by its own deletion; this is for a lost event."""
QUOTA_RETRY_SECONDS = 30.0
"""A quota's freed room is seen at once through its own watch; this is for admission plugins that nobody watches."""
MOST_NAMES_TRIED = 8
GIVE_BACK_JITTER_SECONDS = (0.2, 1.5)


class Reserver:
    """Makes, completes and releases the reservations of one model in one pass.

    `look` returns the model's groups as the cache shows them now.
    """

    def __init__(self, tools: Tools, wish: Wish, findings: Findings, *, look: Callable[[], tuple[Group, ...]]) -> None:
        self._tools = tools
        self._wish = wish
        self._findings = findings
        self._look = look

    async def create(self, creations: Sequence[Creation]) -> bool:
        """Reserve as many of the wanted groups as have a place; return whether any was."""
        if not creations:
            return False
        held = self._held()
        if held is not None:
            self._findings.blocker = held
            return False
        if not self._wish.plan.placeable:
            _, reason, message = self._wish.plan.verdict()
            self._findings.blocker = Blocker(reason, message)
            wish = self._wish
            if reason is Reason.INSPECTING and await self._tools.inspector.look(
                wish.model, wish.spec, revision=wish.target.revision, generation=wish.generation
            ):
                self._findings.waits.append(0.0)
            return False
        await self._tools.confirm(self._wish.model, self._wish.generation)
        await self._ensure_snapshot()
        moved = False
        for creation in creations:
            if not await self._reserve(creation):
                break
            moved = True
        return moved

    async def restore_snapshot(self) -> None:
        """Make the snapshot of a revision that has groups again if somebody deleted it."""
        wish, children = self._wish, self._tools.children
        if not wish.target.frozen and not children.has_revision(wish.model, wish.target.revision):
            await self._ensure_snapshot()

    async def _ensure_snapshot(self) -> None:
        wish, children = self._wish, self._tools.children
        await children.ensure_revision(
            wish.model,
            wish.spec,
            revision=wish.target.revision,
            generation=wish.generation,
            records=wish.plan.records,
            in_use={*wish.revisions, *(group.revision for group in self._look())},
        )
        await children.ensure_services(wish.model, multi_node=wish.plan.multi_node)

    def _held(self) -> Blocker | None:
        hold = self._tools.holds.get(self._wish.memory_key)
        if hold is None:
            return None
        left = (hold.until - self._tools.now()).total_seconds()
        if left <= 0 or hold.pods != self._pods:
            del self._tools.holds[self._wish.memory_key]
            return None
        self._findings.waits.append(left)
        return hold.blocker

    def _hold(self, blocker: Blocker, seconds: float) -> None:
        self._findings.blocker = blocker
        until = self._tools.now() + timedelta(seconds=seconds)
        self._tools.holds[self._wish.memory_key] = Hold(until, blocker, self._pods)
        self._findings.waits.append(seconds)

    @property
    def _pods(self) -> tuple[str, str]:
        return self._wish.target.revision, self._wish.target.template

    async def _reserve(self, creation: Creation) -> bool:
        """Place one group and create its rank 0; False when it has no place now."""
        fleet = self._tools.fleet
        creation = self._past_strangers(creation)
        name = self._name(creation)
        # From here to the assumption nothing may wait: other models are placed as soon as this one does.
        decision = self._place(name, creation)
        if not decision.placed or decision.shape is None:
            self._findings.blocker = Blocker(decision.reason, decision.message)
            return False
        assignment = self._assignment(name, creation, decision)
        short = self._quota_shortfall(assignment, decision)
        if short:
            self._hold(Blocker(Reason.QUOTA_EXCEEDED, short), QUOTA_RETRY_SECONDS)
            return False
        key = f"{self._wish.model.namespace}/{name}"
        fleet.assume(key, decision.claims(key))
        reserved = False
        try:
            bounds = self._wish.plan.admission_bounds(self._wish.spec, assignment)
            await self._tools.groups.reserve(self._wish.model, self._wish.spec, assignment, bounds)
            reserved = True
        except (Forbidden, Invalid) as error:
            self._refused(error)
            return False
        finally:
            # Not written, or nobody knows: a claim nobody keeps would hold GPUs for ever, while a reservation that
            # comes to light later is met by the recheck.
            fleet.settle(key, reserved=reserved)
        self._findings.notes.append((Reason.PLACED, f"{name}: {decision.message}"))
        return True

    def _name(self, creation: Creation) -> str:
        return group_name(
            model=self._wish.model.name,
            revision=self._wish.target.revision,
            ordinal=creation.ordinal,
            attempt=creation.attempt,
        )

    def _past_strangers(self, creation: Creation) -> Creation:
        """The first attempt from here on whose pods' names no stranger bears: those are never adopted or removed."""
        ranks = range(max((shape.layout.nodes for shape in self._wish.plan.shapes), default=1))
        for attempt in range(creation.attempt, creation.attempt + MOST_NAMES_TRIED):
            tried = replace(creation, attempt=attempt)
            pods = (self._tools.fleet.pods.get(self._pod_key(tried, rank)) for rank in ranks)
            if not any(pod is not None and not self._owned(pod) for pod in pods):
                return tried
        raise NameTakenError(PODS, self._pod_key(creation, 0))

    def _pod_key(self, creation: Creation, rank: int) -> Key:
        return Key(self._wish.model.namespace, pod_name(self._name(creation), rank))

    def _owned(self, pod: PodView) -> bool:
        return pod.member is not None and pod.member.owner_uid == self._wish.model.uid

    def _place(self, name: str, creation: Creation) -> PlacementDecision:
        # Groups as they are after the reservations before this one: spread counts the model's own.
        fleet, groups = self._tools.fleet, self._look()
        inventory = fleet.inventory()
        predecessor = next((g for g in groups if g.name == creation.predecessor), None)
        if predecessor is not None:
            inventory = inventory.without_owners([predecessor.key])
        alive = [g for g in groups if g.stage in ALIVE and g.assignment is not None]
        level = self._wish.spec.placement.spread.level
        nodes = [[rank.node for rank in g.assignment.ranks] for g in alive if g.assignment is not None]
        request = self._request(name, groups_per_domain(inventory, nodes, level), predecessor)
        if predecessor is not None and predecessor.stage is Stage.LOST:
            survivors = _survivors(predecessor)
            if survivors:
                kept = self._request(name, request.groups_in_domain, predecessor, kept=survivors)
                decision = place(kept, inventory)
                if decision.placed:
                    return decision
        own = [g for g in alive if g.revision == self._wish.target.revision and g is not predecessor]
        taken = {rank.node for g in own if g.assignment is not None for rank in g.assignment.ranks}
        return place_apart(request, inventory, taken=taken if self._wish.apart else ())

    def _request(
        self,
        name: str,
        in_domain: Mapping[str, int],
        predecessor: Group | None,
        *,
        kept: frozenset[str] = frozenset(),
        shapes: tuple[GroupShape, ...] = (),
    ) -> GroupRequest:
        return GroupRequest(
            name=name,
            revision=self._wish.target.revision,
            shapes=shapes or self._wish.plan.shapes,
            node_selector=self._wish.spec.placement.node_selector,
            tolerations=self._wish.spec.placement.tolerations,
            topology=self._wish.spec.placement.topology,
            spread_level=self._wish.spec.placement.spread.level,
            groups_in_domain=in_domain,
            kept_nodes=kept,
            excluded_nodes=_refusing_nodes(predecessor),
        )

    def _assignment(self, name: str, creation: Creation, decision: PlacementDecision) -> Assignment:
        shape, by_name = decision.shape, self._tools.fleet.inventory().by_name
        assert shape is not None
        first = by_name[decision.nodes[0]]
        return Assignment(
            group=name,
            revision=self._wish.target.revision,
            template=self._wish.target.template,
            tensor=shape.layout.tensor,
            pipeline=shape.layout.pipeline,
            data=shape.layout.data,
            expert=shape.layout.expert,
            decode_context=shape.layout.decode_context,
            gpu_product=first.gpu_product,
            gpu_resource=first.gpu_resource,
            ranks=tuple(RankAssignment(node=node, gpus=shape.gpus_per_pod) for node in decision.nodes),
            attempt=creation.attempt,
            failures=creation.failures,
            replaces=creation.predecessor,
            facts=tuple(fact[:MAX_FACT] for fact in decision.facts[:8]),
        )

    def _quota_shortfall(self, assignment: Assignment, decision: PlacementDecision) -> str:
        quotas = [
            view.quota for view in self._tools.quotas.values() if view.key.namespace == self._wish.model.namespace
        ]
        if not quotas or decision.shape is None:
            return ""
        return quota_shortfall(
            quotas,
            pods=len(assignment.ranks),
            per_pod=PodRequest(
                gpus=decision.shape.gpus_per_pod,
                cpu_millis=decision.shape.cpu_millis,
                memory_bytes=decision.shape.memory_bytes,
            ),
            gpu_resource=assignment.gpu_resource,
        )

    def _refused(self, error: ApiError) -> None:
        quota = isinstance(error, Forbidden) and error.quota_exceeded
        reason = Reason.QUOTA_EXCEEDED if quota else Reason.ADMISSION_DENIED
        self._hold(Blocker(reason, error.message), QUOTA_RETRY_SECONDS)

    def unconfirmed(self, group: Group) -> None:
        """A released group was not bound. The first time the world may just have moved on; then pauses grow, in which
        others may have the GPUs: mostly something is missing that only a person can make.
        """
        key = self._wish.memory_key
        times = self._tools.unconfirmed[key] = self._tools.unconfirmed.get(key, 0) + 1
        if times > 1:
            seconds = self._tools.backoff.delay(times - 2)
            text = f"{group.name}: {group.message}; tried {times} times, again in {seconds:.0f} s"
            self._hold(Blocker(Reason.UNSCHEDULABLE, text), seconds)

    async def complete(self, group: Group) -> None:
        """Create the missing ranks; a refusal gives the whole group back."""
        if group.assignment is None:
            return
        try:
            bounds = self._wish.plan.admission_bounds(self._wish.spec, group.assignment)
            await self._tools.groups.complete(
                self._wish.model, self._wish.spec, group.assignment, bounds, group.missing_ranks
            )
        except (Forbidden, Invalid) as error:
            self._refused(error)
            current = next((g for g in self._look() if g.name == group.name), group)
            await self._give_back(current, error.message)

    async def release(self, group: Group) -> bool:
        """Recheck a complete group and release what may be released; return whether anything changed."""
        assignment = group.assignment
        if assignment is None:
            return False
        predecessors = [assignment.replaces] if assignment.replaces else []
        shape = self._wish.plan.shape_for(assignment)
        request = self._request(group.name, {}, None, shapes=(shape,))

        def admits(node: Node) -> str:
            return admission_problem(node, request, shape)

        recheck = await self._tools.rechecker.recheck(group, admits=admits, predecessors=predecessors)
        if recheck.verdict is RecheckVerdict.CHANGED:
            raise WorldChangedError(recheck.reason)
        if recheck.verdict is RecheckVerdict.GIVE_BACK:
            await self._give_back(group, f"given back before release: {recheck.reason}")
            low, high = GIVE_BACK_JITTER_SECONDS
            self._hold(Blocker(Reason.RESERVING, recheck.reason), self._tools.random.uniform(low, high))
            return True
        gated = [m.rank for m in group.members if m.gated and m.rank in recheck.ranks]
        if recheck.verdict is RecheckVerdict.WAIT:
            self._findings.waits.append(PREDECESSOR_POLL_SECONDS)
        await self._tools.groups.release(group, recheck.ranks)
        return bool(gated)

    async def _give_back(self, group: Group, why: str) -> None:
        await self._tools.groups.remove(group)
        self._findings.notes.append((Reason.RESERVING, f"{group.name}: {why}"))


def _survivors(group: Group) -> frozenset[str]:
    """Nodes of a lost group that are still there: their GPUs and caches are worth keeping."""
    if group.assignment is None:
        return frozenset()
    return frozenset(rank.node for rank in group.assignment.ranks) - set(group.lost_nodes)


def _refusing_nodes(predecessor: Group | None) -> dict[str, str]:
    """Nodes whose kubelet refused a pod of the failed group: its devices are not what the node says."""
    if predecessor is None:
        return {}
    return {
        member.node: member.failed_reason
        for member in predecessor.members
        if member.node is not None and member.terminal and member.exit is None and member.failed_reason
    }
