"""Kubernetes quantities such as `500m`, `16Gi` or `1e3`, read exactly."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bayplan.planning.numbers import InvalidInput

_FORM = re.compile(r"^([+-]?)(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE]([+-]?\d{1,2})|(m|u|n|k|[MGTPE]|[KMGTPE]i)?)$")
_FACTOR = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    **{letter: Fraction(1000 ** (power + 2)) for power, letter in enumerate("MGTPE")},
    **{f"{letter}i": Fraction(1024 ** (power + 1)) for power, letter in enumerate("KMGTPE")},
}


def quantity(value: object, name: str) -> Fraction:
    """Return the value of a Kubernetes quantity (text, or a whole number as YAML may write it).

    Raises InvalidInput for anything else.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    found = _FORM.match(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput(name, f"must be a Kubernetes quantity such as 500m, 4 or 16Gi, not {value!r}")
    sign, digits, exponent, suffix = found.groups()
    number = Fraction(digits if digits[-1] != "." else digits[:-1])
    if exponent:
        number *= Fraction(10) ** int(exponent)
    number *= _FACTOR[suffix] if suffix else 1
    return -number if sign == "-" else number


def requested_cpu_millis(value: object, name: str) -> int:
    """CPU that a request takes, in thousandths of a core, rounded up as the scheduler does."""
    return math.ceil(quantity(value, name) * 1000)


def requested_bytes(value: object, name: str) -> int:
    """Bytes that a request takes, rounded up."""
    return math.ceil(quantity(value, name))


GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe", "gpu.intel.com/i915")
"""Extended resources that count whole GPUs, in the order in which a node's is looked for."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod takes from its node, as kube-scheduler counts it."""

    gpus: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0


def pod_request(spec: Mapping[str, Any]) -> PodRequest:
    """Return the effective request of a pod `spec`.

    Per resource: the larger of (all containers and sidecars) and (the largest init container with the sidecars that
    started before it), plus the pod's overhead; pod-level CPU and memory requests stand in for the sum. A quantity
    that nobody could have written counts as nothing, since the API server refuses it.
    """
    pod_level = _resources(spec.get("resources"))
    overhead = _amounts(spec.get("overhead"))
    cpu, memory = _effective(spec, "cpu"), _effective(spec, "memory")
    return PodRequest(
        gpus=math.ceil(sum(_effective(spec, name) for name in GPU_RESOURCES)),
        cpu_millis=math.ceil((pod_level.get("cpu", cpu) + overhead.get("cpu", Fraction(0))) * 1000),
        memory_bytes=math.ceil(pod_level.get("memory", memory) + overhead.get("memory", Fraction(0))),
    )


def _effective(spec: Mapping[str, Any], name: str) -> Fraction:
    running = sum((_request(c, name) for c in spec.get("containers") or ()), start=Fraction(0))
    sidecars, peak = Fraction(0), Fraction(0)
    for container in spec.get("initContainers") or ():
        asked = _request(container, name)
        if container.get("restartPolicy") == "Always":
            sidecars += asked
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + asked)
    return max(running + sidecars, peak)


def _request(container: Mapping[str, Any], name: str) -> Fraction:
    return _resources(container.get("resources")).get(name, Fraction(0))


def _resources(resources: object) -> dict[str, Fraction]:
    """Requests, and limits for what has no request: the API server defaults it so."""
    if not isinstance(resources, Mapping):
        return {}
    return _amounts(resources.get("limits")) | _amounts(resources.get("requests"))


def _amounts(resources: object) -> dict[str, Fraction]:
    amounts = {}
    for name, value in (resources if isinstance(resources, Mapping) else {}).items():
        try:
            amounts[str(name)] = max(Fraction(0), quantity(value, str(name)))
        except InvalidInput:
            continue
    return amounts
