"""Each fault does what its name says, and is counted when a client met it and only then."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from e2e.chaos.apirequest import ApiRequest
from e2e.chaos.faults import FaultClass
from e2e.chaos.proxy import ChaosProxy, Door
from e2e.chaos.scope import Scope
from tests.chaos.smallserver import SmallServer
from tests.fakes.clock import until

PODS = "/api/v1/namespaces/team/pods"
REFUSED = [(FaultClass.CONFLICT, 409), (FaultClass.INVALID, 422), (FaultClass.THROTTLED, 429)]


@dataclass
class Chosen:
    """Faults that the test chooses: for requests of a verb, for events one after the other."""

    requests: dict[str, FaultClass] = field(default_factory=dict)
    events: list[FaultClass | None] = field(default_factory=list)

    def on_request(self, request: ApiRequest) -> FaultClass | None:
        return self.requests.get(request.verb)

    def on_event(self, watch: ApiRequest, event_type: str) -> FaultClass | None:
        return self.events.pop(0) if self.events else None

    def extent(self, fault: FaultClass) -> float:
        return 0.0


@dataclass
class Bench:
    server: SmallServer
    proxy: ChaosProxy
    chosen: Chosen
    session: aiohttp.ClientSession
    crashes: list[str] = field(default_factory=list)

    async def door(self, scope: Scope | None = None) -> Door:
        return await self.proxy.open_door("client", scope=scope, on_crash=lambda door: self.crashes.append(door.name))

    async def create(self, door: Door, name: str = "a", timeout: float = 5.0) -> tuple[int, Any]:
        limit = aiohttp.ClientTimeout(total=timeout)
        async with self.session.post(door.url + PODS, json={"metadata": {"name": name}}, timeout=limit) as answer:
            return answer.status, await answer.json()

    async def get(self, door: Door, path: str) -> tuple[int, Any]:
        async with self.session.get(door.url + path) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    chosen = Chosen()
    async with (
        SmallServer.on() as (server, access),
        ChaosProxy(access, chosen) as proxy,
        aiohttp.ClientSession() as session,
    ):
        yield Bench(server, proxy, chosen, session)


# --- writes ----------------------------------------------------------------------------------------------------------


async def test_without_a_fault_everything_passes(bench: Bench) -> None:
    door = await bench.door()
    status, created = await bench.create(door)

    assert (status, created["metadata"]["name"]) == (201, "a")
    assert [str(write.request) for write in bench.proxy.writes] == ["create pods team/a"]
    assert not bench.proxy.injected


async def test_crash_before_a_write_keeps_it_from_the_server_and_severs_this_door_alone(bench: Bench) -> None:
    door, other = await bench.door(), await bench.door()
    bench.chosen.requests["create"] = FaultClass.CRASH_BEFORE_WRITE
    with pytest.raises(aiohttp.ClientError):
        await bench.create(door)
    bench.chosen.requests.clear()
    with pytest.raises(aiohttp.ClientError):
        await bench.create(door)

    assert bench.server.writes == []
    assert bench.crashes == ["client"]
    assert bench.proxy.injected == {FaultClass.CRASH_BEFORE_WRITE: 1}
    assert (await bench.create(other))[0] == 201


async def test_crash_after_a_write_lets_the_server_do_it(bench: Bench) -> None:
    door = await bench.door()
    bench.chosen.requests["create"] = FaultClass.CRASH_AFTER_WRITE
    with pytest.raises(aiohttp.ClientError):
        await bench.create(door)

    assert bench.server.writes == ["a"]
    assert bench.crashes == ["client"]
    assert bench.proxy.injected == {FaultClass.CRASH_AFTER_WRITE: 1}


async def test_what_the_server_was_given_goes_on_after_a_crash(bench: Bench) -> None:
    door = await bench.door()
    bench.server.slow.clear()
    writing = asyncio.create_task(bench.create(door))
    await until(lambda: bench.server.writes == ["a"])
    assert bench.proxy.in_flight["create pods"] == 1
    door.sever()
    with pytest.raises(aiohttp.ClientError):
        await writing
    bench.server.slow.set()

    await until(lambda: [write.status for write in bench.proxy.writes] == [201])
    assert bench.proxy.in_flight["create pods"] == 0


@pytest.mark.parametrize(("fault", "status"), REFUSED)
async def test_a_refused_write_does_not_reach_the_server(bench: Bench, fault: FaultClass, status: int) -> None:
    door = await bench.door()
    bench.chosen.requests["create"] = fault

    assert (await bench.create(door))[0] == status
    assert bench.server.writes == []
    assert bench.proxy.injected == {fault: 1}


async def test_throttling_says_when_to_come_again(bench: Bench) -> None:
    door = await bench.door()
    bench.chosen.requests["create"] = FaultClass.THROTTLED
    async with bench.session.post(door.url + PODS, json={"metadata": {"name": "a"}}) as answer:
        assert answer.headers["Retry-After"] == "1"


async def test_an_error_after_success_hides_a_write_that_was_done(bench: Bench) -> None:
    door = await bench.door()
    bench.chosen.requests["create"] = FaultClass.ERROR_AFTER_SUCCESS

    assert (await bench.create(door))[0] == 500
    assert bench.server.writes == ["a"]
    assert [write.status for write in bench.proxy.writes] == [201]


async def test_silence_after_success_lasts_until_the_client_gives_up(bench: Bench) -> None:
    door = await bench.door()
    bench.chosen.requests["create"] = FaultClass.SILENCE_AFTER_SUCCESS
    with pytest.raises(TimeoutError):
        await bench.create(door, timeout=0.2)

    assert bench.server.writes == ["a"]
    assert bench.proxy.injected == {FaultClass.SILENCE_AFTER_SUCCESS: 1}


async def test_a_middle_box_answers_in_html(bench: Bench) -> None:
    door = await bench.door()
    bench.chosen.requests["list"] = FaultClass.HTML
    status, text = await bench.get(door, "/api/v1/pods")

    assert status == 502
    assert "<html>" in text


# --- the past --------------------------------------------------------------------------------------------------------


async def test_a_stale_list_is_a_state_that_was(bench: Bench) -> None:
    door = await bench.door()
    await bench.create(door, "a")
    await bench.create(door, "b")
    bench.chosen.requests["list"] = FaultClass.STALE_LIST
    _, found = await bench.get(door, "/api/v1/pods?limit=5")

    assert [item["metadata"]["name"] for item in found["items"]] == ["a"]
    assert bench.server.queries[-1] == {"limit": "5", "resourceVersion": "101", "resourceVersionMatch": "Exact"}
    assert bench.proxy.injected == {FaultClass.STALE_LIST: 1}


async def test_nothing_is_stale_before_anything_changed(bench: Bench) -> None:
    door = await bench.door()
    await bench.create(door, "a")
    bench.chosen.requests["list"] = FaultClass.STALE_LIST
    _, found = await bench.get(door, "/api/v1/pods")

    assert [item["metadata"]["name"] for item in found["items"]] == ["a"]
    assert not bench.proxy.injected


async def test_a_stale_get_knows_what_was_there_then(bench: Bench) -> None:
    door = await bench.door()
    await bench.create(door, "a")
    await bench.create(door, "b")
    bench.chosen.requests["get"] = FaultClass.STALE_GET
    status, found = await bench.get(door, f"{PODS}/a")

    assert (status, found["kind"], found["metadata"]["resourceVersion"]) == (200, "Pod", "101")
    assert (await bench.get(door, f"{PODS}/b"))[0] == 404
    assert bench.proxy.injected == {FaultClass.STALE_GET: 2}


# --- watches ---------------------------------------------------------------------------------------------------------


async def watch(bench: Bench, door: Door, chunks: list[bytes], resource: str = "pods") -> str:
    """Read a watch into `chunks`; return how it ended."""
    try:
        async with bench.session.get(f"{door.url}/api/v1/{resource}?watch=true") as answer:
            async for chunk in answer.content.iter_any():
                chunks.append(chunk)
            return f"{answer.status}"
    except aiohttp.ClientError:
        return "cut"


async def watched(bench: Bench, door: Door, *faults: FaultClass | None) -> tuple[list[bytes], bytes, str]:
    """Send one event per fault; return their lines, what the client got, and how its watch ended."""
    bench.chosen.events = list(faults)
    bench.server.begin_watch()
    got: list[bytes] = []
    watching = asyncio.create_task(watch(bench, door, got))
    lines = [bench.server.send("DELETED" if fault is FaultClass.WATCH_EXPIRED else "MODIFIED", "a") for fault in faults]
    bench.server.end_watch()
    async with asyncio.timeout(5):
        end = await watching
    return lines, b"".join(got), end


async def test_events_pass_unchanged(bench: Bench) -> None:
    lines, got, end = await watched(bench, await bench.door(), None, None)

    assert (got, end) == (b"".join(lines), "200")


@pytest.mark.parametrize("fault", [FaultClass.WATCH_DROPPED, FaultClass.WATCH_CUT, FaultClass.WATCH_EXPIRED])
async def test_a_broken_stream_ends_without_its_event(bench: Bench, fault: FaultClass) -> None:
    lines, got, end = await watched(bench, await bench.door(), None, fault)

    assert end == "cut"
    assert got.startswith(lines[0])
    assert lines[1] not in got
    assert (got == lines[0]) == (fault is not FaultClass.WATCH_CUT)
    assert bench.proxy.injected == {fault: 1}


async def test_after_a_hidden_deletion_the_next_watch_and_only_it_is_refused(bench: Bench) -> None:
    door = await bench.door()
    await watched(bench, door, FaultClass.WATCH_EXPIRED)

    assert await watch(bench, door, []) == "410"
    _, got, end = await watched(bench, door, None)
    assert (bool(got), end) == (True, "200")


async def test_a_duplicate_is_followed_by_what_was_before_it(bench: Bench) -> None:
    (first, second), got, _ = await watched(bench, await bench.door(), None, FaultClass.WATCH_DUPLICATED)

    assert got == first + second + second + first


@pytest.mark.parametrize(("fault", "mark"), [(FaultClass.WATCH_ERROR, b'"code": 500'), (FaultClass.HTML, b"<html>")])
async def test_rubbish_in_the_stream_ends_it(bench: Bench, fault: FaultClass, mark: bytes) -> None:
    lines, got, end = await watched(bench, await bench.door(), None, fault)

    assert end == "200"
    assert got.startswith(lines[0])
    assert mark in got


async def test_a_silent_watch_stays_open_and_says_nothing(bench: Bench) -> None:
    door = await bench.door()
    bench.chosen.events = [None, FaultClass.WATCH_SILENT]
    got: list[bytes] = []
    watching = asyncio.create_task(watch(bench, door, got))
    first = bench.server.send("MODIFIED", "a")
    bench.server.send("MODIFIED", "a")
    bench.server.send("MODIFIED", "a")
    await until(lambda: bench.proxy.injected[FaultClass.WATCH_SILENT] == 1)
    assert (b"".join(got), watching.done()) == (first, False)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_delayed_event_comes_late_and_in_order(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    lines, got, _ = await watched(bench, await bench.door(), FaultClass.WATCH_DELAYED, None)

    assert got == b"".join(lines)
    assert loop.time() - started >= 0.1


async def test_a_frozen_kind_stands_still_while_others_move(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.chaos.proxy.FROZEN_SECONDS", (0.3, 0.3))
    door = await bench.door()
    await bench.create(door, "a")
    bench.chosen.events = [FaultClass.FROZEN_KIND]
    got: list[bytes] = []
    watching = asyncio.create_task(watch(bench, door, got))
    line = bench.server.send("MODIFIED", "a")
    await until(lambda: bench.proxy.injected[FaultClass.FROZEN_KIND] == 1)
    await bench.create(door, "b")
    _, frozen = await bench.get(door, "/api/v1/pods")
    await bench.get(door, "/api/v1/nodes")

    assert [item["metadata"]["name"] for item in frozen["items"]] == ["a"]
    assert "resourceVersion" not in bench.server.queries[-1]
    assert got == []
    await bench.proxy.all_over()
    await until(lambda: got == [line])
    _, thawed = await bench.get(door, "/api/v1/pods")
    assert [item["metadata"]["name"] for item in thawed["items"]] == ["a", "b"]
    bench.server.end_watch()
    assert await watching == "200"


async def test_a_fault_is_over_only_when_its_client_knows_what_it_missed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.chaos.streams.DELAY_SECONDS", (0.3, 0.3))
    await bench.proxy.all_over()
    door = await bench.door()
    bench.chosen.events = [FaultClass.WATCH_DELAYED]
    got: list[bytes] = []
    watching = asyncio.create_task(watch(bench, door, got))
    line = bench.server.send("MODIFIED", "a")
    await until(lambda: bench.proxy.lasting[FaultClass.WATCH_DELAYED] == 1)
    assert got == []
    await bench.proxy.all_over()
    await until(lambda: got == [line])
    bench.server.end_watch()
    assert await watching == "200"


@pytest.mark.parametrize("fault", [FaultClass.SILENCE_AFTER_SUCCESS, FaultClass.WATCH_SILENT])
async def test_a_silence_is_over_when_its_client_gives_up(bench: Bench, fault: FaultClass) -> None:
    door = await bench.door()
    bench.chosen.requests = {"create": fault}
    bench.chosen.events = [fault]
    waiting = asyncio.create_task(
        bench.create(door) if fault is FaultClass.SILENCE_AFTER_SUCCESS else watch(bench, door, [])
    )
    bench.server.send("MODIFIED", "a")
    await until(lambda: bench.proxy.lasting[fault] == 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bench.proxy.all_over(), 0.1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await bench.proxy.all_over()


# --- doors with a view -----------------------------------------------------------------------------------------------


async def test_a_scoped_door_shows_one_namespace_and_its_nodes(bench: Bench) -> None:
    door = await bench.door(Scope("mine", "world=1", lease_namespace="elsewhere"))
    await bench.get(door, "/api/v1/pods?labelSelector=x")
    assert bench.server.queries[-1] == {"labelSelector": "x"}
    await bench.get(door, "/api/v1/nodes?labelSelector=x")
    assert bench.server.queries[-1] == {"labelSelector": "x,world=1"}
    await bench.get(door, "/api/v1/nodes")
    assert bench.server.queries[-1] == {"labelSelector": "world=1"}


@pytest.mark.parametrize(
    ("request_", "path", "expected"),
    [
        (ApiRequest("list", "pods"), "/api/v1/pods", "/api/v1/namespaces/mine/pods"),
        (ApiRequest("watch", "jobs"), "/apis/batch/v1/jobs", "/apis/batch/v1/namespaces/mine/jobs"),
        (ApiRequest("list", "pods", namespace="x"), "/api/v1/namespaces/x/pods", "/api/v1/namespaces/x/pods"),
        (ApiRequest("get", "nodes", name="n"), "/api/v1/nodes/n", "/api/v1/nodes/n"),
        (
            ApiRequest("patch", "leases", "", "theirs", "op"),
            "/apis/coordination.k8s.io/v1/namespaces/theirs/leases/op",
            "/apis/coordination.k8s.io/v1/namespaces/elsewhere/leases/op",
        ),
        (
            ApiRequest("list", "leases"),
            "/apis/coordination.k8s.io/v1/leases",
            "/apis/coordination.k8s.io/v1/namespaces/mine/leases",
        ),
        (ApiRequest("get"), "/apis", "/apis"),
    ],
)
def test_what_a_scope_rewrites(request_: ApiRequest, path: str, expected: str) -> None:
    scope = Scope("mine", "world=1", lease_namespace="elsewhere")

    assert scope.rewrite(request_, path, {}) == expected
