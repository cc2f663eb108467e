"""The verdicts on manifests against a cluster: the operator's own decisions, in the order in which it makes them.

Plans first, because they give models their floors; then models, each placed beside those before it; then rollouts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import Any

from bayplan.api import names
from bayplan.api.capacityplan import NAME_RULE as PLAN_NAME_RULE
from bayplan.api.capacityplan import CapacityPlanSpec
from bayplan.api.capacityplan_status import CapacityPlanStatus
from bayplan.api.conditions import ConditionType, Reason, Status
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.api.revision import revision_hash
from bayplan.api.rollout import NAME_RULE as ROLLOUT_NAME_RULE
from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.rules import Rule
from bayplan.api.validation import FieldError, parse_plan_spec, parse_rollout_spec, parse_spec
from bayplan.cli.offline.document import ClusterDocument, KnownObject
from bayplan.cli.offline.manifests import Manifest
from bayplan.cli.offline.surge import surge_verdict
from bayplan.planning.capacity.inputs import CapacityInputs, NamedModel
from bayplan.planning.capacity.plan import decide_capacity
from bayplan.planning.capacity.status import capacity_status
from bayplan.planning.evidencecontract.canary import CanaryResult
from bayplan.planning.forecast import ModelForecast, forecast_model
from bayplan.planning.measurements import moment
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.placement.inventory import Inventory
from bayplan.planning.placement.topology import HOST, Topology
from bayplan.reconcile.acceptance import accept_model
from bayplan.reconcile.capacityplan.canary import canary_of
from bayplan.reconcile.capacityplan.guidance import PlanGuidance, guide

MODEL, ROLLOUT, PLAN = names.INFERENCEMODEL_KIND, names.ROLLOUT_KIND, names.CAPACITYPLAN_KIND
Name = tuple[str, str]
Verdict = tuple[ConditionType, Status, Reason, str]


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """What would be said of one manifest."""

    manifest: Manifest
    conditions: tuple[Verdict, ...]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    """Against what runs."""
    invalid: bool = False

    @property
    def ready(self) -> bool:
        """Whether nothing stands in the way. A fit that nobody can know, or that the user overrode, does not."""
        good = (Reason.OVERRIDDEN,)
        return not self.invalid and all(
            status == "True" or reason in good or (kind is ConditionType.MEMORY_FIT and status == "Unknown")
            for kind, status, reason, _ in self.conditions
        )


@dataclass(frozen=True, slots=True)
class _Model:
    """A model of the manifests, or of the cluster where they do not have it."""

    name: Name
    spec: InferenceModelSpec
    revision: str
    known: KnownObject | None

    @property
    def groups(self) -> tuple[str, ...]:
        return self.known.groups if self.known is not None else ()

    @property
    def status(self) -> InferenceModelStatus:
        return InferenceModelStatus.read(self.known.status if self.known is not None else {})


class Evaluation:
    """One run. `now` decides what is too old and is written nowhere; `live`: the document is of this moment."""

    def __init__(
        self,
        document: ClusterDocument,
        *,
        topology: Topology,
        now: datetime,
        live: bool,
        gpus: tuple[Gpu, ...] = (),
    ) -> None:
        self._document = document
        self._topology = topology
        self._now = now
        self._seen_at: Fraction | None = None if live else document.saved_at_seconds
        self._inventory = self._seen = document.inventory(topology, gpus)
        self._models: dict[Name, _Model] = {}
        self._plans: dict[Name, CapacityPlanStatus] = {}
        self._refused: list[Manifest] = []

    def run(self, manifests: Sequence[Manifest]) -> tuple[ObjectReport, ...]:
        """Judge all of them; the reports come by kind, namespace and name."""
        accepted = [(m, self._accept(m)) for m in manifests if m.kind == MODEL]
        for known in self._document.objects:
            if known.kind == MODEL:
                self._remember_known(known)
        for manifest, parsed in accepted:
            if isinstance(parsed, InferenceModelSpec):
                name = (manifest.namespace, manifest.name)
                known_model = self._document.known(MODEL, *name)
                self._models[name] = _Model(name, parsed, revision_hash(parsed), known_model)
            else:
                self._models.pop((manifest.namespace, manifest.name), None)
                self._refused.append(manifest)
        reports = [self._plan(m) for m in manifests if m.kind == PLAN]
        for manifest, parsed in accepted:
            reports.append(self._model(manifest, parsed))
        reports += [self._rollout(m) for m in manifests if m.kind == ROLLOUT]
        return tuple(sorted(reports, key=lambda r: (r.manifest.kind, r.manifest.namespace, r.manifest.name)))

    # --- models ----------------------------------------------------------------------------------------------------

    def _accept(self, manifest: Manifest) -> InferenceModelSpec | list[FieldError]:
        return accept_model(manifest.spec, name=manifest.name, topology=self._topology)

    def _remember_known(self, known: KnownObject) -> None:
        parsed = parse_spec(known.spec)
        if isinstance(parsed, InferenceModelSpec):
            name = (known.namespace, known.name)
            self._models[name] = _Model(name, parsed, known.revision, known)

    def _model(self, manifest: Manifest, parsed: InferenceModelSpec | list[FieldError]) -> ObjectReport:
        if isinstance(parsed, list):
            return _invalid(manifest, ConditionType.ACCEPTED, parsed)
        model = self._models[(manifest.namespace, manifest.name)]
        guidance = self._guidance(model)
        wanted = _wanted(guidance.spec, model)
        kept = model.groups if model.known is not None and model.known.revision == model.revision else ()
        kept = kept[max(0, len(kept) - wanted) :]
        gone = [group for group in model.groups if group not in kept]
        forecast = forecast_model(
            manifest.name,
            model.revision,
            guidance.spec,
            replicas=wanted,
            inventory=self._inventory.without_owners(gone) if gone else self._inventory,
            quotas=self._document.quotas.get(manifest.namespace, ()),
            standing=[self._nodes_of(group) for group in kept],
        )
        self._inventory = forecast.placement.inventory
        conditions: list[Verdict] = [
            (ConditionType.ACCEPTED, "True", Reason.VALID, "the spec is valid"),
            (ConditionType.MEMORY_FIT, forecast.fit.status, forecast.fit.reason, forecast.fit.message),
            (ConditionType.PLACED, *forecast.placed),
        ]
        if guidance.conflict:
            conditions.append((ConditionType.SCALING_ACTIVE, "False", Reason.PLAN_EXCEEDS_MODEL, guidance.conflict))
        if guidance.word.verdict is not None:
            conditions.append(guidance.word.verdict)
        return ObjectReport(
            manifest, tuple(conditions), _model_numbers(forecast, wanted), _model_changes(model, forecast, wanted)
        )

    def _guidance(self, model: _Model) -> PlanGuidance:
        """What the model's CapacityPlan gives: that of the manifests, else that of the cluster."""
        reference = model.spec.capacity_plan_ref
        if reference is None:
            return PlanGuidance(model.spec)
        name = (model.name[0], reference.name)
        status = self._plans.get(name)
        if status is None:
            known = self._document.known(PLAN, *name)
            status = CapacityPlanStatus.read(known.status) if known is not None else None
        generation = status.observed_generation if status is not None else 0
        return guide(model.spec, model.status.capacity, status, plan_generation=generation)

    def _nodes_of(self, group: str) -> list[str]:
        return [claim.node for claim in self._document.claims if claim.owner == group]

    # --- plans -----------------------------------------------------------------------------------------------------

    def _plan(self, manifest: Manifest) -> ObjectReport:
        spec = parse_plan_spec(manifest.spec)
        faults = _name_faults(manifest, PLAN_NAME_RULE)
        if not isinstance(spec, CapacityPlanSpec) or faults:
            found = [*(spec if isinstance(spec, list) else []), *faults]
            return _invalid(manifest, ConditionType.INPUTS_COMPLETE, found)
        status, verdicts = self._decide(manifest, spec)
        self._plans[(manifest.namespace, manifest.name)] = status
        wire = status.to_wire()
        numbers = {key: wire[key] for key in wire if key not in ("conditions", "observedGeneration")}
        invalid = any(reason is Reason.INVALID_SPEC for _, _, reason, _ in verdicts)
        return ObjectReport(manifest, verdicts, numbers, self._plan_changes(manifest, status), invalid=invalid)

    def _decide(self, manifest: Manifest, spec: CapacityPlanSpec) -> tuple[CapacityPlanStatus, tuple[Verdict, ...]]:
        naming = [
            model
            for name, model in sorted(self._models.items())
            if name[0] == manifest.namespace
            and model.spec.capacity_plan_ref is not None
            and model.spec.capacity_plan_ref.name == manifest.name
        ]
        inventory, canary = self._document_inventory(naming), None
        for model in naming:
            canary = canary or self._canary(model)
        decision = decide_capacity(
            CapacityInputs(
                spec=spec,
                models=tuple(
                    NamedModel(
                        model.name[1], model.spec, model.revision, own_pods=model.known.pods if model.known else 0
                    )
                    for model in naming
                ),
                inventory=inventory,
                inventory_at_seconds=self._seen_at,
                now_seconds=moment(self._now.timestamp()),
                quotas=list(self._document.quotas.get(manifest.namespace, ())),
                canary=canary,
                refused=self._refused_of(manifest),
                levels=frozenset({*self._topology, HOST}),
            )
        )
        status = capacity_status(decision, CapacityPlanStatus(), generation=1, now=self._now)
        verdicts = tuple((ConditionType(c.type), c.status, Reason(c.reason), c.message) for c in status.conditions)
        return status, verdicts

    def _refused_of(self, plan: Manifest) -> tuple[str, ...]:
        """Models of the manifests that name the plan and are not accepted themselves."""
        found = []
        for manifest in self._refused:
            spec = manifest.spec if isinstance(manifest.spec, Mapping) else {}
            reference = spec.get("capacityPlanRef")
            named = reference.get("name") if isinstance(reference, Mapping) else None
            if (manifest.namespace, named) == (plan.namespace, plan.name):
                found.append(manifest.name)
        return tuple(found)

    def _document_inventory(self, naming: Sequence[_Model]) -> Inventory:
        own = [group for model in naming for group in model.groups]
        return self._inventory.without_owners(own) if own else self._inventory

    def _canary(self, model: _Model) -> CanaryResult | None:
        rollouts = sorted(
            (one for one in self._document.objects if one.kind == ROLLOUT and one.namespace == model.name[0]),
            key=lambda one: one.name,
        )
        for one in rollouts:
            spec = parse_rollout_spec(one.spec)
            if isinstance(spec, RolloutSpec) and spec.model_ref.name == model.name[1]:
                return canary_of(spec, RolloutStatus.read(one.status), model.revision)
        return None

    def _plan_changes(self, manifest: Manifest, status: CapacityPlanStatus) -> tuple[str, ...]:
        known = self._document.known(PLAN, manifest.namespace, manifest.name)
        if known is None:
            return ("a new CapacityPlan",)
        before = CapacityPlanStatus.read(known.status)
        pairs = (
            ("replicas", before.replicas, status.replicas),
            ("GPUs", before.gpus, status.gpus),
            ("floor", before.floor, status.floor),
            ("cost per hour", before.cost and before.cost.per_hour, status.cost and status.cost.per_hour),
        )
        return tuple(f"{what}: {old} → {new}" for what, old, new in pairs if old != new)

    # --- rollouts --------------------------------------------------------------------------------------------------

    def _rollout(self, manifest: Manifest) -> ObjectReport:
        spec = parse_rollout_spec(manifest.spec)
        faults = _name_faults(manifest, ROLLOUT_NAME_RULE)
        if not isinstance(spec, RolloutSpec) or faults:
            return _invalid(manifest, ConditionType.ACCEPTED, [*(spec if isinstance(spec, list) else []), *faults])
        conditions: list[Verdict] = [(ConditionType.ACCEPTED, "True", Reason.VALID, "the spec is valid")]
        model = self._models.get((manifest.namespace, spec.model_ref.name))
        changes: tuple[str, ...] = ()
        if model is None:
            text = f"no InferenceModel {spec.model_ref.name} in the manifests or the cluster"
            conditions.append((ConditionType.READY, "False", Reason.MODEL_NOT_FOUND, text))
        elif model.known is not None and model.known.revision != model.revision and model.spec.update == "Rollout":
            verdict = surge_verdict(
                spec,
                model.spec,
                revision=model.revision,
                groups=model.groups,
                desired=_wanted(model.spec, model),
                inventory=self._seen,
                quotas=self._document.quotas.get(manifest.namespace, ()),
                nodes_of=self._nodes_of,
            )
            conditions.append(verdict)
            changes = (f"revision {model.known.revision} → {model.revision} goes through its stages",)
        return ObjectReport(manifest, tuple(conditions), {}, changes)


