"""An InferenceModel as the cache keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.cluster.cache import version_number
from bayplan.cluster.resources import Key
from bayplan.reconcile.manifests import ModelIdentity


@dataclass(frozen=True, slots=True)
class ModelView:
    """Spec as stored, status as read back; `status` is empty where an unknown writer left something unreadable."""

    key: Key
    uid: str
    resource_version: int
    generation: int
    deleting: bool
    spec: Mapping[str, Any]
    status: InferenceModelStatus

    @property
    def identity(self) -> ModelIdentity:
        """Owner of the children."""
        return ModelIdentity(namespace=self.key.namespace, name=self.key.name, uid=self.uid)


def view_model(raw: Mapping[str, Any]) -> ModelView:
    """Project one InferenceModel of the API server."""
    meta = raw["metadata"]
    generation = meta.get("generation")
    spec = raw.get("spec")
    return ModelView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        generation=generation if isinstance(generation, int) else 0,
        deleting=meta.get("deletionTimestamp") is not None,
        spec=spec if isinstance(spec, Mapping) else {},
        status=_status(raw.get("status")),
    )


def _status(raw: object) -> InferenceModelStatus:
    try:
        return InferenceModelStatus.model_validate(raw or {})
    except ValidationError:
        return InferenceModelStatus()
