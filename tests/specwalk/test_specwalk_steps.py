"""The steps of a walk come from the schema, and what the walk compares tells differences that matter from others."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from bayplan.api import names
from bayplan.api.validation import parse_plan_spec, parse_rollout_spec, parse_spec
from e2e.specwalk.boundaries import constraints
from e2e.specwalk.children import Family, normalised
from e2e.specwalk.kinds import KINDS, Kind
from e2e.specwalk.steps import choose, rule_messages, steps_of


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_every_constraint_is_stepped_on_and_over(kind: Kind) -> None:
    steps = steps_of(kind)
    over = {step.case.constraint for step in steps if not step.legal}
    # An exclusive bound has the same values as the bound that it is about, and no step is taken twice.
    wanted = {c for c in constraints(kind.schema(), "spec") if not c[1].startswith("exclusive")}
    assert wanted - over == set()
    assert sum(step.legal for step in steps) > 50


def test_every_step_changes_the_spec_and_no_two_are_equal(kind: Kind) -> None:
    # As text: in Python 1 equals true, and the API server must tell them apart.
    texts = [json.dumps(step.spec, sort_keys=True) for step in steps_of(kind)]
    assert json.dumps(kind.valid(), sort_keys=True) not in texts
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("plural", "parse"),
    [
        ("inferencemodels", parse_spec),
        ("capacityplans", parse_plan_spec),
        ("rollouts", parse_rollout_spec),
    ],
)
def test_valid_object_is_valid(plural: str, parse: Callable[[object], object]) -> None:
    kind = KINDS[plural]
    for spec in (kind.valid(), *kind.variants().values()):
        assert not isinstance(parse(spec), list)


def test_every_kind_is_walked() -> None:
    definitions = (Path(__file__).parents[2] / "crds").glob("*.yaml")
    assert {path.stem.partition("_")[2] for path in definitions} == set(KINDS)


def test_equal_seeds_choose_equal_steps(kind: Kind) -> None:
    steps = steps_of(kind)
    assert choose(steps, 10, seed=3) == choose(steps, 10, seed=3)
    assert choose(steps, 10, seed=3) != choose(steps, 10, seed=4)


@pytest.mark.parametrize(("count", "legal", "illegal"), [(1, 1, 0), (2, 1, 1), (11, 6, 5)])
def test_few_steps_are_legal_and_illegal_in_equal_numbers(kind: Kind, count: int, legal: int, illegal: int) -> None:
    chosen = choose(steps_of(kind), count, seed=1)
    assert (sum(s.legal for s in chosen), sum(not s.legal for s in chosen)) == (legal, illegal)


def test_zero_steps_are_all_of_them(kind: Kind) -> None:
    steps = steps_of(kind)
    chosen = choose(steps, 0, seed=1)
    assert sorted(map(str, chosen)) == sorted(map(str, steps))


@pytest.mark.parametrize(
    ("plural", "says"), [("inferencemodels", "concurrency"), ("capacityplans", "price"), ("rollouts", "weight")]
)
def test_rules_of_the_schema_are_known(plural: str, says: str) -> None:
    assert any(says in message for message in rule_messages(KINDS[plural]))


def child(**spec: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {
            "name": "walker-abcde-0-0-0",
            "namespace": "walk-1",
            "uid": "u",
            "resourceVersion": "5",
            "labels": {names.LABEL_GROUP: "walker-abcde-0-0", "topology.kubernetes.io/zone": "zone-1"},
            "annotations": {names.ANNOTATION_PLAN_ID: "p"},
        },
        "spec": {"nodeName": "hollow-01", "containers": [{"name": "engine", "image": "a:1"}], **spec},
        "status": {"phase": "Running"},
    }


ALIASES = {"walk-1": "NAMESPACE", "walker-abcde-0-0": "GROUP"}
FRESH = {"walk-1-fresh": "NAMESPACE", "walker-abcde-1-2": "GROUP"}


def test_place_time_and_identity_make_no_difference() -> None:
    other = deepcopy(child(nodeName="hollow-07", affinity={"nodeAffinity": {}}))
    other["metadata"] |= {
        "name": "walker-abcde-1-2-0",
        "namespace": "walk-1-fresh",
        "uid": "v",
        "resourceVersion": "9",
        "labels": {names.LABEL_GROUP: "walker-abcde-1-2", "topology.kubernetes.io/zone": "zone-2"},
        "annotations": {names.ANNOTATION_PLAN_ID: "q"},
    }
    other["status"] = {"phase": "Pending"}
    assert normalised(child(), ALIASES) == normalised(other, FRESH)


def test_owners_of_two_objects_make_no_difference_wherever_they_are_named() -> None:
    found = []
    for uid in ("uid-of-one", "uid-of-another"):
        body = child()
        body["metadata"] |= {"ownerReferences": [{"uid": uid}], "labels": {names.LABEL_MODEL_UID: uid}}
        found.append(normalised(body, ALIASES))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "changed",
    [
        child(terminationGracePeriodSeconds=7),
        child(containers=[{"name": "engine", "image": "a:2"}]),
        child(schedulingGates=[{"name": names.SCHEDULING_GATE}]),
    ],
)
def test_what_the_spec_decides_makes_a_difference(changed: dict[str, Any]) -> None:
    assert normalised(child(), ALIASES) != normalised(changed, ALIASES)


def test_label_of_a_child_makes_a_difference() -> None:
    changed = child()
    changed["metadata"]["labels"][names.LABEL_REVISION] = "other"
    assert normalised(child(), ALIASES) != normalised(changed, ALIASES)


def family(**members: tuple[str, ...]) -> Family:
    return Family(members, {name: len(found) for name, found in members.items()})


def test_a_child_too_many_too_few_or_other_is_told() -> None:
    two = family(pods=("a", "b"))
    assert two.difference(family(pods=("a", "b"))) == ""
    assert "2 against 1" in two.difference(family(pods=("a",)))
    assert "1 against 2" in family(pods=("a",)).difference(two)
    assert "…b… against …c…" in two.difference(family(pods=("a", "c")))
    assert two.difference(family(pods=()), without=["pods"]) == ""


def test_two_children_that_are_equal_are_still_two() -> None:
    assert "2 against 1" in family(pods=("a", "a")).difference(family(pods=("a",)))
