"""Runners of the areas about whole fleets: capacity, and the capstone that chains all decisions.

The course simplifies four times: it places one replica, takes all free memory for usable, compares only the width of a
layout, and asks the autoscaler once, at the planned count. A case that states what a real system does is given none of
that.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from bayplan.api.capacitywords import PricedUnit
from bayplan.planning.admission.records import Admitted, Decision, Footprint
from bayplan.planning.admission.sheds import ShedCode, build_shed
from bayplan.planning.evidencecontract import judging
from bayplan.planning.evidencecontract.canonical import digest_of
from bayplan.planning.evidencecontract.claims import EvidenceInput, Finding, InputName, workload_claim
from bayplan.planning.evidencecontract.contract import EvidenceReport, Requirement, evaluate_contract
from bayplan.planning.evidencecontract.scalingloop import ScalingLoop, run_scaling_loop
from bayplan.planning.gates.records import GateName
from bayplan.planning.gates.release import ReleaseMeasurement, ReleaseRequirements, decide_release
from bayplan.planning.layout.fleet import FleetLayout, ReplicaNeed, UniformFleet, plan_fleet_layout
from bayplan.planning.layout.split import Split
from bayplan.planning.memory import KV_CACHE, OVERHEAD, MemoryDecision
from bayplan.planning.placement.fleet import FleetPlacement, place_replicas
from bayplan.planning.scaling.seed import Observation, ScalingPolicy, ScalingState, decide_scaling
from bayplan.planning.sizing.cost import Cost, fleet_cost
from bayplan.planning.sizing.limits import Breach, find_breaches
from bayplan.planning.sizing.load import FleetDemand, LoadSizing, fleet_demand, size_load
from bayplan.planning.sizing.records import (
    Limits,
    Price,
    ReplicaCapacity,
    Resilience,
    WorkloadClass,
    check_bounds,
)
from tests.course import placement, serving

Values = Mapping[str, Any]

FIELDS = {
    "workload_classes": "workloads",
    "class_names": "name-duplicate",
    "output_demand": "output-demand",
    "reserved_fraction": "reserved_headroom_fraction",
}
"""Our field names in the course's words, where they differ."""


class Capacity:
    """The course's lesson 12 in our records."""

    def __init__(self, values: Values, requirements: Values) -> None:
        self.classes = [WorkloadClass(**given) for given in values["workloads"]]
        self.demand: FleetDemand = fleet_demand(self.classes)
        measured = values["benchmark"]
        rates = ("prefill_tokens_per_second", "output_tokens_per_second", "max_concurrent_requests")
        capacity = ReplicaCapacity(**{name: measured[name] for name in rates})
        price = Price(measured["hourly_cost"], "unit", measured["name"], Fraction(0), PricedUnit.REPLICA)
        resilience = Resilience(requirements["min_replicas"], requirements["reserved_headroom_fraction"])
        limits = Limits(requirements["max_replicas"], max_hourly_cost=requirements["max_hourly_cost"])
        check_bounds(resilience, limits)
        self.sizing: LoadSizing = size_load(self.demand, capacity, resilience)
        self.replicas = self.sizing.replicas
        self.cost: Cost = fleet_cost(price, self.demand, replicas=self.replicas, gpus_per_replica=1)
        self.breaches: tuple[Breach, ...] = find_breaches(limits, replicas=self.replicas, gpus=0, cost=self.cost)


def run_capacity(values: Values) -> dict[str, Any]:
    found = Capacity(values, values["requirements"])
    return {
        "release_ready": not found.breaches,
        "required_replicas": found.replicas,
        "bottlenecks": [name.value for name in found.sizing.bottlenecks],
        "binding_dimensions": [name.value for name in found.sizing.binding],
        "unrounded_replicas": {name.value: number for name, number in found.sizing.unrounded.items()},
        "prompt_tokens_per_second": found.demand.prompt_tokens_per_second,
        "output_tokens_per_second": found.demand.output_tokens_per_second,
        "concurrent_requests": found.demand.concurrent_requests,
        "hourly_cost": found.cost.per_hour,
        "cost_per_million_output_tokens": found.cost.per_million_output_tokens,
        "violations": [breach.bound.value for breach in found.breaches],
    }


