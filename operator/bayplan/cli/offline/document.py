"""A cluster as `bayplan inventory` saves it: nodes, what is taken on them, quotas, and our own objects.

No secret is in it: of nodes what placement reads, of other people's pods what they take, of our objects spec and
status with the values of environment variables left out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import Any

from bayplan.api import names
from bayplan.api.meta import parse_rfc3339, rfc3339
from bayplan.cluster.codec import loads
from bayplan.planning.measurements import moment
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.placement.inventory import Claim, ClaimState, Inventory
from bayplan.planning.placement.nodes import node_from_api
from bayplan.planning.placement.quota import Quota
from bayplan.planning.placement.topology import Topology

KIND = "BayplanInventory"
FORMAT = 1
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KnownObject:
    """One of our objects as it stands in the cluster."""

    kind: str
    namespace: str
    name: str
    generation: int
    spec: Json
    status: Json
    revision: str = ""
    """Of an InferenceModel: hash of its spec with the values that the file leaves out."""
    groups: tuple[str, ...] = ()
    """Of an InferenceModel: owners of its claims."""
    pods: int = 0
    """Of an InferenceModel: its pods."""


@dataclass(frozen=True, slots=True)
class ClusterDocument:
    """Everything that verdicts are made on beside the manifests."""

    saved_at: datetime
    nodes: tuple[Json, ...]
    claims: tuple[Claim, ...] = ()
    quotas: Mapping[str, tuple[Quota, ...]] = field(default_factory=dict)
    """By namespace."""
    objects: tuple[KnownObject, ...] = ()

    @property
    def saved_at_seconds(self) -> Fraction:
        """Unix time of the snapshot."""
        return moment(self.saved_at.timestamp())

    def inventory(self, topology: Topology, gpus: tuple[Gpu, ...] = ()) -> Inventory:
        """The nodes with all claims; `gpus` are products whose figures the configuration states."""
        nodes = tuple(node_from_api(raw, topology=topology) for raw in self.nodes)
        return Inventory(nodes=nodes, gpus=gpus).with_claims(self.claims)

    def known(self, kind: str, namespace: str, name: str) -> KnownObject | None:
        """One of our objects, None where the cluster has none of that name."""
        wanted = (kind, namespace, name)
        return next((one for one in self.objects if (one.kind, one.namespace, one.name) == wanted), None)


def to_json(document: ClusterDocument) -> str:
    """The file's text: one line per node and object, so that two files can be compared."""
    body = {
        "kind": KIND,
        "format": FORMAT,
        "savedTime": rfc3339(document.saved_at),
        "nodes": list(document.nodes),
        "claims": [_claim_json(claim) for claim in document.claims],
        "quotas": [
            {"namespace": namespace, "name": q.name, "hard": dict(q.hard), "used": dict(q.used), "scoped": q.scoped}
            for namespace, quotas in sorted(document.quotas.items())
            for q in quotas
        ],
        "objects": [_object_json(one) for one in document.objects],
    }
    parts = []
    for key, value in body.items():
        if isinstance(value, list):
            lines = ",\n".join(f"  {_compact(entry)}" for entry in value)
            parts.append(f'"{key}": [\n{lines}\n]' if value else f'"{key}": []')
        else:
            parts.append(f'"{key}": {_compact(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def from_json(text: bytes, name: str) -> ClusterDocument:
    """Read a file. Raises InvalidInput that names the file and what is wrong with it."""
    try:
        raw = loads(text, exact_numbers=True)
    except ValueError as error:
        raise InvalidInput(name, f"is no JSON: {error}") from None
    if not isinstance(raw, Mapping) or raw.get("kind") != KIND or raw.get("format") != FORMAT:
        raise InvalidInput(name, "is no inventory of this version: make one with `bayplan inventory > FILE`")
    try:
        quotas: dict[str, list[Quota]] = {}
        for entry in raw["quotas"]:
            quota = Quota(entry["name"], entry["hard"], entry["used"], scoped=entry["scoped"])
            quotas.setdefault(entry["namespace"], []).append(quota)
        return ClusterDocument(
            saved_at=parse_rfc3339(raw["savedTime"]),
            nodes=tuple(raw["nodes"]),
            claims=tuple(_claim(entry) for entry in raw["claims"]),
            quotas={namespace: tuple(found) for namespace, found in quotas.items()},
            objects=tuple(_object(entry) for entry in raw["objects"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(name, f"cannot be read as an inventory: {error!r}") from None


def node_json(raw: Mapping[str, Any]) -> Json:
    """What placement reads of a node."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    drain = (meta.get("annotations") or {}).get(names.ANNOTATION_NODE_DRAIN)
    ready = [
        {"type": "Ready", "status": condition.get("status")}
        for condition in status.get("conditions") or ()
        if condition.get("type") == "Ready"
    ]
    found: Json = {
        "metadata": {"name": meta["name"], "labels": dict(meta.get("labels") or {})},
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if spec.get(key)},
        "status": {"allocatable": dict(status.get("allocatable") or {}), "conditions": ready},
    }
    if drain is not None:
        found["metadata"]["annotations"] = {names.ANNOTATION_NODE_DRAIN: drain}
    return found


def without_values(spec: Mapping[str, Any]) -> Json:
    """A spec without the values of environment variables."""
    kept: Json = dict(spec)
    for part in ("engine", "template"):
        inner = kept.get(part)
        if isinstance(inner, Mapping) and isinstance(inner.get("env"), Sequence):
            env = [{"name": item.get("name", "")} for item in inner["env"] if isinstance(item, Mapping)]
            kept[part] = {**inner, "env": env}
    return kept


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(", ", ": "), default=float)


def _claim_json(claim: Claim) -> Json:
    found: Json = {"node": claim.node, "gpus": claim.gpus, "cpuMillis": claim.cpu_millis}
    return found | {
        "memoryBytes": claim.memory_bytes,
        "pods": claim.pods,
        "owner": claim.owner,
        "state": claim.state.value,
    }


def _claim(raw: Mapping[str, Any]) -> Claim:
    return Claim(
        node=str(raw["node"]),
        gpus=_whole(raw["gpus"]),
        cpu_millis=_whole(raw["cpuMillis"]),
        memory_bytes=_whole(raw["memoryBytes"]),
        pods=_whole(raw["pods"]),
        owner=str(raw["owner"]),
        state=ClaimState(raw["state"]),
    )


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"a whole number is needed, not {value!r}")
    return value


def _object_json(one: KnownObject) -> Json:
    return {
        "kind": one.kind,
        "namespace": one.namespace,
        "name": one.name,
        "generation": one.generation,
        "spec": one.spec,
        "status": one.status,
        "revision": one.revision,
        "groups": list(one.groups),
        "pods": one.pods,
    }


def _object(raw: Mapping[str, Any]) -> KnownObject:
    return KnownObject(
        kind=str(raw["kind"]),
        namespace=str(raw["namespace"]),
        name=str(raw["name"]),
        generation=_whole(raw["generation"]),
        spec=dict(raw["spec"]),
        status=dict(raw["status"]),
        revision=str(raw["revision"]),
        groups=tuple(str(owner) for owner in raw["groups"]),
        pods=_whole(raw["pods"]),
    )
