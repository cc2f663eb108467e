"""What the walk has to know of a kind beyond its CustomResourceDefinition: a valid spec, and where its children are."""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
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


CATALOGUED = "Llama-3.1-8B"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


@cache
def _parsed(file: str) -> Json:
    found: Json = yaml.safe_load((HERE / file).read_text())
    return found


def _read(file: str) -> Json:
    """Return what a file of this folder states, anew at each call: reading YAML takes a hundred times a copy."""
    return deepcopy(_parsed(file))


def _valid_model() -> Json:
    return _read("inferencemodel.yaml")


def _model_of(architecture: Json | None, **members: Any) -> Json:
    """The valid model with another architecture, or none."""
    spec = _valid_model()
    del spec["model"]["architecture"]
    spec["model"] |= {} if architecture is None else {"architecture": architecture}
    spec["model"] |= members
    return spec


def _models_by_source() -> dict[str, Json]:
    """Models by what states their memory: the sources exclude each other."""
    layers = _valid_model()["model"]["architecture"]["layers"]
    weighed = _valid_model()["model"]["architecture"] | {
        "weightBytes": {"embedding": 2**30, "head": 2**30, "layers": [436 * 10**6] * layers, "prediction": 2**20}
    }
    architectures: dict[str, Json] = {
        "name": {"name": CATALOGUED},
        "config": {"config": json.dumps(CONFIG)},
        "weightFormat": {"name": CATALOGUED, "weightFormat": "bf16"},
        "weightBytes": weighed,
    }
    found = {f"spec.model.architecture.{field}": _model_of(stated) for field, stated in architectures.items()}
    return found | {"spec.model.inspect": _model_of(None, inspect=False)}


def _autoscaled_model() -> Json:
    spec = _valid_model()
    del spec["replicas"]
    return spec | {"autoscaling": _read("autoscaling.yaml")}


INFERENCE_MODEL = Kind(
    name=names.INFERENCEMODEL_KIND,
    plural=names.INFERENCEMODEL_PLURAL,
    api_version=names.API_VERSION,
    definition=HERE.parents[1] / "crds" / f"{names.GROUP}_{names.INFERENCEMODEL_PLURAL}.yaml",
    valid=_valid_model,
    variants=lambda: {"spec.autoscaling": _autoscaled_model(), **_models_by_source()},
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
