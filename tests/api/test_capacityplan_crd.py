"""Every constraint and rule of the CapacityPlan's CRD on the real API server, and our own parser, which must agree.

The model inside a plan is made of the InferenceModel's own parts, whose bounds and rules are tested there.
"""

import pytest

from bayplan.api import names
from bayplan.api.capacityplan import CapacityPlanSpec
from bayplan.api.capacityplan_status import CapacityPlanStatus
from bayplan.api.capacitywords import Control
from bayplan.api.crd import CAPACITYPLAN, custom_resource_definition
from bayplan.api.structural import defaulted, structural_schema
from bayplan.api.validation import parse_plan_spec
from e2e.localcluster import KubeApi
from e2e.specwalk.boundaries import cases_of, constraints, paths, rules
from tests.api.planspecs import FULL_PLAN, FULL_PLAN_STATUS, MINIMAL_PLAN, plan
from tests.api.rulecases import ABSENT, Edits, RuleCase, edited
from tests.api.server import refusal
from tests.api.test_crd_behaviour import double_sizes
from tests.api.test_crd_bounds import surprises

COLLECTION = f"/apis/{names.API_VERSION}/namespaces/{{}}/{names.CAPACITYPLAN_PLURAL}"
SPEC = structural_schema(CapacityPlanSpec, with_defaults=True)
STATUS = structural_schema(CapacityPlanStatus, with_defaults=False)
SHARED = ("spec.model", "spec.engine", "spec.parallelism", "spec.placement")
COMPANIONS: dict[str, Edits] = {
    "spec.concurrency": {("engine", "maxNumSeqs"): ABSENT},
    "spec.resilience.minReplicas": {("limits", "maxReplicas"): ABSENT},
    "spec.limits.maxReplicas": {("resilience", "minReplicas"): 1},
}
"""Edits that keep the rules over several fields satisfied while one field goes to its bound."""
RULED = {"spec.resilience.reservedFraction"}
"""Where a value at its bound is refused by a rule, which has cases of its own."""


def own(path: str) -> bool:
    return not path.startswith(SHARED)


SPEC_CASES = {
    path: cases_of(path, schema=SPEC, full=edited(COMPANIONS.get(path, {}), FULL_PLAN), root="spec")
    for path in paths(SPEC, "spec")
    if own(path)
}
STATUS_CASES = {
    path: cases_of(path, schema=STATUS, full=FULL_PLAN_STATUS, root="status") for path in paths(STATUS, "status")
}
WITHOUT_MODEL: Edits = {(name,): ABSENT for name in ("model", "engine", "concurrency", "parallelism", "placement")}
RULE_CASES = [
    RuleCase(
        path="spec",
        says="model and engine must be given both",
        accept=[WITHOUT_MODEL],
        reject=[{("engine",): ABSENT}, WITHOUT_MODEL | {("engine",): FULL_PLAN["engine"]}],
    ),
    RuleCase(
        path="spec",
        says="must be absent without model and engine",
        accept=[WITHOUT_MODEL],
        reject=[
            WITHOUT_MODEL | {("concurrency",): 2},
            WITHOUT_MODEL | {("parallelism",): {"tensor": 1}},
            WITHOUT_MODEL | {("placement",): {"gpuProducts": ["a"]}},
        ],
    ),
    RuleCase(
        path="spec",
        says="concurrency must not exceed",
        accept=[{("concurrency",): 64}, {("engine", "maxNumSeqs"): ABSENT}, {("concurrency",): ABSENT}],
        reject=[{("concurrency",): 65}],
    ),
    RuleCase(
        path="spec",
        says="must not exceed limits.maxReplicas",
        accept=[{("resilience", "minReplicas"): 20}, {("limits", "maxReplicas"): ABSENT}, {("resilience",): ABSENT}],
        reject=[{("resilience", "minReplicas"): 21}],
    ),
    RuleCase(
        path="spec",
        says="price must be given",
        accept=[{("price",): ABSENT, ("limits", "maxHourlyCost"): ABSENT}, {("limits",): ABSENT}],
        reject=[{("price",): ABSENT}],
    ),
    RuleCase(
        path="spec.resilience",
        says="reservedFraction must be below 1",
        accept=[{("resilience", "reservedFraction"): 0.999}],
        reject=[{("resilience", "reservedFraction"): 1}],
    ),
]


def test_every_constraint_of_a_plan_has_a_value_that_is_accepted_and_one_that_is_refused() -> None:
    for schema, root, found in ((SPEC, "spec", SPEC_CASES), (STATUS, "status", STATUS_CASES)):
        wanted = {entry for entry in constraints(schema, root) if own(entry[0])}
        every = [case for group in found.values() for case in group]
        assert {(case.path, case.keyword) for case in every if case.refusal is None} == wanted
        assert {(case.path, case.keyword) for case in every if case.refusal is not None} == wanted


def test_every_rule_of_a_plan_has_a_spec_that_is_accepted_and_one_that_is_refused() -> None:
    for path, message in rules(SPEC, "spec"):
        if own(path):
            (found,) = (case for case in RULE_CASES if case.path == path and case.says in message)
            assert found.accept
            assert found.reject
    assert not list(rules(STATUS, "status"))


