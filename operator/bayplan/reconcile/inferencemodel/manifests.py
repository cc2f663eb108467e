"""The Kubernetes objects of an InferenceModel, as pure functions of spec and assignment.

Pods are created by POST and never applied: the first creator wins, so a second operator cannot silently replace a
reservation. `spec.nodeName` is never set; the place is a node affinity added when the gate falls.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.api import names
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.podtemplate import Volume
from bayplan.planning.admission.bounds import AdmissionBounds
from bayplan.planning.groups.assignment import Assignment
from bayplan.planning.layout.records import Recorded, write_layouts

Json = dict[str, Any]
MASTER_PORT = 29501
SHARED_MEMORY_VOLUME = "bayplan-shm"
MODEL_VOLUME = "bayplan-model"
MODEL_PATH = "/mnt/model"
PRE_STOP_SECONDS = 5
"""A pod that somebody deletes serves on for so long, until every gateway and every Service has heard of it."""
GRACE_MARGIN_SECONDS = 25
"""What an engine may take to end once its own shutdown time-out has passed."""
PROBE_PERIOD_SECONDS = 2
LONGEST_LOAD_SECONDS = 86_400
"""The API's bound of `warmup.loadDeadlineSeconds`."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Who owns the children."""

    namespace: str
    name: str
    uid: str


def owner_reference(model: ModelIdentity) -> Json:
    """Controller reference: garbage collection, drain and our own ownership check all read it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCEMODEL_KIND,
        "name": model.name,
        "uid": model.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def common_labels(model: ModelIdentity, component: str) -> dict[str, str]:
    """Return the labels that every child carries."""
    return {
        names.APP_NAME: "bayplan-engine",
        names.APP_INSTANCE: model.name,
        names.APP_COMPONENT: component,
        names.APP_PART_OF: model.name,
        names.APP_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_MODEL: model.name,
    }


def pod_name(group: str, rank: int) -> str:
    """Return the name of a rank's pod."""
    return f"{group}-{rank}"


def ranks_service_name(model: str) -> str:
    """Headless service that gives every rank of every group a name before it is ready."""
    return f"{model}-ranks"


def pod(
    model: ModelIdentity, spec: InferenceModelSpec, assignment: Assignment, rank: int, bounds: AdmissionBounds
) -> Json:
    """Return one rank's pod: gated, owned, with its part of the reservation. `spec` is that of the revision.

    Ending takes preStop, then the engine's own shutdown (`--shutdown-timeout`), and the grace period covers both.
    """
    place = assignment.ranks[rank]
    annotations = {names.ANNOTATION_PLAN_ID: assignment.plan_id}
    if rank == 0:
        annotations[names.ANNOTATION_ASSIGNMENT] = assignment.to_json()
        annotations[names.ANNOTATION_ADMISSION] = bounds.to_json()
    labels = common_labels(model, "engine") | {
        names.LABEL_MODEL_UID: model.uid,
        names.LABEL_REVISION: assignment.revision,
        names.LABEL_TEMPLATE: assignment.template,
        names.LABEL_GROUP: assignment.group,
        names.LABEL_RANK: str(rank),
    }
    volumes, mounts = volumes_of(spec)
    container = {
        "name": names.ENGINE_CONTAINER,
        "image": spec.engine.image,
        "args": engine_args(model, spec, assignment, rank),
        "env": env_of(spec),
        "resources": _resources(spec, assignment.gpu_resource, place.gpus),
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False},
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
    }
    if rank == 0:
        container |= {
            "ports": [{"name": "http", "containerPort": names.ENGINE_PORT}],
            **_probes(),
        }
    body: Json = {
        "restartPolicy": "Never",
        "schedulingGates": [{"name": names.SCHEDULING_GATE}],
        "readinessGates": [{"conditionType": names.CONDITION_WARM}],
        "terminationGracePeriodSeconds": PRE_STOP_SECONDS + spec.drain.deadline_seconds + GRACE_MARGIN_SECONDS,
        "automountServiceAccountToken": spec.template.service_account_name is not None,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
        "tolerations": [t.to_wire() for t in spec.placement.tolerations],
    }
    if len(assignment.ranks) > 1:
        body |= {"hostname": pod_name(assignment.group, rank), "subdomain": ranks_service_name(model.name)}
    body |= template_details(spec)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": model.namespace,
            "name": pod_name(assignment.group, rank),
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(model)],
        },
        "spec": body,
    }


