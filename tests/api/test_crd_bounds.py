"""Every constraint of the CRD on the real API server: values that it accepts, values that it refuses, and why.

The same specs go to our own parser, which must agree: it sees objects that were stored under an older definition.
"""

import random
from copy import deepcopy
from typing import Any

import pytest

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.api.structural import structural_schema
from bayplan.api.validation import parse_spec
from e2e.localcluster import KubeApi
from e2e.specwalk.boundaries import Case, Json, cases_of, constraints, locations, paths, put, rules
from tests.api.rulecases import IMAGES_ACCEPTED, IMAGES_REFUSED, RULE_CASES, RuleCase, companions, edited
from tests.api.server import COLLECTION, refusal
from tests.api.specs import FULL_SPEC, FULL_STATUS, MINIMAL_SPEC, model

SPEC = structural_schema(InferenceModelSpec, with_defaults=True)
STATUS = structural_schema(InferenceModelStatus, with_defaults=False)
SPEC_CASES = {
    path: cases_of(path, schema=SPEC, full=edited(companions(path)), root="spec") for path in paths(SPEC, "spec")
}
STATUS_CASES = {
    path: cases_of(path, schema=STATUS, full=FULL_STATUS, root="status") for path in paths(STATUS, "status")
}


def test_every_constraint_has_a_value_that_is_accepted_and_one_that_is_refused() -> None:
    for schema, root, found in ((SPEC, "spec", SPEC_CASES), (STATUS, "status", STATUS_CASES)):
        wanted = set(constraints(schema, root))
        every = [case for group in found.values() for case in group]
        assert {(case.path, case.keyword) for case in every if case.refusal is None} == wanted
        assert {(case.path, case.keyword) for case in every if case.refusal is not None} == wanted


def test_every_rule_has_a_spec_that_is_accepted_and_one_that_is_refused() -> None:
    about_a_change = {"name is immutable"}
    for path, message in rules(SPEC, "spec"):
        if not any(part in message for part in about_a_change):
            (found,) = (case for case in RULE_CASES if case.path == path and case.says in message)
            assert found.accept
            assert found.reject
    assert not list(rules(STATUS, "status"))


@pytest.mark.parametrize("path", SPEC_CASES)
async def test_spec_field_is_bounded(api: KubeApi, path: str) -> None:
    wrong = []
    for case in SPEC_CASES[path]:
        message = await refusal(api, "POST", COLLECTION.format("default"), model(case.body))
        wrong += surprises(case, message)
        if isinstance(parse_spec(case.body), list) != (message is not None):
            wrong.append(f"{case.keyword}: parser and API server differ over {case.body}")
    assert not wrong


