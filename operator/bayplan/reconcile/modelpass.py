"""One reconcile of one InferenceModel: compare, write the difference, look again, until nothing is left to do now."""

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import Stage
from bayplan.cluster.cache import Store
from bayplan.cluster.errors import ApiError, Forbidden, Invalid
from bayplan.cluster.resources import Key
from bayplan.planning.eligibility import admission_problem
from bayplan.planning.group import GroupRequest
from bayplan.planning.inventory import Node
from bayplan.planning.members import Assignment, Group, GroupLimits, RankAssignment, build_groups, group_name
from bayplan.planning.placement import PlacementDecision, groups_per_domain, place
from bayplan.planning.quantities import PodRequest
from bayplan.planning.quota import quota_shortfall
from bayplan.planning.replicas import ALIVE, Actions, Backoff, Creation, Target, decide
from bayplan.planning.reservation import RecheckVerdict
from bayplan.reconcile.children import ChildWriter
from bayplan.reconcile.drain import DrainTracker
from bayplan.reconcile.fleet import BY_OWNER, Fleet
from bayplan.reconcile.groups import GroupWriter, WorldChangedError
from bayplan.reconcile.manifests import ModelIdentity
from bayplan.reconcile.modelstatus import Blocker
from bayplan.reconcile.plan import ModelPlan
from bayplan.reconcile.quotas import QuotaView
from bayplan.reconcile.release import Rechecker
from bayplan.reconcile.warmup import Outcome, WarmupTracker

logger = logging.getLogger(__name__)

MAX_STEPS = 8
"""Steps of one pass; what is left then goes on in the next, behind other models."""
LOOK_AGAIN_SECONDS = 0.5
QUOTA_RETRY_SECONDS = 30.0
"""A quota's freed room is seen at once through its own watch; this is for admission plugins that nobody watches."""
GIVE_BACK_JITTER_SECONDS = (0.2, 1.5)


@dataclass(frozen=True, slots=True)
class Tools:
    """What every pass works with."""

    fleet: Fleet
    groups: GroupWriter
    children: ChildWriter
    rechecker: Rechecker
    warmups: WarmupTracker
    drains: DrainTracker
    quotas: Store[QuotaView]
    limits: GroupLimits
    backoff: Backoff
    now: Callable[[], datetime]
    random: random.Random
    holds: dict[str, tuple[datetime, Blocker]] = field(default_factory=dict)
    """Model uid → until when no new group is tried, and why: admission said no, or a reservation was given back."""


