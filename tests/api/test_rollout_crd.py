"""Every constraint and rule of the Rollout's CRD on the real API server, and our own parser, which must agree."""

import pytest

from bayplan.api import names
from bayplan.api.crd import ROLLOUT, custom_resource_definition
from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.rolloutwords import CapacityMode
from bayplan.api.structural import defaulted, structural_schema
from bayplan.api.validation import parse_rollout_spec
from e2e.localcluster import KubeApi
from e2e.specwalk.boundaries import cases_of, constraints, paths, put, rules
from tests.api.rolloutspecs import (
    COLLECTION,
    FULL_ROLLOUT,
    FULL_ROLLOUT_STATUS,
    MINIMAL_ROLLOUT,
    ROLLOUT_COMPANIONS,
    ROLLOUT_RULE_CASES,
    rollout,
)
from tests.api.rulecases import RuleCase, edited
from tests.api.server import refusal
from tests.api.test_crd_behaviour import double_sizes
from tests.api.test_crd_bounds import surprises

SPEC = structural_schema(RolloutSpec, with_defaults=True)
STATUS = structural_schema(RolloutStatus, with_defaults=False)
SPEC_CASES = {
    path: cases_of(path, schema=SPEC, full=edited(ROLLOUT_COMPANIONS.get(path, {}), FULL_ROLLOUT), root="spec")
    for path in paths(SPEC, "spec")
}
STATUS_CASES = {
    path: cases_of(path, schema=STATUS, full=FULL_ROLLOUT_STATUS, root="status") for path in paths(STATUS, "status")
}
RULED = {"spec.stages", "spec.stages[].kind", "spec.gates", "spec.gates[].name"}
"""Where a value within its bounds is refused by a rule over its neighbours; the rules have cases of their own."""


def test_every_constraint_has_a_value_that_is_accepted_and_one_that_is_refused() -> None:
    for schema, root, found in ((SPEC, "spec", SPEC_CASES), (STATUS, "status", STATUS_CASES)):
        wanted = set(constraints(schema, root))
        every = [case for group in found.values() for case in group]
        assert {(case.path, case.keyword) for case in every if case.refusal is None} == wanted
        assert {(case.path, case.keyword) for case in every if case.refusal is not None} == wanted


def test_every_rule_has_a_spec_that_is_accepted_and_one_that_is_refused() -> None:
    for path, message in rules(SPEC, "spec"):
        if "name is immutable" not in message:
            (found,) = (case for case in ROLLOUT_RULE_CASES if case.path == path and case.says in message)
            assert found.accept
            assert found.reject
    assert not list(rules(STATUS, "status"))


@pytest.mark.parametrize("path", [path for path in SPEC_CASES if path not in RULED])
async def test_rollout_spec_field_is_bounded(api: KubeApi, path: str) -> None:
    wrong = []
    for case in SPEC_CASES[path]:
        message = await refusal(api, "POST", COLLECTION.format("default"), rollout(case.body))
        wrong += surprises(case, message)
        if isinstance(parse_rollout_spec(case.body), list) != (message is not None):
            wrong.append(f"{case.keyword}: parser and API server differ over {case.body}")
    assert not wrong


@pytest.mark.parametrize("path", sorted(RULED))
async def test_rollout_spec_field_is_refused_beyond_its_bound(api: KubeApi, path: str) -> None:
    wrong = []
    for case in SPEC_CASES[path]:
        message = await refusal(api, "POST", COLLECTION.format("default"), rollout(case.body))
        if case.refusal is not None and case.refusal not in str(message):
            wrong.append(f"{case.keyword}: expected {case.refusal!r}, got {message!r}")
        if isinstance(parse_rollout_spec(case.body), list) != (message is not None):
            wrong.append(f"{case.keyword}: parser and API server differ over {case.body}: {message}")
    assert not wrong


