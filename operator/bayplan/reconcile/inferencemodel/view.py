"""An InferenceModel as the cache keeps it.

Spec and status are kept as text and read when they are needed: read, they take ten times the memory, and of thousands
of models few are looked at in one minute.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.cluster.cache import version_number
from bayplan.cluster.codec import dumps, loads
from bayplan.cluster.resources import Key
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity
from bayplan.reconcile.rawobjects import as_mapping, whole_number


@dataclass(frozen=True, slots=True)
class ModelView:
    """Spec and status as stored."""

    key: Key
    uid: str
    resource_version: int
    generation: int
    deleting: bool
    observed_generation: int | None
    """The generation that the stored status is about; None without a status."""
    capacity_plan: str
    """Name of the CapacityPlan that it names; empty without one."""
    spec_json: bytes
    status_json: bytes

    @property
    def identity(self) -> ModelIdentity:
        """Owner of the children."""
        return ModelIdentity(namespace=self.key.namespace, name=self.key.name, uid=self.uid)

    def read_spec(self) -> Mapping[str, Any]:
        """Return the spec with exact numbers."""
        spec: Mapping[str, Any] = loads(self.spec_json, exact_numbers=True)
        return spec

    def read_status(self) -> InferenceModelStatus:
        """Return the status; empty where an unknown writer left something unreadable."""
        return InferenceModelStatus.read(loads(self.status_json, exact_numbers=True))


def view_model(raw: Mapping[str, Any]) -> ModelView:
    """Project one InferenceModel of the API server."""
    meta = raw["metadata"]
    spec, status = as_mapping(raw.get("spec")), as_mapping(raw.get("status"))
    return ModelView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        generation=whole_number(meta.get("generation")) or 0,
        deleting=meta.get("deletionTimestamp") is not None,
        observed_generation=whole_number(status.get("observedGeneration")),
        capacity_plan=str(as_mapping(spec.get("capacityPlanRef")).get("name") or ""),
        spec_json=dumps(spec),
        status_json=dumps(status),
    )
