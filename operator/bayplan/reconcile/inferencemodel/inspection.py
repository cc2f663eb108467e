"""`model.inspect`: a pod without a GPU reads the model's config.json and tensor headers once, with its credentials.

The operator has no model hub. The pod says what it read when it ends; that is kept on the revision, and the pod is
deleted. While it runs nothing of the model is placed.
"""

from contextlib import suppress
from pathlib import Path

from bayplan.api import names
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.cluster.errors import AlreadyExists, NotFound
from bayplan.cluster.port import Json, Port
from bayplan.cluster.resources import PODS, Key
from bayplan.planning.groups.members import short_revision
from bayplan.planning.layout.inspected import inspects
from bayplan.reconcile.fleet import Fleet
from bayplan.reconcile.inferencemodel import inspectscript, manifests
from bayplan.reconcile.inferencemodel.children import ChildWriter
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity
from bayplan.reconcile.pods import PodView, view_pod

SCRIPT = Path(inspectscript.__file__).read_text(encoding="utf-8")
DEADLINE_SECONDS = 600
"""Of the pod, from its start: headers are small."""
REPORT_PATH = "/dev/termination-log"


class Inspector:
    """Creates inspection pods and keeps what they say."""

    def __init__(self, port: Port, fleet: Fleet, children: ChildWriter) -> None:
        self._port = port
        self._fleet = fleet
        self._children = children

    async def look(self, model: ModelIdentity, spec: InferenceModelSpec, *, revision: str, generation: int) -> bool:
        """Bring the inspection of a revision a step on; return whether something was learned.

        Raises ApiError for what the API server refuses.
        """
        if not inspects(spec) or self._children.inspected(model, revision):
            return False
        key = Key(model.namespace, pod_name(model.name, revision))
        pod = self._fleet.pods.get(key)
        if pod is None:
            await self._create(model, spec, revision)
            return False
        if pod.inspection is None or pod.inspection.owner_uid != model.uid or not pod.terminal:
            return False
        text = pod.inspection.report or '{"error":"the pod ended without a word"}'
        await self._children.record_inspection(model, spec, revision=revision, generation=generation, text=text)
        await self._remove(pod)
        return True

    async def _create(self, model: ModelIdentity, spec: InferenceModelSpec, revision: str) -> None:
        body = inspection_pod(model, spec, revision)
        try:
            raw = await self._port.create(PODS, model.namespace, body)
        except AlreadyExists:
            raw = await self._port.get(PODS, model.namespace, body["metadata"]["name"])
        self._fleet.pods.put(view_pod(raw))

    async def _remove(self, pod: PodView) -> None:
        with suppress(NotFound):
            await self._port.delete(PODS, pod.key.namespace, pod.key.name, uid=pod.uid)


def pod_name(model: str, revision: str) -> str:
    """Name of the pod that reads a revision's files."""
    return f"{model}-inspect-{short_revision(revision)}"


def inspection_pod(model: ModelIdentity, spec: InferenceModelSpec, revision: str) -> Json:
    """The pod: the engine's image and the model's own environment, volumes and secrets, but no GPU."""
    volumes, mounts = manifests.volumes_of(spec)
    container: Json = {
        "name": names.INSPECTION_CONTAINER,
        "image": spec.engine.image,
        "command": ["python3", "-c", SCRIPT, manifests.model_location(spec), spec.model.revision, REPORT_PATH],
        "env": manifests.env_of(spec),
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False},
        "terminationMessagePath": REPORT_PATH,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": model.namespace,
            "name": pod_name(model.name, revision),
            "labels": manifests.common_labels(model, names.INSPECTION_COMPONENT) | {names.LABEL_REVISION: revision},
            "ownerReferences": [manifests.owner_reference(model)],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "automountServiceAccountToken": spec.template.service_account_name is not None,
            "enableServiceLinks": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": volumes,
            "tolerations": [toleration.to_wire() for toleration in spec.placement.tolerations],
            **manifests.template_details(spec),
        },
    }