@pytest.mark.parametrize("path", SPEC_CASES)
async def test_plan_spec_field_is_bounded(api: KubeApi, path: str) -> None:
    wrong = []
    for case in SPEC_CASES[path]:
        message = await refusal(api, "POST", COLLECTION.format("default"), plan(case.body))
        if path not in RULED or case.refusal is not None:
            wrong += surprises(case, message)
        if isinstance(parse_plan_spec(case.body), list) != (message is not None):
            wrong.append(f"{case.keyword}: parser and API server differ over {case.body}: {message}")
    assert not wrong


@pytest.mark.parametrize("case", RULE_CASES, ids=lambda case: f"{case.path}:{case.says}")
async def test_plan_rule_accepts_and_refuses(api: KubeApi, case: RuleCase) -> None:
    wrong = []
    for edits, accepted in [(edits, True) for edits in case.accept] + [(edits, False) for edits in case.reject]:
        spec = edited(edits, FULL_PLAN)
        message = await refusal(api, "POST", COLLECTION.format("default"), plan(spec))
        if (message is None) != accepted or not (accepted or case.says in str(message)):
            wrong.append(f"{edits}: API server says {message!r}")
        if isinstance(parse_plan_spec(spec), list) == accepted:
            wrong.append(f"{edits}: parser says {parse_plan_spec(spec)}")
    assert not wrong


async def test_plan_status_is_bounded(api: KubeApi, namespace: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), plan(MINIMAL_PLAN, namespace=namespace))
    target = f"{COLLECTION.format(namespace)}/{stored['metadata']['name']}/status"
    wrong = []
    for case in (case for group in STATUS_CASES.values() for case in group):
        wrong += surprises(case, await refusal(api, "PUT", target, {**stored, "status": case.body}))
    assert not wrong


async def test_a_plan_is_filled_up_with_its_defaults(api: KubeApi, namespace: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), plan(MINIMAL_PLAN, namespace=namespace))

    assert stored["spec"] == defaulted(SPEC, MINIMAL_PLAN)
    parsed = parse_plan_spec(stored["spec"])
    assert parsed == parse_plan_spec(MINIMAL_PLAN)
    assert isinstance(parsed, CapacityPlanSpec)
    assert parsed.evidence.controls == tuple(Control)


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ({("benchmark", "prefillTokensPerSecond"): 0}, "greater than 0"),
        ({("price", "date"): ABSENT}, "spec.price.date"),
        ({("price", "source"): ""}, "spec.price.source"),
        ({("workloadClasses", 1, "name"): "interactive"}, "Duplicate value"),
        ({("workloadClasses",): []}, "spec.workloadClasses"),
        ({("evidence",): ABSENT}, "spec.evidence"),
    ],
)
async def test_bad_input_is_refused_at_apply_with_its_field(api: KubeApi, edits: Edits, says: str) -> None:
    spec = edited(edits, FULL_PLAN)

    message = await refusal(api, "POST", COLLECTION.format("default"), plan(spec))

    assert says in str(message)
    assert isinstance(parse_plan_spec(spec), list)


def test_a_million_classes_are_refused_in_a_line() -> None:
    one = MINIMAL_PLAN["workloadClasses"][0]
    found = parse_plan_spec({**MINIMAL_PLAN, "workloadClasses": [one] * 10**6})

    assert isinstance(found, list)
    assert sum(len(str(fault)) for fault in found) < 500
    assert "workloadClasses" in str(found[0])


async def test_plan_status_from_our_own_wire_form_comes_back_equal(api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), plan(MINIMAL_PLAN, namespace=namespace))
    status = CapacityPlanStatus.model_validate(FULL_PLAN_STATUS)
    body = {"apiVersion": names.API_VERSION, "kind": names.CAPACITYPLAN_KIND, "status": status.to_wire()}

    stored = await api.patch(
        f"{COLLECTION.format(namespace)}/peak/status",
        body,
        content_type="application/apply-patch+yaml",
        fieldManager="test",
        force="true",
    )

    assert stored["status"] == FULL_PLAN_STATUS == status.to_wire()
    assert CapacityPlanStatus.read(stored["status"]) == status


async def test_plan_names_are_served(api: KubeApi) -> None:
    found = await api.get(f"/apis/{names.API_VERSION}")
    (resource,) = (entry for entry in found["resources"] if entry["name"] == names.CAPACITYPLAN_PLURAL)
    assert resource["shortNames"] == ["capplan"]
    assert resource["categories"] == ["bayplan"]


async def test_plan_rules_leave_half_of_their_cost_budget(api: KubeApi) -> None:
    definition = custom_resource_definition(CAPACITYPLAN)
    version = definition["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"] = double_sizes(version["schema"]["openAPIV3Schema"])
    definition["spec"]["group"] = "cost.bayplan.dev"
    definition["metadata"]["name"] = f"{names.CAPACITYPLAN_PLURAL}.cost.bayplan.dev"
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert await refusal(api, "POST", path, definition) is None
