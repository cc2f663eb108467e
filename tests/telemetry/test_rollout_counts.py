"""What a gateway's `/evidence` says of one model: read whole, or Unknown as a whole."""

from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest

from bayplan.planning.gates.counts import Arm
from bayplan.planning.measurements import Unknown
from bayplan.telemetry.rolloutcounts import CountedModel, ModelCounts, ScrapedCounts, read_counts
from bayplan.telemetry.sources import GatewaySource

SOURCE = GatewaySource("g0", "system", "gateway-0", "10.0.0.1")
MODEL = CountedModel("team", "llama", "uid-1")
AT = Fraction(1000)
ROW: dict[str, Any] = {
    "namespace": "team",
    "model": "llama",
    "pod": "p1",
    "revision": "r1",
    "arm": "candidate",
    "class": "default",
    "requests": 10,
    "running": 2,
    "errors": {"failed": 1, "cut": 1, "timeout": 1, "unreachable": 1, "refused": 1, "cancelled": 1},
    "outputTokens": 80,
    "loadedSeconds": 1.25,
    "ttft": {"counts": [1, 5], "total": 7, "sumSeconds": 3.5},
    "tpot": {"counts": [6], "total": 6, "sumSeconds": 0.5},
    "e2e": {"counts": [6], "total": 6, "sumSeconds": 9.5},
}
BODY: dict[str, Any] = {
    "gateway": {"uid": "g0", "startedAt": "2026-01-01T00:00:00Z"},
    "observedAt": "2026-01-01T00:01:00Z",
    "edgesSeconds": {"ttft": [0.1, 1.0], "tpot": [0.05], "e2e": [1.0]},
    "models": {"team/llama": {"uid": "uid-1"}},
    "rows": [
        ROW,
        {**ROW, "arm": "shadow", "pod": "p2", "requests": 3, "running": 1, "errors": {}},
        {**ROW, "model": "other"},
    ],
}


def read(**changes: Any) -> ModelCounts | Unknown:
    return read_counts(SOURCE, {**deepcopy(BODY), **changes}, MODEL, at_seconds=AT)


def counts() -> ModelCounts:
    found = read()
    assert isinstance(found, ModelCounts)
    return found


def test_rows_of_the_model_are_read_exactly_and_those_of_others_left_out() -> None:
    row, copies = counts().counts.rows

    assert (row.pod, row.arm, row.workload_class, row.requests) == ("p1", Arm.CANDIDATE, "default", 10)
    assert row.loaded_seconds == Fraction(5, 4)
    assert (row.ttft.edges, row.ttft.counts, row.ttft.total) == ((Fraction(1, 10), Fraction(1)), (1, 5), 7)
    assert copies.arm is Arm.SHADOW


def test_what_callers_answer_for_is_no_error_of_the_engines() -> None:
    assert counts().counts.rows[0].errors == 4


def test_what_is_under_way_counts_copies_and_what_was_answered_does_not() -> None:
    found = counts()

    assert found.running == {"p1": 2, "p2": 1}
    assert found.ended == {"p1": 2}, "10 begun, 2 under way, 6 that did not end well"


def test_counts_carry_the_time_of_the_question_and_the_gateways_incarnation() -> None:
    found = counts().counts

    assert found.at_seconds == AT
    assert found.incarnation == "g0 2026-01-01T00:00:00Z"
    assert (counts().ttft_edges, counts().tpot_edges) == ((Fraction(1, 10), Fraction(1)), (Fraction(1, 20),))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gateway": {"uid": "g9", "startedAt": "x"}}, "it is the answer of gateway g9"),
        ({"models": {}}, "it does not know the model yet"),
        ({"models": {"team/llama": {"uid": "another"}}}, "it does not know the model yet"),
        ({"rows": {}}, "rows must be a list"),
        ({"rows": [{**ROW, "requests": -1}]}, "not of the agreed form"),
        ({"rows": [{**ROW, "requests": 1.5}]}, "not of the agreed form"),
        ({"rows": [{**ROW, "arm": "fourth"}]}, "not of the agreed form"),
        ({"rows": [{**ROW, "loadedSeconds": float("nan")}]}, "not of the agreed form"),
        ({"rows": [{**ROW, "ttft": {"counts": [5, 1], "total": 7}}]}, "not of the agreed form"),
        ({"rows": [{key: value for key, value in ROW.items() if key != "errors"}]}, "not of the agreed form"),
        ({"edgesSeconds": {"ttft": [1, 0.5], "tpot": [0.05]}}, "not of the agreed form"),
        ({"edgesSeconds": None}, "not of the agreed form"),
    ],
)
def test_an_answer_of_another_form_is_unknown_as_a_whole(change: dict[str, Any], says: str) -> None:
    found = read(**change)

    assert isinstance(found, Unknown)
    assert says in found.reason


async def test_a_gateway_that_does_not_answer_is_unknown_and_disturbs_no_other() -> None:
    port = ScrapedCounts(now_seconds=lambda: AT, timeout_seconds=0.5)
    try:
        found = await port.read([SOURCE.__class__("g1", "system", "gateway-1", "no address")], MODEL)
    finally:
        await port.close()

    assert isinstance(found["g1"], Unknown)
    assert "is not an IP address" in found["g1"].reason
