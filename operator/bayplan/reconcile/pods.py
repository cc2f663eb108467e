"""Pods as the API server shows them, reduced to the records that decisions use.

Runs on every pod of the cluster while its JSON is parsed, so it keeps little, and it trusts nothing: labels and
annotations are whatever somebody wrote there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bayplan.api import names
from bayplan.api.meta import owner_uid, parse_rfc3339
from bayplan.cluster.cache import version_number
from bayplan.cluster.resources import Key
from bayplan.planning.admission.bounds import AdmissionBounds
from bayplan.planning.groups.assignment import Assignment
from bayplan.planning.groups.members import EngineExit, Member
from bayplan.planning.groups.reservation import LivePod
from bayplan.planning.quantities import PodRequest, pod_request

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


MAX_REPORT = 4096
"""Longest word of a container that ends, as kubelets have it."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a pod that reads a model's files has said so far."""

    owner_uid: str
    report: str


@dataclass(frozen=True, slots=True)
class PodView:
    """What the cache keeps of a pod; `member` is set only for pods with our labels or of an InferenceModel."""

    key: Key
    uid: str
    resource_version: int
    node: str | None
    gpus: int
    cpu_millis: int
    memory_bytes: int
    terminal: bool
    address: str = ""
    member: Member | None = None
    inspection: Inspection | None = None
    """Set only for a pod that reads a model's files; it is no member of any group."""

    def live(self) -> LivePod:
        """The record that the recheck uses.

        A pod with our labels that no InferenceModel controls holds what it is bound to, and reserves nothing. Whether
        this process knows the model does not matter: another operator may have seen it first.
        """
        return LivePod(
            uid=self.uid,
            node=self.node,
            gpus=self.gpus,
            cpu_millis=self.cpu_millis,
            memory_bytes=self.memory_bytes,
            terminal=self.terminal,
            member=self.member if self.member is not None and self.member.owned else None,
        )


