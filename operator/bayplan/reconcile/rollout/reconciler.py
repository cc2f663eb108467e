"""The Rollout reconciler: look at pods, Leases and counts, decide once, write status once, only if it changed.

All state is in the status. While a Rollout is at work it is looked at again after each measurement and at the times at
which something changes by itself; at rest nothing is measured and nothing written.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Protocol

from bayplan.api import names
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.rolloutwords import CapacityMode, Phase
from bayplan.api.validation import parse_spec, summarize
from bayplan.cluster.cache import Store
from bayplan.cluster.controller import Result
from bayplan.cluster.errors import NotFound
from bayplan.cluster.port import Port
from bayplan.cluster.resources import ROLLOUTS, Key
from bayplan.planning.gates.promptset import PromptSet
from bayplan.planning.gates.quality import QualityCounts
from bayplan.planning.members import Group
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.machine import decide
from bayplan.planning.rollout.observing import window_of
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.state import TRYING, RolloutState
from bayplan.planning.rollout.surge import SurgeAnswer
from bayplan.planning.rollout.world import World
from bayplan.reconcile.children import ChildWriter
from bayplan.reconcile.fleet import Fleet
from bayplan.reconcile.gateways import Gateways, GatewayView
from bayplan.reconcile.inferencemodel import ReconcileSettings
from bayplan.reconcile.modelview import ModelView
from bayplan.reconcile.pods import PodView
from bayplan.reconcile.qualityruns import Examinee, QualityRuns
from bayplan.reconcile.quotas import QuotaView
from bayplan.reconcile.revisions import Revisions
from bayplan.reconcile.rollout import waiting
from bayplan.reconcile.rollout.describe import Verdict, build_status, news_of, waiting_status
from bayplan.reconcile.rollout.paper import paper_verdict
from bayplan.reconcile.rollout.sampling import Memory, RolloutSampler, Round
from bayplan.reconcile.rollout.stored import policy_of, quality_of, seconds_of, state_of
from bayplan.reconcile.rollout.surge import SurgeQuestion
from bayplan.reconcile.rollout.view import RolloutView, rollouts_of, view_rollout
from bayplan.reconcile.rollout.world import (
    arm_heads,
    engine_pods,
    invalid_gates,
    leaving_streams,
    next_time,
    serving_uids,
    with_known_rejections,
)
from bayplan.telemetry.engine import EnginePort
from bayplan.telemetry.rolloutcounts import CountedModel, CountsPort

_AT_REST = (Phase.STEADY, Phase.ROLLED_BACK)


class KeyQueue(Protocol):
    """The controller's queue as the reconciler uses it."""

    def enqueue(self, key: Key) -> None:
        """Reconcile soon."""


class RolloutEvents(Protocol):
    """Where events about Rollouts go; never blocks, never fails."""

    def emit(self, view: RolloutView, *, reason: str, message: str, warning: bool) -> None:
        """Record one event."""


