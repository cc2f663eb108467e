"""Changes to pods that live already: release to the scheduler, and the warm condition.

Patches are guarded: each names what the decision stood on, and the API server refuses it when that is no longer so.
"""

from datetime import datetime

from bayplan.api import names
from bayplan.api.meta import rfc3339
from bayplan.cluster.port import Json
from bayplan.planning.groups.members import Member


def ungate_patch(member: Member, node: str, *, now: datetime) -> list[Json]:
    """JSON patch that releases one pod to the scheduler, pinned to `node`.

    Each `test` guards what was decided on: the very pod, the plan, and that the gate at this index is ours. Other
    gates stay. The affinity is added to every required term that an admission plugin may have put there, because
    terms are alternatives.
    """
    term = {"key": "metadata.name", "operator": "In", "values": [node]}
    base = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"
    ops: list[Json] = [
        {"op": "test", "path": "/metadata/uid", "value": member.uid},
        {
            "op": "test",
            "path": f"/metadata/annotations/{pointer(names.ANNOTATION_PLAN_ID)}",
            "value": member.plan_id,
        },
        {
            "op": "test",
            "path": f"/spec/schedulingGates/{member.gate_index}/name",
            "value": names.SCHEDULING_GATE,
        },
    ]
    required = {"nodeSelectorTerms": [{"matchFields": [term]}]}
    wrapped: list[tuple[str, Json]] = [
        ("/spec/affinity", {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}),
        ("/spec/affinity/nodeAffinity", {"requiredDuringSchedulingIgnoredDuringExecution": required}),
        (base, required),
    ]
    if member.affinity_depth < len(wrapped):
        path, value = wrapped[member.affinity_depth]
        ops.append({"op": "add", "path": path, "value": value})
    else:
        ops += [
            {"op": "add", "path": f"{base}/nodeSelectorTerms/{index}/matchFields", "value": [term]}
            for index in range(member.required_terms)
        ]
    ops += [
        {
            "op": "add",
            "path": f"/metadata/annotations/{pointer(names.ANNOTATION_UNGATED)}",
            "value": rfc3339(now),
        },
        {"op": "remove", "path": f"/spec/schedulingGates/{member.gate_index}"},
    ]
    return ops


def pointer(key: str) -> str:
    """Escape a key for a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def warm_condition(*, container_id: str | None, now: datetime, reason: str, message: str = "") -> Json:
    """Return the pod condition: True names the container that generated, None makes it False with `message`."""
    return {
        "type": names.CONDITION_WARM,
        "status": "False" if container_id is None else "True",
        "reason": reason,
        "message": container_id or message[:1024],
        "lastTransitionTime": rfc3339(now),
    }