@pytest.mark.parametrize("member", ["", *STATUS["properties"]])
async def test_status_field_is_bounded(api: KubeApi, namespace: str, member: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    target = f"{COLLECTION.format(namespace)}/{stored['metadata']['name']}/status"
    found = [case for path, group in STATUS_CASES.items() if _member_of(path) == member for case in group]
    assert found
    wrong = []
    for case in found:
        wrong += surprises(case, await refusal(api, "PUT", target, {**stored, "status": case.body}))
    assert not wrong


def _member_of(path: str) -> str:
    return path.removeprefix("status").removeprefix(".").split(".")[0].split("[")[0]


def surprises(case: Case, message: str | None) -> list[str]:
    """Return what is wrong with the API server's verdict on a case."""
    if (message is None) == (case.refusal is None) and (case.refusal or "") in (message or ""):
        return []
    return [f"{case.path} {case.keyword}: expected {case.refusal!r}, got {message!r}"]


@pytest.mark.parametrize("case", RULE_CASES, ids=lambda case: f"{case.path}:{case.says}")
async def test_rule_accepts_and_refuses(api: KubeApi, case: RuleCase) -> None:
    wrong = []
    for edits, accepted in [(edits, True) for edits in case.accept] + [(edits, False) for edits in case.reject]:
        spec = edited(edits)
        message = await refusal(api, "POST", COLLECTION.format("default"), model(spec))
        if (message is None) != accepted or not (accepted or case.says in str(message)):
            wrong.append(f"{edits}: API server says {message!r}")
        if isinstance(parse_spec(spec), list) == accepted:
            wrong.append(f"{edits}: parser says {parse_spec(spec)}")
    assert not wrong


async def test_image_is_a_reference_that_a_registry_can_serve(api: KubeApi) -> None:
    wrong = []
    for images, accepted in ((IMAGES_ACCEPTED, True), (IMAGES_REFUSED, False)):
        for image in images:
            spec = put(MINIMAL_SPEC, ("engine", "image"), image)
            message = await refusal(api, "POST", COLLECTION.format("default"), model(spec))
            if (message is None) != accepted or not (accepted or "spec.engine.image" in str(message)):
                wrong.append(f"{image!r}: API server says {message!r}")
            if isinstance(parse_spec(spec), list) == accepted:
                wrong.append(f"{image!r}: parser says {parse_spec(spec)}")
    assert not wrong


@pytest.mark.parametrize("kv_heads", [0, -1])
async def test_a_divisor_out_of_bounds_is_one_error_about_its_bound(api: KubeApi, kv_heads: int) -> None:
    spec = put(MINIMAL_SPEC, ("model", "architecture", "kvHeads"), kv_heads)
    message = str(await refusal(api, "POST", COLLECTION.format("default"), model(spec)))
    assert "kvHeads in body should be greater than or equal to 1" in message
    assert "attentionHeads" not in message
    assert "modulus" not in message
    (fault,) = found if isinstance(found := parse_spec(spec), list) else ()
    assert fault.path == "spec.model.architecture.kvHeads"


ODD_VALUES: list[Any] = [
    *(0, 1, -1, 2**31, 10**15, 2**63, 0.5, -0.5, 1e300, True, False),
    *("", "a", "A b", "-", "a\n", "ä", "x" * 5000, "1Gi", "http://a", "../a", "True", "0"),
    *([], {}, ["a"], [[]], {"a": "b"}, {"": {}}, [{}], [None]),
]


async def test_parser_and_api_server_agree_on_odd_values_anywhere(api: KubeApi) -> None:
    changes = [(location, value) for location in locations(FULL_SPEC) for value in ODD_VALUES]
    wrong = []
    for location, value in random.sample(changes, 120):
        spec = put(FULL_SPEC, location, value)
        message = await refusal(api, "POST", COLLECTION.format("default"), model(spec))
        found = parse_spec(spec)
        if isinstance(found, list) != (message is not None):
            wrong.append((location, value, message, found if isinstance(found, list) else "accepted"))
    assert not wrong


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("a", True),
        ("llama-8b", True),
        ("a" * 40, True),
        ("a" * 41, False),
        ("8b", False),
        ("a.b", False),
    ],
)
async def test_name_leaves_room_for_the_names_of_pods(api: KubeApi, name: str, accepted: bool) -> None:
    message = await refusal(api, "POST", COLLECTION.format("default"), model(MINIMAL_SPEC, name))
    assert (message is None) == accepted
    assert accepted or "DNS label of at most 40 characters" in str(message)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
async def test_number_that_is_not_finite_is_refused(api: KubeApi, value: float) -> None:
    spec = deepcopy(MINIMAL_SPEC)
    spec["engine"]["gpuMemoryUtilization"] = value
    assert await refusal(api, "POST", COLLECTION.format("default"), model(spec)) is not None
    assert isinstance(parse_spec(spec), list)


async def test_spec_is_required(api: KubeApi) -> None:
    body = model(MINIMAL_SPEC)
    del body["spec"]
    message = await refusal(api, "POST", COLLECTION.format("default"), body)
    assert message is not None
    assert "spec: Required value" in message


async def test_null_where_a_value_is_optional_means_the_default(api: KubeApi) -> None:
    spec: dict[str, Any] = deepcopy(MINIMAL_SPEC)
    spec["concurrency"] = None
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    stored: Json = await api.request("POST", COLLECTION.format("default"), model(spec), query=query)
    assert stored["spec"]["concurrency"] == 1