@pytest.mark.parametrize("case", ROLLOUT_RULE_CASES, ids=lambda case: f"{case.path}:{case.says}")
async def test_rollout_rule_accepts_and_refuses(api: KubeApi, case: RuleCase) -> None:
    wrong = []
    for edits, accepted in [(edits, True) for edits in case.accept] + [(edits, False) for edits in case.reject]:
        spec = edited(edits, FULL_ROLLOUT)
        message = await refusal(api, "POST", COLLECTION.format("default"), rollout(spec))
        if (message is None) != accepted or not (accepted or case.says in str(message)):
            wrong.append(f"{edits}: API server says {message!r}")
        if isinstance(parse_rollout_spec(spec), list) == accepted:
            wrong.append(f"{edits}: parser says {parse_rollout_spec(spec)}")
    assert not wrong


async def test_rollout_status_is_bounded(api: KubeApi, namespace: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), rollout(MINIMAL_ROLLOUT))
    target = f"{COLLECTION.format(namespace)}/{stored['metadata']['name']}/status"
    wrong = []
    for case in (case for group in STATUS_CASES.values() for case in group):
        wrong += surprises(case, await refusal(api, "PUT", target, {**stored, "status": case.body}))
    assert not wrong


async def test_a_rollout_is_filled_up_with_its_defaults(api: KubeApi, namespace: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), rollout(MINIMAL_ROLLOUT))
    assert stored["spec"] == defaulted(SPEC, MINIMAL_ROLLOUT)
    assert stored["spec"]["samples"] == {"requests": 100, "prompts": 20}
    parsed = parse_rollout_spec(stored["spec"])
    assert parsed == parse_rollout_spec(MINIMAL_ROLLOUT)
    assert isinstance(parsed, RolloutSpec)
    assert parsed.capacity is CapacityMode.AUTO


async def test_the_model_of_a_rollout_cannot_change(api: KubeApi, namespace: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), rollout(MINIMAL_ROLLOUT))
    changed = {**stored, "spec": put(stored["spec"], ("modelRef", "name"), "other")}
    message = str(await refusal(api, "PUT", f"{COLLECTION.format(namespace)}/llama", changed))
    assert "name is immutable: create another Rollout for another model" in message


async def test_rollout_status_from_our_own_wire_form_comes_back_equal(api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), rollout(MINIMAL_ROLLOUT))
    status = RolloutStatus.model_validate(FULL_ROLLOUT_STATUS)
    body = {"apiVersion": names.API_VERSION, "kind": names.ROLLOUT_KIND, "status": status.to_wire()}
    stored = await api.patch(
        f"{COLLECTION.format(namespace)}/llama/status",
        body,
        content_type="application/apply-patch+yaml",
        fieldManager="test",
        force="true",
    )
    assert stored["status"] == FULL_ROLLOUT_STATUS == status.to_wire()
    assert RolloutStatus.read(stored["status"]) == status


async def test_rollout_names_are_served(api: KubeApi) -> None:
    found = await api.get(f"/apis/{names.API_VERSION}")
    (resource,) = (entry for entry in found["resources"] if entry["name"] == names.ROLLOUT_PLURAL)
    assert resource["shortNames"] == ["irollout"]
    assert resource["categories"] == ["bayplan"]


async def test_rollout_rules_leave_half_of_their_cost_budget(api: KubeApi) -> None:
    definition = custom_resource_definition(ROLLOUT)
    version = definition["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"] = double_sizes(version["schema"]["openAPIV3Schema"])
    definition["spec"]["group"] = "cost.bayplan.dev"
    definition["metadata"]["name"] = f"{names.ROLLOUT_PLURAL}.cost.bayplan.dev"
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert await refusal(api, "POST", path, definition) is None


def test_what_an_unknown_writer_left_unreadable_counts_as_absent() -> None:
    status = RolloutStatus.read({**FULL_ROLLOUT_STATUS, "plan": {"epoch": -1}, "novelty": 1})
    assert status.plan is None
    assert status.attempt == 2
