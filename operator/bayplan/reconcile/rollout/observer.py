"""What a decision is made on, gathered from caches and measurements: the model, the world, and what to measure next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.rolloutwords import CapacityMode, Phase
from bayplan.api.validation import parse_spec
from bayplan.cluster.cache import Store
from bayplan.cluster.resources import Key
from bayplan.planning.gates.promptset import PromptSet
from bayplan.planning.gates.quality import QualityCounts
from bayplan.planning.groups.members import Group, GroupLimits
from bayplan.planning.rollout.observing import window_of
from bayplan.planning.rollout.policy import RolloutPolicy
from bayplan.planning.rollout.state import TRYING, RolloutState
from bayplan.planning.rollout.surge import SurgeAnswer
from bayplan.planning.rollout.world import World
from bayplan.reconcile.fleet import Fleet
from bayplan.reconcile.gateways import Gateways
from bayplan.reconcile.inferencemodel.revisions import Revisions
from bayplan.reconcile.inferencemodel.view import ModelView
from bayplan.reconcile.qualityruns import Examinee, QualityRuns
from bayplan.reconcile.quotas import QuotaView
from bayplan.reconcile.rollout.paper import paper_verdict, with_evidence
from bayplan.reconcile.rollout.sampling import Memory, Round
from bayplan.reconcile.rollout.stored import quality_of, seconds_of, state_of
from bayplan.reconcile.rollout.surge import SurgeQuestion
from bayplan.reconcile.rollout.view import RolloutView
from bayplan.reconcile.rollout.world import (
    arm_heads,
    engine_pods,
    invalid_gates,
    leaving_streams,
    news_in,
    serving_uids,
)
from bayplan.telemetry.rolloutcounts import CountedModel


@dataclass(frozen=True, slots=True)
class RolledModel:
    """The InferenceModel of a Rollout, as it stands."""

    view: ModelView
    spec: InferenceModelSpec
    status: InferenceModelStatus
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that one decision is made on."""

    view: RolloutView
    status: RolloutStatus
    spec: RolloutSpec
    policy: RolloutPolicy
    state: RolloutState | None
    model: RolledModel
    memory: Memory
    prompts: PromptSet | None


class Observer:
    """Looks at one Rollout's world. `changed` is told its key when an answer to prompts has come."""

    def __init__(
        self,
        *,
        rollouts: Store[RolloutView],
        models: Store[ModelView],
        fleet: Fleet,
        quotas: Store[QuotaView],
        gateways: Gateways,
        revisions: Revisions,
        quality: QualityRuns,
        limits: GroupLimits,
        changed: Callable[[Key], None],
        now: Callable[[], datetime],
    ) -> None:
        self._rollouts = rollouts
        self._models = models
        self._fleet = fleet
        self._quotas = quotas
        self._gateways = gateways
        self._revisions = revisions
        self._quality = quality
        self._limits = limits
        self._changed = changed
        self._now = now

    def model(self, view: ModelView) -> RolledModel | None:
        """The model, once its reconciler has looked at the present spec."""
        if view.observed_generation != view.generation:
            return None
        spec, status = parse_spec(view.read_spec()), view.read_status()
        if not isinstance(spec, InferenceModelSpec) or not status.revisions.target:
            return None
        return RolledModel(view, spec, status, self.groups(view))

    def groups(self, view: ModelView) -> tuple[Group, ...]:
        """The model's groups as its pods are now."""
        return self._fleet.groups_of(view.uid, self._limits)

    def world(self, case: Case) -> World:
        """What the next decision looks at."""
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
            # Asked again at half the age at which answers do not count any more: a trial that waits stays judged.
            since = max(state.judged_since_seconds, now_seconds - policy.max_quality_age_seconds / 2)
            self._ask_prompts(view.key, prompts, model, since, (ours, theirs))
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
            paper = paper_verdict(
                before,
                model.spec,
                memory.measurements if spec.measurements is not None else "spec.measurements names no ConfigMap",
                now_seconds=now_seconds,
            )
            if spec.require_evidence:
                paper = with_evidence(paper, model.status.evidence, revision=model.status.revisions.target)
            world = replace(world, paper=paper, surge=self._surge(policy, state, model))
        if memory.counted is not None and memory.look is not None and memory.look is not memory.counted:
            world = replace(world, window=window_of(policy, state, world, memory.counted, memory.look))
        return world

    def _surge(self, policy: RolloutPolicy, state: RolloutState, model: RolledModel) -> SurgeAnswer:
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
        return question.answer(
            most=policy.max_surge, compared=policy.least_candidates, drains=drains, retained=state.retained
        )

    def _quality_of(self, case: Case, revision: str | None) -> QualityCounts | None:
        if revision is None or case.prompts is None:
            return None
        return self._quality.observe(case.view.key, revision, case.prompts) or quality_of(case.status, revision)

    def _ask_prompts(
        self, key: Key, prompts: PromptSet, model: RolledModel, since_seconds: Fraction, revisions: Sequence[str | None]
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
                changed=lambda: self._changed(key),
            )

    def round(self, key: Key) -> Round | None:
        """How a Rollout is measured now; None: not at all."""
        view = self._rollouts.get(key)
        model = self._models.get(view.model) if view is not None else None
        known = self.model(model) if model is not None else None
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
            news=lambda memory: news_in(memory, state, known.groups),
        )
