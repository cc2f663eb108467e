"""A Rollout as the cache keeps it, and which of several has the say over a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.validation import FieldError, parse_rollout_spec
from bayplan.cluster.cache import Store, version_number
from bayplan.cluster.codec import dumps, loads
from bayplan.cluster.resources import ROLLOUTS, Key
from bayplan.reconcile.rawobjects import as_mapping, whole_number

BY_MODEL = "model"


@dataclass(frozen=True, slots=True)
class RolloutView:
    """Spec and status as stored; read when they are needed."""

    key: Key
    uid: str
    resource_version: int
    generation: int
    created: str
    deleting: bool
    model: Key
    """The InferenceModel that it names."""
    spec_json: bytes
    status_json: bytes

    def read_spec(self) -> RolloutSpec | list[FieldError]:
        """Return the spec with exact numbers, or what is wrong with it."""
        return parse_rollout_spec(loads(self.spec_json, exact_numbers=True))

    def read_status(self) -> RolloutStatus:
        """Return the status; empty where an unknown writer left something unreadable."""
        return RolloutStatus.read(loads(self.status_json, exact_numbers=True))


def view_rollout(raw: Mapping[str, Any]) -> RolloutView:
    """Project one Rollout of the API server."""
    meta = raw["metadata"]
    spec = as_mapping(raw.get("spec"))
    return RolloutView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        generation=whole_number(meta.get("generation")) or 0,
        created=str(meta.get("creationTimestamp") or ""),
        deleting=meta.get("deletionTimestamp") is not None,
        model=Key(meta["namespace"], str(as_mapping(spec.get("modelRef")).get("name") or "")),
        spec_json=dumps(spec),
        status_json=dumps(as_mapping(raw.get("status"))),
    )


def rollout_store() -> Store[RolloutView]:
    """Return an empty cache of Rollouts with the index that readers use."""
    return Store(ROLLOUTS, indexes={BY_MODEL: lambda view: (str(view.model),)})


def rollouts_of(store: Store[RolloutView], model: Key) -> list[RolloutView]:
    """Return the Rollouts that name a model, the one with the say first: the oldest."""
    return sorted(store.by_index(BY_MODEL, str(model)), key=lambda view: (view.created, view.uid))


def deciding(store: Store[RolloutView], model: Key) -> RolloutView | None:
    """Return the Rollout with the say over a model, None without one."""
    return next(iter(rollouts_of(store, model)), None)
