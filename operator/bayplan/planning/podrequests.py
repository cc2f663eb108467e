"""What a pod takes from its node, counted as the scheduler counts it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bayplan.planning.numbers import InvalidInput
from bayplan.planning.quantities import requested_bytes, requested_cpu_millis

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
"""Extended resources that count whole GPUs."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """Whole GPUs, thousandths of a core, and bytes of memory."""

    gpus: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0

    def __add__(self, other: "PodRequest") -> "PodRequest":
        return PodRequest(
            self.gpus + other.gpus, self.cpu_millis + other.cpu_millis, self.memory_bytes + other.memory_bytes
        )

    def at_least(self, other: "PodRequest") -> "PodRequest":
        """Return the larger of the two, resource by resource."""
        return PodRequest(
            max(self.gpus, other.gpus),
            max(self.cpu_millis, other.cpu_millis),
            max(self.memory_bytes, other.memory_bytes),
        )


@lru_cache(maxsize=4096)
def _cpu(text: str) -> int:
    try:
        return requested_cpu_millis(text, "cpu")
    except InvalidInput:
        return 0


@lru_cache(maxsize=4096)
def _bytes(text: str) -> int:
    try:
        return requested_bytes(text, "memory")
    except InvalidInput:
        return 0


def resources_request(resources: Mapping[str, Any] | None) -> PodRequest:
    """Return a container's request. A limit without a request counts as the request, as the API server defaults it."""
    if not resources:
        return PodRequest()
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return PodRequest(
        gpus=sum(_bytes(str(asked[name])) for name in GPU_RESOURCES if name in asked),
        cpu_millis=_cpu(str(asked["cpu"])) if "cpu" in asked else 0,
        memory_bytes=_bytes(str(asked["memory"])) if "memory" in asked else 0,
    )


def pod_request(spec: Mapping[str, Any]) -> PodRequest:
    """Return a pod's effective request: max(sum of containers and sidecars, largest init step) + overhead.

    Source of the rule: Kubernetes "Init containers", resource sharing; a restartable init container is a sidecar and
    adds to every later step. The API server has validated the quantities; one that is unreadable counts as zero.
    """
    sidecars = PodRequest()
    init_peak = PodRequest()
    for container in _list(spec.get("initContainers")):
        request = resources_request(container.get("resources"))
        if container.get("restartPolicy") == "Always":
            sidecars = sidecars + request
            init_peak = init_peak.at_least(sidecars)
        else:
            init_peak = init_peak.at_least(sidecars + request)
    running = sidecars
    for container in _list(spec.get("containers")):
        running = running + resources_request(container.get("resources"))
    overhead = resources_request({"requests": spec.get("overhead") or {}})
    return running.at_least(init_peak) + overhead


def _list(value: object) -> Sequence[Mapping[str, Any]]:
    return value if isinstance(value, list) else ()