def engine_args(model: ModelIdentity, spec: InferenceModelSpec, assignment: Assignment, rank: int) -> list[str]:
    """Return vLLM's arguments, named as its command line names them; the user's own come last.

    Groups over several nodes use vLLM's multi-node flags: every rank knows the head's name, ranks above 0 serve no
    HTTP (`--headless`).
    """
    engine = spec.engine
    args = [
        model_location(spec),
        f"--served-model-name={spec.model.name}",
        f"--port={names.ENGINE_PORT}",
        f"--max-model-len={engine.max_model_len}",
        f"--gpu-memory-utilization={engine.gpu_memory_utilization}",
        f"--kv-cache-dtype={engine.kv_cache_dtype}",
        f"--tensor-parallel-size={assignment.tensor}",
        f"--pipeline-parallel-size={assignment.pipeline}",
        f"--shutdown-timeout={spec.drain.deadline_seconds}",
    ]
    if spec.model.uri.startswith("hf://"):
        args.append(f"--revision={spec.model.revision}")
    if engine.max_num_seqs is not None:
        args.append(f"--max-num-seqs={engine.max_num_seqs}")
    if assignment.expert:
        args.append("--enable-expert-parallel")
    if assignment.decode_context > 1:
        args.append(f"--decode-context-parallel-size={assignment.decode_context}")
    if assignment.data > 1:
        args += _data_parallel_args(model, assignment, rank)
    elif len(assignment.ranks) > 1:
        head = f"{pod_name(assignment.group, 0)}.{ranks_service_name(model.name)}.{model.namespace}.svc"
        args += [
            f"--nnodes={len(assignment.ranks)}",
            f"--node-rank={rank}",
            f"--master-addr={head}",
            f"--master-port={MASTER_PORT}",
        ]
        if rank > 0:
            args.append("--headless")
    return [*args, *engine.args]


def _data_parallel_args(model: ModelIdentity, assignment: Assignment, rank: int) -> list[str]:
    """Return what makes the engines of all pods one with internal data ranks: each pod runs its part of them, and the
    head's server balances over all.
    """
    args = [f"--data-parallel-size={assignment.data}"]
    if len(assignment.ranks) == 1:
        return args
    local = assignment.data // len(assignment.ranks)
    head = f"{pod_name(assignment.group, 0)}.{ranks_service_name(model.name)}.{model.namespace}.svc"
    args += [
        f"--data-parallel-size-local={local}",
        f"--data-parallel-start-rank={rank * local}",
        f"--data-parallel-address={head}",
        f"--data-parallel-rpc-port={MASTER_PORT}",
    ]
    return [*args, "--headless"] if rank > 0 else args


def model_location(spec: InferenceModelSpec) -> str:
    """Return what the engine is told to load: a hub name, a path, or an object-store address as it stands."""
    scheme, _, rest = spec.model.uri.partition("://")
    if scheme == "hf":
        return rest
    if scheme == "file":
        return rest
    if scheme == "pvc":
        _, _, folder = rest.partition("/")
        return f"{MODEL_PATH}/{folder}" if folder else MODEL_PATH
    return spec.model.uri


