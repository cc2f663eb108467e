"""One reconcile of one InferenceModel: compare, write the difference, look again, until nothing is left to do now."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel_status import Stage
from bayplan.cluster.errors import ApiError
from bayplan.cluster.resources import Key
from bayplan.planning.groups.members import Defect, Group
from bayplan.planning.groups.replicas import ALIVE, Actions, Removal, Target, decide
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.rollout.arms import Arms
from bayplan.reconcile.background import run_all
from bayplan.reconcile.inferencemodel.children import NameTakenError
from bayplan.reconcile.inferencemodel.groups import BUSY_GRACE_SECONDS, IDLE_GRACE_SECONDS, WorldChangedError
from bayplan.reconcile.inferencemodel.reserve import LOOK_AGAIN_SECONDS, Reserver
from bayplan.reconcile.inferencemodel.status import Blocker
from bayplan.reconcile.inferencemodel.tools import Findings, Tools, Wish
from bayplan.reconcile.inferencemodel.warmup import Outcome

logger = logging.getLogger(__name__)

MAX_STEPS = 8
"""Steps of one pass; what is left then goes on in the next, behind other models."""
NAME_RETRY_SECONDS = 30.0
"""Strangers' objects are not watched, so nobody says when a name becomes free."""


NOBODY = Target(replicas=0, revision="", template="")
"""What groups are measured by whose revision has no arm: none of them is wanted."""


@dataclass(frozen=True, slots=True)
class _Arm:
    """One revision's part of a pass."""

    wish: Wish
    findings: Findings
    reserver: Reserver