@dataclass(slots=True)
class ModelPass:
    """State of one reconcile. `notes` become events: (reason, message)."""

    tools: Tools
    model: ModelIdentity
    key: Key
    spec: InferenceModelSpec
    target: Target
    plan: ModelPlan
    changed: Callable[[], None]
    blocker: Blocker | None = None
    groups: tuple[Group, ...] = ()
    notes: list[tuple[Reason, str]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    async def run(self) -> None:
        """Act until a step changes nothing, or the world contradicts what was decided on."""
        for _ in range(MAX_STEPS):
            self.waits.clear()
            self.groups = self._groups()
            actions = decide(
                self.groups,
                self.target,
                now=self.tools.now(),
                moving_nodes=self.tools.fleet.moving_nodes(),
                backoff=self.tools.backoff,
            )
            try:
                moved = await self._step(actions)
            except WorldChangedError as error:
                logger.info("%s: %s; deciding again", self.key, error)
                self.waits.append(LOOK_AGAIN_SECONDS)
                break
            if not moved:
                break
        else:
            self.waits.append(0.0)
        self.groups = self._groups()
        self._note_waits(self.groups)

    def _groups(self) -> tuple[Group, ...]:
        pods = self.tools.fleet.pods.by_index(BY_OWNER, self.model.uid)
        return build_groups(
            (pod.member for pod in pods if pod.member is not None),
            now=self.tools.now(),
            lost_nodes=self.tools.fleet.lost_nodes(),
            limits=self.tools.limits,
        )

    async def _step(self, actions: Actions) -> bool:
        moved = False
        for removal in actions.remove:
            moved |= await self._remove(removal.group, removal.reason)
        for group in actions.drain:
            await self.tools.groups.mark_draining(group)
            moved = True
        moved |= await self._leave()
        moved |= await self._create(actions)
        for group in actions.complete:
            await self._complete(group)
            moved = True
        for group in actions.release:
            moved |= await self._release(group)
        moved |= await self._warm()
        await self._children()
        if actions.recheck_after_seconds is not None:
            self.waits.append(actions.recheck_after_seconds)
        return moved

    # --- leaving ---------------------------------------------------------------------------------------------------

    async def _remove(self, group: Group, reason: str) -> bool:
        if group.deleting:
            return False
        await self.tools.groups.remove(group)
        if reason:
            self.notes.append(
                (Reason.DRAINING if group.defect is None else Reason.RESERVING, f"{group.name}: {reason}")
            )
        return True

    async def _leave(self) -> bool:
        moved = False
        for group in self.groups:
            if group.stage is not Stage.DRAINING or group.deleting:
                continue
            if any(member.deleting for member in group.members):
                # Somebody deleted one rank; a replica lives and dies as a whole.
                moved |= await self._remove(group, "one of its pods was deleted")
                continue
            await self.tools.groups.unroute(group)
            deadline = self.spec.drain.deadline_seconds
            self.tools.drains.ensure(self.key, group, deadline_seconds=deadline, changed=self.changed)
            result = self.tools.drains.result(group)
            if result is not None:
                moved |= await self._remove(group, f"drained, {result.reason}")
        return moved

    # --- placing ---------------------------------------------------------------------------------------------------

    async def _create(self, actions: Actions) -> bool:
        if not actions.create:
            return False
        held = self._held()
        if held is not None:
            self.blocker = held
            return False
        if not self.plan.placeable:
            _, reason, message = self.plan.verdict()
            self.blocker = Blocker(reason, message)
            return False
        await self._ensure_snapshot()
        moved = False
        for creation in actions.create:
            if not await self._reserve(creation):
                break
            # The next placement must see this one: spread counts the model's own groups.
            self.groups = self._groups()
            moved = True
        return moved

    def _held(self) -> Blocker | None:
        hold = self.tools.holds.get(self.model.uid)
        if hold is None:
            return None
        until, blocker = hold
        left = (until - self.tools.now()).total_seconds()
        if left <= 0:
            del self.tools.holds[self.model.uid]
            return None
        self.waits.append(left)
        return blocker

    def _hold(self, blocker: Blocker, seconds: float) -> None:
        self.blocker = blocker
        self.tools.holds[self.model.uid] = (self.tools.now() + timedelta(seconds=seconds), blocker)
        self.waits.append(seconds)

    async def _reserve(self, creation: Creation) -> bool:
        """Place one group and create its rank 0; False when it has no place now."""
        fleet = self.tools.fleet
        async with fleet.planning:
            name = group_name(
                model=self.model.name,
                revision=self.target.revision,
                ordinal=creation.ordinal,
                attempt=creation.attempt,
            )
            decision = self._place(name, creation)
            if not decision.placed or decision.shape is None:
                self.blocker = Blocker(decision.reason, decision.message)
                return False
            assignment = self._assignment(name, creation, decision)
            short = self._quota_shortfall(assignment, decision)
            if short:
                self._hold(Blocker(Reason.QUOTA_EXCEEDED, short), QUOTA_RETRY_SECONDS)
                return False
            fleet.assume(name, decision.claims(name))
            try:
                await self.tools.groups.reserve(self.model, self.spec, assignment)
            except (Forbidden, Invalid) as error:
                fleet.settle(name)
                self._refused(error)
                return False
            except ApiError as error:
                if not error.outcome_unknown:
                    fleet.settle(name)
                raise
            except WorldChangedError:
                fleet.settle(name)
                raise
            fleet.settle(name)
        self.notes.append((Reason.PLACED, f"{name}: {decision.message}"))
        return True

    def _place(self, name: str, creation: Creation) -> PlacementDecision:
        fleet = self.tools.fleet
        inventory = fleet.inventory()
        predecessor = next((g for g in self.groups if g.name == creation.predecessor), None)
        if predecessor is not None:
            inventory = inventory.without_owners([predecessor.name])
        alive = [g for g in self.groups if g.stage in ALIVE and g.assignment is not None]
        level = self.spec.placement.spread.level
        nodes = [[rank.node for rank in g.assignment.ranks] for g in alive if g.assignment is not None]
        request = self._request(name, groups_per_domain(inventory, nodes, level), predecessor)
        if predecessor is not None and predecessor.stage is Stage.LOST:
            survivors = _survivors(predecessor)
            if survivors:
                kept = self._request(name, request.groups_in_domain, predecessor, kept=survivors)
                decision = place(kept, inventory)
                if decision.placed:
                    return decision
        return place(request, inventory)

    def _request(
        self,
        name: str,
        in_domain: Mapping[str, int],
        predecessor: Group | None,
        kept: frozenset[str] = frozenset(),
    ) -> GroupRequest:
        return GroupRequest(
            name=name,
            revision=self.target.revision,
            shapes=self.plan.shapes,
            node_selector=self.spec.placement.node_selector,
            tolerations=self.spec.placement.tolerations,
            topology=self.spec.placement.topology,
            spread_level=self.spec.placement.spread.level,
            groups_in_domain=in_domain,
            kept_nodes=kept,
            excluded_nodes=_refusing_nodes(predecessor),
        )

    def _assignment(self, name: str, creation: Creation, decision: PlacementDecision) -> Assignment:
        shape, by_name = decision.shape, self.tools.fleet.inventory().by_name
        assert shape is not None
        first = by_name[decision.nodes[0]]
        return Assignment(
            group=name,
            revision=self.target.revision,
            template=self.target.template,
            tensor=shape.layout.tensor,
            pipeline=shape.layout.pipeline,
            gpu_product=first.gpu_product,
            gpu_resource=first.gpu_resource,
            ranks=tuple(RankAssignment(node=node, gpus=shape.gpus_per_pod) for node in decision.nodes),
            attempt=creation.attempt,
            failures=creation.failures,
            replaces=creation.predecessor,
            facts=decision.facts[:8],
        )

    def _quota_shortfall(self, assignment: Assignment, decision: PlacementDecision) -> str:
        quotas = [view.quota for view in self.tools.quotas.values() if view.key.namespace == self.model.namespace]
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

    async def _complete(self, group: Group) -> None:
        if group.assignment is None:
            return
        try:
            await self.tools.groups.complete(self.model, self.spec, group.assignment, group.missing_ranks)
        except (Forbidden, Invalid) as error:
            self._refused(error)
            current = next((g for g in self._groups() if g.name == group.name), group)
            await self._remove(current, error.message)

    async def _release(self, group: Group) -> bool:
        assignment = group.assignment
        if assignment is None:
            return False
        predecessors = [assignment.replaces] if assignment.replaces else []
        shape = self.plan.shape_for(assignment)
        request = self._request(group.name, {}, None)

        def admits(node: Node) -> str:
            return admission_problem(node, request, shape)

        recheck = await self.tools.rechecker.recheck(group, admits=admits, predecessors=predecessors)
        if recheck.verdict is RecheckVerdict.CHANGED:
            raise WorldChangedError(recheck.reason)
        if recheck.verdict is RecheckVerdict.GIVE_BACK:
            await self._remove(group, f"given back before release: {recheck.reason}")
            low, high = GIVE_BACK_JITTER_SECONDS
            self._hold(Blocker(Reason.RESERVING, recheck.reason), self.tools.random.uniform(low, high))
            return True
        gated = [m.rank for m in group.members if m.gated and m.rank in recheck.ranks]
        if recheck.verdict is RecheckVerdict.WAIT:
            self.waits.append(LOOK_AGAIN_SECONDS)
        await self.tools.groups.release(group, recheck.ranks)
        return bool(gated)

    # --- warming ---------------------------------------------------------------------------------------------------

    async def _warm(self) -> bool:
        moved = False
        live = [g for g in self.groups if g.stage in ALIVE or g.stage is Stage.DRAINING]
        self.tools.warmups.retain(self.key, live)
        self.tools.drains.retain(self.key, live)
        for group in self.groups:
            if group.stage is not Stage.WARMING or all(member.warm for member in group.members):
                continue
            self.tools.warmups.ensure(
                self.key,
                group,
                served_name=self.spec.model.name,
                warmup=self.spec.warmup,
                changed=self.changed,
            )
            seen = self.tools.warmups.observe(group)
            if seen is None:
                continue
            if seen.outcome is Outcome.SUCCEEDED and all(m.container_id for m in group.members):
                await self.tools.groups.mark_warm(group)
                moved = True
            elif seen.outcome is Outcome.FAILED:
                await self.tools.groups.mark_warmup_failed(group, seen.message)
                self.notes.append((Reason.WARMUP_FAILED, f"{group.name}: {seen.message}"))
                moved = True
        return moved

    # --- children and timers ---------------------------------------------------------------------------------------

    async def _ensure_snapshot(self) -> None:
        await self.tools.children.ensure_revision(
            self.model,
            self.spec,
            revision=self.target.revision,
            layouts=self.target.layouts,
            in_use={g.revision for g in self.groups},
        )
        await self.tools.children.ensure_services(self.model, multi_node=self.plan.multi_node)

    async def _children(self) -> None:
        serving = [g for g in self.groups if g.stage is Stage.READY]
        draining = [g for g in self.groups if g.stage is Stage.DRAINING and not g.deleting]
        await self.tools.children.sync_budgets(self.model, serving, draining)

    def _note_waits(self, groups: tuple[Group, ...]) -> None:
        """Times at which a state changes without anybody writing."""
        now, limits = self.tools.now(), self.tools.limits
        for group in groups:
            age = (now - group.since).total_seconds()
            if group.stage is Stage.BINDING:
                self.waits.append(max(0.0, limits.confirm_seconds - age) + 0.1)
            elif group.missing_ranks:
                self.waits.append(max(0.0, limits.incomplete_seconds - age) + 0.1)
            for member in group.members:
                node = self.tools.fleet.nodes.get(Key("", member.node)) if member.node else None
                wait = self.tools.fleet.next_node_change_seconds(node.node) if node else None
                if wait is not None:
                    self.waits.append(wait + 0.05)


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
