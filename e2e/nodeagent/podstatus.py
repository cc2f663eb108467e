"""A pod's status as a kubelet reports it, computed from its containers; no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.nodeagent.conditions import pod_conditions, stamp
from e2e.nodeagent.containerstate import ContainerState


@dataclass(frozen=True, kw_only=True)
class PodView:
    """What there is to say about a pod. `rejection` is reason and message of a refused admission."""

    spec: Mapping[str, Any]
    containers: Sequence[ContainerState]
    init_containers: Sequence[ContainerState]
    start_time: str
    host_ip: str
    pod_ip: str | None
    stopped: bool
    """Every container has ended for good."""
    rejection: tuple[str, str] | None = None


def pod_phase(view: PodView) -> str:
    """Return the phase; a container that waits for its restart counts as running."""
    if view.rejection is not None:
        return "Failed"
    if view.stopped:
        ended = [state.terminated for state in view.containers]
        return "Succeeded" if all(end is not None and end["exitCode"] == 0 for end in ended) else "Failed"
    begun = [
        state
        for state in view.containers
        if state.running_since is not None or state.terminated is not None or state.last_terminated is not None
    ]
    return "Running" if view.containers and len(begun) == len(view.containers) else "Pending"


def build_status(view: PodView, observed: Mapping[str, Any], *, now: str) -> dict[str, Any]:
    """Return the status fields that a kubelet owns, ready for a strategic merge patch onto `observed`."""
    phase = pod_phase(view)
    conditions = pod_conditions(
        readiness_gates=[gate["conditionType"] for gate in view.spec.get("readinessGates") or ()],
        observed=observed.get("conditions") or [],
        phase=phase,
        has_address=view.pod_ip is not None,
        initialized=view.rejection is None and all(state.terminated for state in view.init_containers),
        unready_containers=[state.name for state in view.containers if not state.ready],
    )
    status: dict[str, Any] = {
        "phase": phase,
        "startTime": observed.get("startTime") or view.start_time,
        "conditions": stamp(observed.get("conditions") or [], conditions, now=now),
    }
    if view.rejection is not None:
        reason, message = view.rejection
        return status | {"reason": reason, "message": f"Pod was rejected: {message}"}
    status |= {
        "hostIP": view.host_ip,
        "hostIPs": [{"ip": view.host_ip}],
        "containerStatuses": [state.to_status() for state in view.containers],
        "initContainerStatuses": [state.to_status() for state in view.init_containers],
    }
    if view.pod_ip is not None:
        status |= {"podIP": view.pod_ip, "podIPs": [{"ip": view.pod_ip}]}
    return status
