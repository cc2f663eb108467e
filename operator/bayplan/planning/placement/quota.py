"""Headroom under ResourceQuotas, for a whole group at once.

Only a hint: admission decides. But checking first means that a group that cannot have all its pods creates none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayplan.planning.numbers import InvalidInput
from bayplan.planning.quantities import PodRequest, quantity


@dataclass(frozen=True, slots=True)
class Quota:
    """One ResourceQuota: hard limits and what is used, as Kubernetes quantities by resource name.

    `scoped` quotas apply to some pods only; which ones is admission's to say, so they are left out here.
    """

    name: str
    hard: Mapping[str, str]
    used: Mapping[str, str]
    scoped: bool = False


def quota_shortfall(quotas: Sequence[Quota], *, pods: int, per_pod: PodRequest, gpu_resource: str) -> str:
    """Return which quota is short for `pods` pods of `per_pod`, with the numbers; "" when there is room.

    Equal to the limit passes. What is not asked for cannot be short, even under a quota that was lowered below its use.
    Unreadable quantities are left to admission.
    """
    asked: dict[str, int] = {
        "pods": pods,
        "count/pods": pods,
        f"requests.{gpu_resource}": pods * per_pod.gpus,
        "cpu": pods * per_pod.cpu_millis,
        "requests.cpu": pods * per_pod.cpu_millis,
        "memory": pods * per_pod.memory_bytes,
        "requests.memory": pods * per_pod.memory_bytes,
    }
    for quota in quotas:
        if quota.scoped:
            continue
        for resource, need in asked.items():
            if need == 0 or resource not in quota.hard:
                continue
            try:
                scale = 1000 if resource.endswith("cpu") else 1
                hard = quantity(quota.hard[resource], resource) * scale
                used = quantity(quota.used.get(resource, "0"), resource) * scale
            except InvalidInput:
                continue
            if used + need > hard:
                unit = " millicores" if scale == 1000 else ""
                return (
                    f"quota {quota.name}: {resource} needs {need}{unit} more, "
                    f"{max(0, int(hard - used))} of {int(hard)} left"
                )
    return ""
