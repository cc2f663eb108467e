"""Requests that wait: let in when room appears, sent away when it does not, forgotten when their client leaves."""

import asyncio
import time
from dataclasses import replace

import pytest

from bayplan.gateway.outcomes import RequestOutcome
from bayplan.gateway.settings import GatewaySettings, WorkloadClass
from tests.fakes.clock import until
from tests.gateway.conftest import MakeScripted, MakeTown
from tests.gateway.gatewaytown import FACTS, Town
from tests.gateway.scriptedengine import DONE, HEAD, Connection, event, whole_answer, whole_stream

ONE_SEAT = replace(FACTS, max_num_seqs=1)


class Gate:
    """A stream that has begun and ends when the test says so."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, connection: Connection) -> None:
        await connection.send(HEAD)
        await connection.chunk(event("a"))
        waits = asyncio.ensure_future(self.opened.wait())
        leaves = asyncio.ensure_future(connection.until_client_leaves())
        await asyncio.wait({waits, leaves}, return_when=asyncio.FIRST_COMPLETED)
        if leaves.done():
            waits.cancel()
            raise ConnectionError
        leaves.cancel()
        await connection.chunk(event("", finish="stop") + DONE)
        await connection.chunk(b"")


async def town_of_one_seat(make_town: MakeTown, scripted: MakeScripted, *scripts: object, **settings: object) -> Town:
    town = await make_town(settings=GatewaySettings(**settings))  # type: ignore[arg-type]
    town.model()
    town.head("a", (await scripted(*scripts)).host, facts=ONE_SEAT)  # type: ignore[arg-type]
    return town


async def test_request_that_waits_is_let_in_when_room_appears(make_town: MakeTown, scripted: MakeScripted) -> None:
    gate = Gate()
    town = await town_of_one_seat(make_town, scripted, gate, whole_stream)
    async with town.open_stream() as first:
        await first.content.readany()
        second = asyncio.ensure_future(town.open_stream().__aenter__())
        await until(lambda: town.queued() == 1)
        assert town.held == 1
        gate.opened.set()
        await first.read()
        response = await second
        assert (await response.read()).endswith(DONE)
    assert town.held == town.queued() == 0


async def test_new_replica_lets_in_what_waits(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await town_of_one_seat(make_town, scripted, Gate())
    async with town.open_stream() as first:
        await first.content.readany()
        second = asyncio.ensure_future(town.post())
        await until(lambda: town.queued() == 1)
        town.head("b", (await scripted(whole_answer)).host)
        assert (await second)[0] == 200


async def test_client_that_leaves_the_queue_is_forgotten(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await town_of_one_seat(make_town, scripted, Gate())
    async with town.open_stream() as first:
        await first.content.readany()
        second = asyncio.ensure_future(town.post())
        await until(lambda: town.queued() == 1)
        second.cancel()
        await until(lambda: town.queued() == 0)
        assert town.held == 1
    assert town.gateway.outcomes.requests["default", "tiny", RequestOutcome.CANCELLED] == 1


async def test_client_that_leaves_frees_its_place_and_the_engine_within_100_ms(
    make_town: MakeTown, scripted: MakeScripted
) -> None:
    town = await make_town()
    town.model()
    engine = await scripted(Gate())
    town.head("a", engine.host, facts=ONE_SEAT)
    times = []
    for _ in range(5):
        engine.left.clear()
        response = await town.open_stream().__aenter__()
        await response.content.readany()
        started = time.monotonic()
        response.close()
        await asyncio.wait_for(engine.left.wait(), 5)
        times.append(time.monotonic() - started)
        await until(lambda: town.held == 0)
    assert sorted(times)[2] < 0.1  # the median: a single pause of the machine says nothing


async def test_client_that_leaves_before_the_answer_frees_the_engine(
    make_town: MakeTown, scripted: MakeScripted
) -> None:
    async def hang(connection: Connection) -> None:
        await connection.until_client_leaves()

    town = await make_town()
    town.model()
    engine = await scripted(hang)
    town.head("a", engine.host)
    asking = asyncio.ensure_future(town.post())
    await until(lambda: engine.received)
    asking.cancel()
    await asyncio.wait_for(engine.left.wait(), 5)
    await until(lambda: town.held == 0)
    assert town.gateway.outcomes.requests["default", "tiny", RequestOutcome.CANCELLED] == 1


async def test_request_that_waited_in_vain_is_shed_with_a_time_to_come_back(
    make_town: MakeTown, scripted: MakeScripted
) -> None:
    town = await town_of_one_seat(make_town, scripted, Gate(), max_wait_seconds=0)
    async with town.open_stream() as first:
        await first.content.readany()
        status, body, headers = await town.post()
    assert (status, body["error"]["code"]) == (429, "queue_timeout")
    assert headers["x-should-retry"] == "true"
    assert int(headers["retry-after"]) == body["error"]["retry_after"] >= 1


async def test_full_queue_sheds_at_once(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await town_of_one_seat(make_town, scripted, Gate(), max_queued_requests=0)
    async with town.open_stream() as first:
        await first.content.readany()
        status, body, _ = await town.post()
    assert (status, body["error"]["code"]) == (429, "queue_full")
    assert town.gateway.outcomes.requests["default", "tiny", RequestOutcome.SHED] == 1


async def test_deadline_of_the_class_ends_the_wait(make_town: MakeTown, scripted: MakeScripted) -> None:
    classes = {"default": WorkloadClass(first_token_seconds=0.2)}
    town = await town_of_one_seat(make_town, scripted, Gate(), classes=classes)
    async with town.open_stream() as first:
        await first.content.readany()
        status, body, _ = await town.post()
    assert (status, body["error"]["code"]) == (429, "queue_timeout")


async def test_closing_sends_the_queue_away_and_lets_streams_end(make_town: MakeTown, scripted: MakeScripted) -> None:
    gate = Gate()
    town = await town_of_one_seat(make_town, scripted, gate)
    async with town.open_stream() as first:
        await first.content.readany()
        waits = asyncio.ensure_future(town.post())
        await until(lambda: town.queued() == 1)
        town.gateway.refuse_new()
        for status, body, headers in (await waits, await town.post()):
            assert (status, body["error"]["code"]) == (503, "draining")
            assert headers["x-should-retry"] == "true"
        gate.opened.set()
        assert (await first.read()).endswith(DONE)
    assert town.held == 0


# -- idempotency


async def test_key_at_work_is_a_conflict_and_a_completed_one_is_replayed(
    make_town: MakeTown, scripted: MakeScripted
) -> None:
    gate = Gate()
    engine = await scripted(gate, whole_answer)
    town = await make_town()
    town.model()
    town.head("a", engine.host)
    key = {"Idempotency-Key": "k1"}
    async with town.open_stream(headers=key) as first:
        await first.content.readany()
        async with town.open_stream(headers=key) as again:
            assert again.status == 409
            assert (await again.json())["error"]["code"] == "idempotency_in_flight"
        gate.opened.set()
        original = event("a") + await first.read()
    async with town.open_stream(headers=key) as replayed:
        assert replayed.status == 200
        assert replayed.headers["Idempotent-Replayed"] == "true"
        assert replayed.headers["Content-Type"].startswith("text/event-stream")
        assert await replayed.read() == original
    status, body, _ = await town.post(headers=key)
    assert (status, body["error"]["code"]) == (422, "idempotency_conflict")
    assert len(engine.received) == 1
    assert (await town.post(headers={"Idempotency-Key": "k2"}))[0] == 200
    assert len(engine.received) == 2


async def test_key_of_a_failed_request_may_be_used_again(make_town: MakeTown, scripted: MakeScripted) -> None:
    async def fails(connection: Connection) -> None:
        await connection.answer(500, {"error": {}})

    town = await make_town()
    town.model()
    engine = await scripted(fails, whole_answer)
    town.head("a", engine.host)
    key = {"Idempotency-Key": "k1"}
    assert (await town.post(headers=key))[0] == 500
    assert (await town.post(headers=key))[0] == 200
    status, _, headers = await town.post(headers=key)
    assert (status, headers["Idempotent-Replayed"]) == (200, "true")
    assert len(engine.received) == 2


async def test_completed_key_expires(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await make_town(settings=GatewaySettings(remember_seconds=0))
    town.model()
    engine = await scripted(whole_answer)
    town.head("a", engine.host)
    for _ in range(2):
        assert (await town.post(headers={"Idempotency-Key": "k1"}))[0] == 200
    assert len(engine.received) == 2


@pytest.mark.parametrize("most_bytes", [0, 10])
async def test_answer_that_is_not_kept_is_a_conflict(
    make_town: MakeTown, scripted: MakeScripted, most_bytes: int
) -> None:
    town = await make_town(settings=GatewaySettings(max_replay_bytes=most_bytes))
    town.model()
    town.head("a", (await scripted(whole_answer)).host)
    key = {"Idempotency-Key": "k1"}
    assert (await town.post(headers=key))[0] == 200
    status, body, headers = await town.post(headers=key)
    assert (status, body["error"]["code"]) == (409, "idempotency_completed")
    assert headers["x-should-retry"] == "false"
