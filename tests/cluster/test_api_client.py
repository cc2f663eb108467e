import asyncio
import json
from collections.abc import AsyncIterator
from decimal import Decimal

import pytest

from bayplan.cluster.client import ApiClient
from bayplan.cluster.codec import dumps
from bayplan.cluster.credentials import Credentials
from bayplan.cluster.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    LeaseLost,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from bayplan.cluster.resources import INFERENCE_MODELS, LEASES, NODES, PODS
from bayplan.cluster.transport import MAX_TRIES
from tests.fakes.clock import HurriedClock, until
from tests.fakes.server import ScriptedServer, hang_up, page, refuse, reply, silence, stream

POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"}}


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def clock() -> HurriedClock:
    return HurriedClock()


@pytest.fixture
async def client(server: ScriptedServer, clock: HurriedClock) -> AsyncIterator[ApiClient]:
    async with ApiClient(server.credentials(), clock=clock) as client:
        yield client


async def test_a_read_returns_the_object_and_is_counted(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [reply(POD)]
    assert await client.get(PODS, "ns", "p") == POD
    assert server.seen[0][:2] == ("GET", "/api/v1/namespaces/ns/pods/p")
    assert server.seen[0][3]["User-Agent"].startswith("bayplan/")
    assert dict(client.requests) == {("get", "pods", 200): 1}


@pytest.mark.parametrize(
    "failure", [hang_up(), refuse(500, "InternalError"), refuse(503, "ServiceUnavailable"), reply("<html>", status=502)]
)
async def test_a_read_is_repeated_until_an_answer_comes(server: ScriptedServer, client: ApiClient, failure) -> None:
    server.others = [failure, failure, reply(POD)]
    assert await client.get(PODS, "ns", "p") == POD
    assert len(server.seen) == 3


async def test_a_read_gives_up_after_its_tries(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [refuse(500, "InternalError")]
    with pytest.raises(ServerError):
        await client.get(PODS, "ns", "p")
    assert len(server.seen) == MAX_TRIES


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (403, Forbidden), (400, BadRequest), (410, Gone)])
async def test_an_answer_that_is_a_no_is_not_asked_again(
    server: ScriptedServer, client: ApiClient, status: int, kind: type[ApiError]
) -> None:
    server.others = [refuse(status, "Whatever", "because")]
    with pytest.raises(kind, match="because") as caught:
        await client.get(PODS, "ns", "p")
    assert (caught.value.status, caught.value.reason, len(server.seen)) == (status, "Whatever", 1)


@pytest.mark.parametrize("failure", [hang_up(), refuse(500, "InternalError"), refuse(503, "x"), refuse(504, "Timeout")])
async def test_a_write_whose_fate_is_unknown_is_never_repeated(
    server: ScriptedServer, client: ApiClient, failure
) -> None:
    server.others = [failure]
    with pytest.raises(ApiError) as caught:
        await client.create(PODS, "ns", POD)
    assert caught.value.outcome_unknown
    assert len(server.seen) == 1


async def test_a_write_that_is_not_answered_in_time_is_unreachable_and_not_repeated(server: ScriptedServer) -> None:
    server.others = [silence()]
    async with ApiClient(server.credentials(), timeout_seconds=0.05) as client:
        with pytest.raises(Unreachable, match="Timeout"):
            await client.patch_merge(PODS, "ns", "p", {})
    assert len(server.seen) == 1
    assert dict(client.requests) == {("patch", "pods", 0): 1}


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    server = ScriptedServer()
    await server.start()
    credentials = Credentials(server.access)
    await server.stop()
    async with ApiClient(credentials, clock=HurriedClock()) as client:
        with pytest.raises(Unreachable, match="Cannot connect"):
            await client.get(PODS, "ns", "p")
    assert client.requests["get", "pods", 0] == MAX_TRIES


async def test_the_wait_that_a_429_asks_for_is_kept(
    server: ScriptedServer, client: ApiClient, clock: HurriedClock
) -> None:
    server.others = [refuse(429, "TooManyRequests", headers={"Retry-After": "3"}), reply(POD, status=201)]
    assert await client.create(PODS, "ns", POD) == POD
    assert len(clock.slept) == 1
    assert 3.0 <= clock.slept[0] <= 3.6


