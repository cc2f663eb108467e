"""Pod and node conditions as a kubelet states them: only its own types, which the API server merges by type."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Condition = dict[str, Any]


def stamp(observed: Iterable[Mapping[str, Any]], own: Iterable[Condition], *, now: str) -> list[Condition]:
    """Give each own condition its `lastTransitionTime`: the observed one while its status is unchanged, else `now`."""
    before = {item["type"]: item for item in observed}
    stamped = []
    for condition in own:
        old = before.get(condition["type"])
        same = old is not None and old["status"] == condition["status"] and old.get("lastTransitionTime")
        stamped.append(condition | {"lastTransitionTime": old["lastTransitionTime"] if old and same else now})
    return stamped


def _condition(kind: str, *, true: bool, reason: str | None = None, message: str | None = None) -> Condition:
    # Explicit nulls: a merge patch would otherwise leave yesterday's reason beside today's status.
    return {"type": kind, "status": "True" if true else "False", "reason": reason, "message": message}


def pod_conditions(
    *,
    readiness_gates: Iterable[str],
    observed: Sequence[Mapping[str, Any]],
    phase: str,
    has_address: bool,
    initialized: bool,
    unready_containers: Sequence[str],
) -> list[Condition]:
    """Return a kubelet's own conditions of a pod, without times.

    Ready needs every container ready and every readiness gate's condition True, whoever wrote it.
    """
    own = [_condition("PodReadyToStartContainers", true=has_address)]
    if phase in {"Succeeded", "Failed"}:
        reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
        own.append(_condition("Initialized", true=initialized, reason=reason))
        return own + [_condition(kind, true=False, reason=reason) for kind in ("ContainersReady", "Ready")]
    own.append(
        _condition("Initialized", true=True)
        if initialized
        else _condition("Initialized", true=False, reason="ContainersNotInitialized")
    )
    if unready_containers:
        message = f"containers with unready status: [{' '.join(unready_containers)}]"
        return own + [
            _condition(kind, true=False, reason="ContainersNotReady", message=message)
            for kind in ("ContainersReady", "Ready")
        ]
    own.append(_condition("ContainersReady", true=True))
    status_by_type = {item["type"]: item["status"] for item in observed}
    problems = [
        f'corresponding condition of pod readiness gate "{gate}" does not exist.'
        if gate not in status_by_type
        else f'the status of pod readiness gate "{gate}" is not "True", but {status_by_type[gate]}'
        for gate in readiness_gates
        if status_by_type.get(gate) != "True"
    ]
    if problems:
        return [*own, _condition("Ready", true=False, reason="ReadinessGatesNotReady", message=", ".join(problems))]
    return [*own, _condition("Ready", true=True)]


def node_conditions() -> list[Condition]:
    """Return the conditions of a healthy node, without times."""
    healthy = {
        "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    }
    own = [_condition(kind, true=False, reason=reason, message=message) for kind, (reason, message) in healthy.items()]
    return [*own, _condition("Ready", true=True, reason="KubeletReady", message="the node agent is reporting")]


def covers(observed: object, wanted: object) -> bool:
    """Return whether `observed` already says everything in `wanted`: null equals absent, keyed lists match by key."""
    if isinstance(wanted, Mapping):
        found = observed if isinstance(observed, Mapping) else {}
        return all(covers(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(observed, list):
            return not wanted
        if all(isinstance(item, Mapping) and "type" in item for item in wanted):
            by_type = {item["type"]: item for item in observed}
            return all(covers(by_type.get(item["type"]), item) for item in wanted)
        return len(observed) == len(wanted) and all(covers(o, w) for o, w in zip(observed, wanted, strict=True))
    return observed == wanted
