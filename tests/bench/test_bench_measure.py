"""Figures from requests of the audit log, on both sides of what they tell apart."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench import measure
from e2e.localcluster.auditlog import AuditTail, Request, request_of

A, B = ("bench", "a"), ("bench", "b")


def request(verb: str, resource: str, name: str, *, at: float, code: int = 200, **extra: Any) -> Request:
    return Request(
        verb=verb,
        user="u",
        resource=resource,
        namespace="bench",
        name=name,
        code=code,
        received=at,
        answered=at + 0.1,
        **extra,
    )


def status(name: str, at: float, *, ready: str = "False", code: int = 200) -> Request:
    body = {"status": {"conditions": [{"type": "Ready", "status": ready}]}}
    return request("patch", measure.STATUS, name, at=at, code=code, sent=body)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_percentile_is_the_smallest_value_that_covers_the_share(share: float, expected: float) -> None:
    assert measure.percentile([3.0, 1.0, 4.0, 2.0], share) == expected


def test_no_values_have_no_percentile() -> None:
    assert measure.percentile([], 0.5) is None


def test_first_status_counts_from_the_create_to_the_first_write_that_was_done() -> None:
    requests = [
        request("create", measure.MODELS, "a", at=10.0, code=201),
        status("a", 11.0, code=409),
        status("a", 12.0),
        status("a", 13.0),
    ]
    created, first = measure.created(requests), measure.first_status(requests)
    assert measure.delays(created, first) == [pytest.approx(2.1)]


def test_refused_create_is_no_object() -> None:
    assert measure.created([request("create", measure.MODELS, "a", at=1.0, code=422)]) == {}


def test_ready_is_the_first_status_that_says_so() -> None:
    requests = [status("a", 1.0), status("a", 2.0, ready="True"), status("a", 3.0, ready="True")]
    assert measure.ready(requests) == {A: pytest.approx(2.1)}


def test_bound_is_the_last_pod_of_the_model() -> None:
    def pod(name: str, model: str) -> Request:
        sent = {"metadata": {"labels": {"bayplan.dev/model": model}}}
        return request("create", "pods", name, at=1.0, code=201, sent=sent)

    requests = [
        pod("a-0", "a"),
        pod("a-1", "a"),
        request("create", "pods/binding", "a-1", at=5.0, code=201),
        request("create", "pods/binding", "a-0", at=4.0, code=201),
        request("create", "pods/binding", "stranger", at=9.0, code=201),
        request("create", "pods/binding", "a-0", at=9.0, code=409),
    ]
    assert measure.bound(requests) == {A: pytest.approx(5.1)}


def test_rate_spans_first_create_to_last_status() -> None:
    assert measure.per_second({A: 0.0, B: 1.0}, {A: 2.0, B: 4.0}) == 0.5
    assert measure.per_second({A: 0.0}, {B: 4.0}) is None


def test_quantile_of_a_histogram_is_linear_inside_a_bucket() -> None:
    buckets = [(0.1, 50.0), (0.2, 100.0), (math.inf, 100.0)]
    assert measure.histogram_quantile(buckets, 0.75) == pytest.approx(0.15)
    assert measure.histogram_quantile(buckets, 0.5) == pytest.approx(0.1)


def test_quantile_beyond_the_last_bound_is_that_bound() -> None:
    assert measure.histogram_quantile([(0.1, 1.0), (math.inf, 100.0)], 0.99) == 0.1
    assert measure.histogram_quantile([(0.1, 0.0), (math.inf, 0.0)], 0.99) is None
    assert measure.histogram_quantile([], 0.99) is None


ENTRY: dict[str, Any] = {
    "stage": "ResponseComplete",
    "verb": "patch",
    "user": {"username": "operator"},
    "objectRef": {"resource": "pods", "subresource": "status", "namespace": "n", "name": "p"},
    "responseStatus": {"code": 200},
    "requestReceivedTimestamp": "2026-01-01T00:00:00.250000Z",
    "stageTimestamp": "2026-01-01T00:00:00.750000Z",
}


def test_tail_reads_each_finished_request_once(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(json.dumps(ENTRY | {"verb": "get"}) + "\n")
    tail = AuditTail(log)
    assert tail.read() == []
    with log.open("a") as out:
        out.write(json.dumps(ENTRY | {"stage": "ResponseStarted", "verb": "watch"}) + "\n")
        out.write(json.dumps(ENTRY) + "\n" + json.dumps(ENTRY)[:30])
    (found,) = tail.read()
    assert str(found) == "patch pods/status n/p"
    assert (found.writes, found.done, found.answered - found.received) == (True, True, pytest.approx(0.5))
    with log.open("a") as out:
        out.write(json.dumps(ENTRY)[30:] + "\n")
    assert len(tail.read()) == 1
    assert tail.read() == []


def test_name_of_a_created_object_comes_from_the_answer_or_the_body() -> None:
    reference = {"resource": "pods", "namespace": "n"}
    created = ENTRY | {"verb": "create", "objectRef": reference, "requestObject": {"metadata": {"name": "sent"}}}
    assert request_of(created).name == "sent"
    assert request_of(created | {"responseObject": {"metadata": {"name": "stored"}}}).name == "stored"
