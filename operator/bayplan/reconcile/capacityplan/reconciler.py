"""The CapacityPlan reconciler: decides on what the caches show, writes one status if it differs, reserves nothing."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from fractions import Fraction

from bayplan.api.capacityplan import CapacityPlanSpec
from bayplan.api.capacityplan_status import CapacityPlanStatus
from bayplan.api.conditions import ConditionType, Reason, merge_conditions
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.revision import revision_hash
from bayplan.api.validation import summarize
from bayplan.cluster.cache import Store
from bayplan.cluster.controller import Result
from bayplan.cluster.port import Port
from bayplan.cluster.resources import CAPACITY_PLANS, Key
from bayplan.planning.capacity.decide import CapacityDecision
from bayplan.planning.capacity.inputs import CapacityInputs, NamedModel
from bayplan.planning.capacity.plan import decide_capacity, next_change_seconds
from bayplan.planning.capacity.status import capacity_status
from bayplan.planning.evidencecontract.canary import CanaryResult
from bayplan.planning.groups.members import GroupLimits
from bayplan.planning.measurements import moment
from bayplan.planning.placement.topology import HOST, Topology
from bayplan.reconcile.acceptance import accept_model
from bayplan.reconcile.capacityplan.canary import canary_of
from bayplan.reconcile.capacityplan.view import PlanView, view_plan
from bayplan.reconcile.fleet import Fleet, NodeView
from bayplan.reconcile.inferencemodel.view import ModelView
from bayplan.reconcile.pods import PodView
from bayplan.reconcile.ports import EventSink, KeyQueue
from bayplan.reconcile.quotas import QuotaView
from bayplan.reconcile.rollout.view import RolloutView, deciding
from bayplan.reconcile.statuses import apply_status

Timed = tuple[CapacityDecision, float]
"""A decision, and the seconds of work that it took."""
Offload = Callable[[Callable[[], Timed]], Awaitable[Timed]]
FLEET_DELAY_SECONDS = 3.0
"""A burst of changes of the fleet is looked at once."""
REST_PER_WORK = 50
"""Plans that take long to decide are looked at less often: of a fleet in motion they get at most a fiftieth."""
AFTER_SECONDS = 0.05
"""An age is looked at just after it has passed its limit, never just before."""


class CapacityPlanReconciler:
    """Reconciles CapacityPlans. Reads only caches; needs `queue` set before use."""

    def __init__(
        self,
        port: Port,
        *,
        plans: Store[PlanView],
        models: Store[ModelView],
        rollouts: Store[RolloutView],
        fleet: Fleet,
        quotas: Store[QuotaView],
        topology: Topology,
        group_limits: GroupLimits,
        events: EventSink,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        offload: Offload = asyncio.to_thread,
    ) -> None:
        """`offload` runs a decision: placing a thousand replicas on a thousand nodes would hold up the event loop."""
        self._port = port
        self._plans = plans
        self._models = models
        self._rollouts = rollouts
        self._fleet = fleet
        self._quotas = quotas
        self._topology = topology
        self._limits = group_limits
        self._events = events
        self._now = now
        self._offload = offload
        self._pauses: dict[Key, float] = {}
        """How long a change of the fleet waits, where that is longer than usual."""
        self._waiting: set[Key] = set()
        """Plans that are to be looked at for a change of the fleet."""
        self.queue: KeyQueue | None = None
        plans.subscribe(self._plan_changed)
        models.subscribe(self._model_changed)
        rollouts.subscribe(self._rollout_changed)
        fleet.nodes.subscribe(self._node_changed)
        fleet.pods.subscribe(self._pod_changed)
        quotas.subscribe(lambda _old, _new: self._fleet_changed())

    def is_behind(self, key: Key) -> bool:
        """Whether the stored status is about an older spec than the present one, or about none."""
        view = self._plans.get(key)
        return view is not None and view.observed_generation != view.generation

    async def reconcile(self, key: Key) -> Result:
        """Decide one plan, and write its status if that differs from what stands."""
        self._waiting.discard(key)
        view = self._plans.get(key)
        if view is None or view.deleting:
            self._pauses.pop(key, None)
            return Result()
        previous, spec = view.read_status(), view.read_spec()
        if isinstance(spec, list):
            await self._write(view, previous, self._invalid(view, previous, summarize(spec)))
            return Result()
        inputs = self._inputs(view, spec)
        decision, seconds = await self._offload(lambda: _timed(inputs))
        self._pauses[key] = REST_PER_WORK * seconds
        status = capacity_status(decision, previous, generation=view.generation, now=self._now())
        await self._write(view, previous, status)
        wait = next_change_seconds(decision)
        return Result(requeue_after=None if wait is None else float(wait) + AFTER_SECONDS)

    def _inputs(self, view: PlanView, spec: CapacityPlanSpec) -> CapacityInputs:
        found = sorted(self._naming(view.key), key=lambda model: model.key.name)
        read = [(m, accept_model(m.read_spec(), name=m.key.name, topology=self._topology)) for m in found]
        models, canary, inventory = [], None, self._fleet.inventory()
        for model, parsed in read:
            if isinstance(parsed, InferenceModelSpec):
                revision = revision_hash(parsed)
                groups = self._fleet.groups_of(model.uid, self._limits)
                pods = sum(len(group.members) for group in groups)
                models.append(NamedModel(model.key.name, parsed, revision, own_pods=pods))
                if groups:
                    inventory = inventory.without_owners(group.key for group in groups)
                canary = canary or self._canary(model.key, revision)
        return CapacityInputs(
            spec=spec,
            models=tuple(models),
            inventory=inventory,
            now_seconds=_seconds(self._now()),
            quotas=[quota.quota for quota in self._quotas.values() if quota.key.namespace == view.key.namespace],
            canary=canary,
            refused=tuple(model.key.name for model, parsed in read if isinstance(parsed, list)),
            levels=frozenset({*self._topology, HOST}),
        )

    def _canary(self, model: Key, revision: str) -> CanaryResult | None:
        rollout = deciding(self._rollouts, model)
        spec = rollout.read_spec() if rollout is not None else []
        if rollout is None or isinstance(spec, list):
            return None
        return canary_of(spec, rollout.read_status(), revision)

    def _naming(self, plan: Key) -> list[ModelView]:
        """InferenceModels of the namespace that name the plan."""
        return [
            model
            for model in self._models.values()
            if model.capacity_plan == plan.name and model.key.namespace == plan.namespace and not model.deleting
        ]

    def _invalid(self, view: PlanView, previous: CapacityPlanStatus, message: str) -> CapacityPlanStatus:
        """A spec that cannot be read: the last numbers stay, and give no floor."""
        verdicts = [
            (ConditionType.INPUTS_COMPLETE, "False", Reason.INVALID_SPEC, message),
            (ConditionType.EVIDENCE_CURRENT, "False", Reason.EVIDENCE_MISSING, "the spec cannot be read"),
            (ConditionType.READY, "False", Reason.INVALID_SPEC, message),
            (ConditionType.STALLED, "True", Reason.INVALID_SPEC, message),
        ]
        conditions = merge_conditions(
            previous.conditions,
            verdicts,  # type: ignore[arg-type]
            generation=view.generation,
            now=self._now(),
        )
        update = {"observed_generation": view.generation, "floor": None, "conditions": conditions}
        return previous.model_copy(update=update)

    async def _write(self, view: PlanView, previous: CapacityPlanStatus, status: CapacityPlanStatus) -> None:
        if status == previous:
            return
        raw = await apply_status(self._port, CAPACITY_PLANS, view, status)
        if raw is None:
            return
        self._tell(view, previous, status)
        self._plans.put(view_plan(raw))

    def _tell(self, view: PlanView, previous: CapacityPlanStatus, status: CapacityPlanStatus) -> None:
        """One event per change of what Ready says."""
        ready = next(c for c in status.conditions if c.type == ConditionType.READY)
        before = next((c for c in previous.conditions if c.type == ConditionType.READY), None)
        if before is None or (before.status, before.reason) != (ready.status, ready.reason):
            warning = ready.status != "True"
            self._events.emit(view, reason=ready.reason, message=ready.message, warning=warning)

    # --- what wakes a plan up --------------------------------------------------------------------------------------

    def _enqueue(self, key: Key) -> None:
        if self.queue is not None:
            self.queue.enqueue(key)

    def _fleet_changed(self) -> None:
        if self.queue is None:
            return
        for key in self._plans.keys():  # noqa: SIM118 - a Store is no dict
            if key not in self._waiting:
                self._waiting.add(key)
                self.queue.enqueue_after(key, max(FLEET_DELAY_SECONDS, self._pauses.get(key, 0.0)))

    def _plan_changed(self, old: PlanView | None, new: PlanView | None) -> None:
        if new is not None and (old is None or old.generation != new.generation or self.is_behind(new.key)):
            self._enqueue(new.key)

    def _model_changed(self, old: ModelView | None, new: ModelView | None) -> None:
        if old is not None and new is not None and (old.generation, old.deleting) == (new.generation, new.deleting):
            return
        for model in (old, new):
            if model is not None and model.capacity_plan:
                self._enqueue(Key(model.key.namespace, model.capacity_plan))

    def _rollout_changed(self, old: RolloutView | None, new: RolloutView | None) -> None:
        """A Rollout counts what it sees every few seconds; only how trials ended matters here."""
        if old is not None and new is not None and _ended(old) == _ended(new):
            return
        for key in {view.model for view in (old, new) if view is not None}:
            model = self._models.get(key)
            if model is not None and model.capacity_plan:
                self._enqueue(Key(key.namespace, model.capacity_plan))

    def _node_changed(self, old: NodeView | None, new: NodeView | None) -> None:
        if old is None or new is None or old.node != new.node:
            self._fleet_changed()

    def _pod_changed(self, old: PodView | None, new: PodView | None) -> None:
        if _taken(old) != _taken(new):
            self._fleet_changed()


def _ended(rollout: RolloutView) -> tuple[object, ...]:
    """What `canary_of` reads of a Rollout."""
    status = rollout.read_status()
    stage = status.stage
    gates = [(gate.name, gate.workload_class, gate.outcome) for gate in status.gates]
    frozen = (stage.started_time, status.trial) if stage is not None and stage.frozen_by else None
    return rollout.generation, rollout.model, status.history, status.rejected, status.proven, frozen, gates


def _taken(pod: PodView | None) -> tuple[object, ...] | None:
    """What a pod takes from the fleet, as far as it changes what others find free."""
    if pod is None or pod.terminal:
        return None
    assigned = pod.member.assignment if pod.member is not None else None
    return pod.node, pod.gpus, pod.cpu_millis, pod.memory_bytes, assigned


def _timed(inputs: CapacityInputs) -> Timed:
    began = time.thread_time()
    decision = decide_capacity(inputs)
    return decision, time.thread_time() - began


def _seconds(now: datetime) -> Fraction:
    return moment(now.timestamp())