async def test_a_429_that_does_not_end_is_raised_with_its_wait(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [refuse(429, "TooManyRequests", headers={"Retry-After": "1"})]
    with pytest.raises(TooManyRequests) as caught:
        await client.create(PODS, "ns", POD)
    assert caught.value.retry_after == 1
    assert not caught.value.outcome_unknown
    assert len(server.seen) == MAX_TRIES


async def test_a_long_wait_is_left_to_the_caller(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [refuse(429, "TooManyRequests", headers={"Retry-After": "60"})]
    with pytest.raises(TooManyRequests):
        await client.create(PODS, "ns", POD)
    assert len(server.seen) == 1


async def test_a_budget_that_blocks_an_eviction_is_not_hammered(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [refuse(429, "TooManyRequests", "would violate the disruption budget")]
    with pytest.raises(TooManyRequests):
        await client.create(PODS, "ns", POD)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (422, "Invalid", Invalid),
        (403, "Forbidden", Forbidden),
        (418, "Teapot", ApiError),
    ],
)
async def test_refusals_of_writes_have_names(
    server: ScriptedServer, client: ApiClient, status: int, reason: str, kind: type[ApiError]
) -> None:
    server.others = [refuse(status, reason)]
    with pytest.raises(ApiError) as caught:
        await client.create(PODS, "ns", POD)
    assert type(caught.value) is kind
    assert not caught.value.outcome_unknown


@pytest.mark.parametrize(
    ("message", "exceeded"),
    [
        ('pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1', True),
        ("pods is forbidden: User cannot create resource", False),
        ("status unknown for quota: q, resources: pods", False),
    ],
)
async def test_an_exceeded_quota_is_told_from_other_refusals(
    server: ScriptedServer, client: ApiClient, message: str, exceeded: bool
) -> None:
    server.others = [refuse(403, "Forbidden", message)]
    with pytest.raises(Forbidden) as caught:
        await client.create(PODS, "ns", POD)
    assert caught.value.quota_exceeded is exceeded


async def test_html_of_a_middle_box_is_no_answer(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [reply("<html>welcome</html>")]
    with pytest.raises(Unreachable, match="not the API's JSON") as caught:
        await client.create(PODS, "ns", POD)
    assert caught.value.outcome_unknown


async def test_fractions_of_our_kinds_are_exact_both_ways(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [reply({"spec": {"gpuMemoryUtilization": 0.1}})]
    model = await client.get(INFERENCE_MODELS, "ns", "m")
    assert model["spec"]["gpuMemoryUtilization"] == Decimal("0.1")
    assert type((await client.get(PODS, "ns", "p"))["spec"]["gpuMemoryUtilization"]) is float
    await client.apply(INFERENCE_MODELS, "ns", "m", model, manager="bayplan-status", subresource="status")
    assert b'"gpuMemoryUtilization":0.1}' in server.seen[-1][4]


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("Infinity"), float("nan"), float("inf")])
def test_a_number_that_json_does_not_know_is_never_sent(value: object) -> None:
    with pytest.raises(ValueError, match=r"JSON|Out of range"):
        dumps({"x": value})


def test_decimals_become_plain_numbers() -> None:
    assert dumps([Decimal("2"), Decimal("2.50"), Decimal("1E+3")]) == b"[2,2.5,1000]"


async def test_an_apply_is_complete_forced_and_strict(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [reply(POD)]
    body = {"metadata": {"labels": {"a": "b"}}, "status": {}}
    await client.apply(INFERENCE_MODELS, "ns", "m", body, manager="bayplan-status", subresource="status")
    method, path, query, headers, sent = server.seen[0]
    assert (method, path) == ("PATCH", "/apis/bayplan.dev/v1alpha1/namespaces/ns/inferencemodels/m/status")
    assert query == {"fieldManager": "bayplan-status", "force": "true", "fieldValidation": "Strict"}
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert json.loads(sent) == {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"labels": {"a": "b"}, "name": "m"},
        "status": {},
    }
    assert client.requests["apply", "inferencemodels/status", 200] == 1


async def test_a_delete_carries_its_preconditions(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [reply(POD)]
    await client.delete(PODS, "ns", "p", uid="u", resource_version="7", grace_seconds=0)
    sent = json.loads(server.seen[0][4])
    assert sent["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert sent["gracePeriodSeconds"] == 0
    await client.delete(PODS, "ns", "p")
    sent = json.loads(server.seen[1][4])
    assert "preconditions" not in sent
    assert "gracePeriodSeconds" not in sent


async def test_a_list_follows_its_pages_with_the_same_selectors(server: ScriptedServer, client: ApiClient) -> None:
    server.lists = [reply(page([POD], 9, "a+b/c=")), reply(page([], 9, "next")), reply(page([POD, POD], 9))]
    pages = [
        (len(items), version)
        async for items, version in client.list_pages(PODS, label_selector="a in (b,c)", field_selector="x!=y", limit=2)
    ]
    assert pages == [(1, "9"), (0, "9"), (2, "9")]
    assert [query.get("continue") for _, _, query, _, _ in server.seen] == [None, "a+b/c=", "next"]
    assert all(query["labelSelector"] == "a in (b,c)" for _, _, query, _, _ in server.seen)
    assert all(query["fieldSelector"] == "x!=y" and query["limit"] == "2" for _, _, query, _, _ in server.seen)


async def test_an_expired_continue_token_is_gone(server: ScriptedServer, client: ApiClient) -> None:
    server.lists = [reply(page([POD], 9, "token")), refuse(410, "Expired")]
    with pytest.raises(Gone):
        _ = [items async for items, _ in client.list_pages(PODS)]


async def test_a_refused_token_is_loaded_anew_and_the_request_sent_again(server: ScriptedServer) -> None:
    tokens = iter(["Bearer old", "Bearer new"])
    server.others = [refuse(401, "Unauthorized"), reply(POD, status=201)]
    async with ApiClient(Credentials(lambda: server.access(next(tokens)))) as client:
        assert await client.create(PODS, "ns", POD) == POD
    assert [headers["Authorization"] for _, _, _, headers, _ in server.seen] == ["Bearer old", "Bearer new"]


async def test_credentials_that_stay_refused_raise_unauthorized(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [refuse(401, "Unauthorized")]
    with pytest.raises(Unauthorized):
        await client.create(PODS, "ns", POD)
    assert len(server.seen) == 2


async def test_a_fenced_view_reads_but_does_not_write(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [reply(POD)]
    fenced = client.fenced(lambda: False)
    assert await fenced.get(PODS, "ns", "p") == POD
    for write in (
        fenced.create(PODS, "ns", POD),
        fenced.delete(PODS, "ns", "p"),
        fenced.apply(PODS, "ns", "p", {}, manager="m"),
        fenced.patch_json(PODS, "ns", "p", []),
        fenced.patch_merge(PODS, "ns", "p", {}),
        fenced.patch_strategic(PODS, "ns", "p", {}),
        fenced.create_event("ns", {}),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert len(server.seen) == 1
    assert await client.create(PODS, "ns", POD) == POD


async def test_the_fence_falls_between_two_tries_of_a_write(
    server: ScriptedServer, client: ApiClient, clock: HurriedClock
) -> None:
    server.others = [refuse(429, "TooManyRequests", headers={"Retry-After": "5"}), reply(POD)]
    held_until = clock.time() + 4
    with pytest.raises(LeaseLost):
        await client.fenced(lambda: clock.time() < held_until).create(PODS, "ns", POD)
    assert len(server.seen) == 1


async def test_names_cannot_leave_their_path(server: ScriptedServer, client: ApiClient) -> None:
    server.others = [refuse(404, "NotFound")]
    with pytest.raises(NotFound):
        await client.get(PODS, "ns", "../../nodes/x?y")
    assert server.seen[0][1] == "/api/v1/namespaces/ns/pods/../../nodes/x?y"  # one escaped segment, decoded here
    with pytest.raises(ValueError, match="needs a name"):
        await client.delete(PODS, "ns", "")
    with pytest.raises(ValueError, match="needs a namespace"):
        await client.get(LEASES, "", "x")
    with pytest.raises(ValueError, match="cluster-scoped"):
        await client.get(NODES, "ns", "x")


async def test_a_watch_that_was_refused_raises_its_named_error(server: ScriptedServer, client: ApiClient) -> None:
    server.watches = [refuse(410, "Expired", "too old resource version")]
    with pytest.raises(Gone, match="too old"):
        _ = [event async for event in client.watch(PODS, resource_version="1")]


async def test_a_watch_asks_for_bookmarks_from_its_version(server: ScriptedServer, client: ApiClient) -> None:
    server.watches = [stream()]
    opened = []
    found = [
        event
        async for event in client.watch(
            PODS, resource_version="41", timeout_seconds=7.9, on_open=lambda: opened.append(1)
        )
    ]
    query = server.seen[0][2]
    assert (found, opened) == ([], [1])
    assert query == {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "41", "timeoutSeconds": "7"}


async def test_a_list_left_early_leaves_no_request_behind(server: ScriptedServer, client: ApiClient) -> None:
    server.lists = [reply(page([POD], 9, "more")), silence()]
    pages = client.list_pages(PODS)
    assert await anext(pages) == ([POD], "9")
    await until(lambda: server.count("list") == 2, what="the next page to be asked for meanwhile")
    await pages.aclose()
    assert not [task for task in asyncio.all_tasks() if "read" in str(task.get_coro())]
