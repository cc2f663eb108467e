"""What the walk has to know of a kind beyond its CustomResourceDefinition: a valid spec, and where its children are."""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
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
    conditions: tuple[str, ...]
    """Conditions that the spec decides: equal for a fresh object of the same spec."""
    status: tuple[str, ...] = ()
    """Members of the status that the spec decides."""
    beside: frozenset[str] = frozenset()
    """Resources of `needs` whose writes are about the whole fleet and say nothing about the walk."""
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


OBJECT = "walker"
"""Name of the walked object and of the fresh ones."""
TODAY = datetime.now(UTC).strftime("%Y-%m-%dT00:00:00Z")
"""Of a measurement and a price: evidence ages."""
PLANNED_OF_MODEL = ("model", "engine", "concurrency", "parallelism", "placement")
"""What a plan says of its model, all or nothing, as an InferenceModel does."""
GPUS_PER_NAMESPACE = 4
"""A quota keeps a step such as `replicas: 10000` from taking the GPUs of everybody else's steps."""


def _named(kind: str, name: str, *, api_version: str = "v1", **rest: Any) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **rest}


def _quota(_: str) -> list[Json]:
    return [_named("ResourceQuota", "gpus", spec={"hard": {"requests.nvidia.com/gpu": str(GPUS_PER_NAMESPACE)}})]


def _pod_needs(namespace: str) -> list[Json]:
    """Return what the pods of the valid model ask for."""
    amount = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {**amount, "hostPath": {"path": "/none"}, "claimRef": {"namespace": namespace, "name": "weights"}}
    claim = {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": f"weights-{namespace}"}
    return [
        _named("PriorityClass", "serving", api_version="scheduling.k8s.io/v1", value=1000),
        _named("RuntimeClass", "nvidia", api_version="node.k8s.io/v1", handler="nvidia"),
        _named("ServiceAccount", "engine"),
        _named("PersistentVolume", f"weights-{namespace}", spec=volume),
        _named("PersistentVolumeClaim", "weights", spec={**claim, "resources": {"requests": {"storage": "1Gi"}}}),
        *_quota(namespace),
    ]


def _model_needs(namespace: str) -> list[Json]:
    """Return that, and the plan that the valid model names: it takes the model from there and asks for one replica."""
    spec = _valid_model()
    without = (*PLANNED_OF_MODEL, "resilience", "limits", "price")
    plan = {name: value for name, value in _plan_of(spec).items() if name not in without}
    return [*_pod_needs(namespace), CAPACITY_PLAN.manifest(spec["capacityPlanRef"]["name"], plan)]


def _rollout_needs(namespace: str) -> list[Json]:
    """Return the model that the walked Rollout tries revisions of."""
    spec = _valid_model() | {"update": "Rollout"}
    del spec["capacityPlanRef"]
    return [*_pod_needs(namespace), INFERENCE_MODEL.manifest(_valid_rollout()["modelRef"]["name"], spec)]


CATALOGUED = "Llama-3.1-8B"
"""A name of the catalogue."""
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
"""Members of a config.json that count."""


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


def _plan_of(model: Json) -> Json:
    """The valid plan, of the model that an InferenceModel's spec states."""
    spec = _read("capacityplan.yaml") | {name: model[name] for name in PLANNED_OF_MODEL}
    spec["benchmark"]["observedTime"] = spec["price"]["date"] = TODAY
    return spec


def _valid_rollout() -> Json:
    return _read("rollout.yaml")


def _definition(plural: str) -> Path:
    return HERE.parents[1] / "crds" / f"{names.GROUP}_{plural}.yaml"


INFERENCE_MODEL = Kind(
    name=names.INFERENCEMODEL_KIND,
    plural=names.INFERENCEMODEL_PLURAL,
    api_version=names.API_VERSION,
    definition=_definition(names.INFERENCEMODEL_PLURAL),
    valid=_valid_model,
    variants=lambda: {"spec.autoscaling": _autoscaled_model(), **_models_by_source()},
    children={
        "pods": "/api/v1/namespaces/{namespace}/pods",
        "services": "/api/v1/namespaces/{namespace}/services",
        "poddisruptionbudgets": "/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
        "controllerrevisions": "/apis/apps/v1/namespaces/{namespace}/controllerrevisions",
    },
    kept=frozenset({"controllerrevisions"}),
    conditions=("Accepted", "MemoryFit"),
    beside=frozenset({names.CAPACITYPLAN_PLURAL}),
    needs=_model_needs,
)
CAPACITY_PLAN = Kind(
    name=names.CAPACITYPLAN_KIND,
    plural=names.CAPACITYPLAN_PLURAL,
    api_version=names.API_VERSION,
    definition=_definition(names.CAPACITYPLAN_PLURAL),
    valid=lambda: _plan_of(_valid_model()),
    variants=lambda: {path: _plan_of(model) for path, model in _models_by_source().items()},
    children={},
    conditions=("InputsComplete", "Sized", "Placeable", "WithinQuota", "WithinBudget", "EvidenceCurrent", "Ready"),
    status=(
        "demand",
        "dimensions",
        "needs",
        "replicas",
        "atLeast",
        "gpus",
        "placeableReplicas",
        "layout",
        "cost",
        "floor",
        "serviceTokensPerSecond",
        "targetUtilization",
        "conflicts",
        "evidence",
    ),
    needs=_quota,
)
ROLLOUT = Kind(
    name=names.ROLLOUT_KIND,
    plural=names.ROLLOUT_PLURAL,
    api_version=names.API_VERSION,
    definition=_definition(names.ROLLOUT_PLURAL),
    valid=_valid_rollout,
    children={},
    conditions=("Accepted", "Ready"),
    status=("plan", "phase", "trial", "stage", "rejected", "proven", "holds"),
    needs=_rollout_needs,
)

KINDS = {kind.plural: kind for kind in (INFERENCE_MODEL, CAPACITY_PLAN, ROLLOUT)}