class Capstone:
    """The chain of lesson 13: every later input is derived from an earlier decision."""

    def __init__(self, values: Values, *, simplified: bool) -> None:
        self.values = values
        self.simplified = simplified
        self.capacity = Capacity(values, values["capacity_requirements"])
        self.memory: MemoryDecision = placement.decide_case_memory(values["memory"])
        self.assumed = Split(tensor=values["memory"]["tensor_parallel_size"], pipeline=1)
        self.layout: FleetLayout = self._layout()
        chosen = Split(self.layout.tensor, self.layout.pipeline) if self.layout.feasible else None
        if chosen is not None and simplified and chosen.gpus == self.assumed.gpus:
            chosen = self.assumed
        self.chosen = chosen
        self.matches = chosen is not None and chosen == self.assumed
        self.wanted_places = 1 if simplified else self.capacity.replicas
        self.placement: FleetPlacement | None = self._place() if self.matches else None
        fault = values["injected_fault"]
        desk = serving.Desk(values["admission"]["policy"])
        self.benign: Decision = _injected(fault, "benign") or desk.ask(values["admission"]["benign"])
        self.oversize: Decision = _injected(fault, "oversize") or desk.ask(values["admission"]["oversize"])
        self.policy = _policy(values["autoscaling_policy"])
        self.target = self._autoscale_target()
        self.release = decide_release(
            ReleaseMeasurement(**values["baseline_release"]),
            ReleaseMeasurement(**values["candidate_release"]),
            ReleaseRequirements(**values["release_requirements"]),
        )

    def _layout(self) -> FleetLayout:
        """Weights of the same model record; runtime memory is the overhead and the KV cache just reserved."""
        terms = {term.name: term.gib_per_gpu for term in self.memory.terms}
        topology = dict(self.values["topology"])
        need = ReplicaNeed(
            weight_memory_gib=Fraction(self.memory.request.shape.weight_bytes, 2**30),
            runtime_memory_gib_per_gpu=terms[OVERHEAD] + terms[KV_CACHE],
            experts=topology.pop("experts"),
            target_replicas=self.capacity.replicas,
        )
        return plan_fleet_layout(need, UniformFleet(**topology))

    def _place(self) -> FleetPlacement:
        wanted = {
            "replica": "replica",
            "model_revision": self.values["model_revision"],
            "gpus_required": self.assumed.gpus,
            "memory_gib_per_gpu": self.memory.required_gib / self._usable_share,
            "required_capabilities": self.values["required_capabilities"],
        }
        inventory = self.values["inventory"]
        request = placement.group_request(wanted, inventory)
        return place_replicas(request, placement.one_gpu_inventory(inventory), self.wanted_places)

    @property
    def _usable_share(self) -> Fraction:
        return Fraction(1) if self.simplified else self.memory.request.usable_fraction

    def _scaling(self) -> Finding:
        planned, policy = self.capacity.replicas, self.policy
        if self.simplified:
            return judging.judge_scaling(ScalingLoop(planned, planned - 1, self.target, steps=1, message="one sample"))
        loop = run_scaling_loop(
            policy,
            planned_replicas=planned,
            arriving_tokens_per_second=self.capacity.demand.output_tokens_per_second,
            sample_seconds=Fraction(15),
        )
        return judging.judge_scaling(loop)

    def _autoscale_target(self) -> int:
        """The course's single sample at the planned count."""
        stimulus, planned = self.values["autoscaling_stimulus"], self.capacity.replicas
        seen = Observation(
            at_seconds=stimulus["timestamp"],
            queued_tokens=stimulus["queued_tokens"],
            arrival_tokens_per_second=self.capacity.demand.output_tokens_per_second,
        )
        state = ScalingState(
            planned,
            planned,
            warming_replicas=stimulus["warming_replicas"],
            last_scale_at_seconds=stimulus["last_scale_at"],
        )
        return decide_scaling([seen], state, self.policy, now_seconds=stimulus["now"]).target_replicas

    def report(self) -> EvidenceReport:
        required = self.values["required_evidence"]
        classes = tuple(name.partition(":")[2] for name in required if name.startswith("workload:"))
        controls = tuple(name for name in required if not name.startswith("workload:"))
        planned = self.capacity.replicas
        evaluators = {
            **{workload_claim(c.name): lambda c=c: judging.judge_workload(c) for c in self.capacity.classes},
            "memory-fit": lambda: judging.judge_memory(self.memory, "memory"),
            "capacity-plan": lambda: judging.judge_capacity(self.capacity.breaches, planned),
            "parallel-layout": lambda: judging.judge_layout(
                self.chosen, self.assumed, supplied=self.layout.data, required=planned
            ),
            "gpu-placement": lambda: judging.judge_placement(
                self.placement, self.wanted_places, "no layout of the kind that memory was planned for"
            ),
            "benign-admission": lambda: judging.judge_benign(self.benign),
            "oversize-shedding": lambda: judging.judge_oversize(self.oversize),
            "queue-scaling": self._scaling,
            "canary-gate": lambda: judging.judge_release(self.release),
        }
        return evaluate_contract(
            Requirement(classes, controls),
            evaluators,
            inputs=[EvidenceInput(name, digest_of(repr(self.values))) for name in InputName],
            greatest_ages={},
            now_seconds=Fraction(0),
        )


