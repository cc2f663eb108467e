"""Connections to engines: kept, cut, and never trusted further than HTTP goes."""

import asyncio

import pytest

from bayplan.gateway import upstream as module
from bayplan.gateway.upstream import Answer, EngineBrokeOffError, EngineUnreachableError, HttpUpstream
from tests.fakes.clock import until
from tests.gateway.conftest import MakeScripted
from tests.gateway.gatewaytown import loopback
from tests.gateway.scriptedengine import HEAD, Connection, ScriptedEngine, event, whole_answer


@pytest.fixture
async def upstream():
    made = HttpUpstream(connect_seconds=1.0)
    yield made
    await made.close()


async def ask(upstream: HttpUpstream, engine: ScriptedEngine) -> Answer:
    return await upstream.send(engine.host, "/v1/completions", b"{}", "id-1")


async def read_all(answer: Answer) -> bytes:
    parts = []
    while part := await answer.read():
        parts.append(part)
    return b"".join(parts)


async def test_connection_is_kept_for_the_next_request(upstream: HttpUpstream, scripted: MakeScripted) -> None:
    ports = []

    async def note(connection: Connection) -> None:
        ports.append(connection.writer.get_extra_info("peername")[1])
        await whole_answer(connection)

    engine = await scripted(note)
    for _ in range(3):
        answer = await ask(upstream, engine)
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert b'"hi"' in await read_all(answer)
    assert len(set(ports)) == 1
    assert engine.received[0].headers["x-request-id"] == "id-1"


async def test_connection_is_not_kept_against_the_engines_will(upstream: HttpUpstream, scripted: MakeScripted) -> None:
    ports = []

    async def closes(connection: Connection) -> None:
        ports.append(connection.writer.get_extra_info("peername")[1])
        await connection.answer(200, {}, headers="Connection: close\r\n")

    engine = await scripted(closes)
    for _ in range(2):
        await read_all(await ask(upstream, engine))
    assert len(set(ports)) == 2


async def test_connection_that_was_quiet_too_long_is_not_used_again(
    upstream: HttpUpstream, scripted: MakeScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.05)
    engine = await scripted(whole_answer)
    await read_all(await ask(upstream, engine))
    await asyncio.wait_for(engine.left.wait(), 5)  # closed from here, without anybody asking
    await read_all(await ask(upstream, engine))
    assert len(engine.received) == 2


async def test_nobody_there_is_unreachable(upstream: HttpUpstream) -> None:
    with pytest.raises(EngineUnreachableError):
        await upstream.send(loopback(), "/v1/completions", b"{}", "id")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
    ids=lambda said: repr(said[:60]),
)
async def test_what_is_no_whole_answer_is_an_error(upstream: HttpUpstream, scripted: MakeScripted, said: bytes) -> None:
    async def says(connection: Connection) -> None:
        await connection.send(said)
        connection.writer.close()

    engine = await scripted(says)
    with pytest.raises(EngineBrokeOffError):
        await read_all(await ask(upstream, engine))
    assert upstream.open_connections == 0


async def test_interim_answer_is_passed_over(upstream: HttpUpstream, scripted: MakeScripted) -> None:
    async def hints(connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        await whole_answer(connection)

    answer = await ask(upstream, await scripted(hints))
    assert answer.status == 200
    assert await read_all(answer)


async def test_answer_that_is_given_up_cuts_the_connection_and_its_reader(
    upstream: HttpUpstream, scripted: MakeScripted
) -> None:
    async def endless(connection: Connection) -> None:
        await connection.send(HEAD)
        await connection.chunk(event("a"))
        await connection.until_client_leaves()

    engine = await scripted(endless)
    answer = await ask(upstream, engine)
    assert await answer.read() == event("a")
    reading = asyncio.ensure_future(answer.read())
    await asyncio.sleep(0)
    answer.close()
    with pytest.raises(EngineBrokeOffError):
        await reading
    await asyncio.wait_for(engine.left.wait(), 5)


async def test_sender_that_is_cancelled_cuts_the_connection(upstream: HttpUpstream, scripted: MakeScripted) -> None:
    async def hang(connection: Connection) -> None:
        await connection.until_client_leaves()

    engine = await scripted(hang)
    sending = asyncio.ensure_future(ask(upstream, engine))
    await until(lambda: engine.received)
    sending.cancel()
    await asyncio.wait_for(engine.left.wait(), 5)
    await until(lambda: upstream.open_connections == 0)


async def test_engine_waits_while_nobody_takes_what_it_sends(upstream: HttpUpstream, scripted: MakeScripted) -> None:
    sent = 0
    piece = event("a" * 50_000)

    async def floods(connection: Connection) -> None:
        nonlocal sent
        await connection.send(HEAD)
        for _ in range(1000):
            await connection.chunk(piece)
            sent += len(piece)
        await connection.chunk(b"")

    answer = await ask(upstream, await scripted(floods))
    seen = -1
    while seen != sent:  # until it stands still
        seen = sent
        await asyncio.sleep(0.2)
    assert sent < 30_000_000
    assert await read_all(answer) == piece * 1000


async def test_what_a_sink_takes_is_not_read_and_what_it_leaves_is(
    upstream: HttpUpstream, scripted: MakeScripted
) -> None:
    async def dribbles(connection: Connection) -> None:
        await connection.send(HEAD)
        for word in (b"one", b"two", b"three", b"four"):
            await connection.chunk(word)
            await asyncio.sleep(0.05)
        await connection.chunk(b"")

    engine = await scripted(dribbles)
    answer = await upstream.send(engine.host, "/v1/completions", b"{}", "id-1")
    taken: list[bytes] = []

    def sink(data: bytes) -> bool:
        if data == b"three":
            return False
        taken.append(data)
        return True

    answer.pass_to(sink)
    read: list[bytes] = []
    while data := await answer.read():
        read.append(data)
    assert taken[-1] == b"four"
    assert read[-1] == b"three"
    assert sorted(taken + read) == [b"four", b"one", b"three", b"two"]


async def test_words_that_nobody_asked_for_end_the_connection(upstream: HttpUpstream, scripted: MakeScripted) -> None:
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"

    async def talks_on(connection: Connection) -> None:
        await whole_answer(connection)
        await connection.send(forged)

    async def in_one_breath(connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}" + forged[:30])

    engine = await scripted(talks_on, in_one_breath, whole_answer)
    assert b"forged" not in await read_all(await ask(upstream, engine))
    await asyncio.wait_for(engine.left.wait(), 5)
    assert await read_all(await ask(upstream, engine)) == b"{}"
    assert b'"hi"' in await read_all(await ask(upstream, engine))
