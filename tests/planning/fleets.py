"""Small fleets, specs and requests for planning tests."""

from collections.abc import Mapping
from typing import Any

from bayplan.api.inferencemodel import InferenceModelSpec, TopologyRule
from bayplan.api.provenance import Provenance
from bayplan.planning.layout.split import Layout
from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Node

H100 = "NVIDIA-H100-80GB-HBM3"
H100_MIB = 81559
L4 = "NVIDIA-L4"
L4_MIB = 23034
TIB = 2**40


def node(
    name: str,
    gpus: int = 8,
    *,
    zone: str = "",
    rack: str = "",
    product: str = H100,
    memory_mib: int | None = H100_MIB,
    **more: Any,
) -> Node:
    """A healthy node; `rack` may repeat between zones, as racks that are numbered per zone do."""
    domains = {"host": name}
    if zone:
        domains["zone"] = zone
    if rack:
        domains["rack"] = f"{zone}/{rack}" if zone else rack
    fields: dict[str, Any] = {
        "cpu_millis": 96_000,
        "memory_bytes": TIB,
        "pods": 110,
        "gpu_resource": "nvidia.com/gpu",
        "gpu_memory_provenance": Provenance.UNKNOWN if memory_mib is None else Provenance.MEASURED,
        "gpus_expected": gpus,
        "domains": domains,
    }
    return Node(name=name, gpus=gpus, gpu_product=product, gpu_memory_mib=memory_mib, **{**fields, **more})


def shape(gpus_per_pod: int = 1, pods: int = 1, **more: Any) -> GroupShape:
    """Pods of equal size: tensor ranks inside a pod, pipeline stages over pods."""
    layout = Layout(tensor=gpus_per_pod, pipeline=pods, gpus_per_node=gpus_per_pod, nodes=pods)
    return GroupShape(layout=layout, **more)


def request(
    *shapes: GroupShape, required: tuple[str, ...] = (), preferred: tuple[str, ...] = (), **more: Any
) -> GroupRequest:
    rules = [TopologyRule(level=level) for level in required]
    rules += [TopologyRule(level=level, mode="Preferred") for level in preferred]
    return GroupRequest(name="ml/llama-0", revision="abc", shapes=shapes or (shape(),), topology=tuple(rules), **more)


def api_node(name: str = "gpu-1", **changes: Any) -> dict[str, Any]:
    """An API node as GPU Feature Discovery labels it; `labels`, `allocatable`, `annotations` are merged in."""
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": "zone-a",
        "nvidia.com/gpu.product": H100,
        "nvidia.com/gpu.memory": str(H100_MIB),
        "nvidia.com/gpu.count": "8",
        **changes.pop("labels", {}),
    }
    allocatable = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8", **changes.pop("allocatable", {})}
    return {
        "metadata": {"name": name, "labels": _without_none(labels), "annotations": changes.pop("annotations", {})},
        "spec": {"taints": changes.pop("taints", []), "unschedulable": changes.pop("unschedulable", False)},
        "status": {
            "allocatable": _without_none(allocatable),
            "conditions": [{"type": "Ready", "status": changes.pop("ready", "True")}],
        },
    }


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def spec(**changes: Any) -> InferenceModelSpec:
    """An 8B model; `architecture` and `engine` are merged, everything else replaces."""
    return InferenceModelSpec.model_validate(
        {
            "model": {
                "name": "llama",
                "uri": "hf://org/llama",
                "revision": "abc",
                "architecture": {
                    "parameters": 8_030_261_248,
                    "layers": 32,
                    "attentionHeads": 32,
                    "kvHeads": 8,
                    "headDim": 128,
                    **changes.pop("architecture", {}),
                },
            },
            "engine": {"image": "vllm/vllm-openai:v0.32.0", "maxModelLen": 8192, **changes.pop("engine", {})},
            **changes,
        }
    )


LLAMA_70B = {"parameters": 70_553_706_496, "layers": 80, "attentionHeads": 64, "kvHeads": 8, "headDim": 128}
