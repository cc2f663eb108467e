"""One operator process in a test: caches of its own, fed by hand from a `FakeApi`, and the real reconciler."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bayplan.cluster.cache import Store, object_key, version_number
from bayplan.cluster.clock import sleep
from bayplan.cluster.controller import Result
from bayplan.cluster.errors import ApiError
from bayplan.cluster.port import Port
from bayplan.cluster.resources import (
    CAPACITY_PLANS,
    CONTROLLER_REVISIONS,
    INFERENCE_MODELS,
    LEASES,
    NODES,
    PDBS,
    PODS,
    RESOURCE_QUOTAS,
    ROLLOUTS,
    SERVICES,
    Key,
    Resource,
)
from bayplan.reconcile.capacityplan.reconciler import CapacityPlanReconciler, Timed
from bayplan.reconcile.capacityplan.view import PlanView, plan_store, view_plan
from bayplan.reconcile.fleet import Fleet, FleetLimits, node_store, pod_store, view_node
from bayplan.reconcile.gateways import Gateways, gateway_store, view_gateway
from bayplan.reconcile.inferencemodel.children import ChildWriter, child_store, view_child
from bayplan.reconcile.inferencemodel.reconciler import InferenceModelReconciler, ReconcileSettings
from bayplan.reconcile.inferencemodel.view import ModelView, view_model
from bayplan.reconcile.pods import view_pod
from bayplan.reconcile.qualityruns import QualityRuns
from bayplan.reconcile.quotas import view_quota
from bayplan.reconcile.rollout.reconciler import RolloutReconciler
from bayplan.reconcile.rollout.stored import seconds_of
from bayplan.reconcile.rollout.view import RolloutView, rollout_store, view_rollout
from bayplan.telemetry.engine import EnginePort
from bayplan.telemetry.prompts import PromptPort
from bayplan.telemetry.rolloutcounts import CountsPort
from bayplan.telemetry.sources import MetricsPort
from tests.fakes.api import FakeApi
from tests.fakes.clock import FakeClock
from tests.reconcile.engines import FakeCounts, FakeMetrics, FakePrompts

BASE = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
RETRY_SECONDS = 1.0
HOME = "system"
"""The operator's own namespace."""


def wall_clock(clock: FakeClock) -> Callable[[], datetime]:
    """Date and time that move with a fake clock."""
    start = clock.time()
    return lambda: BASE + timedelta(seconds=clock.time() - start)


@dataclass(frozen=True, slots=True)
class EmittedEvent:
    key: Key
    reason: str
    message: str
    warning: bool


class Events:
    def __init__(self) -> None:
        self.emitted: list[EmittedEvent] = []

    def emit(self, view: ModelView | RolloutView, *, reason: str, message: str, warning: bool) -> None:
        self.emitted.append(EmittedEvent(view.key, reason, message, warning))

    def reasons(self) -> list[str]:
        return [event.reason for event in self.emitted]


