"""A CapacityPlan as the cache keeps it: spec and status as text, read when they are needed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.api.capacityplan import CapacityPlanSpec
from bayplan.api.capacityplan_status import CapacityPlanStatus
from bayplan.api.validation import FieldError, parse_plan_spec
from bayplan.cluster.cache import Store, version_number
from bayplan.cluster.codec import dumps, loads
from bayplan.cluster.resources import CAPACITY_PLANS, Key
from bayplan.reconcile.rawobjects import as_mapping, whole_number


@dataclass(frozen=True, slots=True)
class PlanView:
    """Spec and status as stored."""

    key: Key
    uid: str
    resource_version: int
    generation: int
    deleting: bool
    observed_generation: int | None
    """The generation that the stored status is about; None without a status."""
    spec_json: bytes
    status_json: bytes

    def read_spec(self) -> CapacityPlanSpec | list[FieldError]:
        """Return the spec with exact numbers, or what is wrong with it."""
        return parse_plan_spec(loads(self.spec_json, exact_numbers=True))

    def read_status(self) -> CapacityPlanStatus:
        """Return the status; empty where an unknown writer left something unreadable."""
        return CapacityPlanStatus.read(loads(self.status_json, exact_numbers=True))


def view_plan(raw: Mapping[str, Any]) -> PlanView:
    """Project one CapacityPlan of the API server."""
    meta, status = raw["metadata"], as_mapping(raw.get("status"))
    return PlanView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        generation=whole_number(meta.get("generation")) or 0,
        deleting=meta.get("deletionTimestamp") is not None,
        observed_generation=whole_number(status.get("observedGeneration")),
        spec_json=dumps(as_mapping(raw.get("spec"))),
        status_json=dumps(status),
    )


def plan_store() -> Store[PlanView]:
    """Return an empty cache of CapacityPlans."""
    return Store(CAPACITY_PLANS)
