"""The InferenceModel reconciler: from a key to the right pods, and one status write at the end if anything changed."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import InferenceModelStatus, Stage
from bayplan.api.revision import revision_hash, template_hash
from bayplan.api.validation import FieldError, summarize
from bayplan.cluster.cache import Store
from bayplan.cluster.controller import Result
from bayplan.cluster.errors import NotFound
from bayplan.cluster.port import Port
from bayplan.cluster.resources import INFERENCE_MODELS, Key
from bayplan.planning.groups.members import GroupLimits
from bayplan.planning.groups.replicas import Backoff
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY, Topology
from bayplan.reconcile.acceptance import accept_model
from bayplan.reconcile.capacityplan.guidance import PlanGuidance, guide
from bayplan.reconcile.capacityplan.view import PlanView
from bayplan.reconcile.fleet import BY_MODEL, Fleet
from bayplan.reconcile.gateways import Gateways
from bayplan.reconcile.inferencemodel.children import ChildWriter
from bayplan.reconcile.inferencemodel.course import Course, course_of, unused_candidate
from bayplan.reconcile.inferencemodel.drain import DrainTracker
from bayplan.reconcile.inferencemodel.groups import GroupWriter, WorldChangedError
from bayplan.reconcile.inferencemodel.inspection import Inspector
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity, endpoint
from bayplan.reconcile.inferencemodel.modelpass import ModelPass
from bayplan.reconcile.inferencemodel.release import Rechecker
from bayplan.reconcile.inferencemodel.revisions import Revisions
from bayplan.reconcile.inferencemodel.status import Situation, build_status, invalid_status
from bayplan.reconcile.inferencemodel.statuswriter import Standing, StatusWriter, is_warning
from bayplan.reconcile.inferencemodel.tools import Tools, Wish
from bayplan.reconcile.inferencemodel.view import ModelView, view_model
from bayplan.reconcile.inferencemodel.waking import Waker, is_behind
from bayplan.reconcile.inferencemodel.warmup import WarmupTracker
from bayplan.reconcile.pods import PodView
from bayplan.reconcile.ports import EventSink, KeyQueue
from bayplan.reconcile.quotas import QuotaView
from bayplan.reconcile.rollout.view import RolloutView, deciding
from bayplan.reconcile.scaling.autoscaler import Autoscaler, ScalingPlan
from bayplan.telemetry.engine import EnginePort
from bayplan.telemetry.sources import MetricsPort

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """What the operator's configuration decides for reconciling."""

    topology: Topology = field(default_factory=lambda: DEFAULT_TOPOLOGY)
    group_limits: GroupLimits = field(default_factory=GroupLimits)
    backoff: Backoff = field(default_factory=Backoff)
    rollout_seconds: float = 5.0
    """Time between two looks at what a candidate does."""


@dataclass(slots=True)
class _Known:
    """What was worked out for one generation of a spec; parsing and hashing are not repeated for each pod event."""

    generation: int
    parsed: InferenceModelSpec | list[FieldError]
    revision: str = ""
    template: str = ""