def run_capstone(values: Values) -> dict[str, Any]:
    return _capstone(values, Capstone(values, simplified=True))


def run_capstone_in_production(values: Values) -> dict[str, Any]:
    return _capstone(values, Capstone(values, simplified=False))


def _capstone(values: Values, chain: Capstone) -> dict[str, Any]:
    report, placed = chain.report(), chain.placement
    benign, oversize = (serving.outcome(decision) for decision in (chain.benign, chain.oversize))
    if values["injected_fault"] is not None:
        oversize = oversize | {"reason_category": "injected"}
    failed = {result.gate.name for result in chain.release.failed}
    controls = [hold.value for hold in chain.release.holds] + [name.value for name in GateName if name in failed]
    return {
        "release_ready": report.proven and not chain.capacity.breaches,
        "missing_evidence": [claim.name for claim in report.unproven],
        "observed_evidence": list(report.earned),
        "capacity_violations": [breach.bound.value for breach in chain.capacity.breaches],
        "required_replicas": chain.capacity.replicas,
        "bottlenecks": [name.value for name in chain.capacity.sizing.bottlenecks],
        "binding_dimensions": [name.value for name in chain.capacity.sizing.binding],
        "hourly_cost": chain.capacity.cost.per_hour,
        "required_gib_per_gpu": chain.memory.required_gib,
        "max_concurrency": chain.memory.max_concurrency,
        "tensor_parallel": chain.layout.tensor,
        "pipeline_parallel": chain.layout.pipeline,
        "data_parallel": chain.layout.data,
        "layout_matches_memory_plan": chain.matches,
        "placed": placed is not None and placed.replicas >= chain.wanted_places,
        "gpu_ids": list(placed.placed[0].nodes) if placed is not None and placed.placed else [],
        "benign_action": benign["action"],
        "oversize_action": oversize["action"],
        "oversize_reason_category": oversize["reason_category"],
        "autoscale_target": chain.target,
        "rollout_action": chain.release.action.value,
        "rollout_controls": controls or ["all-gates-passed"],
    }


def _injected(fault: str | None, which: str) -> Decision | None:
    """A control that was tampered with; None where it was not."""
    if fault == "block-all":
        return build_shed(ShedCode.QUEUE_FULL, "injected")
    if fault == "admit-oversize" and which == "oversize":
        return Admitted(ticket=0, replica="injected", footprint=Footprint(9000, 9000, 1))
    return None


def _policy(given: Values) -> ScalingPolicy:
    named = dict(given)
    named["service_tokens_per_second"] = named.pop("service_tokens_per_second_per_replica")
    return ScalingPolicy(**named, max_sample_gap_seconds=None, max_sample_age_seconds=None)
