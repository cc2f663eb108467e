"""Kubernetes quantities such as `500m`, `16Gi` or `1e3`, read exactly."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
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
    effective = _effective(spec)
    cpu, memory = effective.get("cpu", _NONE), effective.get("memory", _NONE)
    return PodRequest(
        gpus=math.ceil(sum(effective.get(name, _NONE) for name in GPU_RESOURCES)),
        cpu_millis=math.ceil((pod_level.get("cpu", cpu) + overhead.get("cpu", _NONE)) * 1000),
        memory_bytes=math.ceil(pod_level.get("memory", memory) + overhead.get("memory", _NONE)),
    )


_NONE = Fraction(0)
_COUNTED = frozenset({"cpu", "memory", *GPU_RESOURCES})
_Amounts = dict[str, Fraction]


def _effective(spec: Mapping[str, Any]) -> _Amounts:
    running: _Amounts = {}
    for container in spec.get("containers") or ():
        _add(running, _resources(container.get("resources")))
    sidecars: _Amounts = {}
    peak: _Amounts = {}
    for container in spec.get("initContainers") or ():
        asked = _resources(container.get("resources"))
        if container.get("restartPolicy") == "Always":
            _add(sidecars, asked)
            _raise(peak, sidecars)
        else:
            together = dict(sidecars)
            _add(together, asked)
            _raise(peak, together)
    _add(running, sidecars)
    _raise(running, peak)
    return running


def _add(amounts: _Amounts, more: Mapping[str, Fraction]) -> None:
    for name, amount in more.items():
        amounts[name] = amounts[name] + amount if name in amounts else amount


def _raise(amounts: _Amounts, least: Mapping[str, Fraction]) -> None:
    for name, amount in least.items():
        amounts[name] = max(amounts.get(name, _NONE), amount)


def _resources(resources: object) -> _Amounts:
    """Requests, and limits for what has no request: the API server defaults it so."""
    if not isinstance(resources, Mapping):
        return {}
    return _amounts(resources.get("limits")) | _amounts(resources.get("requests"))


def _amounts(resources: object) -> _Amounts:
    if not isinstance(resources, Mapping):
        return {}
    read = {name: _amount(str(value)) for name, value in resources.items() if name in _COUNTED}
    return {name: amount for name, amount in read.items() if amount is not None}


@lru_cache(maxsize=4096)
def _amount(text: str) -> Fraction | None:
    """At least 0; None for nonsense. Remembered: thousands of pods ask for the same few amounts."""
    try:
        return max(_NONE, quantity(text, ""))
    except InvalidInput:
        return None
