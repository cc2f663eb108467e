"""Counts of what was seen: exact at an edge, cumulative, and never falling."""

import pytest

from bayplan.gateway.evidence import Cause, Evidence, RowKey
from bayplan.gateway.settings import Edges
from bayplan.planning.gates.counts import Arm

SECOND = 1_000_000_000
EDGES = Edges(ttft=(0.1, 0.2), tpot=(0.01,), e2e=(1.0,))


def key(pod: str = "a", revision: str = "r1", model: str = "tiny") -> RowKey:
    return RowKey("default", model, pod, revision, Arm.SERVING, "default")


def evidence(**fields: float) -> Evidence:
    return Evidence(EDGES, **fields)


@pytest.mark.parametrize(
    ("ns", "counts"),
    [(0, [1, 1]), (100_000_000, [1, 1]), (100_000_001, [0, 1]), (200_000_000, [0, 1]), (200_000_001, [0, 0])],
)
def test_observation_equal_to_an_edge_is_at_most_it(ns: int, counts: list[int]) -> None:
    row = evidence().row(key())
    row.ttft.observe(ns)
    assert row.ttft.to_wire() == {"counts": counts, "total": 1, "sumSeconds": ns / SECOND}


@pytest.mark.parametrize("edges", [(), (0.0,), (0.2, 0.1), (0.1, 0.1), (-1.0,)])
def test_edges_that_do_not_ascend_from_above_zero_are_refused(edges: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ttft"):
        Edges(ttft=edges)


def test_loaded_time_counts_overlapping_requests_once() -> None:
    row = evidence().row(key())
    row.begin(10 * SECOND)
    row.begin(11 * SECOND)
    assert row.loaded_seconds(12 * SECOND) == 2
    row.end(12 * SECOND, cause=None, output_tokens=5)
    row.end(14 * SECOND, cause=Cause.CUT, output_tokens=3)
    assert row.loaded_seconds(100 * SECOND) == 4
    row.begin(100 * SECOND)
    assert row.loaded_seconds(101 * SECOND) == 5
    assert (row.requests, row.running, row.output_tokens, row.errors) == (3, 1, 8, {Cause.CUT: 1})


def test_rows_of_a_pod_that_is_gone_are_kept_and_then_folded_into_totals_that_never_fall() -> None:
    found = evidence(retain_seconds=60)
    for pod in ("a", "b"):
        row = found.row(key(pod))
        row.begin(0)
        row.ttft.observe(SECOND)
        row.end(SECOND, cause=None, output_tokens=4)
    models = {("default", "tiny")}
    found.pod_gone("a", 0)
    found.fold(59 * SECOND, models=models)
    assert {one.pod for one, _ in found.rows()} == {"a", "b"}
    before = found.totals(59 * SECOND)
    found.fold(60 * SECOND, models=models)
    assert {one.pod for one, _ in found.rows()} == {"b"}
    after = found.totals(60 * SECOND)
    assert before.keys() == after.keys()
    (own,) = after
    assert (own.pod, own.arm) == ("", Arm.SERVING)
    for totals in (before, after):
        assert (totals[own].requests, totals[own].output_tokens, totals[own].ttft.cumulative) == (2, 8, [0, 0, 2])


def test_row_with_a_request_under_way_is_not_folded() -> None:
    found = evidence(retain_seconds=0)
    found.row(key()).begin(0)
    found.pod_gone("a", 0)
    found.fold(SECOND, models={("default", "tiny")})
    assert [one.pod for one, _ in found.rows()] == ["a"]
    found.row(key()).end(SECOND, cause=None, output_tokens=0)
    found.fold(SECOND, models={("default", "tiny")})
    assert not list(found.rows())


def test_totals_of_a_model_that_is_gone_are_dropped() -> None:
    found = evidence(retain_seconds=0)
    found.row(key()).begin(0)
    found.row(key()).end(0, cause=None, output_tokens=1)
    found.pod_gone("a", 0)
    found.fold(SECOND, models=set())
    assert not found.totals(SECOND)


def test_revisions_of_long_ago_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.gateway.evidence.MOST_FOLDED", 2)
    found = evidence(retain_seconds=0)
    for revision in ("r1", "r2", "r3"):
        own = key(pod=revision, revision=revision)
        found.row(own).begin(0)
        found.row(own).end(0, cause=None, output_tokens=1)
        found.pod_gone(revision, 0)
        found.fold(SECOND, models={("default", "tiny")})
    assert [own.revision for own in found.totals(SECOND)] == ["r2", "r3"]
