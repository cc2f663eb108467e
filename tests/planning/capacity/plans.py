"""A plan that is ready, and ways to change one thing of it."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from bayplan.api.capacityplan import CapacityPlanSpec
from bayplan.api.capacityplan_status import CapacityPlanStatus
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.revision import revision_hash
from bayplan.api.rolloutwords import Outcome
from bayplan.api.validation import parse_plan_spec, parse_spec
from bayplan.planning.capacity.inputs import CapacityInputs, NamedModel, unix_seconds
from bayplan.planning.capacity.plan import decide_capacity
from bayplan.planning.capacity.status import capacity_status
from bayplan.planning.evidencecontract.canary import CanaryEnd, CanaryGate, CanaryResult
from bayplan.planning.placement.inventory import Inventory
from tests.api.planspecs import MINIMAL_PLAN
from tests.api.specs import MINIMAL_SPEC
from tests.planning.fleets import node

Json = dict[str, Any]
NOW_TEXT = "2026-03-02T00:00:00Z"
NOW = datetime(2026, 3, 2, tzinfo=UTC)
DAY = 86_400

PLAN: Json = {
    **MINIMAL_PLAN,
    "resilience": {"minReplicas": 2, "reservedFraction": 0.25},
    "limits": {"maxReplicas": 8, "maxHourlyCost": 40},
    "price": {"hourlyCost": 4.25, "currency": "EUR", "source": "list", "date": "2026-03-01T00:00:00Z"},
}
MODEL: Json = {
    **MINIMAL_SPEC,
    "autoscaling": {"maxReplicas": 8, "serviceTokensPerSecond": 100},
    "capacityPlanRef": {"name": "peak"},
}


def changed(base: Json, changes: Mapping[str, Any]) -> Json:
    """A copy with the values at dotted paths replaced; None removes."""
    copy = deepcopy(base)
    for path, value in changes.items():
        *parents, last = path.split(".")
        target: Any = copy
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
        if value is None:
            del target[int(last) if isinstance(target, list) else last]
        else:
            target[int(last) if isinstance(target, list) else last] = value
    return copy


def plan_spec(**changes: Any) -> CapacityPlanSpec:
    spec = parse_plan_spec(changed(PLAN, {path.replace("__", "."): value for path, value in changes.items()}))
    assert isinstance(spec, CapacityPlanSpec), spec
    return spec


def model(name: str = "llama", **changes: Any) -> NamedModel:
    spec = parse_spec(changed(MODEL, {path.replace("__", "."): value for path, value in changes.items()}))
    assert isinstance(spec, InferenceModelSpec), spec
    return NamedModel(name, spec, revision_hash(spec))


def two_zones(gpus: int = 4, **more: Any) -> Inventory:
    return Inventory(nodes=(node("a0", gpus, zone="a", **more), node("b0", gpus, zone="b", **more)))


def passed_canary(revision: str, *, end: CanaryEnd = CanaryEnd.PROMOTED, enforce: bool = True) -> CanaryResult:
    decided = unix_seconds("2026-03-01T00:00:00Z", "time")
    return CanaryResult(revision, end, decided, (CanaryGate("ttft", enforce, Outcome.PASSED),))


def given(
    *models: NamedModel,
    inventory: Inventory | None = None,
    canary: CanaryResult | bool | None = True,
    now: str = NOW_TEXT,
    more: Mapping[str, Any] | None = None,
    **changes: Any,
) -> CapacityInputs:
    """Inputs of a plan that is ready, but for what is changed."""
    named = models or (model(),)
    result = passed_canary(named[0].revision) if canary is True else canary or None
    inputs = CapacityInputs(
        spec=plan_spec(**changes),
        models=named,
        inventory=two_zones() if inventory is None else inventory,
        now_seconds=unix_seconds(now, "now"),
        canary=result,
    )
    return replace(inputs, **(more or {}))


def status_of(inputs: CapacityInputs) -> CapacityPlanStatus:
    return capacity_status(decide_capacity(inputs), CapacityPlanStatus(), generation=1, now=NOW)


def verdict(inputs: CapacityInputs, kind: str) -> tuple[str, str]:
    found = next(c for c in status_of(inputs).conditions if c.type == kind)
    return found.status, found.reason


def message(inputs: CapacityInputs, kind: str) -> str:
    return next(c.message for c in status_of(inputs).conditions if c.type == kind)


def unproven(inputs: CapacityInputs) -> dict[str, str]:
    """Required claims that are not earned, with their state."""
    report = decide_capacity(inputs).evidence
    assert report is not None
    return {claim.name: claim.state.value for claim in report.unproven}