def env_of(spec: InferenceModelSpec) -> list[Json]:
    """Return the variables of a model's containers: its address, then the user's own."""
    env: list[Json] = [{"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    env += [{"name": entry.name, "value": entry.value} for entry in spec.engine.env]
    env += [{"name": entry.name, "valueFrom": entry.value_from.to_wire()} for entry in spec.template.env]
    return env


def _resources(spec: InferenceModelSpec, gpu_resource: str, gpus: int) -> Json:
    given = spec.template.resources
    requests = dict(given.requests or {}) if given else {}
    limits = dict(given.limits or {}) if given else {}
    return {"requests": {**requests, gpu_resource: str(gpus)}, "limits": {**limits, gpu_resource: str(gpus)}}


def _probes() -> Json:
    """Probes of rank 0. How long loading may take is the warm-up's rule alone, which reads the present spec: written
    into the pod, a deadline that the user raises while an engine loads would not hold for that engine.
    """

    def http(path: str) -> Json:
        return {"httpGet": {"path": path, "port": names.ENGINE_PORT}}

    return {
        "startupProbe": {
            **http("/v1/models"),
            "periodSeconds": PROBE_PERIOD_SECONDS,
            "timeoutSeconds": 2,
            "failureThreshold": LONGEST_LOAD_SECONDS // PROBE_PERIOD_SECONDS,
        },
        "readinessProbe": {**http("/health"), "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**http("/health"), "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
    }


def volumes_of(spec: InferenceModelSpec) -> tuple[list[Json], list[Json]]:
    """Return volumes and mounts of a model's pods."""
    shm: Json = {"medium": "Memory"}
    if spec.template.shared_memory is not None:
        shm["sizeLimit"] = spec.template.shared_memory
    volumes: list[Json] = [{"name": SHARED_MEMORY_VOLUME, "emptyDir": shm}]
    mounts: list[Json] = [{"name": SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"}]
    if spec.model.uri.startswith("pvc://"):
        claim = spec.model.uri.removeprefix("pvc://").partition("/")[0]
        volumes.append({"name": MODEL_VOLUME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        mounts.append({"name": MODEL_VOLUME, "mountPath": MODEL_PATH, "readOnly": True})
    for volume in spec.template.volumes:
        volumes.append({"name": volume.name, **_volume_source(volume)})
        mounts.append({"name": volume.name, "mountPath": volume.mount_path, "readOnly": volume.read_only})
    return volumes, mounts


def _volume_source(volume: Volume) -> Json:
    if volume.persistent_volume_claim is not None:
        claim = volume.persistent_volume_claim.claim_name
        return {"persistentVolumeClaim": {"claimName": claim, "readOnly": volume.read_only}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map.name}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret.name}}
    return {"emptyDir": volume.empty_dir.to_wire() if volume.empty_dir else {}}


def template_details(spec: InferenceModelSpec) -> Json:
    """Return what `template` says of a pod besides its container."""
    template = spec.template
    details: Json = {}
    if template.image_pull_secrets:
        details["imagePullSecrets"] = [{"name": secret.name} for secret in template.image_pull_secrets]
    if template.service_account_name is not None:
        details["serviceAccountName"] = template.service_account_name
    if template.priority_class_name is not None:
        details["priorityClassName"] = template.priority_class_name
    if template.runtime_class_name is not None:
        details["runtimeClassName"] = template.runtime_class_name
    return details


def head_selector(model: ModelIdentity) -> dict[str, str]:
    """Labels of the heads of the model's groups. The uid is in them: a name alone is anybody's to write on a pod."""
    return {names.LABEL_MODEL: model.name, names.LABEL_MODEL_UID: model.uid, names.LABEL_RANK: "0"}


def model_service(model: ModelIdentity) -> Json:
    """Service over the heads of the model's groups, for clients that do without the gateway."""
    return _service(model, model.name, selector=head_selector(model), extra={})


def ranks_service(model: ModelIdentity) -> Json:
    """Headless service for rank names; publishes addresses before readiness, since ranks meet while they load."""
    extra = {"clusterIP": "None", "publishNotReadyAddresses": True}
    selector = {names.LABEL_MODEL: model.name, names.LABEL_MODEL_UID: model.uid}
    return _service(model, ranks_service_name(model.name), selector=selector, extra=extra)


def _service(model: ModelIdentity, name: str, *, selector: Mapping[str, str], extra: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": model.namespace,
            "name": name,
            "labels": common_labels(model, "service"),
            "ownerReferences": [owner_reference(model)],
        },
        "spec": {
            "selector": dict(selector),
            "ports": [{"name": "http", "port": names.ENGINE_PORT, "targetPort": names.ENGINE_PORT}],
            **extra,
        },
    }


def disruption_budget(model: ModelIdentity, *, group: str, pods: int) -> Json:
    """Budget of one serving group: an eviction of any of its pods would take the whole replica."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "namespace": model.namespace,
            "name": group,
            "labels": common_labels(model, "group-budget") | {names.LABEL_GROUP: group},
            "ownerReferences": [owner_reference(model)],
        },
        "spec": {
            "minAvailable": pods,
            "selector": {"matchLabels": {names.LABEL_GROUP: group}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def endpoint(model: ModelIdentity) -> str:
    """Return the address at which the model's service answers inside the cluster."""
    return f"http://{model.name}.{model.namespace}.svc:{names.ENGINE_PORT}/v1"


def revision_name(model: str, revision: str) -> str:
    """Return the name of the ControllerRevision of a revision hash."""
    return f"{model}-{revision}"


def controller_revision(
    model: ModelIdentity,
    spec: InferenceModelSpec,
    *,
    revision: str,
    number: int,
    records: Recorded,
) -> Json:
    """Snapshot of everything that the revision hash covers. `data` is immutable, so layouts are an annotation."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "namespace": model.namespace,
            "name": revision_name(model.name, revision),
            "labels": common_labels(model, "revision") | {names.LABEL_REVISION: revision},
            "annotations": {names.ANNOTATION_LAYOUTS: write_layouts(records)},
            "ownerReferences": [owner_reference(model)],
        },
        "revision": number,
        "data": {
            "model": spec.model.to_wire(),
            "engine": spec.engine.to_wire(),
            "parallelism": spec.parallelism.to_wire(),
        },
    }
