"""The claims of a plan, each as the decision that earns it. Nothing is handed in: every one is decided here."""

from collections.abc import Mapping
from fractions import Fraction

from bayplan.api.capacitywords import ClaimState, Control
from bayplan.planning.admission.bounds import AdmissionBounds
from bayplan.planning.admission.core import AdmissionCore
from bayplan.planning.admission.records import AdmissionPolicy, AdmissionRequest, Decision, Resources
from bayplan.planning.capacity.decide import Sizing, measured_split
from bayplan.planning.capacity.guidance import Guidance, guided
from bayplan.planning.capacity.inputs import CapacityInputs, NamedModel, optional_fraction
from bayplan.planning.evidencecontract import judging
from bayplan.planning.evidencecontract.canary import judge_canary
from bayplan.planning.evidencecontract.claims import Evaluator, Finding, failed, missing, workload_claim
from bayplan.planning.evidencecontract.scalingloop import run_scaling_loop
from bayplan.planning.scaling.policy import pace_of, policy_of
from bayplan.planning.sizing.resilience import MOST_PLACED

MOST_QUEUED = 100


def evaluators_of(inputs: CapacityInputs, model: NamedModel, sizing: Sizing) -> Mapping[str, Evaluator]:
    """Return the decision behind each claim."""
    measured = inputs.spec.benchmark
    ttft, tpot = (optional_fraction(value) for value in (measured.p95_ttft_seconds, measured.p95_tpot_seconds))
    found: dict[str, Evaluator] = {
        workload_claim(one.name): lambda one=one: judging.judge_workload(  # type: ignore[misc]
            one, p95_ttft_seconds=ttft, p95_tpot_seconds=tpot
        )
        for one in sizing.records.classes
    }
    return found | {
        Control.MEMORY_FIT: lambda: _memory(sizing),
        Control.CAPACITY_PLAN: lambda: judging.judge_capacity(sizing.breaches, sizing.fleet.replicas),
        Control.PARALLEL_LAYOUT: lambda: _layout(inputs, sizing),
        Control.GPU_PLACEMENT: lambda: _placement(sizing),
        Control.BENIGN_ADMISSION: lambda: _benign(sizing),
        Control.OVERSIZE_SHEDDING: lambda: _oversize(sizing),
        Control.QUEUE_SCALING: lambda: _scaling(inputs, model, sizing),
        Control.CANARY_GATE: lambda: _canary(inputs),
    }


def _memory(sizing: Sizing) -> Finding:
    layout = sizing.layout
    if layout is None or layout.memory is None:
        return failed(sizing.fit.message)
    return judging.judge_memory(layout.memory, layout.message)


def _layout(inputs: CapacityInputs, sizing: Sizing) -> Finding:
    layout = sizing.layout
    if layout is None or layout.layout is None:
        return failed(layout.message if layout is not None else sizing.fit.message)
    per_pod, pods = layout.layout.gpus_per_node, layout.layout.nodes
    supplied = sum(size // per_pod for size in layout.pool.node_sizes) // pods
    return judging.judge_layout(
        layout.layout, measured_split(inputs), supplied=supplied, required=sizing.fleet.replicas
    )


def _placement(sizing: Sizing) -> Finding:
    fleet = sizing.fleet
    if sizing.shape is None:
        return failed(f"no layout to place: {sizing.fit.message}")
    if fleet.bounded:
        return missing(f"{fleet.placement.replicas} were placed; of more than {MOST_PLACED} nothing is said")
    if fleet.at_least:
        return failed(fleet.message)
    return judging.judge_placement(fleet.placement, fleet.replicas)


def _benign(sizing: Sizing) -> Finding:
    bounds = sizing.bounds
    if bounds is None:
        return missing("no replica whose room is known")
    for one in sizing.records.classes:
        prompt, output = (one.prompt_tokens, one.output_tokens) if one.tokens else (1, 1)
        finding = judging.judge_benign(_ask(bounds, prompt_tokens=prompt, output_tokens=output))
        if finding.state is not ClaimState.EARNED:
            return Finding(finding.state, f"class {one.name}: {finding.message}")
    return finding


def _oversize(sizing: Sizing) -> Finding:
    bounds = sizing.bounds
    if bounds is None:
        return missing("no replica whose room is known")
    return judging.judge_oversize(_ask(bounds, prompt_tokens=bounds.max_model_len, output_tokens=1))


def _ask(bounds: AdmissionBounds, *, prompt_tokens: int, output_tokens: int) -> Decision:
    """Ask the gateway's own admission for one request at one idle replica."""
    core = AdmissionCore(
        AdmissionPolicy(
            block_size=bounds.block_size,
            max_tokens_per_request=bounds.max_model_len,
            max_queued_requests=MOST_QUEUED,
        )
    )
    core.set_replica("planned", capacity=Resources(bounds.kv_blocks, bounds.max_num_seqs), now_ns=0)
    request = AdmissionRequest(tenant="planned", prompt_tokens=prompt_tokens, max_output_tokens=output_tokens)
    return core.decide(request, 0).decision


def _scaling(inputs: CapacityInputs, model: NamedModel, sizing: Sizing) -> Finding:
    autoscaling = model.spec.autoscaling
    if autoscaling is None:
        return missing("the model has no autoscaling, so nothing follows its queue")
    # Demand alone must bring what the load needs; what survives a loss, or is the fewest, is held by the floor.
    for floor, planned in ((1, sizing.load.demand_replicas), (sizing.fleet.replicas, sizing.fleet.replicas)):
        guidance = Guidance(
            floor=floor,
            service_tokens_per_second=sizing.load.service_tokens_per_second,
            target_utilization=1 - inputs.spec.resilience.reserved_fraction,
        )
        loop = run_scaling_loop(
            policy_of(guided(autoscaling, guidance)),
            planned_replicas=planned,
            arriving_tokens_per_second=sizing.demand.tokens_per_second,
            sample_seconds=Fraction(pace_of(autoscaling)),
            by_demand_alone=floor == 1,
        )
        finding = judging.judge_scaling(loop)
        if finding.state is not ClaimState.EARNED:
            break
    return finding


def _canary(inputs: CapacityInputs) -> Finding:
    if inputs.canary is None:
        return missing("no rollout has tried this revision")
    return judge_canary(inputs.canary)
