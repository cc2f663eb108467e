"""Runners of the areas about where a replica fits: memory and placement."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import TopologyRule
from bayplan.planning.layout.split import Layout
from bayplan.planning.memory import (
    KV_CACHE,
    OVERHEAD,
    WEIGHTS,
    MemoryDecision,
    MemoryRequest,
    ModelShape,
    decide_memory,
)
from bayplan.planning.numbers import MIB_PER_GIB, InvalidInput, exact
from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Inventory, Node
from bayplan.planning.placement.place import place
from bayplan.planning.placement.topology import HOST

Values = Mapping[str, Any]


def decide_case_memory(values: Values) -> MemoryDecision:
    shape_fields = ("parameters", "weight_bits", "layers", "kv_heads", "head_dim", "kv_element_bytes")
    request_fields = (
        "gpu_memory_gib",
        "max_live_tokens_per_request",
        "target_concurrency",
        "runtime_overhead_gib",
        "kv_shards",
    )
    return decide_memory(
        MemoryRequest(
            shape=ModelShape(**{name: values[name] for name in shape_fields if name in values}),
            tensor=values["tensor_parallel_size"],
            usable_fraction=values.get("usable_fraction", exact(0.9, "usable_fraction")),
            **{name: values[name] for name in request_fields},
        )
    )


def run_memory(values: Values) -> dict[str, Any]:
    decision = decide_case_memory(values)
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


def group_request(wanted: Values, inventory: Sequence[Values]) -> GroupRequest:
    """A group of single GPUs: each GPU is a node of one GPU, and its machine is the domain of the level `host`.

    Capabilities are labels that the node selector asks for; the free memory of a GPU is the memory of that node's GPU.
    So the product's own constraints and ranking decide, with nothing added.
    """
    memory = exact(wanted["memory_gib_per_gpu"], "memory_gib_per_gpu")
    try:
        layout = Layout(tensor=wanted["gpus_required"], pipeline=1, gpus_per_node=1, nodes=wanted["gpus_required"])
    except InvalidInput as error:
        raise InvalidInput("gpus_required", error.message) from error
    return GroupRequest(
        name=wanted["replica"],
        revision=wanted["model_revision"],
        shapes=(GroupShape(layout=layout, least_gpu_memory_mib=memory * MIB_PER_GIB),),
        node_selector=dict.fromkeys(wanted["required_capabilities"], ""),
        topology=(TopologyRule(level=HOST),) if wanted.get("require_same_node", True) else (),
        resident_nodes=frozenset(gpu["id"] for gpu in inventory if wanted["model_revision"] in gpu["resident_models"]),
    )


def one_gpu_inventory(gpus: Sequence[Values]) -> Inventory:
    return Inventory(nodes=tuple(_one_gpu_node(gpu) for gpu in gpus))


def run_placement(values: Values) -> dict[str, Any]:
    wanted, gpus = values["request"], values["inventory"]
    decision = place(group_request(wanted, gpus), one_gpu_inventory(gpus))
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
