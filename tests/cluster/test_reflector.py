import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from bayplan.cluster.cache import Store, object_key, version_number
from bayplan.cluster.client import ApiClient
from bayplan.cluster.clock import SystemClock
from bayplan.cluster.listing import STALE_LISTS_ACCEPTED
from bayplan.cluster.reflector import BACKOFF_SECONDS, RELIST_AFTER_FAILURES, Reflector
from bayplan.cluster.resources import PODS, Key
from tests.fakes.api import FakeApi
from tests.fakes.clock import FakeClock, HurriedClock, settle, until
from tests.fakes.server import ScriptedServer, event, hang_up, page, refuse, reply, status_object, stream


@dataclass(frozen=True, slots=True)
class Seen:
    key: Key
    uid: str
    resource_version: int
    note: str


def project(raw: dict[str, Any]) -> Seen | None:
    metadata = raw["metadata"]
    if metadata.get("annotations", {}).get("ignore"):
        return None
    note = metadata.get("annotations", {}).get("note", "")
    return Seen(object_key(raw), metadata["uid"], version_number(metadata["resourceVersion"]), note)


def pod(name: str, version: int, *, uid: str = "", note: str = "", **annotations: str) -> dict[str, Any]:
    found = {**annotations, **({"note": note} if note else {})}
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "annotations": found,
        }
    }


def bookmark(version: int) -> dict[str, Any]:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


class Rig:
    """One reflector on one scripted server, and what its store heard."""

    def __init__(self, server: ScriptedServer, client: ApiClient, clock: Any, **settings: Any) -> None:
        self.server = server
        self.store: Store[Seen] = Store(PODS)
        self.heard: list[tuple[str, str]] = []
        self.store.subscribe(self._note)
        self.reflector = Reflector(client, self.store, project, clock=clock, **settings)
        self.task: asyncio.Task[None] | None = None

    def _note(self, old: Seen | None, new: Seen | None) -> None:
        kind = "added" if old is None else "deleted" if new is None else "changed"
        self.heard.append((kind, (new or old).key.name))  # type: ignore[union-attr]

    def start(self) -> None:
        self.task = asyncio.create_task(self.reflector.run())

    def names(self) -> list[str]:
        return sorted(obj.key.name for obj in self.store.values())


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def rig(server: ScriptedServer) -> AsyncIterator[Rig]:
    clock = HurriedClock()
    async with ApiClient(server.credentials(), clock=clock) as client:
        rig = Rig(server, client, clock, idle_seconds=5.0)
        yield rig
        assert rig.task is None or not rig.task.done(), "the reflector died"
        await stop(rig.task)