class Operator:
    """`load` fills the caches as the start barrier does; `deliver` moves them on; `step` reconciles what is queued.

    `port` may stand between the reconciler and the API; the caches are always read from `api`.
    """

    def __init__(
        self,
        api: FakeApi,
        clock: FakeClock,
        engine: EnginePort,
        *,
        now: Callable[[], datetime],
        metrics: MetricsPort | None = None,
        port: Port | None = None,
        seed: int = 0,
        settings: ReconcileSettings | None = None,
        counts: CountsPort | None = None,
        prompts: PromptPort | None = None,
    ) -> None:
        port = port or api
        self.events = Events()
        self.errors: list[Exception] = []
        self.queued: dict[Key, None] = {}
        self.queued_rollouts: dict[Key, None] = {}
        self.queued_plans: dict[Key, None] = {}
        self.requeue_after: dict[Key, float | None] = {}
        self._api = api
        self._clock = clock
        self.models: Store[Any] = Store(INFERENCE_MODELS)
        self.pods, self.nodes = pod_store(), node_store()
        quotas: Store[Any] = Store(RESOURCE_QUOTAS)
        services, budgets, revisions = (child_store(r) for r in (SERVICES, PDBS, CONTROLLER_REVISIONS))
        self.revisions = revisions
        leases = gateway_store()
        self.rollouts = rollout_store()
        self.plans = plan_store()
        self._feeds: dict[Resource, tuple[Store[Any], Callable[[Any], Any]]] = {
            NODES: (self.nodes, view_node),
            RESOURCE_QUOTAS: (quotas, view_quota),
            INFERENCE_MODELS: (self.models, view_model),
            ROLLOUTS: (self.rollouts, view_rollout),
            CAPACITY_PLANS: (self.plans, view_plan),
            PODS: (self.pods, view_pod),
            SERVICES: (services, view_child),
            PDBS: (budgets, view_child),
            CONTROLLER_REVISIONS: (revisions, view_child),
            LEASES: (leases, view_gateway),
        }
        self._seen: dict[Resource, int] = {}
        self._closed = False
        fleet = Fleet(
            nodes=self.nodes,
            pods=self.pods,
            is_ours=lambda uid: bool(uid) and self.models.by_uid(uid) is not None,
            now=now,
            limits=FleetLimits(),
        )
        self.fleet = fleet
        children = ChildWriter(port, services=services, budgets=budgets, revisions=revisions)
        gateways = Gateways(leases, self.pods, home=HOME, clock=clock.time)
        self.reconciler = InferenceModelReconciler(
            port,
            models=self.models,
            fleet=fleet,
            quotas=quotas,
            children=children,
            rollouts=self.rollouts,
            plans=self.plans,
            engine=engine,
            metrics=metrics or FakeMetrics(clock.time),
            gateways=gateways,
            events=self.events,
            settings=settings or ReconcileSettings(),
            now=now,
            clock=clock.time,
            sleep=lambda seconds: sleep(clock, seconds),
            seed=seed,
        )
        self.reconciler.queue = self
        self.promoter = RolloutReconciler(
            port,
            rollouts=self.rollouts,
            models=self.models,
            fleet=fleet,
            quotas=quotas,
            children=children,
            gateways=gateways,
            leases=leases,
            counts=counts or FakeCounts(now),
            engine=engine,
            quality=QualityRuns(
                prompts or FakePrompts(),
                now_seconds=lambda: seconds_of(now()),
                sleep=lambda seconds: sleep(clock, seconds),
            ),
            events=self.events,
            settings=settings or ReconcileSettings(),
            now=now,
            sleep=lambda seconds: sleep(clock, seconds),
        )
        self.promoter_queue = RolloutQueue(self)
        self.promoter.queue = self.promoter_queue

        self.plan_events: list[tuple[str, str]] = []
        self.planner = CapacityPlanReconciler(
            port,
            plans=self.plans,
            models=self.models,
            rollouts=self.rollouts,
            fleet=fleet,
            quotas=quotas,
            topology=(settings or ReconcileSettings()).topology,
            group_limits=(settings or ReconcileSettings()).group_limits,
            events=self,
            now=now,
            offload=decide_here,
        )
        self.planner.queue = PlanQueue(self, clock)

    def emit(self, view: PlanView, *, reason: str, message: str, warning: bool) -> None:
        """Take an event about a CapacityPlan."""
        self.plan_events.append((reason, message))

    # --- the queue as the reconciler sees it -----------------------------------------------------------------------

    def enqueue(self, key: Key) -> None:
        self.queued[key] = None

    def enqueue_after(self, key: Key, seconds: float) -> None:
        def due() -> None:
            if not self._closed:
                self.enqueue(key)

        self._clock.call_later(seconds, due)

    # --- caches ----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """List everything, then queue every model."""
        for resource, (store, view) in self._feeds.items():
            for raw in self._api.objects(resource):
                store.put(view(raw))
            store.advance(self._api.version)
            self._seen[resource] = self._api.version
        for model in self.models.values():
            self.enqueue(model.key)
        for rollout in self.rollouts.values():
            self.queued_rollouts[rollout.key] = None
        for plan in self.plans.values():
            self.queued_plans[plan.key] = None

    def deliver(self, resource: Resource | None = None, *, limit: int | None = None) -> int:
        """Feed up to `limit` waiting watch events, of one resource or of all; return how many there were."""
        count = 0
        for kind in self._feeds if resource is None else (resource,):
            for event in self._api.changes(kind, self._seen[kind])[:limit]:
                self._take(kind, event.type, event.object)
                count += 1
        return count

    def _take(self, resource: Resource, kind: str, raw: dict[str, Any]) -> None:
        store, view = self._feeds[resource]
        version = version_number(raw["metadata"]["resourceVersion"])
        if kind == "DELETED":
            store.discard(object_key(raw), raw["metadata"]["uid"], version)
        else:
            store.put(view(raw))
        store.advance(version)
        self._seen[resource] = version

    # --- work ------------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> None:
        """Reconcile one key as the controller would, failures and requests to come back included.

        A model's first pass writes its first status and asks to come back at once: that is done here, too.
        """
        self.queued.pop(key, None)
        try:
            result = await self.reconciler.reconcile(key)
            if result.requeue_after == 0:
                result = await self.reconciler.reconcile(key)
        except Exception as error:
            self.errors.append(error)
            result = Result(requeue_after=RETRY_SECONDS)
            if not isinstance(error, ApiError):
                raise
        self.requeue_after[key] = result.requeue_after
        if result.requeue_after == 0:
            self.enqueue(key)
        elif result.requeue_after is not None:
            self.enqueue_after(key, result.requeue_after)

    async def promote(self, key: Key) -> None:
        """Reconcile one Rollout as the controller would."""
        self.queued_rollouts.pop(key, None)
        try:
            result = await self.promoter.reconcile(key)
        except ApiError as error:
            self.errors.append(error)
            result = Result(requeue_after=RETRY_SECONDS)
        if result.requeue_after == 0:
            self.queued_rollouts[key] = None
        elif result.requeue_after is not None:
            self._clock.call_later(result.requeue_after, lambda: self.promoter_queue.enqueue(key))

    async def plan(self, key: Key) -> None:
        """Reconcile one CapacityPlan as the controller would."""
        self.queued_plans.pop(key, None)
        result = await self.planner.reconcile(key)
        if result.requeue_after is not None:
            PlanQueue(self, self._clock).enqueue_after(key, result.requeue_after)

    async def step(self) -> bool:
        """Deliver what waits and reconcile what is queued, once; return whether there was anything."""
        delivered = self.deliver()
        keys, rollouts, plans = list(self.queued), list(self.queued_rollouts), list(self.queued_plans)
        for key in plans:
            await self.plan(key)
        for key in keys:
            await self.reconcile(key)
        for key in rollouts:
            await self.promote(key)
        return bool(delivered or keys or rollouts or plans)

    @property
    def closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        self._closed = True
        await self.promoter.close()
        await self.reconciler.close()


class RolloutQueue:
    """The queue of Rollouts as their reconciler sees it."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def enqueue(self, key: Key) -> None:
        if not self._operator.closed:
            self._operator.queued_rollouts[key] = None


async def decide_here(decide: Callable[[], Timed]) -> Timed:
    """A thread would need real time."""
    return decide()


class PlanQueue:
    """The queue of CapacityPlans as their reconciler sees it."""

    def __init__(self, operator: Operator, clock: FakeClock) -> None:
        self._operator = operator
        self._clock = clock

    def enqueue(self, key: Key) -> None:
        if not self._operator.closed:
            self._operator.queued_plans[key] = None

    def enqueue_after(self, key: Key, seconds: float) -> None:
        self._clock.call_later(seconds, lambda: self.enqueue(key))
