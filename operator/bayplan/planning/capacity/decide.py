"""Deciding on a CapacityPlan: pure, the same for operator and command line."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from bayplan.api.capacitywords import Need
from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.planning.admission.bounds import AdmissionBounds, admission_bounds
from bayplan.planning.capacity.inputs import CapacityInputs, NamedModel, PlanRecords, inventory_digest, read_records
from bayplan.planning.capacity.model import Conflict, choose_model, contradictions
from bayplan.planning.evidencecontract.canonical import digest_of
from bayplan.planning.evidencecontract.claims import EvidenceInput, InputName
from bayplan.planning.evidencecontract.contract import EvidenceReport
from bayplan.planning.evidencecontract.judging import widths
from bayplan.planning.forecast import group_request
from bayplan.planning.layout.asked import LayoutDecision
from bayplan.planning.layout.split import Split
from bayplan.planning.modelplan import ModelFit, fit_model, group_shapes
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.placement.fleet import FleetPlacement
from bayplan.planning.placement.gpus import bare_product
from bayplan.planning.placement.group import GroupShape
from bayplan.planning.placement.quota import quota_shortfall
from bayplan.planning.quantities import PodRequest
from bayplan.planning.sizing.cost import Cost, fleet_cost
from bayplan.planning.sizing.limits import Bound, Breach, find_breaches
from bayplan.planning.sizing.load import FleetDemand, LoadSizing, fleet_demand, size_load
from bayplan.planning.sizing.records import Resilience
from bayplan.planning.sizing.resilience import FleetSizing, size_fleet


@dataclass(frozen=True, slots=True)
class Sizing:
    """All numbers of a plan whose inputs could be read."""

    records: PlanRecords
    demand: FleetDemand
    load: LoadSizing
    fleet: FleetSizing
    fit: ModelFit
    layout: LayoutDecision | None
    """The layout on the GPU product that was measured; None where the fleet has none of it."""
    shape: GroupShape | None
    """What was placed; None where nothing could be."""
    bounds: AdmissionBounds | None
    cost: Cost | None
    breaches: tuple[Breach, ...]

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica, 0 without a layout."""
        return self.layout.layout.gpus if self.layout is not None and self.layout.layout is not None else 0


@dataclass(frozen=True, slots=True)
class CapacityDecision:
    """What was decided, and on what. `evidence` is None where there was nothing to judge."""

    inputs: CapacityInputs
    model: NamedModel | None
    sizing: Sizing | None
    conflicts: tuple[Conflict, ...]
    """Everything, in a fixed order; nothing was changed to solve any."""
    evidence: EvidenceReport | None = None
    evidence_inputs: tuple[EvidenceInput, ...] = ()
    """What the claims rest on. Without a sizing none: a fleet that decides nothing must not change the status."""
    invalid: str = ""
    """What of the spec cannot be read; empty when all can."""
    input_problems: tuple[Conflict, ...] = field(default=())
    """Why the inputs are not complete, or contradict each other."""
    measured_inputs_hold: bool = False
    """Whether benchmark and nodes are current and about this model: only then does the plan give a floor."""


def size_plan(inputs: CapacityInputs, records: PlanRecords, model: NamedModel) -> Sizing:
    """Size, place and price. Raises InvalidInput as sizing does."""
    spec = model.spec
    fit = fit_model(spec, inputs.inventory)
    wanted = bare_product(inputs.spec.benchmark.gpu_product)
    layout = next((d for d in fit.layouts if bare_product(d.pool.gpu_product) == wanted), None)
    bounds = _bounds(spec, layout)
    demand = fleet_demand(records.classes)
    load = size_load(demand, records.capacity(inputs.spec, bounds.kv_tokens if bounds else None), records.resilience)
    shapes = [shape for shape in group_shapes(spec, fit) if bare_product(shape.gpu_product or "") == wanted]
    shape = shapes[0] if shapes else None
    fleet = _fleet(inputs, model, shape, load.replicas, resilience=records.resilience)
    gpus = shape.layout.gpus if shape is not None else 0
    cost = None
    if records.price is not None and shape is not None:
        cost = fleet_cost(records.price, demand, replicas=fleet.replicas, gpus_per_replica=gpus)
    breaches = find_breaches(
        records.limits,
        replicas=fleet.replicas,
        gpus=fleet.replicas * gpus,
        cost=cost,
        quota_shortfall=_quota(inputs, model, shape, fleet.replicas, layout),
    )
    return Sizing(records, demand, load, fleet, fit, layout, shape, bounds, cost, breaches)


