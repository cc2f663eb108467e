"""Requests as the proxy reads them, and faults as a seed deals them."""

import json
from collections.abc import Iterable

import pytest

from e2e.chaos.apirequest import ApiRequest, parse_request
from e2e.chaos.faults import CRASHES, ON_EVENTS, ON_WRITES, FaultClass, FaultPlan, SeededFaults

CREATE = ApiRequest("create", "pods", "", "team", "a")
LIST = ApiRequest("list", "pods")
GET = ApiRequest("get", "pods", "", "team", "a")
WATCH = ApiRequest("watch", "pods")


@pytest.mark.parametrize(
    ("method", "path", "query", "content_type", "expected"),
    [
        ("GET", "/api/v1/pods", {}, "", "list pods /"),
        ("GET", "/api/v1/pods", {"watch": "true"}, "", "watch pods /"),
        ("GET", "/api/v1/namespaces/team/pods/a", {}, "", "get pods team/a"),
        ("GET", "/api/v1/namespaces/team", {}, "", "get namespaces /team"),
        ("GET", "/api/v1/nodes/n1", {}, "", "get nodes /n1"),
        (
            "PATCH",
            "/api/v1/namespaces/team/pods/a/status",
            {},
            "application/json-patch+json",
            "patch pods/status team/a",
        ),
        (
            "PATCH",
            "/apis/bayplan.dev/v1alpha1/namespaces/team/inferencemodels/m/status",
            {},
            "application/apply-patch+yaml",
            "apply inferencemodels/status team/m",
        ),
        (
            "DELETE",
            "/apis/policy/v1/namespaces/team/poddisruptionbudgets/b",
            {},
            "",
            "delete poddisruptionbudgets team/b",
        ),
        ("DELETE", "/api/v1/namespaces/team/pods", {}, "", "deletecollection pods team/"),
        ("PUT", "/api/v1/namespaces/team/pods/a", {}, "application/json", "update pods team/a"),
        ("GET", "/apis", {}, "", "get"),
        ("GET", "/api/v1", {}, "", "get"),
        ("GET", "/healthz", {}, "", "get"),
    ],
)
def test_what_a_request_asks_for(
    method: str, path: str, query: dict[str, str], content_type: str, expected: str
) -> None:
    assert str(parse_request(method, path, query=query, content_type=content_type)) == expected


def test_a_create_is_named_by_its_body() -> None:
    body = json.dumps({"metadata": {"name": "a"}}).encode()
    path = "/api/v1/namespaces/team/pods"

    assert parse_request("POST", path, query={}, body=body) == CREATE
    assert parse_request("POST", path, query={}, body=b"rubbish").name == ""


def test_leases_and_events_are_writes_that_do_not_count() -> None:
    assert CREATE.is_write
    assert CREATE.is_counted
    assert not LIST.is_write
    for resource in ("leases", "events"):
        request = ApiRequest("create", resource)
        assert request.is_write
        assert not request.is_counted


def fates(faults: SeededFaults, requests: Iterable[ApiRequest]) -> list[FaultClass | None]:
    return [faults.on_request(request) for request in requests]


def seeded(seed: int, *, limit: int = 1000, **chances: float) -> SeededFaults:
    found = {FaultClass[name]: chance for name, chance in chances.items()}
    return SeededFaults(FaultPlan(seed=seed, chances=found, limit=limit))


def test_the_same_seed_deals_the_same_fate_whatever_comes_in_between() -> None:
    alone = fates(seeded(7, CONFLICT=0.5), [CREATE] * 40)
    mixed = seeded(7, CONFLICT=0.5)
    other = ApiRequest("delete", "services")
    among = [fate for request in [CREATE, other] * 40 if (fate := mixed.on_request(request), request is CREATE)[1]]

    assert alone == among
    assert 5 < sum(fate is not None for fate in alone) < 35
    assert alone != fates(seeded(8, CONFLICT=0.5), [CREATE] * 40)


def test_no_more_than_the_limit_and_nothing_after_the_stop() -> None:
    faults = seeded(1, limit=3, CONFLICT=1.0)
    assert fates(faults, [CREATE] * 5) == [FaultClass.CONFLICT] * 3 + [None] * 2

    stopped = seeded(1, CONFLICT=1.0, WATCH_CUT=1.0)
    stopped.stop()
    assert stopped.on_request(CREATE) is None
    assert stopped.on_event(WATCH, "ADDED") is None


@pytest.mark.parametrize("fault", sorted(FaultClass))
def test_each_fault_meets_its_own_kind_of_request(fault: FaultClass) -> None:
    def hits(request: ApiRequest) -> bool:
        return SeededFaults(FaultPlan(1, {fault: 1.0})).on_request(request) is not None

    html = fault is FaultClass.HTML
    assert hits(CREATE) == (fault in ON_WRITES or html)
    assert hits(LIST) == (fault is FaultClass.STALE_LIST or html)
    assert hits(GET) == (fault is FaultClass.STALE_GET or html)
    assert hits(WATCH) == html
    assert not hits(ApiRequest("get")), "discovery is left alone"
    events = SeededFaults(FaultPlan(1, {fault: 1.0}))
    assert (events.on_event(WATCH, "MODIFIED") is not None) == (
        (fault in ON_EVENTS and fault is not FaultClass.WATCH_EXPIRED) or html
    )
    assert (events.on_event(WATCH, "DELETED") is not None) == (fault in ON_EVENTS or html)


def test_extents_come_from_the_seed() -> None:
    def extents(seed: int) -> list[float]:
        faults = seeded(seed)
        return [faults.extent(FaultClass.WATCH_DELAYED) for _ in range(5)]

    assert extents(3) == extents(3) != extents(4)
    assert all(0 <= extent < 1 for extent in extents(3))
    assert CRASHES < ON_WRITES