def _wanted(spec: InferenceModelSpec, model: _Model) -> int:
    """Replicas as the operator would ask for: an autoscaled model keeps what it was last given, within its bounds."""
    autoscaling = spec.autoscaling
    if autoscaling is None or spec.suspend or model.known is None:
        return spec.wanted_replicas
    return min(autoscaling.max_replicas, max(autoscaling.min_replicas, model.status.desired_replicas))


def _model_numbers(forecast: ModelForecast, wanted: int) -> dict[str, Any]:
    fit = next((d for d in forecast.fit.placeable if d.layout is not None), None)
    placed = [list(decision.nodes) for decision in forecast.placement.placed]
    numbers: dict[str, Any] = {"replicas": wanted, "nodes": placed}
    if fit is not None and fit.layout is not None:
        numbers["layout"] = {"gpuProduct": fit.pool.gpu_product, "split": str(fit.layout), "gpus": fit.layout.gpus}
    return numbers


def _model_changes(model: _Model, forecast: ModelForecast, wanted: int) -> tuple[str, ...]:
    known = model.known
    if known is None:
        gpus = forecast.gpus
        return (f"a new InferenceModel: {wanted} replicas, {gpus} GPUs",)
    found = []
    if known.revision != model.revision:
        how = "replaced one by one" if model.spec.update == "Replace" else "tried by a Rollout"
        found.append(f"revision {known.revision} → {model.revision}: {how}")
    if model.status.desired_replicas != wanted:
        found.append(f"replicas: {model.status.desired_replicas} → {wanted}")
    return tuple(found)


def _name_faults(manifest: Manifest, rule: Rule) -> list[FieldError]:
    holds = rule.holds
    if holds is None or holds(manifest.name):
        return []
    return [FieldError(path="metadata.name", message=rule.message)]


def _invalid(manifest: Manifest, kind: ConditionType, faults: Sequence[FieldError]) -> ObjectReport:
    conditions = tuple((kind, "False", Reason.INVALID_SPEC, str(fault)) for fault in faults)
    return ObjectReport(manifest, conditions, invalid=True)  # type: ignore[arg-type]