def read_inputs(inputs: CapacityInputs) -> CapacityDecision | tuple[PlanRecords, NamedModel, tuple[Conflict, ...]]:
    """Return what can be planned with, with what contradicts it; or the decision that nothing can."""
    try:
        _check_levels(inputs)
        records = read_records(inputs.spec)
        fleet_demand(records.classes)
    except InvalidInput as error:
        return CapacityDecision(inputs, None, None, (), invalid=str(error))
    choice = choose_model(inputs.spec, inputs.models, refused=inputs.refused)
    if choice.model is None:
        found = () if choice.conflict is None else (choice.conflict,)
        return CapacityDecision(inputs, None, None, found, input_problems=found)
    problems = () if choice.conflict is None else (choice.conflict,)
    return records, choice.model, (*problems, *contradictions(inputs.spec, choice.model.spec, records.classes))


def _check_levels(inputs: CapacityInputs) -> None:
    """Topology levels are the operator's configuration, which no schema knows."""
    placement, levels = inputs.spec.placement, inputs.levels
    wanted = [("spec.resilience.surviveLossOf", inputs.spec.resilience.survive_loss_of)]
    if placement is not None:
        wanted += [(f"spec.placement.topology[{i}].level", rule.level) for i, rule in enumerate(placement.topology)]
        wanted.append(("spec.placement.spread.level", placement.spread.level))
    for path, level in wanted:
        if level is not None and levels is not None and level not in levels:
            raise InvalidInput(path, f"unknown level {level!r}; configured are {', '.join(sorted(levels))}")


def layout_conflict(inputs: CapacityInputs, layout: LayoutDecision | None) -> Conflict | None:
    """The measured layout is not the one that replicas get: of another kind or width, which is another measurement."""
    measured = measured_split(inputs)
    if layout is None or layout.layout is None or widths(layout.layout) == widths(measured):
        return None
    product = inputs.spec.benchmark.gpu_product
    text = f"benchmark was measured with {measured}, replicas on {product} get {layout.layout}"
    return Conflict(Reason.CONTRADICTION, text)


def measured_split(inputs: CapacityInputs) -> Split:
    """The layout that was measured."""
    measured = inputs.spec.benchmark
    return Split(tensor=measured.tensor, pipeline=measured.pipeline, data=measured.data)


def model_conflict(model: NamedModel, replicas: int) -> Conflict | None:
    """The InferenceModel may not have as many replicas as the plan needs. It stops there, and both say so."""
    spec = model.spec
    if not model.name:
        return None
    if spec.autoscaling is not None:
        most, what = spec.autoscaling.max_replicas, "autoscaling.maxReplicas"
    elif spec.replicas is not None:
        most, what = spec.replicas, "replicas"
    else:
        return None
    if replicas <= most:
        return None
    text = f"{replicas} replicas are needed, {what} of InferenceModel {model.name} is {most}"
    return Conflict(Reason.PLAN_EXCEEDS_MODEL, text)


def breach_conflicts(breaches: Sequence[Breach]) -> tuple[Conflict, ...]:
    """Every breach under its own reason."""
    reasons = {
        Bound.MAX_REPLICAS: Reason.ABOVE_MAX_REPLICAS,
        Bound.QUOTA: Reason.QUOTA_EXCEEDED,
        Bound.BUDGET: Reason.BUDGET_EXCEEDED,
    }
    return tuple(Conflict(reasons[breach.bound], breach.message) for breach in breaches)