class ModelPass:
    """One reconcile. After `run`, `groups` and `findings` are what it saw and did.

    `wishes` are those of the arms, serving first; it also takes the groups of the revisions that it replaces, or, where
    `arms.replaced` is None, of all that no other arm has. Groups of any further revision leave at once.
    """

    def __init__(
        self, tools: Tools, wishes: Sequence[Wish], arms: Arms, key: Key, *, changed: Callable[[], None]
    ) -> None:
        self.findings = Findings()
        self.groups: tuple[Group, ...] = ()
        self._tools = tools
        self._wish = wishes[0]
        self._key = key
        self._changed = changed
        self._pool = arms.pools
        found = (Findings(waits=self.findings.waits, notes=self.findings.notes) for _ in wishes[1:])
        self._arms = [
            _Arm(wish, findings, Reserver(tools, wish, findings, look=self._look))
            for wish, findings in zip(wishes, (self.findings, *found), strict=True)
        ]

    @property
    def side_blocker(self) -> Blocker | None:
        """Why wanted replicas of another arm than serving have no group."""
        return next((arm.findings.blocker for arm in self._arms[1:] if arm.findings.blocker is not None), None)

    async def run(self) -> None:
        """Act until a step changes nothing, or the world contradicts what was decided on."""
        waits = self.findings.waits
        for _ in range(MAX_STEPS):
            waits.clear()
            for arm in self._arms:
                arm.findings.blocker = None
            self.groups = self._look()
            try:
                moved = await self._step()
            except WorldChangedError as error:
                logger.info("%s: %s; deciding again", self._key, error)
                self.findings.blocker = self.findings.blocker or Blocker(Reason.RESERVING, str(error))
                waits.append(LOOK_AGAIN_SECONDS)
                break
            except NameTakenError as error:
                self.findings.blocker = Blocker(Reason.ADMISSION_DENIED, str(error))
                waits.append(NAME_RETRY_SECONDS)
                break
            except ApiError as error:
                # The status says so before the controller backs off: pending replicas need a cause.
                self.findings.error = error
                self.findings.blocker = Blocker(Reason.RESERVING, f"the API server did not take a request: {error}")
                break
            if not moved:
                break
        else:
            waits.append(0.0)
        self.groups = self._look()
        for arm in self._arms:
            bound = [g for g in self._groups_of(arm) if g.stage in (Stage.WARMING, Stage.READY)]
            if len(bound) >= arm.wish.target.replicas:
                self._tools.unconfirmed.pop(arm.wish.memory_key, None)
        self._note_waits(self.groups)

    def _look(self) -> tuple[Group, ...]:
        return self._tools.fleet.groups_of(self._wish.model.uid, self._tools.limits)

    def _groups_of(self, arm: _Arm) -> list[Group]:
        if arm is self._arms[0]:
            return [group for group in self.groups if self._pool(group.revision)]
        return [group for group in self.groups if group.revision == arm.wish.target.revision]

    def _decisions(self) -> tuple[list[tuple[_Arm, Actions]], Actions]:
        """What each arm is to do, and what is to be done with groups that belong to none."""
        placed = {arm.wish.target.revision: self._groups_of(arm) for arm in self._arms}
        named = {group.name for groups in placed.values() for group in groups}
        decided = []
        for arm in self._arms:
            own = placed[arm.wish.target.revision]
            names = {group.name for group in own}
            target = arm.wish.target
            if not target.grows and arm is not self._arms[0]:
                # What loads would only come to serve nobody.
                ready = sum(group.stage is Stage.READY for group in own)
                target = replace(target, replicas=min(target.replicas, ready))
            decided.append((arm, self._decide(own, target, (g for g in self.groups if g.name not in names))))
        return decided, self._decide([g for g in self.groups if g.name not in named], NOBODY, ())

    def _decide(self, groups: Sequence[Group], target: Target, others: Iterable[Group]) -> Actions:
        return decide(
            groups,
            target,
            now=self._tools.now(),
            moving_nodes=self._tools.fleet.moving_nodes(),
            backoff=self._tools.backoff,
            remaining_tokens=self._remaining(),
            others=others,
        )

    async def _step(self) -> bool:
        decided, leaving = self._decisions()
        moved = await self._give_up([*(actions for _, actions in decided), leaving])
        for arm, actions in decided:
            created = await arm.reserver.create(actions.create)
            if actions.create and not created and actions.yields:
                await self._tools.groups.mark_draining(actions.yields[0])
                created = True
            moved |= created or bool(actions.complete)
        await run_all(arm.reserver.complete(group) for arm, actions in decided for group in actions.complete)
        # Side by side, so that one set of live reads serves them all.
        released = await run_all(arm.reserver.release(group) for arm, actions in decided for group in actions.release)
        moved |= any(released)
        moved |= await self._warm()
        await self._children()
        due = [actions.recheck_after_seconds for _, actions in decided]
        self.findings.waits.extend(wait for wait in due if wait is not None)
        return moved

    async def _give_up(self, decided: Sequence[Actions]) -> bool:
        """Remove and drain what is not wanted, and take back drains of what is wanted again."""
        moved = False
        for removal in (removal for actions in decided for removal in actions.remove):
            moved |= await self._removed(removal)
        for group in (group for actions in decided for group in actions.drain):
            await self._tools.groups.mark_draining(group)
            moved = True
        returning = [group for actions in decided for group in actions.undrain]
        for group in returning:
            await self._tools.groups.take_back(group)
            self.findings.notes.append((Reason.DRAINING, f"{group.name}: wanted again, its drain is taken back"))
            moved = True
        return await self._leave({group.name for group in returning}) or moved

    async def _removed(self, removal: Removal) -> bool:
        removed = await self._remove(removal.group, removal.reason)
        if removed and removal.group.defect is Defect.UNCONFIRMED:
            revision = removal.group.revision
            arm = next((arm for arm in self._arms if arm.wish.target.revision == revision), self._arms[0])
            arm.reserver.unconfirmed(removal.group)
        return removed

    # --- leaving ---------------------------------------------------------------------------------------------------

    def _remaining(self) -> dict[str, Measured]:
        """What serving groups have still to do; where it is measured at all, a group that was not is Unknown."""
        known = self._wish.scaling.remaining_tokens
        if known is None:
            return {}
        return {group.name: known.get(group.head.uid, Unknown("not measured yet")) for group in self.groups}

    async def _remove(self, group: Group, reason: str, *, grace_seconds: int = IDLE_GRACE_SECONDS) -> bool:
        if group.deleting:
            return False
        await self._tools.groups.remove(group, grace_seconds=grace_seconds)
        self.findings.notes.append((_reason_of_removal(group), f"{group.name}: {reason}"))
        return True

    async def _leave(self, staying: Collection[str]) -> bool:
        moved = False
        for group in self.groups:
            if group.stage is not Stage.DRAINING or group.deleting or group.name in staying:
                continue
            if any(member.deleting for member in group.members):
                # Somebody deleted one rank; a replica lives and dies as a whole.
                moved |= await self._remove(group, "one of its pods was deleted", grace_seconds=BUSY_GRACE_SECONDS)
                continue
            await self._tools.groups.unroute(group)
            deadline = self._wish.spec.drain.deadline_seconds
            self._tools.drains.ensure(self._key, group, deadline_seconds=deadline, changed=self._changed)
            result = self._tools.drains.result(group)
            if result is not None:
                grace = IDLE_GRACE_SECONDS if result.idle else BUSY_GRACE_SECONDS
                moved |= await self._remove(group, f"drained, {result.reason}", grace_seconds=grace)
        return moved

    # --- warming ---------------------------------------------------------------------------------------------------

    async def _warm(self) -> bool:
        moved = False
        live = [g for g in self.groups if g.stage in ALIVE or g.stage is Stage.DRAINING]
        self._tools.warmups.retain(self._key, live)
        self._tools.drains.retain(self._key, [g for g in live if g.stage is Stage.DRAINING])
        for group in self.groups:
            if group.stage is not Stage.WARMING or all(member.warm for member in group.members):
                continue
            self._tools.warmups.ensure(
                self._key,
                group,
                served_name=self._wish.spec.model.name,
                warmup=self._wish.spec.warmup,
                changed=self._changed,
            )
            seen = self._tools.warmups.observe(group)
            if seen is None:
                moved |= await self._limit_start(group)
                continue
            if seen.outcome is Outcome.SUCCEEDED and all(m.container_id for m in group.members):
                await self._tools.groups.mark_warm(group)
                await self._learn(group, seen.cache_blocks)
                moved = True
            elif seen.outcome is Outcome.FAILED:
                await self._tools.groups.mark_warmup_failed(group, seen.message)
                self.findings.notes.append((Reason.WARMUP_FAILED, f"{group.name}: {seen.message}"))
                moved = True
        return moved

    async def _learn(self, group: Group, blocks: int | None) -> None:
        """Remember what a warm engine reports of its cache, where it is not what its plan says."""
        wish = next((arm.wish for arm in self._arms if arm.wish.target.revision == group.revision), None)
        if wish is None or group.assignment is None or blocks is None:
            return
        found = wish.plan.evidence(group.assignment, blocks)
        if found is not None:
            product, record = found
            logger.info(
                "%s: %s reports %d cache blocks, planned %s", self._key, group.name, blocks, record.planned_blocks
            )
            await self._tools.children.record_evidence(wish.model, group.revision, gpu_product=product, record=record)

    async def _limit_start(self, group: Group) -> bool:
        """Give up a group whose container does not even start: its GPUs are somebody's who could use them."""
        head, limit = group.head, self._wish.spec.warmup.load_deadline_seconds
        if head.container_id is not None:
            return False
        bound = head.ungated_at or head.created
        left = limit - (self._tools.now() - bound).total_seconds()
        if left > 0:
            self.findings.waits.append(left + 0.1)
            return False
        message = f"the container did not start within {limit} s: {group.message or 'the node says nothing'}"
        await self._tools.groups.mark_warmup_failed(group, message)
        self.findings.notes.append((Reason.WARMUP_FAILED, f"{group.name}: {message}"))
        return True

    # --- children and timers ---------------------------------------------------------------------------------------

    async def _children(self) -> None:
        serving = [g for g in self.groups if g.stage is Stage.READY]
        if self.groups:
            # They were there before the first reservation; whoever deletes them gets new ones. The garbage collector
            # deletes them, too, and may do so before the model's own deletion is heard of.
            multi_node = any(len(group.members) > 1 for group in self.groups)
            revisions = {arm.wish.target.revision for arm in self._arms if not arm.wish.target.frozen}
            revisions &= {group.revision for group in self.groups}
            if self._tools.children.lacks(
                self._wish.model, multi_node=multi_node, revisions=revisions, serving=serving
            ):
                await self._tools.confirm(self._wish.model, self._wish.generation)
            await self._tools.children.ensure_services(self._wish.model, multi_node=multi_node)
            if not multi_node and not any(arm.wish.plan.multi_node for arm in self._arms):
                await self._tools.children.drop_ranks_service(self._wish.model)
            for arm in self._arms:
                if arm.wish.target.revision in revisions:
                    await arm.reserver.restore_snapshot()
        # A drain that is taken back passes through Warming, and the budget with it.
        others = [g for g in self.groups if g.stage in (Stage.DRAINING, Stage.WARMING) and not g.deleting]
        await self._tools.children.sync_budgets(self._wish.model, serving, others)

    def _note_waits(self, groups: tuple[Group, ...]) -> None:
        """Times at which a state changes without anybody writing."""
        now, limits = self._tools.now(), self._tools.limits
        for group in groups:
            age = (now - group.since).total_seconds()
            if group.stage is Stage.BINDING:
                self.findings.waits.append(max(0.0, limits.confirm_seconds - age) + 0.1)
            elif group.stage is Stage.RESERVED and group.missing_ranks:
                self.findings.waits.append(max(0.0, limits.incomplete_seconds - age) + 0.1)
            for name in {member.node for member in group.members if member.node is not None}:
                wait = self._tools.fleet.next_node_change_seconds(name)
                if wait is not None:
                    self.findings.waits.append(wait + 0.05)


_REASONS_OF_DEFECTS = {Defect.INCOMPLETE: Reason.RESERVING, Defect.UNCONFIRMED: Reason.UNSCHEDULABLE}


def _reason_of_removal(group: Group) -> Reason:
    if group.defect is not None:
        return _REASONS_OF_DEFECTS.get(group.defect, Reason.GROUP_BROKEN)
    if group.stage is Stage.FAILED:
        return Reason.WARMUP_FAILED if group.head.warmup_failed else Reason.ENGINE_FAILED
    return Reason.DRAINING