@dataclass(frozen=True, slots=True)
class _Model:
    """The InferenceModel of a Rollout, as it stands."""

    view: ModelView
    spec: InferenceModelSpec
    status: InferenceModelStatus
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """Everything that one decision is made on."""

    view: RolloutView
    status: RolloutStatus
    spec: RolloutSpec
    policy: RolloutPolicy
    state: RolloutState | None
    model: _Model
    memory: Memory
    prompts: PromptSet | None


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
        events: RolloutEvents,
        settings: ReconcileSettings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._port = port
        self._rollouts = rollouts
        self._models = models
        self._fleet = fleet
        self._quotas = quotas
        self._gateways = gateways
        self._events = events
        self._limits = settings.group_limits
        self._quality = quality
        self._now = now
        self._revisions = Revisions(fleet, children)
        self._sampler = RolloutSampler(
            counts,
            engine,
            port,
            now_seconds=lambda: seconds_of(now()),
            sleep=sleep,
            pace_seconds=settings.rollout_seconds,
        )
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
        model = self._model(model_view)
        if model is None:
            # Woken again by the model's own status.
            return Result()
        if model.spec.update != "Rollout":
            return await self._wait(view, status, waiting.plain(view.model.name), keeps_plan=False)
        return await self._act(view, status, spec, model)

    async def _act(self, view: RolloutView, status: RolloutStatus, spec: RolloutSpec, model: _Model) -> Result:
        state = state_of(status) if status.model_uid == model.view.uid else None
        if state is None:
            served = model.status.revisions.serving
            if len(served) > 1:
                return await self._wait(view, status, waiting.replacing(served), keeps_plan=False)
            status = RolloutStatus(history=status.history, conditions=status.conditions)
        memory = Memory(view.uid)
        if state is not None and state.phase not in _AT_REST:
            memory = self._sampler.ensure(
                view.key, view.uid, ask=lambda: self._round(view.key), changed=lambda: self._enqueue(view.key)
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
        case = _Case(view, status, spec, policy, state, model, memory, prompts)
        world = self._world(case)
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

    def _model(self, view: ModelView) -> _Model | None:
        """The model, once its reconciler has looked at the present spec."""
        if view.observed_generation != view.generation:
            return None
        spec, status = parse_spec(view.read_spec()), view.read_status()
        if not isinstance(spec, InferenceModelSpec) or not status.revisions.target:
            return None
        return _Model(view, spec, status, self._fleet.groups_of(view.uid, self._limits))

    def _world(self, case: _Case) -> World:
        view, spec, policy, state = case.view, case.spec, case.policy, case.state
        model, memory, prompts = case.model, case.memory, case.prompts
        acks = self._gateways.plan_epochs(view.key.namespace, view.uid)
        now_seconds, desired = seconds_of(self._now()), model.status.desired_replicas
        served = next(iter(model.status.revisions.serving), None)
        world = World(
            now_seconds=now_seconds,
            wanted=model.status.revisions.target,
            desired=desired,
            floor=desired if spec.min_ready is None else spec.min_ready,
            served=served,
            gateways=acks,
            answered_at_seconds=memory.answered_at_seconds,
            invalid=invalid_gates(policy, memory, live_gateways=len(acks)),
            deleting=view.deleting,
        )
        if state is None:
            return world
        plan, groups = state.plan, model.groups
        promoted = state.phase in (Phase.REPLACING, Phase.RETAINED)
        ours = plan.serving if promoted else state.candidate
        theirs = (plan.previous or state.retained) if promoted else plan.serving
        if prompts is not None and state.phase in (*TRYING, Phase.REPLACING, Phase.RETAINED):
            self._ask_prompts(view.key, prompts, model, state.judged_since_seconds, (ours, theirs))
        world = replace(
            world,
            serving=arm_heads(groups, plan.serving),
            previous=arm_heads(groups, plan.previous),
            candidate=arm_heads(groups, plan.candidate),
            candidate_quality=self._quality_of(case, ours),
            baseline_quality=self._quality_of(case, theirs),
            leaving_streams=leaving_streams(state, memory, groups),
        )
        if state.phase is Phase.PAPER:
            before = self._revisions.spec(model.view, model.spec, plan.serving)
            world = replace(
                world,
                paper=paper_verdict(
                    before,
                    model.spec,
                    memory.measurements if spec.measurements is not None else "spec.measurements names no ConfigMap",
                    now_seconds=now_seconds,
                ),
                surge=self._surge(policy, state, model),
            )
        if memory.counted is not None and memory.look is not None and memory.look is not memory.counted:
            world = replace(world, window=window_of(policy, state, world, memory.counted, memory.look))
        return world

    def _surge(self, policy: RolloutPolicy, state: RolloutState, model: _Model) -> SurgeAnswer:
        revision = model.status.revisions.target
        question = SurgeQuestion(
            self._fleet,
            self._quotas,
            namespace=model.view.key.namespace,
            revision=revision,
            spec=model.spec,
            plan=self._revisions.plan(model.view, model.spec, revision),
            groups=model.groups,
        )
        drains = policy.capacity is not CapacityMode.SURGE
        return question.answer(most=policy.max_surge, drains=drains, retained=state.retained)

    def _quality_of(self, case: _Case, revision: str | None) -> QualityCounts | None:
        if revision is None or case.prompts is None:
            return None
        return self._quality.observe(case.view.key, revision, case.prompts) or quality_of(case.status, revision)

    def _ask_prompts(
        self, key: Key, prompts: PromptSet, model: _Model, since_seconds: Fraction, revisions: Sequence[str | None]
    ) -> None:
        """Prompts go straight to the engines: the candidate answers them before it has any traffic."""
        names = [revision for revision in revisions if revision is not None]
        self._quality.retain(key, names, prompts)
        for revision in names:
            addresses = tuple(pod.address for pod in engine_pods(model.groups, revision, ready=True) if pod.address)
            self._quality.ensure(
                key,
                Examinee(revision, model.spec.model.name, addresses),
                prompts,
                since_seconds=since_seconds,
                changed=lambda: self._enqueue(key),
            )

    # --- measuring -------------------------------------------------------------------------------------------------

    def _round(self, key: Key) -> Round | None:
        view = self._rollouts.get(key)
        model = self._models.get(view.model) if view is not None else None
        known = self._model(model) if model is not None else None
        if view is None or known is None:
            return None
        status = view.read_status()
        state = state_of(status)
        if state is None:
            return None
        spec = view.read_spec()
        if not isinstance(spec, RolloutSpec):
            return None
        paper = state.phase is Phase.PAPER
        leaving = engine_pods(known.groups, state.candidate, ready=False)
        return Round(
            model=CountedModel(view.model.namespace, view.model.name, known.view.uid),
            served_name=known.spec.model.name,
            gateways=self._gateways.live(view.key.namespace),
            serving=lambda: serving_uids(self._fleet.groups_of(known.view.uid, self._limits)),
            answering=engine_pods(known.groups, state.plan.serving, ready=True),
            leaving=leaving if state.phase is Phase.ROLLING_BACK else None,
            measurements=spec.measurements.name if spec.measurements is not None and paper else None,
            prompts=spec.prompt_set.name if spec.prompt_set is not None else None,
        )

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
        try:
            raw = await self._port.apply(
                ROLLOUTS,
                view.key.namespace,
                view.key.name,
                {"metadata": {"uid": view.uid}, "status": after.to_wire()},
                manager=names.MANAGER_STATUS,
                subresource="status",
            )
        except NotFound:
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
        view = new or old
        if view is not None:
            self._wake(view.key)

    def _pod_changed(self, old: PodView | None, new: PodView | None) -> None:
        pod = new or old
        owner = self._models.by_uid(pod.member.owner_uid or "") if pod is not None and pod.member is not None else None
        if owner is not None:
            self._wake(owner.key)

    def _lease_changed(self, old: GatewayView | None, new: GatewayView | None) -> None:
        """A renewal alone is no news; another epoch, or a gateway that comes or goes, is."""
        if old is not None and new is not None and (old.epochs, old.pod) == (new.epochs, new.pod):
            return
        for view in self._rollouts.values():
            self._enqueue(view.key)

    def _forget(self, key: Key) -> None:
        self._sampler.forget(key)
        self._quality.retain(key, (), None)