def view_pod(raw: Mapping[str, Any]) -> PodView:
    """Project one pod of the API server."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = meta.get("labels") or {}
    request = pod_request(spec)
    phase = status.get("phase") or "Pending"
    member = inspection = None
    if labels.get(names.APP_COMPONENT) == names.INSPECTION_COMPONENT and names.LABEL_MODEL in labels:
        inspection = Inspection(owner_uid(meta) or "", _report(status))
    elif names.LABEL_MODEL in labels or _controller(meta) is not None:
        # A pod of ours whose labels somebody took away still holds, or will hold, its GPUs.
        member = _member(meta, spec, status, request)
    return PodView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        node=spec.get("nodeName") or None,
        gpus=request.gpus,
        cpu_millis=request.cpu_millis,
        memory_bytes=request.memory_bytes,
        terminal=phase in ("Failed", "Succeeded"),
        address=str(status.get("podIP") or ""),
        member=member,
        inspection=inspection,
    )


def _report(status: Mapping[str, Any]) -> str:
    for entry in status.get("containerStatuses") or ():
        if entry.get("name") == names.INSPECTION_CONTAINER:
            return str(_state(entry, "terminated").get("message") or "")[:MAX_REPORT]
    return ""


def _member(meta: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any], request: PodRequest) -> Member:
    labels = meta.get("labels") or {}
    annotations = meta.get("annotations") or {}
    assignment, problem = _assignment(annotations.get(names.ANNOTATION_ASSIGNMENT))
    gates = [gate.get("name") for gate in spec.get("schedulingGates") or ()]
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    container, model = _container(status), _controller(meta)
    warm = conditions.get(names.CONDITION_WARM) or {}
    is_warm = warm.get("status") == "True"
    gave_up = warm.get("status") == "False" and warm.get("reason") == names.WARMUP_FAILED
    depth, terms = _affinity(spec)
    gated = names.SCHEDULING_GATE in gates
    rank = labels.get(names.LABEL_RANK, "")
    return Member(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        owner_uid=owner_uid(meta),
        model=str(labels.get(names.LABEL_MODEL, "")),
        revision=str(labels.get(names.LABEL_REVISION, "")),
        template=str(labels.get(names.LABEL_TEMPLATE, "")),
        group=str(labels.get(names.LABEL_GROUP, "")),
        rank=int(rank) if rank.isdecimal() and len(rank) < 4 else None,
        plan_id=str(annotations.get(names.ANNOTATION_PLAN_ID, "")),
        created=_time(meta.get("creationTimestamp")) or _EPOCH,
        assignment=assignment,
        assignment_error=problem,
        gated=gated,
        gate_index=gates.index(names.SCHEDULING_GATE) if gated else -1,
        affinity_depth=depth,
        required_terms=len(terms),
        owned=model is not None,
        astray=model is not None and not _is_named(labels, model),
        pinned_node=None if gated else _pinned_node(terms),
        ungated_at=_time(annotations.get(names.ANNOTATION_UNGATED)),
        node=spec.get("nodeName") or None,
        phase=status.get("phase") or "Pending",
        deleting=meta.get("deletionTimestamp") is not None,
        draining_since=_time(annotations.get(names.ANNOTATION_DRAINING)),
        pod_ip=status.get("podIP") or None,
        container_id=container.get("containerID") or None,
        container_started=_time(_state(container, "running").get("startedAt")),
        waiting_reason=str(_state(container, "waiting").get("reason", "")),
        waiting_message=str(_state(container, "waiting").get("message", ""))[:300],
        failed_reason=str(status.get("reason") or status.get("message") or "")[:300],
        exit=_exit(_state(container, "terminated")),
        warm_container_id=str(warm.get("message", "")) if is_warm else None,
        warm_since=_time(warm.get("lastTransitionTime")) if is_warm else None,
        warmup_failed=str(warm.get("message", "")) or "warm-up failed" if gave_up else "",
        warmup_failed_at=_time(warm.get("lastTransitionTime")) if gave_up else None,
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        scheduling_message=_unschedulable(conditions.get("PodScheduled") or {}),
        gpus=request.gpus,
        cpu_millis=request.cpu_millis,
        memory_bytes=request.memory_bytes,
        kv_tokens=_kv_tokens(annotations.get(names.ANNOTATION_ADMISSION)),
    )


def _kv_tokens(text: object) -> int | None:
    try:
        return AdmissionBounds.from_json(text).kv_tokens if isinstance(text, str) else None
    except ValueError:
        return None


def _assignment(text: object) -> tuple[Assignment | None, str]:
    if not isinstance(text, str):
        return None, ""
    try:
        return Assignment.from_json(text), ""
    except ValueError as error:
        return None, str(error)[:200]


def _time(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        return parse_rfc3339(text)
    except ValueError:
        return None


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for entry in status.get("containerStatuses") or ():
        if entry.get("name") == names.ENGINE_CONTAINER:
            found: Mapping[str, Any] = entry
            return found
    return {}


def _state(container: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (container.get("state") or {}).get(kind) or {}
    return found


def _exit(state: Mapping[str, Any]) -> EngineExit | None:
    if not state:
        return None
    code = state.get("exitCode")
    return EngineExit(
        exit_code=code if isinstance(code, int) else -1,
        reason=str(state.get("reason") or "Error"),
        finished=_time(state.get("finishedAt")) or _EPOCH,
    )


def _unschedulable(condition: Mapping[str, Any]) -> str:
    if condition.get("status") == "False" and condition.get("reason") != "SchedulingGated":
        return str(condition.get("message", ""))[:300]
    return ""


def _affinity(spec: Mapping[str, Any]) -> tuple[int, Sequence[Mapping[str, Any]]]:
    """How deep the required node affinity exists, and its terms."""
    depth = 0
    at: Mapping[str, Any] = spec
    for key in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        found = at.get(key)
        if not isinstance(found, Mapping):
            return depth, ()
        depth, at = depth + 1, found
    return depth, at.get("nodeSelectorTerms") or ()


def _pinned_node(terms: Sequence[Mapping[str, Any]]) -> str | None:
    """The node that every required term names; terms are alternatives, so one without a name pins nothing."""
    pinned = {_named_node(term) for term in terms}
    return pinned.pop() if len(pinned) == 1 else None


def _named_node(term: Mapping[str, Any]) -> str | None:
    for field in term.get("matchFields") or ():
        values = list(field.get("values") or ())
        if field.get("key") == "metadata.name" and field.get("operator") == "In" and len(values) == 1:
            return str(values[0])
    return None


def _controller(meta: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The InferenceModel that controls the pod, known to this process's caches or not."""
    for reference in meta.get("ownerReferences") or ():
        kind, version = reference.get("kind"), str(reference.get("apiVersion"))
        if reference.get("controller") and kind == names.INFERENCEMODEL_KIND and version.startswith(f"{names.GROUP}/"):
            found: Mapping[str, Any] = reference
            return found
    return None


def _is_named(labels: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Whether labels name that model."""
    named = labels.get(names.LABEL_MODEL), labels.get(names.LABEL_MODEL_UID)
    return named == (model.get("name"), model.get("uid"))
