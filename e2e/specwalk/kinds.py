"""What the walk has to know of a kind beyond its CustomResourceDefinition: a valid spec, and where its children are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bayplan.api import names

Json = dict[str, Any]
HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of ours. Paths of collections contain `{namespace}`."""

    name: str
    plural: str
    api_version: str
    definition: Path
    """The CustomResourceDefinition."""
    valid: Callable[[], Json]
    """Returns a valid spec that can be fulfilled, in which every field of the schema is set that `variants` has not."""
    variants: Callable[[], Mapping[str, Json]] = dict
    """Returns, by path of a member that excludes others, a valid spec with that member and without those others."""
    children: Mapping[str, str]
    """Collections in which objects owned by one of the kind may be."""
    kept: frozenset[str] = frozenset()
    """Collections that remember: older entries stay when the spec changes back."""
    needs: Callable[[str], Sequence[Json]] = lambda _: ()
    """Returns what must be in a namespace before the first object."""

    def collection(self, namespace: str) -> str:
        """Return the path of the kind's objects in a namespace."""
        return f"/apis/{self.api_version}/namespaces/{namespace}/{self.plural}"

    def manifest(self, name: str, spec: Json) -> Json:
        """Return an object."""
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": {"name": name}, "spec": spec}

    def valid_at(self, path: str) -> Json:
        """Return a valid spec in which the field at `path` is set."""
        for root, spec in self.variants().items():
            if path == root or path.startswith((f"{root}.", f"{root}[")):
                return spec
        return self.valid()

    def schema(self) -> Json:
        """Return the schema of the spec."""
        (version,) = yaml.safe_load(self.definition.read_text())["spec"]["versions"]
        spec: Json = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        return spec


GPUS_PER_NAMESPACE = 4
"""A quota keeps a step such as `replicas: 10000` from taking the GPUs of everybody else's steps."""


def _model_needs(namespace: str) -> list[Json]:
    def named(api_version: str, kind: str, name: str, **rest: Any) -> Json:
        return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **rest}

    amount = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {**amount, "hostPath": {"path": "/none"}, "claimRef": {"namespace": namespace, "name": "weights"}}
    claim = {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": f"weights-{namespace}"}
    return [
        named("scheduling.k8s.io/v1", "PriorityClass", "serving", value=1000),
        named("node.k8s.io/v1", "RuntimeClass", "nvidia", handler="nvidia"),
        named("v1", "ServiceAccount", "engine"),
        named("v1", "PersistentVolume", f"weights-{namespace}", spec=volume),
        named(
            "v1",
            "PersistentVolumeClaim",
            "weights",
            spec={**claim, "resources": {"requests": {"storage": "1Gi"}}},
        ),
        named("v1", "ResourceQuota", "gpus", spec={"hard": {"requests.nvidia.com/gpu": str(GPUS_PER_NAMESPACE)}}),
    ]


def _valid_model() -> Json:
    found: Json = yaml.safe_load((HERE / "inferencemodel.yaml").read_text())
    return found


def _autoscaled_model() -> Json:
    spec = _valid_model()
    del spec["replicas"]
    return spec | {"autoscaling": yaml.safe_load((HERE / "autoscaling.yaml").read_text())}


INFERENCE_MODEL = Kind(
    name=names.INFERENCEMODEL_KIND,
    plural=names.INFERENCEMODEL_PLURAL,
    api_version=names.API_VERSION,
    definition=HERE.parents[1] / "crds" / f"{names.GROUP}_{names.INFERENCEMODEL_PLURAL}.yaml",
    valid=_valid_model,
    variants=lambda: {"spec.autoscaling": _autoscaled_model()},
    children={
        "pods": "/api/v1/namespaces/{namespace}/pods",
        "services": "/api/v1/namespaces/{namespace}/services",
        "poddisruptionbudgets": "/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
        "controllerrevisions": "/apis/apps/v1/namespaces/{namespace}/controllerrevisions",
    },
    kept=frozenset({"controllerrevisions", "services"}),
    needs=_model_needs,
)

KINDS = {kind.plural: kind for kind in (INFERENCE_MODEL,)}
