"""Clients as the network brings them: slow, flooding, silent, torn; and a thousand of them at random."""

import asyncio
import json
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from bayplan.gateway import listener
from bayplan.gateway.outcomes import RequestOutcome
from bayplan.gateway.refusals import RefusalCode
from bayplan.gateway.settings import GatewaySettings
from tests.fakes.clock import until
from tests.gateway.conftest import MakeEngine, MakeScripted, MakeTown
from tests.gateway.gatewaytown import FACTS, Town
from tests.gateway.scriptedengine import DONE, HEAD, Connection, event

pytestmark = pytest.mark.slow


class Raw:
    """A bare connection to the clients' port."""

    def __init__(self, town: Town) -> None:
        self._at = urlsplit(town.url)

    async def __aenter__(self) -> "Raw":
        self.reader, self.writer = await asyncio.open_connection(self._at.hostname, self._at.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def one_answer(self) -> bytes:
        """One answer with its length, on a connection that stays."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        return head + await self.reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))

    async def answer(self) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(20):
            return await self.reader.read()


def request(body: bytes = b"", *, length: int | None = None, extra: str = "") -> bytes:
    stated = len(body) if length is None else length
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {stated}\r\n"
    return (head + extra + "\r\n").encode() + body


def prompt(**fields: object) -> bytes:
    return json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 8, **fields}).encode()


async def test_body_of_a_gigabyte_is_refused_unread(town: Town) -> None:
    async with Raw(town) as client:
        await client.send(request(b"x" * 1000, length=2**30))
        answer = await client.answer()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"body_too_large"' in answer
    assert town.held == 0


async def test_body_that_is_announced_too_long_is_not_asked_for(town: Town) -> None:
    async with Raw(town) as client:
        await client.send(request(length=2**30, extra="Expect: 100-continue\r\n"))
        answer = await client.answer()
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_body_that_is_announced_is_asked_for_and_served(town: Town) -> None:
    body = prompt()
    async with Raw(town) as client:
        await client.send(request(length=len(body), extra="Expect: 100-continue\r\nConnection: close\r\n"))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.answer()).startswith(b"HTTP/1.1 200 ")


async def test_body_that_dribbles_is_refused_in_time(make_town: MakeTown) -> None:
    town = await make_town(settings=GatewaySettings(body_seconds=0.2))
    town.model()
    async with Raw(town) as client:
        await client.send(request(b"{", length=100))
        answer = await client.answer()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"body_too_slow"' in answer


async def test_body_that_breaks_off_reserves_nothing(town: Town) -> None:
    async with Raw(town) as client:
        await client.send(request(prompt()[:-5], length=len(prompt())))
    async with Raw(town) as client:
        await client.send(request(prompt(), extra="Connection: close\r\n"))
        assert (await client.answer()).startswith(b"HTTP/1.1 200 ")
    assert town.held == 0


async def test_header_floods_are_refused(town: Town) -> None:
    many = "".join(f"X-{number}: a\r\n" for number in range(10_000))
    long = f"X-Long: {'a' * 100_000}\r\n"
    for extra in (many, long):
        async with Raw(town) as client:
            with suppress(ConnectionError):
                await client.send(request(prompt(), extra=extra))
            answer = await client.answer()
        assert b" 400 " in answer[:13] or not answer
    assert town.held == 0
    assert (await town.post())[0] == 200


async def test_connection_beyond_the_bound_is_told_so_and_the_others_are_served(make_town: MakeTown) -> None:
    town = await make_town(settings=GatewaySettings(max_connections=2))
    town.model()
    async with Raw(town) as first, Raw(town) as second:
        for client in (first, second):
            await client.send(request(prompt()))
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")  # no replica is ready
        async with Raw(town) as third:
            with suppress(ConnectionError):
                await third.send(request(prompt()))
            answer = await third.answer()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: 1\r\n" in head.lower() + b"\r\n"
        assert b"connection: close" in head.lower()
        assert json.loads(body)["error"]["code"] == "gateway_busy"
        assert town.gateway.outcomes.refusals[RefusalCode.GATEWAY_BUSY] == 1

    # Both have left by now: whoever comes next is served.
    await asyncio.sleep(0.05)
    async with Raw(town) as later:
        await later.send(request(prompt(), extra="Connection: close\r\n"))
        assert b'"no_ready_replica"' in await later.answer()


async def test_flood_of_connections_is_cut_without_a_word(make_town: MakeTown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_TURNED_AWAY", 1)
    town = await make_town(settings=GatewaySettings(max_connections=1))
    town.model()
    async with Raw(town) as served, Raw(town) as told:
        await served.send(request(prompt()))
        assert b'"no_ready_replica"' in await served.one_answer()
        assert b'"gateway_busy"' in await told.one_answer()
        async with Raw(town) as cut:
            with suppress(ConnectionError):
                assert await cut.answer() == b""
        await served.send(request(prompt()))
        assert b'"no_ready_replica"' in await served.one_answer()
    assert town.gateway.outcomes.refusals[RefusalCode.GATEWAY_BUSY] == 2


async def test_many_connections_at_once_are_no_more_than_the_bound(make_town: MakeTown) -> None:
    town = await make_town(settings=GatewaySettings(max_connections=20))
    town.model()

    async def ask() -> bytes:
        async with Raw(town) as client:
            with suppress(ConnectionError):
                await client.send(request(prompt()))
                head = await client.reader.readuntil(b"\r\n\r\n")
                return head + await client.reader.readexactly(
                    int(head.lower().split(b"content-length: ")[1].split()[0])
                )
        return b""

    answers = await asyncio.gather(*(ask() for _ in range(100)))
    codes = Counter(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] for answer in answers if answer)
    assert codes["no_ready_replica"] >= 20
    assert codes["gateway_busy"] == town.gateway.outcomes.refusals[RefusalCode.GATEWAY_BUSY]
    assert set(codes) <= {"no_ready_replica", "gateway_busy"}


async def test_silent_connections_make_room_for_others_when_it_is_crowded(
    make_town: MakeTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "CROWDED_SECONDS", 0.3)
    town = await make_town(settings=GatewaySettings(max_connections=4))
    town.model()
    async with AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(Raw(town)) for _ in range(3)]
        for one in silent:
            await one.send(b"POST /v1/completions HTTP/1.1\r\nHost:")
        assert [await one.answer() for one in silent] == [b""] * 3
    async with Raw(town) as alone:
        await asyncio.sleep(1)
        await alone.send(request(prompt(), extra="Connection: close\r\n"))
        assert b'"no_ready_replica"' in await alone.answer()


async def test_broken_requests_are_refused_without_a_word_in_the_log(town: Town, caplog: object) -> None:
    for data in (
        b"sesame\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: sesame\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nsesame\r\n",
    ):
        async with Raw(town) as client:
            await client.send(data)
            answer = await client.answer()
        assert b" 400 " in answer[:13] or not answer, (data, answer)
    assert "sesame" not in caplog.text  # type: ignore[attr-defined]
    assert town.held == 0


async def test_connection_on_which_nothing_is_asked_is_closed(make_town: MakeTown, scripted: MakeScripted) -> None:
    async def dribbles(connection: Connection) -> None:
        await connection.send(HEAD)
        with suppress(ConnectionError):
            while True:
                await connection.chunk(event("a"))
                await asyncio.sleep(0.05)

    town = await make_town(settings=GatewaySettings(idle_connection_seconds=0.4))
    town.model()
    town.head("a", (await scripted(dribbles)).host)
    async with Raw(town) as silent, Raw(town) as half, Raw(town) as streaming:
        await half.send(b"POST /v1/completions HTTP/1.1\r\nHost:")
        await streaming.send(request(prompt(stream=True)))
        await streaming.reader.readuntil(b"\r\n\r\n")
        assert await silent.answer() == b""
        assert await half.answer() == b""
        # Far longer than the limit, and still going on.
        for _ in range(20):
            assert await streaming.reader.readline()
        assert town.held == 1
    await until(lambda: town.held == 0)


async def test_connection_that_asks_again_and_again_is_kept(make_town: MakeTown) -> None:
    town = await make_town(settings=GatewaySettings(idle_connection_seconds=0.4))
    town.model()
    async with Raw(town) as client:
        for _ in range(12):
            await client.send(request(prompt()))
            assert await client.one_answer()
            await asyncio.sleep(0.1)


async def test_client_that_takes_nothing_is_cut_off(make_town: MakeTown, scripted: MakeScripted) -> None:
    async def floods(connection: Connection) -> None:
        await connection.send(HEAD)
        while True:
            await connection.chunk(event("a" * 60_000))

    town = await make_town(settings=GatewaySettings(silence_seconds=1.5))
    town.model()
    engine = await scripted(floods)
    town.head("a", engine.host)
    async with Raw(town) as client:
        await client.send(request(prompt(stream=True)))
        await until(lambda: town.held == 1)
        await until(lambda: town.held == 0)
    await asyncio.wait_for(engine.left.wait(), 5)
    assert town.gateway.outcomes.requests["default", "tiny", RequestOutcome.CANCELLED] == 1


async def test_client_of_an_older_http_gets_the_bare_events(make_town: MakeTown, scripted: MakeScripted) -> None:
    events = [*(event(f"{number} ") for number in range(5)), event("", finish="stop") + DONE]

    async def dribbles(connection: Connection) -> None:
        await connection.send(HEAD)
        for one in events:
            await connection.chunk(one)
            await asyncio.sleep(0.02)
        await connection.chunk(b"")

    town = await make_town()
    town.model()
    town.head("a", (await scripted(dribbles)).host)
    async with Raw(town) as client:
        await client.send(request(prompt(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = (await client.answer()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 ")
    assert body == b"".join(events)
    assert town.held == 0


async def test_reader_that_cannot_keep_up_gets_every_byte_in_order(make_town: MakeTown, scripted: MakeScripted) -> None:
    events = [event(f"{number} " + "a" * 1000) for number in range(4000)] + [event("", finish="stop") + DONE]

    async def hurries(connection: Connection) -> None:
        await connection.send(HEAD)
        for one in events:
            await connection.chunk(one)
        await connection.chunk(b"")

    town = await make_town()
    town.model()
    town.head("a", (await scripted(hurries)).host)
    async with town.open_stream() as response:
        got = bytearray()
        while part := await response.content.read(30_000):
            got += part
            await asyncio.sleep(0.001)
    assert bytes(got) == b"".join(events)
    assert town.gateway.outcomes.requests["default", "tiny", RequestOutcome.COMPLETED] == 1


async def test_a_thousand_sockets_torn_at_random_leak_nothing(make_town: MakeTown, make_engine: MakeEngine) -> None:
    facts = replace(FACTS, kv_blocks=300, max_num_seqs=24)
    town = await make_town(settings=GatewaySettings(max_queued_requests=40))
    town.model()
    for name in ("a", "b"):
        town.head(name, await make_engine("--max-num-seqs 24"), facts=facts)
    dice = random.Random(20261130)
    finished = 0

    async def one_client() -> None:
        nonlocal finished
        stream = dice.random() < 0.7
        body = prompt(max_tokens=dice.randrange(1, 60), stream=stream)
        tear = dice.choice(["in the header", "in the body", "waiting", "in the answer", "never"])
        async with Raw(town) as client:
            data = request(body, extra="Connection: close\r\n")
            if tear == "in the header":
                await client.send(data[: dice.randrange(40)])
            elif tear == "in the body":
                await client.send(data[: len(data) - dice.randrange(1, len(body))])
            else:
                await client.send(data)
                if tear == "waiting":
                    await asyncio.sleep(dice.random() * 0.02)
                elif tear == "in the answer":
                    with suppress(ConnectionError, asyncio.IncompleteReadError):
                        await client.reader.readexactly(dice.randrange(1, 600))
                else:
                    answer = await client.answer()
                    finished += answer.startswith(b"HTTP/1.1 200 ")
            if dice.random() < 0.5:
                client.writer.transport.abort()

    async def many(count: int) -> None:
        for _ in range(count):
            with suppress(ConnectionError):
                await one_client()

    async with asyncio.timeout(120):
        await asyncio.gather(*(many(25) for _ in range(40)))
    await until(lambda: town.held == 0 and town.queued() == 0)
    assert town.reserved_tokens() == 0
    assert finished > 50
    (pool,) = town.gateway.directory
    readings = pool.readings()
    assert all(replica.kv_blocks == replica.sequences == replica.holds == 0 for replica in readings.replicas.values())
    outcomes = town.gateway.outcomes.requests
    assert outcomes["default", "tiny", RequestOutcome.CANCELLED] > 50
    assert readings.demand.requests == sum(
        outcomes["default", "tiny", which] for which in RequestOutcome if which is not RequestOutcome.REFUSED
    )
    await until(lambda: town.gateway.generations.buffered_bytes == 0)
    (rows,) = [[row.running for _, row in town.gateway.evidence.rows()]]
    assert rows == [0] * len(rows)
    assert (await town.post())[0] == 200