async def stop(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pages_then_watch_events_fill_the_store(rig: Rig, server: ScriptedServer) -> None:
    server.lists = [reply(page([pod("a", 3), pod("b", 4)], 10, "more")), reply(page([pod("c", 5)], 10))]
    server.watches = [
        stream(
            event("ADDED", pod("d", 11)),
            event("MODIFIED", pod("a", 12)),
            event("DELETED", pod("b", 13)),
            end="hold",
        )
    ]
    rig.start()
    await until(lambda: len(rig.heard) == 6)
    assert rig.names() == ["a", "c", "d"]
    assert rig.heard[3:] == [("added", "d"), ("changed", "a"), ("deleted", "b")]
    assert server.seen[2][2]["resourceVersion"] == "10"
    assert rig.reflector.synced.is_set()
    assert rig.store.stream_version == 13


async def test_synced_is_not_set_before_the_last_page(rig: Rig, server: ScriptedServer) -> None:
    gate = asyncio.Event()

    async def last_page(request):
        await gate.wait()
        return await reply(page([pod("b", 4)], 10))(request)

    server.lists = [reply(page([pod("a", 3)], 10, "more")), last_page]
    server.watches = [stream(end="hold")]
    rig.start()
    await until(lambda: rig.names() == ["a"])
    assert not rig.reflector.synced.is_set()
    gate.set()
    await until(rig.reflector.synced.is_set)
    assert rig.names() == ["a", "b"]


async def test_a_stream_that_ends_is_continued_from_its_last_version(rig: Rig, server: ScriptedServer) -> None:
    server.lists = [reply(page([], 10))]
    server.watches = [
        stream(event("ADDED", pod("a", 11))),
        stream(bookmark(40), end="cut"),
        stream(event("ADDED", pod("b", 41)), end="hold"),
    ]
    rig.start()
    await until(lambda: rig.names() == ["a", "b"])
    versions = [query["resourceVersion"] for _, _, query, _, _ in server.seen if "watch" in query]
    assert versions == ["10", "11", "40"]
    assert server.count("list") == 1


async def test_a_line_cut_in_the_middle_is_heard_again_from_the_next_stream(rig: Rig, server: ScriptedServer) -> None:
    server.lists = [reply(page([], 10))]
    server.watches = [
        stream(event("ADDED", pod("a", 11)), b'{"type":"ADDED","object":{"metadata":{"na', end="cut"),
        stream(event("ADDED", pod("b", 12)), end="hold"),
    ]
    rig.start()
    await until(lambda: rig.names() == ["a", "b"])
    assert [query["resourceVersion"] for _, _, query, _, _ in server.seen if "watch" in query] == ["10", "11"]


async def test_one_event_split_over_many_chunks_is_one_event(rig: Rig, server: ScriptedServer) -> None:
    line = b'{"type":"ADDED","object":' + str(pod("a", 11)).replace("'", '"').encode() + b"}\n"
    server.lists = [reply(page([], 10))]
    server.watches = [stream(*[line[i : i + 7] for i in range(0, len(line), 7)], b"\n", b"  \n", end="hold")]
    rig.start()
    await until(lambda: rig.names() == ["a"])


async def test_a_line_of_a_megabyte_works(rig: Rig, server: ScriptedServer) -> None:
    server.lists = [reply(page([], 10))]
    server.watches = [stream(event("ADDED", pod("a", 11, note="x" * 2**20)), end="hold")]
    rig.start()
    await until(lambda: rig.names() == ["a"])
    assert len(rig.store.values()[0].note) == 2**20


async def test_a_deletion_hidden_in_a_410_gap_is_reported(rig: Rig, server: ScriptedServer) -> None:
    server.lists = [
        reply(page([pod("a", 3), pod("b", 4)], 10)),
        reply(page([pod("a", 3), pod("c", 25)], 30)),
    ]
    server.watches = [stream(event("ERROR", status_object(410, "Expired"))), stream(end="hold")]
    rig.start()
    await until(lambda: rig.names() == ["a", "c"])
    assert rig.heard == [("added", "a"), ("added", "b"), ("added", "c"), ("deleted", "b")]


async def test_a_watch_refused_with_410_lists_again(rig: Rig, server: ScriptedServer) -> None:
    server.lists = [reply(page([pod("a", 3)], 10)), reply(page([], 30))]
    server.watches = [refuse(410, "Expired"), stream(end="hold")]
    rig.start()
    await until(lambda: rig.heard == [("added", "a"), ("deleted", "a")])


async def test_a_410_between_two_pages_lists_again_in_one_piece(rig: Rig, server: ScriptedServer) -> None:
    server.lists = [
        reply(page([pod("a", 3)], 10, "more")),
        refuse(410, "Expired"),
        reply(page([pod("a", 3), pod("b", 4)], 20)),
    ]
    server.watches = [stream(end="hold")]
    rig.start()
    await until(lambda: rig.names() == ["a", "b"])
    assert [query["limit"] for _, _, query, _, _ in server.seen if "limit" in query] == ["250", "250", "0"]


@pytest.mark.parametrize(
    "garbage",
    [
        stream(b"<html><body>502 Bad Gateway</body></html>\n"),
        stream(b'{"type":"ADDED"}\n'),
        stream(b'{"type":"PARTY","object":{"metadata":{}}}\n'),
        stream(b'{"type":"ADDED","object":null}\n'),
        stream(b"[1,2]\n"),
        stream(event("ERROR", status_object(500, "InternalError"))),
        stream(b'{"type":"ERROR","object":{"message":"no code"}}\n'),
        reply("<html>welcome</html>"),
        refuse(503, "ServiceUnavailable"),
        refuse(429, "TooManyRequests", headers={"Retry-After": "1"}),
        refuse(403, "Forbidden"),
        hang_up(),
    ],
)
async def test_no_kind_of_broken_stream_ends_it(rig: Rig, server: ScriptedServer, garbage) -> None:
    server.lists = [reply(page([], 10))]
    server.watches = [garbage, garbage, stream(event("ADDED", pod("a", 11)), end="hold")]
    rig.start()
    await until(lambda: rig.names() == ["a"])
    assert rig.reflector.failures == 0


async def test_a_watch_that_keeps_failing_starts_from_a_new_list(rig: Rig, server: ScriptedServer) -> None:
    """A version that the server does not know (its history was restored) is refused for ever."""
    server.lists = [reply(page([], 10)), reply(page([pod("a", 11)], 12))]
    failing = stream(event("ERROR", status_object(504, "Timeout", "Too large resource version")))
    server.watches = [*[failing] * RELIST_AFTER_FAILURES, stream(end="hold")]
    rig.start()
    await until(lambda: rig.names() == ["a"])
    assert server.count("list") == 2


async def test_streams_that_end_at_once_are_backed_off(server: ScriptedServer) -> None:
    clock = FakeClock()
    server.lists = [reply(page([], 10))]
    server.watches = [stream()]
    async with ApiClient(server.credentials()) as client:
        rig = Rig(server, client, clock)
        rig.start()
        for number in range(1, 6):
            await until(lambda number=number: server.count("watch") == number and clock.sleepers == 1)
            assert rig.reflector.failures == number
            delay = BACKOFF_SECONDS * 2 ** (number - 1)
            await clock.advance(delay * 0.79)
            assert clock.sleepers == 1
            await clock.advance(delay * 0.42)
            if number == RELIST_AFTER_FAILURES:
                await until(lambda: server.count("list") == 2)
        await stop(rig.task)


async def test_the_list_is_tried_until_it_works(rig: Rig, server: ScriptedServer) -> None:
    server.lists = [refuse(403, "Forbidden"), reply("<html>"), refuse(404, "NotFound"), reply(page([pod("a", 3)], 10))]
    server.watches = [stream(end="hold")]
    rig.start()
    await until(rig.reflector.synced.is_set)
    assert rig.names() == ["a"]


async def test_silence_is_a_dead_stream(server: ScriptedServer) -> None:
    server.lists = [reply(page([], 10))]
    server.watches = [stream(bookmark(20), end="hold"), stream(event("ADDED", pod("a", 21)), end="hold")]
    async with ApiClient(server.credentials()) as client:
        rig = Rig(server, client, SystemClock(), idle_seconds=0.1)
        rig.start()
        await until(lambda: rig.names() == ["a"])
        assert server.seen[-1][2]["resourceVersion"] == "20"
        await stop(rig.task)


async def test_a_list_older_than_what_was_seen_is_not_believed_at_first(rig: Rig, server: ScriptedServer) -> None:
    stale = reply(page([pod("old", 3)], 15))
    server.lists = [reply(page([pod("a", 3)], 10)), stale, stale, reply(page([pod("a", 3)], 30))]
    server.watches = [
        stream(event("ADDED", pod("b", 20)), event("ERROR", status_object(410, "Expired"))),
        stream(end="hold"),
    ]
    rig.start()
    await until(lambda: ("deleted", "b") in rig.heard)
    assert ("added", "old") not in rig.heard
    assert rig.names() == ["a"]


async def test_an_older_history_is_accepted_when_the_server_insists(
    rig: Rig, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.lists = [reply(page([pod("a", 900)], 1000)), reply(page([pod("a", 90), pod("b", 91)], 100))]
    server.watches = [
        stream(event("ERROR", status_object(410, "Expired"))),
        stream(event("MODIFIED", pod("a", 101, note="new")), end="hold"),
    ]
    with caplog.at_level(logging.ERROR):
        rig.start()
        await until(lambda: rig.store.get(Key("ns", "a")) and rig.store.get(Key("ns", "a")).note == "new")
    assert rig.names() == ["a", "b"]
    assert "older history" in caplog.text
    assert server.count("list") == 1 + STALE_LISTS_ACCEPTED


async def test_an_object_that_cannot_be_read_keeps_its_last_good_version(rig: Rig, server: ScriptedServer) -> None:
    broken = pod("a", 11)
    broken["metadata"]["annotations"] = 7
    server.lists = [reply(page([pod("a", 3)], 10))]
    server.watches = [stream(event("MODIFIED", broken), event("ADDED", pod("b", 12)), end="hold")]
    rig.start()
    await until(lambda: rig.names() == ["a", "b"])
    assert rig.store.get(Key("ns", "a")).resource_version == 3  # type: ignore[union-attr]
    assert rig.reflector.projection_errors == 1


async def test_an_object_projected_to_none_leaves_and_may_come_back(rig: Rig, server: ScriptedServer) -> None:
    server.lists = [reply(page([pod("a", 3), pod("x", 4, ignore="yes")], 10))]
    server.watches = [
        stream(event("MODIFIED", pod("a", 11, ignore="yes")), event("MODIFIED", pod("a", 12)), end="hold")
    ]
    rig.start()
    await until(lambda: len(rig.heard) == 3)
    assert rig.heard == [("added", "a"), ("deleted", "a"), ("added", "a")]


async def test_selectors_go_to_the_server(server: ScriptedServer) -> None:
    server.lists = [reply(page([], 10))]
    server.watches = [stream(end="hold")]
    async with ApiClient(server.credentials()) as client:
        rig = Rig(server, client, SystemClock(), label_selector="a=b", field_selector="spec.nodeName!=")
        rig.start()
        await until(lambda: server.count("watch") == 1)
        for _, _, query, _, _ in server.seen:
            assert (query["labelSelector"], query["fieldSelector"]) == ("a=b", "spec.nodeName!=")
        await stop(rig.task)


async def test_progress_is_a_page_a_stream_that_opened_an_event_or_a_bookmark() -> None:
    api, clock = FakeApi(), FakeClock()
    store: Store[Seen] = Store(PODS)
    reflector = Reflector(api, store, project, clock=clock)
    await clock.advance(100)
    assert reflector.progress_age() == 100
    task = asyncio.create_task(reflector.run())
    await settle()
    assert reflector.progress_age() == 0
    await clock.advance(500)
    assert reflector.progress_age() == 500
    api.seed(PODS, {"metadata": {"name": "a", "namespace": "ns"}})
    await settle()
    assert reflector.progress_age() == 0
    await clock.advance(30)
    api.cut_watches()
    await settle()
    assert reflector.progress_age() == 0
    await stop(task)


async def test_the_fake_server_behaves_like_a_history_with_a_gap() -> None:
    api, clock = FakeApi(), FakeClock()
    store: Store[Seen] = Store(PODS)
    reflector = Reflector(api, store, project, clock=clock)
    api.seed(PODS, {"metadata": {"name": "a", "namespace": "ns"}})
    task = asyncio.create_task(reflector.run())
    await settle()
    api.remove(PODS, Key("ns", "a"))
    api.seed(PODS, {"metadata": {"name": "b", "namespace": "ns"}})
    api.compact()
    await clock.advance(1)
    assert [obj.key.name for obj in store.values()] == ["b"]
    await stop(task)
