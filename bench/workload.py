"""What the benchmarks put into the cluster: models, nodes, other people's pods; in a burst or at a steady rate."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bayplan.api import names
from e2e.hollownodes.nodes import NodeShape, node_manifest, side_by_side
from e2e.nodeagent.kubeapi import KubeApi

NAMESPACE = "bench"
FOREIGN = "bench-foreign"
MODELS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.INFERENCEMODEL_PLURAL}"
BURST_CONNECTIONS = 8
FOREIGN_POD_BYTES = 6000
"""About what a Deployment's pod weighs in a cluster with an injecting sidecar or two."""
OWN_PODS = names.LABEL_MODEL
Json = dict[str, Any]


def model(name: str, *, replicas: int) -> Json:
    """An 8B model on one GPU; no two replicas of different models compete for more than GPUs."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCEMODEL_KIND,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {
                "name": name,
                "uri": "hf://example/llama-8b",
                "revision": "0e9e39f249a16976918f6564b8830bc894c89659",
                "architecture": {
                    "parameters": 8_030_261_248,
                    "layers": 32,
                    "attentionHeads": 32,
                    "kvHeads": 8,
                    "headDim": 128,
                },
            },
            "engine": {"image": "vllm/vllm-openai:v0.32.0", "maxModelLen": 8192},
            "concurrency": 8,
            "replicas": replicas,
        },
    }


def models(prefix: str, count: int, *, replicas: int) -> list[Json]:
    """Return `count` models named `prefix`-0 and so on."""
    return [model(f"{prefix}-{number}", replicas=replicas) for number in range(count)]


def nodes(count: int, shape: NodeShape | None = None) -> list[Json]:
    """Return `count` nodes."""
    return [node_manifest(f"hollow-{number:04}", number, shape or NodeShape()) for number in range(count)]


def foreign_pods(count: int, names_of_nodes: Sequence[str]) -> Iterator[Json]:
    """Yield pods that are bound already, dealt out over the nodes; every tenth holds a GPU."""
    for number in range(count):
        resources: Json = {"requests": {"cpu": "100m", "memory": "128Mi"}}
        if number % 10 == 0:
            resources = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
        container: Json = {
            "name": "main",
            "image": "registry.example/team/application:1.2.3",
            "env": [{"name": f"SETTING_{index}", "value": "x" * 40} for index in range(20)],
            "resources": resources,
        }
        body: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"foreign-{number:05}",
                "namespace": FOREIGN,
                "labels": {"app.kubernetes.io/name": "application", "pod-template-hash": f"{number % 300:08x}"},
                "annotations": {"example.com/injected": ""},
            },
            "spec": {"nodeName": names_of_nodes[number % len(names_of_nodes)], "containers": [container]},
        }
        body["metadata"]["annotations"]["example.com/injected"] = "y" * max(0, FOREIGN_POD_BYTES - len(str(body)))
        yield body


async def create_foreign_pods(
    api: KubeApi, count: int, names_of_nodes: Sequence[str], advance: Callable[[], object]
) -> None:
    """Create bound foreign pods."""
    path = f"/api/v1/namespaces/{FOREIGN}/pods"
    work = ((path, body) for body in foreign_pods(count, names_of_nodes))
    await side_by_side(work, api, width=BURST_CONNECTIONS, advance=advance)


async def create_burst(api: KubeApi, bodies: Sequence[Json], advance: Callable[[], object]) -> None:
    """Create models as fast as the API server takes them over a few connections."""
    await side_by_side(((MODELS, body) for body in bodies), api, width=BURST_CONNECTIONS, advance=advance)


async def create_steadily(api: KubeApi, bodies: Sequence[Json], advance: Callable[[], object], *, rate: float) -> None:
    """Create `rate` models a second, each at its time whatever became of the others."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.TaskGroup() as group:
        for number, body in enumerate(bodies):
            await asyncio.sleep(started + number / rate - loop.time())
            group.create_task(api.request("POST", MODELS, body)).add_done_callback(lambda _: advance())


async def delete_models(api: KubeApi) -> None:
    """Delete all models, side by side: one request for all takes longer than a request may."""
    models, _ = await api.list_all(MODELS, {})
    left = iter(models)

    async def delete() -> None:
        for body in left:
            await api.request("DELETE", f"{MODELS}/{body['metadata']['name']}")

    async with asyncio.TaskGroup() as group:
        for _ in range(BURST_CONNECTIONS):
            group.create_task(delete())