def evidence_inputs(
    inputs: CapacityInputs, records: PlanRecords, model: NamedModel, problems: Sequence[Conflict]
) -> tuple[EvidenceInput, ...]:
    """What the claims rest on, with identity and time."""
    against = "; ".join(problem.message for problem in problems)
    found = [
        EvidenceInput(InputName.ARTIFACT, digest_of((model.revision, model.spec.model.uri, model.spec.model.revision))),
        EvidenceInput(InputName.INVENTORY, inventory_digest(inputs.inventory), inputs.inventory_at_seconds),
        EvidenceInput(
            InputName.BENCHMARK,
            digest_of(inputs.spec.benchmark.model_dump(by_alias=True)),
            records.benchmark_at_seconds,
            contradiction=against,
        ),
    ]
    if inputs.spec.price is not None and records.price is not None:
        digest = digest_of(inputs.spec.price.model_dump(by_alias=True))
        found.append(EvidenceInput(InputName.PRICE, digest, records.price.observed_at_seconds))
    canary = inputs.canary
    if canary is not None:
        other = canary.revision != model.revision
        found.append(
            EvidenceInput(
                InputName.CANARY,
                digest_of(canary),
                canary.decided_at_seconds,
                contradiction=f"it is about revision {canary.revision}, not {model.revision}" if other else "",
            )
        )
    return tuple(found)


def greatest_ages(inputs: CapacityInputs) -> dict[InputName, Fraction]:
    """The spec's limits."""
    ages = inputs.spec.evidence.greatest_ages
    return {
        InputName.BENCHMARK: Fraction(ages.benchmark),
        InputName.INVENTORY: Fraction(ages.inventory),
        InputName.PRICE: Fraction(ages.price),
        InputName.CANARY: Fraction(ages.canary),
    }


def _bounds(spec: InferenceModelSpec, layout: LayoutDecision | None) -> AdmissionBounds | None:
    if layout is None or layout.layout is None:
        return None
    pool = layout.pool
    return admission_bounds(spec, layout.memory, gpu_product=pool.gpu_product, gpu_memory_gib=pool.gpu_memory_gib)


def _fleet(
    inputs: CapacityInputs, model: NamedModel, shape: GroupShape | None, load: int, *, resilience: Resilience
) -> FleetSizing:
    if shape is not None:
        request = group_request(model.name or "planned", model.revision, model.spec, [shape])
        return size_fleet(load, resilience, request, inputs.inventory)
    # Nothing to place: the count stands all the same, and a lost domain holds at least one replica.
    away, lost = resilience.maintenance_replicas, 1 if resilience.domain_level is not None else 0
    needs = {Need.LOAD: load}
    if away:
        needs[Need.MAINTENANCE] = load + away
    if lost:
        needs[Need.DOMAIN_LOSS] = load + lost
    return FleetSizing(needs, load + away + lost, at_least=bool(lost), placement=FleetPlacement(inputs.inventory))


def _quota(
    inputs: CapacityInputs, model: NamedModel, shape: GroupShape | None, replicas: int, layout: LayoutDecision | None
) -> str:
    """Which ResourceQuota is short for the pods that do not run yet."""
    if shape is None or layout is None:
        return ""
    by_product = bare_product(layout.pool.gpu_product)
    node = next((node for node in inputs.inventory.nodes if bare_product(node.gpu_product) == by_product), None)
    per_pod = PodRequest(gpus=shape.gpus_per_pod, cpu_millis=shape.cpu_millis, memory_bytes=shape.memory_bytes)
    return quota_shortfall(
        inputs.quotas,
        pods=max(0, replicas * shape.pods - model.own_pods),
        per_pod=per_pod,
        gpu_resource=node.gpu_resource if node is not None else "",
    )
