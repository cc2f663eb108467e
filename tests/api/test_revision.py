"""The hashes that decide about replacement: every covered field moves exactly its hash, and nothing else does."""

import random
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.revision import HASH_LENGTH, revision_hash, template_hash
from bayplan.api.structural import defaulted, structural_schema
from bayplan.api.validation import parse_spec
from e2e.specwalk.boundaries import Json, cases_of, paths
from tests.api.rulecases import companions, edited
from tests.api.specs import FULL_SPEC, MINIMAL_SPEC

SCHEMA = structural_schema(InferenceModelSpec, with_defaults=True)
REVISION = ("spec.model", "spec.engine", "spec.parallelism")
TEMPLATE = ("spec.template", "spec.placement.tolerations", "spec.drain")


def parsed(raw: Json) -> InferenceModelSpec:
    spec = parse_spec(raw)
    assert isinstance(spec, InferenceModelSpec), spec
    return spec


def below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith((f"{root}.", f"{root}[")) for root in roots)


def leaves() -> list[str]:
    """Return the paths of all fields that hold a value of their own."""
    every = list(paths(SCHEMA, "spec"))
    return [path for path in every if not any(other.startswith((f"{path}.", f"{path}[")) for other in every)]


@pytest.mark.parametrize("path", leaves())
def test_change_of_a_field_changes_exactly_the_hash_that_covers_it(path: str) -> None:
    full = edited(companions(path))
    before = parsed(full)
    accepted = [case.body for case in cases_of(path, schema=SCHEMA, full=full, root="spec") if case.refusal is None]
    changed = [spec for spec in map(parsed, accepted) if spec != before]
    if path in ("spec.engine.name", "spec.autoscaling.policy"):  # one so far: there is no other value
        assert not changed
        return
    assert changed
    for spec in changed:
        assert (revision_hash(spec) != revision_hash(before)) == below(path, REVISION)
        assert (template_hash(spec) != template_hash(before)) == below(path, TEMPLATE)


@pytest.mark.parametrize(
    ("location", "revision", "template"),
    [
        (("replicas",), False, False),
        (("suspend",), False, False),
        (("concurrency",), False, False),
        (("memoryPolicy",), False, False),
        (("warmup",), False, False),
        (("placement", "gpuProducts"), False, False),
        (("placement", "topology"), False, False),
        (("parallelism",), True, False),
        (("engine", "env"), True, False),
        (("drain",), False, True),
        (("template",), False, True),
        (("placement", "tolerations"), False, True),
    ],
)
def test_removal_of_a_part_changes_what_its_fields_do(
    location: tuple[str, ...], revision: bool, template: bool
) -> None:
    raw: Any = deepcopy(FULL_SPEC)
    parent = raw
    for step in location[:-1]:
        parent = parent[step]
    del parent[location[-1]]
    before, after = parsed(FULL_SPEC), parsed(raw)
    assert (revision_hash(before) != revision_hash(after)) == revision
    assert (template_hash(before) != template_hash(after)) == template


def test_default_written_down_is_the_same_as_absent() -> None:
    explicit = parsed(defaulted(SCHEMA, MINIMAL_SPEC) | {"parallelism": {}, "template": {"env": [], "volumes": []}})
    assert revision_hash(explicit) == revision_hash(parsed(MINIMAL_SPEC))
    assert template_hash(explicit) == template_hash(parsed(MINIMAL_SPEC))


def shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    return [shuffled(entry, order) for entry in value] if isinstance(value, list) else value


@pytest.mark.property
@settings(deadline=None, max_examples=25)
@given(order=st.randoms(use_true_random=False))
def test_order_of_keys_does_not_matter(order: random.Random) -> None:
    spec = parsed(shuffled(FULL_SPEC, order))
    assert revision_hash(spec) == revision_hash(parsed(FULL_SPEC))
    assert template_hash(spec) == template_hash(parsed(FULL_SPEC))


def test_numbers_count_by_value() -> None:
    raw = deepcopy(MINIMAL_SPEC)
    hashes = set()
    for bits in (8, 8.0):
        raw["model"]["architecture"]["weightBits"] = bits
        hashes.add(revision_hash(parsed(raw)))
    assert len(hashes) == 1


def test_order_of_arguments_counts() -> None:
    raw = deepcopy(MINIMAL_SPEC)
    hashes = set()
    for args in (["--seed", "1"], ["1", "--seed"]):
        raw["engine"]["args"] = args
        hashes.add(revision_hash(parsed(raw)))
    assert len(hashes) == 2


def test_hashes_are_those_of_earlier_releases() -> None:
    """A change here restarts every fleet at the upgrade of the operator: make it only on purpose."""
    for raw, revision, template in (
        (MINIMAL_SPEC, "0aec91c275", "8315e500cb"),
        (FULL_SPEC, "afa2439462", "c318775c7b"),
    ):
        assert (revision_hash(parsed(raw)), template_hash(parsed(raw))) == (revision, template)


def test_hash_fits_a_label_and_a_pod_name() -> None:
    for digest in (revision_hash(parsed(FULL_SPEC)), template_hash(parsed(FULL_SPEC))):
        assert len(digest) == HASH_LENGTH == 10
        assert set(digest) <= set("0123456789abcdef")
