"""One runner per area: the case's input into our records, our decision back into the case's words."""

from collections.abc import Callable, Mapping
from typing import Any

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import TopologyRule
from bayplan.planning.fleetlayout import FleetReason, ReplicaNeed, UniformFleet, plan_fleet_layout
from bayplan.planning.group import GroupRequest, GroupShape
from bayplan.planning.inventory import Inventory, Node
from bayplan.planning.layout import Layout
from bayplan.planning.memory import KV_CACHE, OVERHEAD, WEIGHTS, MemoryRequest, ModelShape, decide_memory
from bayplan.planning.numbers import MIB_PER_GIB, InvalidInput, exact
from bayplan.planning.placement import place
from bayplan.planning.topology import HOST
from tests.course import releases, serving

Values = Mapping[str, Any]
Runner = Callable[[Values], dict[str, Any]]

NOT_BUILT = frozenset(
    {
        "capacity",
        "capstone",
    }
)
"""Areas of the course whose decisions do not exist yet."""

_FIELDS = {
    "tensor": "tensor_parallel_size",
    "gpu_memory_mib": "free_memory_gib",
    "least_gpu_memory_mib": "memory_gib_per_gpu",
    "nodes": "id",
    **serving.FIELDS,
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


def run_memory(values: Values) -> dict[str, Any]:
    shape_fields = ("parameters", "weight_bits", "layers", "kv_heads", "head_dim", "kv_element_bytes")
    request_fields = (
        "gpu_memory_gib",
        "max_live_tokens_per_request",
        "target_concurrency",
        "runtime_overhead_gib",
        "kv_shards",
    )
    decision = decide_memory(
        MemoryRequest(
            shape=ModelShape(**{name: values[name] for name in shape_fields if name in values}),
            tensor=values["tensor_parallel_size"],
            usable_fraction=values.get("usable_fraction", exact(0.9, "usable_fraction")),
            **{name: values[name] for name in request_fields},
        )
    )
    terms = {term.name: term.gib_per_gpu for term in decision.terms}
    return {
        "fits": decision.fits,
        "weight_gib_per_gpu": terms[WEIGHTS],
        "kv_bytes_per_token": decision.request.shape.kv_bytes_per_token,
        "kv_gib_per_request_per_gpu": decision.kv_gib_per_request,
        "kv_gib_per_gpu": terms[KV_CACHE],
        "overhead_gib_per_gpu": terms[OVERHEAD],
        "required_gib_per_gpu": decision.required_gib,
        "usable_gib_per_gpu": decision.usable_gib,
        "headroom_gib_per_gpu": decision.headroom_gib,
        "max_concurrency": decision.max_concurrency,
        "reason_category": "fits" if decision.fits else "insufficient-memory",
    }


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


def run_placement(values: Values) -> dict[str, Any]:
    """Place a group of single GPUs: each GPU is a node of one GPU, and its machine is the domain of the level `host`.

    Capabilities are labels that the node selector asks for; the free memory of a GPU is the memory of that node's GPU.
    So the product's own constraints and ranking decide, with nothing added.
    """
    wanted = values["request"]
    memory = exact(wanted["memory_gib_per_gpu"], "memory_gib_per_gpu")
    try:
        layout = Layout(tensor=wanted["gpus_required"], pipeline=1, gpus_per_node=1, nodes=wanted["gpus_required"])
    except InvalidInput as error:
        raise InvalidInput("gpus_required", error.message) from error
    request = GroupRequest(
        name=wanted["replica"],
        revision=wanted["model_revision"],
        shapes=(GroupShape(layout=layout, least_gpu_memory_mib=memory * MIB_PER_GIB),),
        node_selector=dict.fromkeys(wanted["required_capabilities"], ""),
        topology=(TopologyRule(level=HOST),) if wanted.get("require_same_node", True) else (),
        resident_nodes=frozenset(
            gpu["id"] for gpu in values["inventory"] if wanted["model_revision"] in gpu["resident_models"]
        ),
    )
    decision = place(request, Inventory(nodes=tuple(_one_gpu_node(gpu) for gpu in values["inventory"])))
    found = {
        "placed": decision.placed,
        "gpu_ids": list(decision.nodes),
        "reason_category": "placed" if decision.reason is Reason.PLACED else "no-eligible-group",
    }
    if decision.placed:
        found["resident_copies"] = decision.resident
        found["remaining_gib"] = exact(decision.gpu_memory_left_mib, "remaining") / MIB_PER_GIB
    return found


def _one_gpu_node(gpu: Values) -> Node:
    return Node(
        name=gpu["id"],
        gpus=1,
        pods=1,
        gpu_memory_mib=exact(gpu["free_memory_gib"], "free_memory_gib") * MIB_PER_GIB,
        labels=dict.fromkeys(gpu["capabilities"], ""),
        domains={HOST: gpu["node"]},
    )


RUNNERS: dict[str, Runner] = {
    "memory": run_memory,
    "parallelism": run_parallelism,
    "placement": run_placement,
    "metrics": serving.run_metrics,
    "batching": serving.run_batching,
    "prefix": serving.run_prefix,
    "admission": serving.run_admission,
    "autoscaling": serving.run_autoscaling,
    "quantization": releases.run_quantization,
    "speculative": releases.run_speculative,
    "rollout": releases.run_rollout,
}
PRODUCTION_RUNNERS: dict[str, Runner] = {
    "prefix": serving.run_prefix_in_production,
    "autoscaling": serving.run_autoscaling_in_production,
}
"""Runners for cases that state what a real system does, where the course's simplification is a parameter of ours."""
