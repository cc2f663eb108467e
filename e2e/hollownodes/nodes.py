"""Node objects with the labels that real labellers would set, created together with a healthy status."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.nodeagent.conditions import node_conditions, stamp
from e2e.nodeagent.inventory import GpuKind
from e2e.nodeagent.kubeapi import KubeApi, Object
from e2e.nodeagent.services import now_text

NODES = "/api/v1/nodes"
CONNECTIONS = 8
POLL_SECONDS = 0.2
L40S = GpuKind(product="NVIDIA-L40S", memory_mib=46068, family="ada-lovelace", compute_capability="8.9")
H100 = GpuKind(product="NVIDIA-H100-80GB-HBM3", memory_mib=81559, family="hopper", compute_capability="9.0")


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """What every node of a set has: GPUs of one kind, and racks and zones that nodes are dealt into in turn."""

    gpu: GpuKind = L40S
    gpus: int = 8
    zones: int = 3
    racks: int = 10
    pods: int = 250


def node_manifest(name: str, number: int, shape: NodeShape) -> Object:
    """Return a Node with its status; `number` decides rack and zone."""
    amounts = {
        "cpu": "128",
        "memory": "2000Gi",
        "ephemeral-storage": "2Ti",
        "pods": str(shape.pods),
        shape.gpu.resource: str(shape.gpus),
    }
    rack = number % shape.racks
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/region": "region-1",
        "topology.kubernetes.io/zone": f"zone-{rack % shape.zones}",
        "fabric.topograph.run/tier-0": f"rack-{rack}",
        **shape.gpu.labels(shape.gpus),
    }
    now = now_text()
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [entry | {"lastHeartbeatTime": now} for entry in stamp([], node_conditions(), now=now)],
        },
    }


async def create_nodes(api: KubeApi, nodes: Sequence[Object], *, advance: Callable[[], object] = lambda: None) -> None:
    """Create the nodes and wait until the node controller has taken their first taint away.

    `advance` is called for each node created.
    """
    await side_by_side(((NODES, node) for node in nodes), api, width=CONNECTIONS, advance=advance)
    names = {node["metadata"]["name"] for node in nodes}
    while names & await _tainted(api):  # noqa: ASYNC110 - what is waited for is on the other side of HTTP
        await asyncio.sleep(POLL_SECONDS)


async def _tainted(api: KubeApi) -> set[str]:
    items, _ = await api.list_all(NODES, {})
    return {item["metadata"]["name"] for item in items if item["spec"].get("taints")}


async def side_by_side(
    work: Iterable[tuple[str, Object]], api: KubeApi, *, width: int, advance: Callable[[], object] = lambda: None
) -> None:
    """POST each body to its path over `width` connections; raises the first ApiError."""
    queue = iter(work)

    async def post() -> None:
        for path, body in queue:
            await api.request("POST", path, body)
            advance()

    async with asyncio.TaskGroup() as group:
        for _ in range(width):
            group.create_task(post())


def condition_patch(kind: str, status: str, reason: str, **extra: Any) -> Object:
    """Return a strategic merge patch of one node condition."""
    now = now_text()
    entry = {"type": kind, "status": status, "reason": reason, "lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"status": {"conditions": [entry | extra]}}
