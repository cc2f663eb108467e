"""One runner per area: the case's input into our records, our decision back into the case's words."""

from collections.abc import Callable, Mapping
from typing import Any

from bayplan.planning.layout.fleet import FleetReason, ReplicaNeed, UniformFleet, plan_fleet_layout
from bayplan.planning.numbers import InvalidInput
from tests.course import capstone, placement, releases, serving

Values = Mapping[str, Any]
Runner = Callable[[Values], dict[str, Any]]

_FIELDS = {
    "tensor": "tensor_parallel_size",
    "gpu_memory_mib": "free_memory_gib",
    "least_gpu_memory_mib": "memory_gib_per_gpu",
    "nodes": "id",
    **serving.FIELDS,
    **capstone.FIELDS,
}
"""Our field names in the course's words, where they differ."""
_FIELDS_OF_AREA = {"placement": {"name": "replica", "revision": "model_revision"}}
"""The same for names that mean something else in other areas."""


def run(area: str, values: Values, *, production: bool = False) -> dict[str, Any]:
    """The decision in the words of the cases; an invalid input as `{"error": …, "field": …}`.

    In `production` no simplification of the course is asked for.
    """
    runner = PRODUCTION_RUNNERS.get(area, RUNNERS[area]) if production else RUNNERS[area]
    try:
        return runner(values)
    except InvalidInput as error:
        fields = _FIELDS | _FIELDS_OF_AREA.get(area, {})
        return {"error": "invalid-input", "field": fields.get(error.field, error.field)}


_LAYOUT_REASONS = {
    FleetReason.NO_LAYOUT_FITS: "no-layout-fits",
    FleetReason.REPLICA_SHORTFALL: "replica-shortfall",
    FleetReason.PIPELINE_SPLIT: "pipeline-split",
    FleetReason.TENSOR_SPLIT: "tensor-split",
    FleetReason.SINGLE_GPU: "single-gpu",
}


def run_parallelism(values: Values) -> dict[str, Any]:
    need = ReplicaNeed(
        weight_memory_gib=values["weight_memory_gib"],
        runtime_memory_gib_per_gpu=values["runtime_memory_gib_per_gpu"],
        experts=values["experts"],
        target_replicas=values["target_replicas"],
    )
    fleet = UniformFleet(
        nodes=values["nodes"],
        gpus_per_node=values["gpus_per_node"],
        gpu_memory_gib=values["gpu_memory_gib"],
        usable_fraction=values["usable_fraction"],
        fast_intra_node_collectives=values["fast_intra_node_collectives"],
    )
    decision = plan_fleet_layout(need, fleet)
    found = {
        "feasible": decision.feasible,
        "tensor_parallel": decision.tensor,
        "pipeline_parallel": decision.pipeline,
        "data_parallel": decision.data,
        "expert_parallel": decision.expert,
        "gpus_per_replica": decision.gpus_per_replica,
        "usable_gib_per_gpu": decision.usable_gib,
        "reason_category": _LAYOUT_REASONS[decision.reason],
    }
    if decision.choice.chosen is not None:
        found["memory_gib_per_gpu"] = decision.choice.chosen.fit.required_gib
    return found


RUNNERS: dict[str, Runner] = {
    "memory": placement.run_memory,
    "parallelism": run_parallelism,
    "placement": placement.run_placement,
    "metrics": serving.run_metrics,
    "batching": serving.run_batching,
    "prefix": serving.run_prefix,
    "admission": serving.run_admission,
    "autoscaling": serving.run_autoscaling,
    "quantization": releases.run_quantization,
    "speculative": releases.run_speculative,
    "rollout": releases.run_rollout,
    "capacity": capstone.run_capacity,
    "capstone": capstone.run_capstone,
}
PRODUCTION_RUNNERS: dict[str, Runner] = {
    "prefix": serving.run_prefix_in_production,
    "autoscaling": serving.run_autoscaling_in_production,
    "capstone": capstone.run_capstone_in_production,
}
"""Runners for cases that state what a real system does, where the course's simplification is a parameter of ours."""
