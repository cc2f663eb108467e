"""A model's revisions as specs and plans: the present one, and those that serve on while another one is tried."""

from collections.abc import Mapping
from typing import Any

from bayplan.api.inferencemodel import Engine, InferenceModelSpec, Model, Parallelism
from bayplan.api.meta import Schema
from bayplan.planning.groups.replicas import Target
from bayplan.planning.layout.inspected import inspects, read_report
from bayplan.planning.rollout.arms import Arms
from bayplan.reconcile.fleet import Fleet
from bayplan.reconcile.inferencemodel.children import ChildWriter
from bayplan.reconcile.inferencemodel.inspection import pod_name
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity
from bayplan.reconcile.inferencemodel.plan import ModelPlan, plan_model, waiting_plan
from bayplan.reconcile.inferencemodel.tools import Wish
from bayplan.reconcile.inferencemodel.view import ModelView
from bayplan.reconcile.scaling.autoscaler import ScalingPlan

SNAPSHOT_MEMBERS: Mapping[str, type[Schema]] = {"model": Model, "engine": Engine, "parallelism": Parallelism}
"""Members of the spec that a revision's hash covers."""


class Revisions:
    """Specs and plans by revision. Plans are kept while neither spec nor nodes have changed."""

    def __init__(self, fleet: Fleet, children: ChildWriter) -> None:
        self._fleet = fleet
        self._children = children
        self._specs: dict[str, dict[str, tuple[int, InferenceModelSpec | None]]] = {}
        self._plans: dict[str, dict[str, tuple[object, ModelPlan]]] = {}

    def forget(self, uid: str) -> None:
        """Drop what is known of a model."""
        self._specs.pop(uid, None)
        self._plans.pop(uid, None)

    def spec(self, view: ModelView, present: InferenceModelSpec, revision: str) -> InferenceModelSpec | None:
        """Return the present spec with what the hash covers as an earlier revision has it.

        None where no snapshot was kept, or this version cannot read it.
        """
        known = self._specs.setdefault(view.uid, {})
        found = known.get(revision)
        if found is None or found[0] != view.generation or found[1] is None:
            found = known[revision] = (view.generation, self._restored(view.identity, present, revision))
        return found[1]

    def _restored(self, model: ModelIdentity, present: InferenceModelSpec, revision: str) -> InferenceModelSpec | None:
        snapshot = self._children.snapshot(model, revision)
        try:
            # Rules over several members are not asked again: the present `concurrency`, say, is another revision's.
            kept = {
                name: kind.model_validate(dict(snapshot[name]), by_alias=True, by_name=False)
                for name, kind in SNAPSHOT_MEMBERS.items()
            }
        except (KeyError, TypeError, ValueError):
            return None
        return present.model_copy(update=kept)

    def plan(self, view: ModelView, spec: InferenceModelSpec, revision: str) -> ModelPlan:
        """Return what a revision's spec means on the present nodes."""
        recorded = self._children.recorded_layouts(view.identity, revision)
        inspected = self._children.inspected(view.identity, revision)
        version = (view.generation, self._fleet.nodes_version, inspected, tuple(sorted(recorded.items())))
        plans = self._plans.setdefault(view.uid, {})
        cached = plans.get(revision)
        if cached is not None and cached[0] == version:
            return cached[1]
        if inspects(spec) and not inspected:
            name = pod_name(view.key.name, revision)
            plan = waiting_plan(f"the model's files are not read yet: pod {name} reads config.json and tensor headers")
        else:
            report = read_report(inspected) if inspects(spec) else None
            plan = plan_model(spec, self._fleet.node_inventory(), recorded=recorded, inspected=report)
        plans[revision] = (version, plan)
        return plan

    def wishes(
        self,
        view: ModelView,
        present: InferenceModelSpec,
        *,
        revision: str,
        template: str,
        arms: Arms,
        scaling: ScalingPlan,
    ) -> tuple[Wish, ...]:
        """Return what is wished for each arm, serving first; `revision` and `template` are the present spec's."""
        needed = {revision, *arms.revisions}
        self._specs[view.uid] = {name: one for name, one in self._specs.get(view.uid, {}).items() if name in needed}
        self._plans[view.uid] = {name: one for name, one in self._plans.get(view.uid, {}).items() if name in needed}

        def wish(name: str, groups: int, *, grows: bool = True, apart: bool = False, **target: Any) -> Wish:
            spec = present if name == revision else self.spec(view, present, name)
            plan = self.plan(view, spec or present, name)
            return Wish(
                model=view.identity,
                generation=view.generation,
                spec=spec or present,
                target=Target(
                    replicas=groups,
                    revision=name,
                    template=template,
                    layouts=plan.layouts,
                    # Without its spec nothing of a revision can be created, so nothing of it is taken away either.
                    frozen=not plan.placeable or spec is None,
                    grows=grows and spec is not None,
                    **target,
                ),
                plan=plan,
                scaling=scaling,
                revisions=arms.revisions,
                apart=apart,
            )

        found = [
            wish(
                arms.serving,
                arms.serving_groups,
                surge=arms.surge,
                kept_outdated=arms.kept_replaced,
                floor=arms.floor,
            )
        ]
        if arms.candidate is not None:
            found.append(wish(arms.candidate, arms.candidate_groups, grows=arms.candidate_grows, apart=True))
        if arms.retained is not None:
            found.append(wish(arms.retained, arms.retained_groups, grows=False))
        return tuple(found)
