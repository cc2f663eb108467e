"""The Rollout reconciler: look at pods, Leases and counts, decide once, write status once, only if it changed.

All state is in the status. While a Rollout is at work it is looked at again after each measurement and at the times at
which something changes by itself; at rest nothing is measured and nothing written.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.rolloutwords import Phase
from bayplan.api.validation import summarize
from bayplan.cluster.cache import Store
from bayplan.cluster.controller import Result
from bayplan.cluster.port import Port
from bayplan.cluster.resources import ROLLOUTS, Key
from bayplan.planning.gates.promptset import PromptSet
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.machine import decide
from bayplan.reconcile.fleet import Fleet
from bayplan.reconcile.gateways import Gateways, GatewayView
from bayplan.reconcile.inferencemodel.children import ChildWriter
from bayplan.reconcile.inferencemodel.reconciler import ReconcileSettings
from bayplan.reconcile.inferencemodel.revisions import Revisions
from bayplan.reconcile.inferencemodel.view import ModelView
from bayplan.reconcile.pods import PodView
from bayplan.reconcile.ports import EventSink, KeyQueue
from bayplan.reconcile.qualityruns import QualityRuns
from bayplan.reconcile.quotas import QuotaView
from bayplan.reconcile.rollout import waiting
from bayplan.reconcile.rollout.describe import Verdict, build_status, news_of, waiting_status
from bayplan.reconcile.rollout.observer import Case, Observer, RolledModel
from bayplan.reconcile.rollout.sampling import Memory, RolloutSampler
from bayplan.reconcile.rollout.stored import policy_of, seconds_of, state_of
from bayplan.reconcile.rollout.view import RolloutView, rollouts_of, view_rollout
from bayplan.reconcile.rollout.world import (
    next_time,
    seen_of,
    with_known_rejections,
)
from bayplan.reconcile.statuses import apply_status
from bayplan.telemetry.engine import EnginePort
from bayplan.telemetry.rolloutcounts import CountsPort

_AT_REST = (Phase.STEADY, Phase.ROLLED_BACK)


class RolloutReconciler:
    """Reconciles Rollouts. Reads caches and what was measured; writes status alone; needs `queue` set before use."""

    def __init__(
        self,
        port: Port,
        *,
        rollouts: Store[RolloutView],
        models: Store[ModelView],
        fleet: Fleet,
        quotas: Store[QuotaView],
        children: ChildWriter,
        gateways: Gateways,
        leases: Store[GatewayView],
        counts: CountsPort,
        engine: EnginePort,
        quality: QualityRuns,
        events: EventSink,
        settings: ReconcileSettings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._port = port
        self._rollouts = rollouts
        self._models = models
        self._events = events
        self._quality = quality
        self._now = now
        self._observer = Observer(
            rollouts=rollouts,
            models=models,
            fleet=fleet,
            quotas=quotas,
            gateways=gateways,
            revisions=Revisions(fleet, children),
            quality=quality,
            limits=settings.group_limits,
            changed=self._enqueue,
            now=now,
        )
        self._sampler = RolloutSampler(
            counts,
            engine,
            port,
            now_seconds=lambda: seconds_of(now()),
            sleep=sleep,
            pace_seconds=settings.rollout_seconds,
        )
        self._seen: dict[str, tuple[object, ...]] = {}
        """Per uid of a model: what of its pods was there when its Rollouts were last woken for them."""
        self.queue: KeyQueue | None = None
        rollouts.subscribe(self._rollout_changed)
        models.subscribe(self._model_changed)
        fleet.pods.subscribe(self._pod_changed)
        leases.subscribe(self._lease_changed)

    def is_behind(self, key: Key) -> bool:
        """Whether the stored status is about an older spec than the present one, or about none."""
        view = self._rollouts.get(key)
        return view is not None and view.read_status().observed_generation != view.generation

    async def close(self) -> None:
        """End background work."""
        await self._sampler.close()
        await self._quality.close()

    # --- reconcile -------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> Result:
        """Make at most one decision for one Rollout."""
        view = self._rollouts.get(key)
        if view is None:
            self._forget(key)
            return Result()
        status, spec = view.read_status(), view.read_spec()
        if not isinstance(spec, RolloutSpec):
            return await self._wait(view, status, waiting.invalid(summarize(spec)), keeps_plan=True)
        return await self._follow(view, status, spec)

    async def _follow(self, view: RolloutView, status: RolloutStatus, spec: RolloutSpec) -> Result:
        """Decide, if this Rollout has the say over a model that is there and asks for one."""
        others = rollouts_of(self._rollouts, view.model)
        if others and others[0].uid != view.uid:
            return await self._wait(view, status, waiting.another(others[0].key.name), keeps_plan=False)
        model_view = self._models.get(view.model)
        if model_view is None:
            return await self._wait(view, status, waiting.no_model(view.model.name), keeps_plan=False)
        model = self._observer.model(model_view)
        if model is None:
            # Woken again by the model's own status.
            return Result()
        if model.spec.update != "Rollout":
            return await self._wait(view, status, waiting.plain(view.model.name), keeps_plan=False)
        return await self._act(view, status, spec, model)

    async def _act(self, view: RolloutView, status: RolloutStatus, spec: RolloutSpec, model: RolledModel) -> Result:
        state = state_of(status) if status.model_uid == model.view.uid else None
        if state is None:
            served = model.status.revisions.serving
            if len(served) > 1:
                return await self._wait(view, status, waiting.replacing(served), keeps_plan=False)
            status = RolloutStatus(history=status.history, conditions=status.conditions)
        memory = Memory(view.uid)
        if state is not None and state.phase not in _AT_REST:
            memory = self._sampler.ensure(
                view.key, view.uid, ask=lambda: self._observer.round(view.key), changed=lambda: self._enqueue(view.key)
            )
            if spec.prompt_set is not None and memory.prompts is None:
                # Another digest of the prompts would start the stage again: woken by the first measurement.
                return Result()
        prompts = memory.prompts if isinstance(memory.prompts, PromptSet) else None
        try:
            policy = policy_of(spec, prompt_set=None if prompts is None else prompts.digest)
        except InvalidInput as error:
            return await self._wait(view, status, waiting.invalid(f"spec.{error}"), keeps_plan=True)
        looked_at = memory.look
        case = Case(view, status, spec, policy, state, model, memory, prompts)
        world = self._observer.world(case)
        decision = decide(policy, state, world, rollout_uid=view.uid)
        if state is None:
            decision = with_known_rejections(decision, model.status, now_seconds=world.now_seconds)
        after = build_status(
            decision,
            status,
            policy,
            world,
            generation=view.generation,
            model_generation=model.view.generation,
            model_uid=model.view.uid,
            now=self._now(),
        )
        await self._write(view, status, after)
        memory.counted = looked_at
        if decision.state.phase in _AT_REST:
            self._forget(view.key)
        again = state is None or (decision.state.phase, decision.state.stage) != (state.phase, state.stage)
        return Result(requeue_after=0 if again else next_time(decision.state, policy, world.now_seconds))

    # --- writing ---------------------------------------------------------------------------------------------------

    async def _wait(
        self, view: RolloutView, status: RolloutStatus, verdicts: Sequence[Verdict], *, keeps_plan: bool
    ) -> Result:
        """Say why nothing is decided."""
        self._forget(view.key)
        after = waiting_status(status, verdicts, generation=view.generation, keeps_plan=keeps_plan, now=self._now())
        await self._write(view, status, after)
        return Result()

    async def _write(self, view: RolloutView, before: RolloutStatus, after: RolloutStatus) -> None:
        if after == view.read_status():
            return
        raw = await apply_status(self._port, ROLLOUTS, view, after)
        if raw is None:
            return
        for reason, message, warning in news_of(before, after):
            self._events.emit(view, reason=reason, message=message, warning=warning)
        self._rollouts.put(view_rollout(raw))

    # --- what wakes a Rollout up -----------------------------------------------------------------------------------

    def _enqueue(self, key: Key) -> None:
        if self.queue is not None:
            self.queue.enqueue(key)

    def _rollout_changed(self, old: RolloutView | None, new: RolloutView | None) -> None:
        if old is None or new is None:
            # Another one may have the say from now on.
            for view in filter(None, (old, new)):
                self._wake(view.model)
        if new is None:
            if old is not None:
                self._forget(old.key)
        elif old is None or old.generation != new.generation or old.deleting != new.deleting:
            self._enqueue(new.key)

    def _wake(self, model: Key) -> None:
        for view in rollouts_of(self._rollouts, model):
            self._enqueue(view.key)

    def _model_changed(self, old: ModelView | None, new: ModelView | None) -> None:
        """A model's status tells of every step of a start; only what a decision reads of it matters here."""
        if new is None and old is not None:
            self._seen.pop(old.uid, None)
        view = new or old
        if view is None or not rollouts_of(self._rollouts, view.key):
            return
        if old is None or new is None or _asked_of(old) != _asked_of(new):
            self._wake(view.key)

    def _pod_changed(self, old: PodView | None, new: PodView | None) -> None:
        pod = new or old
        owner = self._models.by_uid(pod.member.owner_uid or "") if pod is not None and pod.member is not None else None
        if owner is None or not rollouts_of(self._rollouts, owner.key):
            return
        seen = seen_of(self._observer.groups(owner))
        if self._seen.get(owner.uid) != seen:
            self._seen[owner.uid] = seen
            self._wake(owner.key)

    def _lease_changed(self, old: GatewayView | None, new: GatewayView | None) -> None:
        """A renewal alone is no news; a gateway that comes or goes is, and another epoch, to the Rollout of it."""
        stays = old is not None and new is not None and old.pod == new.pod
        before, after = old.epochs if old is not None else {}, new.epochs if new is not None else {}
        for view in self._rollouts.values():
            if not stays or before.get(view.uid) != after.get(view.uid):
                self._enqueue(view.key)

    def _forget(self, key: Key) -> None:
        self._sampler.forget(key)
        self._quality.retain(key, (), None)


def _asked_of(view: ModelView) -> tuple[object, ...]:
    """What a Rollout reads of its model, its pods apart."""
    status = view.read_status()
    return (
        view.uid,
        view.generation,
        view.observed_generation,
        status.revisions,
        status.desired_replicas,
        status.evidence,
    )