class InferenceModelReconciler:
    """Reconciles InferenceModels. Reads only caches; writes through the port; needs `queue` set before use."""

    def __init__(
        self,
        port: Port,
        *,
        models: Store[ModelView],
        fleet: Fleet,
        quotas: Store[QuotaView],
        children: ChildWriter,
        rollouts: Store[RolloutView],
        plans: Store[PlanView],
        engine: EnginePort,
        metrics: MetricsPort,
        gateways: Gateways,
        events: EventSink,
        settings: ReconcileSettings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        seed: int | None = None,
    ) -> None:
        self._port = port
        self._models = models
        self._fleet = fleet
        self._rollouts = rollouts
        self._plans = plans
        self._revisions = Revisions(fleet, children)
        self._events = events
        self._statuses = StatusWriter(port, models, events, now=now)
        self._settings = settings
        self._now = now
        self._known: dict[str, _Known] = {}
        self._strangers: set[str] = set()
        self._tools = Tools(
            fleet=fleet,
            groups=GroupWriter(port, fleet, now=now),
            children=children,
            inspector=Inspector(port, fleet, children),
            rechecker=Rechecker(port, topology=settings.topology),
            warmups=WarmupTracker(engine, now=now, sleep=sleep),
            drains=DrainTracker(engine, acknowledged=gateways.acknowledged, now=now, sleep=sleep),
            quotas=quotas,
            limits=settings.group_limits,
            backoff=settings.backoff,
            now=now,
            random=random.Random(seed),
            confirm=self._confirm,
        )
        self._autoscaler = Autoscaler(
            metrics,
            gateways=gateways,
            fleet=fleet,
            limits=settings.group_limits,
            clock=clock,
            now=now,
            sleep=sleep,
        )
        models.subscribe(self._model_gone)
        fleet.pods.subscribe(self._pod_gone)
        self._waker = Waker(
            models=models,
            fleet=fleet,
            quotas=quotas,
            children=children,
            rollouts=rollouts,
            plans=plans,
            holds=self._tools.holds,
        )

    @property
    def queue(self) -> KeyQueue | None:
        """Where models are queued that are to be reconciled."""
        return self._waker.queue

    @queue.setter
    def queue(self, queue: KeyQueue) -> None:
        self._waker.queue = queue

    def owns(self, uid: str) -> bool:
        """Whether a uid is that of an InferenceModel: only then do a pod's annotations count as a reservation."""
        return bool(uid) and self._models.by_uid(uid) is not None

    def is_behind(self, key: Key) -> bool:
        """Whether the stored status is about an older spec than the present one, or about none."""
        view = self._models.get(key)
        return view is not None and is_behind(view)

    async def close(self) -> None:
        """End background work."""
        await self._autoscaler.close()
        await self._tools.warmups.close()
        await self._tools.drains.close()
        await self._tools.rechecker.close()

    # --- reconcile -------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> Result:
        """Bring one model closer to its spec."""
        view = self._models.get(key)
        if view is None or view.deleting:
            self._forget(key, view)
            return Result()
        known = self._read(view)
        if isinstance(known.parsed, list):
            standing = Standing(view)
            message = summarize(known.parsed)
            groups = self._fleet.groups_of(view.uid, self._settings.group_limits)
            status = invalid_status(message, standing.status, groups, generation=view.generation, now=self._now())
            await self._statuses.write(standing, status)
            return Result()
        return await self._act(Standing(view), known, known.parsed)

    async def _act(self, standing: Standing, known: _Known, spec: InferenceModelSpec) -> Result:
        view = standing.view
        guidance = self._guidance(view, spec, standing.status)
        rollout = deciding(self._rollouts, view.key)
        scaling = guidance.applied(
            self._autoscaler.plan(
                view.key,
                view.uid,
                guidance.spec,
                standing.status,
                unused=unused_candidate(rollout, model_uid=view.uid),
                changed=lambda: self._waker.enqueue(view.key),
            )
        )
        course = course_of(
            known.revision,
            spec,
            standing.status.revisions,
            rollout,
            model_uid=view.uid,
            desired=scaling.replicas,
            number=lambda revision: self._tools.children.revision_number(view.identity, revision),
        )
        wishes = self._revisions.wishes(
            view, spec, revision=known.revision, template=known.template, arms=course.arms, scaling=scaling
        )
        work = ModelPass(self._tools, wishes, course.arms, view.key, changed=lambda: self._waker.enqueue(view.key))
        if not standing.status.conditions and wishes[0].target.replicas:
            # A GitOps tool takes an object without a status for done. Reserving takes many requests: in a burst every
            # model gets its first status before the first of them is placed.
            await self._statuses.write(standing, self._status(standing, course, wishes[0], work))
            return Result(requeue_after=0)
        if _is_new_target(standing.status, scaling):
            # What is decided is written before it is done: who is restarted in between goes on with it.
            update = {"scaling": scaling.status, "desired_replicas": scaling.replicas}
            standing = await self._statuses.write(standing, standing.status.model_copy(update=update))
            self._tell_scaling(view, scaling)
        await work.run()
        for reason, message in work.findings.notes:
            self._events.emit(view, reason=reason, message=message, warning=is_warning(reason))
        self._report_strangers(view)
        status = self._status(standing, course, wishes[0], work)
        if status.pending_replicas or work.findings.blocker is not None or work.side_blocker is not None:
            self._waker.pending.add(view.key)
        else:
            self._waker.pending.discard(view.key)
        unwritten = await self._statuses.write_in_time(standing, status)
        if work.findings.error is not None:
            raise work.findings.error
        waits = [*work.findings.waits, *(() if unwritten is None else (unwritten,))]
        return Result(requeue_after=min(waits, default=None))

    async def _confirm(self, model: ModelIdentity, generation: int) -> None:
        """Look whether the model is still there and still asks for this.

        Its pods may be collected, and seen to be gone, before its own deletion is heard of on another stream: without
        this read a deleted model would get new pods.
        """
        try:
            live = view_model(await self._port.get(INFERENCE_MODELS, model.namespace, model.name))
        except NotFound:
            raise WorldChangedError(f"model {model.name} is gone") from None
        self._models.put(live)
        if live.uid != model.uid or live.deleting:
            raise WorldChangedError(f"model {model.name} is gone")
        if live.generation != generation:
            raise WorldChangedError(f"the spec of model {model.name} has just changed")

    def _status(self, standing: Standing, course: Course, wish: Wish, work: ModelPass) -> InferenceModelStatus:
        view = standing.view
        situation = Situation(
            model=view.identity,
            generation=view.generation,
            spec=wish.spec,
            target=wish.target,
            plan=wish.plan,
            groups=work.groups,
            course=course,
            desired=wish.scaling.replicas,
            blocker=work.findings.blocker,
            side_blocker=work.side_blocker,
            moving_nodes=self._fleet.moving_nodes(),
            scaling=wish.scaling.status,
            scaling_verdict=wish.scaling.verdict,
            capacity=wish.scaling.capacity,
            endpoint=endpoint(wish.model) if self._tools.children.has_service(wish.model) else "",
            warming={
                group.name: seen
                for group in work.groups
                if group.stage is Stage.WARMING and (seen := self._tools.warmups.observe(group)) is not None
            },
        )
        return build_status(situation, standing.status, now=self._now())

    def _guidance(self, view: ModelView, spec: InferenceModelSpec, status: InferenceModelStatus) -> PlanGuidance:
        """What the CapacityPlan that the spec names gives; nothing is read where it names none."""
        if spec.capacity_plan_ref is None:
            return PlanGuidance(spec)
        plan = self._plans.get(Key(view.key.namespace, spec.capacity_plan_ref.name))
        if plan is None:
            return guide(spec, status.capacity, None)
        return guide(spec, status.capacity, plan.read_status(), plan_generation=plan.generation)

    def _tell_scaling(self, view: ModelView, scaling: ScalingPlan) -> None:
        status = scaling.status
        if status is not None and status.last_scale_time is not None:
            self._events.emit(view, reason=status.reason.value, message=status.message, warning=False)

    def _read(self, view: ModelView) -> _Known:
        known = self._known.get(view.uid)
        if known is not None and known.generation == view.generation:
            return known
        parsed = accept_model(view.read_spec(), name=view.key.name, topology=self._settings.topology)
        known = _Known(generation=view.generation, parsed=parsed)
        if isinstance(parsed, InferenceModelSpec):
            known.revision, known.template = revision_hash(parsed), template_hash(parsed)
        self._known[view.uid] = known
        return known

    def _report_strangers(self, view: ModelView) -> None:
        """Pods with our labels for this model but another owner are reported once, and never adopted."""
        for pod in self._fleet.pods.by_index(BY_MODEL, f"{view.key.namespace}/{view.key.name}"):
            member = pod.member
            if member is None or member.owner_uid == view.uid or self.owns(member.owner_uid or ""):
                continue
            if pod.uid not in self._strangers:
                self._strangers.add(pod.uid)
                message = f"pod {pod.key.name} carries this model's labels but is not owned by it: ignored"
                self._events.emit(view, reason="ForeignPod", message=message, warning=True)

    def _model_gone(self, old: ModelView | None, new: ModelView | None) -> None:
        if new is None and old is not None:
            self._forget(old.key, old)

    def _pod_gone(self, old: PodView | None, new: PodView | None) -> None:
        if new is None and old is not None:
            self._strangers.discard(old.uid)

    def _forget(self, key: Key, view: ModelView | None) -> None:
        self._waker.pending.discard(key)
        self._autoscaler.forget(key)
        self._tools.warmups.retain(key, ())
        self._tools.drains.retain(key, ())
        if view is not None:
            self._known.pop(view.uid, None)
            self._revisions.forget(view.uid)
            self._tools.forget(view.uid)
            self._statuses.forget(view.uid)


def _is_new_target(status: InferenceModelStatus, scaling: ScalingPlan) -> bool:
    """Whether autoscaling has decided on another number than the stored status says."""
    if scaling.status is None:
        return False
    return status.scaling is None or status.scaling.desired_replicas != scaling.replicas
