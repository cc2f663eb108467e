"""Watches the API server and checks that no GPU is given twice. Shares no code with the planner.

In every state that the watch shows, per node: the GPUs of pods that are bound there, plus those of pods that were
released for it (their required node affinity names it) and not bound yet, are at most what the node can allocate.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from e2e.localcluster.client import KubeApi

GPUS = ("nvidia.com/gpu", "amd.com/gpu")
PODS = "/api/v1/pods"
POLL_SECONDS = 0.15


class GpuWatch:
    """Checks the invariant while its block runs; `violations` says what was seen, `checked` how often."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self.violations: list[str] = []
        self.checked = 0

    @classmethod
    @asynccontextmanager
    async def on(cls, api: KubeApi) -> AsyncIterator[Self]:
        """Watch for the length of the block."""
        watch = cls(api)
        task = asyncio.create_task(watch._run(), name="gpu invariant")
        try:
            yield watch
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            nodes = await self._api.get("/api/v1/nodes")
            pods = await self._api.get(PODS)
            self.check(nodes["items"], pods["items"])
            await asyncio.sleep(POLL_SECONDS)

    def check(self, nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> None:
        """Check one state."""
        self.checked += 1
        held: dict[str, int] = {}
        for pod in pods:
            place = placed_on(pod)
            if place is not None and pod.get("status", {}).get("phase") not in ("Failed", "Succeeded"):
                held[place] = held.get(place, 0) + gpus_of(pod)
        for node in nodes:
            name, allocatable = node["metadata"]["name"], node.get("status", {}).get("allocatable") or {}
            limit = sum(int(allocatable.get(resource, 0)) for resource in GPUS)
            if held.get(name, 0) > limit:
                self.violations.append(f"{name}: {held[name]} of {limit} GPUs")


def placed_on(pod: dict[str, Any]) -> str | None:
    """Node that a pod is bound to, or pinned to once it may be scheduled; None for a gated pod."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    if spec.get("schedulingGates"):
        return None
    terms = (
        ((spec.get("affinity") or {}).get("nodeAffinity") or {})
        .get("requiredDuringSchedulingIgnoredDuringExecution", {})
        .get("nodeSelectorTerms", [])
    )
    for term in terms:
        for field in term.get("matchFields") or ():
            if field["key"] == "metadata.name" and len(field["values"]) == 1:
                return str(field["values"][0])
    return None


def gpus_of(pod: dict[str, Any]) -> int:
    """Whole GPUs that a pod's containers ask for."""
    return sum(
        int((container.get("resources") or {}).get("limits", {}).get(resource, 0))
        for container in pod["spec"]["containers"]
        for resource in GPUS
    )
