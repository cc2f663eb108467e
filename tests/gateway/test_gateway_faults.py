"""Engines that hang, reset, refuse, dribble and vanish: no room is kept, and no client gets anything twice."""

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest

from bayplan.gateway.outcomes import RequestOutcome
from bayplan.gateway.settings import GatewaySettings
from tests.fakes.clock import until
from tests.gateway.conftest import MakeScripted, MakeTown
from tests.gateway.gatewaytown import FACTS, Town, loopback
from tests.gateway.scriptedengine import (
    DONE,
    HEAD,
    Connection,
    ScriptedEngine,
    event,
    whole_answer,
    whole_stream,
)

ROOMY = replace(FACTS, kv_blocks=2 * FACTS.kv_blocks)
"""More room than others have: such a head is asked first."""
QUICK = replace(GatewaySettings(), silence_seconds=0.3, whole_answer_seconds=0.3, connect_seconds=0.3)


def outcome(town: Town, which: RequestOutcome) -> int:
    return town.gateway.outcomes.requests["default", "tiny", which]


def causes(town: Town, pod: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, row in town.gateway.evidence.rows():
        if key.pod == pod:
            found |= {cause.value: count for cause, count in row.errors.items()}
    return found


async def hang(connection: Connection) -> None:
    await connection.until_client_leaves()


async def reset(connection: Connection) -> None:
    connection.reset()


async def half_a_stream(connection: Connection) -> None:
    await connection.send(HEAD)
    await connection.chunk(event("a") + event("b"))
    connection.reset()


async def silent_after_a_token(connection: Connection) -> None:
    await connection.send(HEAD)
    await connection.chunk(event("a"))
    await connection.until_client_leaves()


async def fails(connection: Connection) -> None:
    await connection.answer(500, {"error": {"message": "boom", "code": 500}})


async def aborted_at_once(connection: Connection) -> None:
    await connection.send(HEAD)
    await connection.chunk(event("", finish="abort") + DONE)
    await connection.chunk(b"")


async def error_at_once(connection: Connection) -> None:
    await connection.send(HEAD)
    await connection.chunk(b'data: {"error":{"message":"the engine is dead"}}\n\n' + DONE)
    await connection.chunk(b"")


async def empty_stream(connection: Connection) -> None:
    """How a draining engine turns a completion away."""
    await connection.send(HEAD)
    await connection.chunk(DONE)
    await connection.chunk(b"")


async def aborted_answer(connection: Connection) -> None:
    await connection.answer(200, {"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]})


async def cut_politely(connection: Connection) -> None:
    await connection.send(HEAD)
    await connection.chunk(event("a"))
    await connection.chunk(event("", finish="abort") + DONE)
    await connection.chunk(b"")


async def busy(connection: Connection) -> None:
    await connection.answer(503, {"error": {"message": "queue limit"}})


async def byte_by_byte(connection: Connection) -> None:
    await connection.send(HEAD)
    for byte in event("ä", finish=None) + event("", finish="stop") + DONE:
        await connection.chunk(bytes([byte]))
    await connection.chunk(b"")


@pytest.fixture
async def quick(make_town: MakeTown) -> Town:
    town = await make_town(settings=QUICK)
    town.model()
    return town


async def first_then_second(town: Town, scripted: MakeScripted, *scripts: object) -> ScriptedEngine:
    """Two engines; the first one in line plays the scripts, the second one answers well."""
    first = await scripted(*scripts)  # type: ignore[arg-type]

    async def well(connection: Connection) -> None:
        await (whole_stream if connection.request.body.get("stream") else whole_answer)(connection)

    second = await scripted(well)
    town.head("a", first.host, facts=ROOMY)
    town.head("b", second.host)
    return second


@pytest.mark.parametrize("fault", [reset, aborted_at_once, error_at_once, empty_stream, busy])
async def test_stream_that_was_not_served_goes_to_another_engine(
    quick: Town, scripted: MakeScripted, fault: object
) -> None:
    second = await first_then_second(quick, scripted, fault)
    async with quick.open_stream() as response:
        assert response.status == 200
        assert (await response.read()).endswith(DONE)
    assert len(second.received) == 1
    assert quick.gateway.outcomes.rerouted == 1
    assert outcome(quick, RequestOutcome.COMPLETED) == 1
    assert quick.held == quick.reserved_tokens() == 0


@pytest.mark.parametrize("fault", [reset, aborted_answer, busy])
async def test_answer_that_was_not_served_comes_from_another_engine(
    quick: Town, scripted: MakeScripted, fault: object
) -> None:
    second = await first_then_second(quick, scripted, fault)
    status, body, _ = await quick.post()
    assert status == 200
    assert body["choices"][0]["text"] == "hi"
    assert len(second.received) == 1
    assert quick.held == 0


async def test_engine_that_refuses_connections_is_passed_over(quick: Town, scripted: MakeScripted) -> None:
    second = await scripted(whole_answer)
    quick.head("a", loopback(), facts=ROOMY)
    quick.head("b", second.host)
    status, _, _ = await quick.post()
    assert status == 200
    assert causes(quick, "pod-a") == {"unreachable": 1}


async def test_error_of_a_leaving_engine_is_not_the_answer(quick: Town, scripted: MakeScripted) -> None:
    async def fails_and_leaves(connection: Connection) -> None:
        await fails(connection)
        # The signal reaches the engine before the watch tells of it.
        quick.head("a", first.host, facts=ROOMY, deleting=True)

    first = await scripted(fails_and_leaves)
    second = await scripted(whole_answer)
    quick.head("a", first.host, facts=ROOMY)
    quick.head("b", second.host)
    status, _, _ = await quick.post()
    assert status == 200
    assert len(second.received) == 1


async def test_error_of_an_engine_that_stays_is_the_answer(quick: Town, scripted: MakeScripted) -> None:
    second = await first_then_second(quick, scripted, fails)
    status, body, _ = await quick.post()
    assert (status, body["error"]["message"]) == (500, "boom")
    assert second.received == []
    assert causes(quick, "pod-a") == {"failed": 1}
    assert outcome(quick, RequestOutcome.FAILED) == 1
    assert quick.held == 0


async def test_refusal_of_the_engine_is_the_callers_and_no_error_of_the_engine(
    quick: Town, scripted: MakeScripted
) -> None:
    async def refuses(connection: Connection) -> None:
        await connection.answer(400, {"error": {"message": "temperature", "code": 400}})

    quick.head("a", (await scripted(refuses)).host)
    status, body, _ = await quick.post(temperature=9)
    assert (status, body["error"]["message"]) == (400, "temperature")
    assert causes(quick, "pod-a") == {"refused": 1}
    assert outcome(quick, RequestOutcome.REFUSED) == 1


async def test_only_engine_gets_a_second_chance_and_no_third(quick: Town, scripted: MakeScripted) -> None:
    engine = await scripted(reset, whole_answer)
    quick.head("a", engine.host)
    assert (await quick.post())[0] == 200
    engine.scripts[:] = [reset]
    status, body, headers = await quick.post()
    assert status == 503
    assert body["error"]["code"] in ("engine_unreachable", "no_ready_replica")
    assert headers["x-should-retry"] == "true"
    assert len(engine.received) == 4
    assert quick.held == 0


@pytest.mark.parametrize("fault", [half_a_stream, silent_after_a_token])
async def test_stream_that_breaks_after_its_first_byte_is_cut_off_visibly(
    quick: Town, scripted: MakeScripted, fault: object
) -> None:
    second = await first_then_second(quick, scripted, fault)
    async with quick.open_stream() as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    assert second.received == []
    await until(lambda: quick.held == 0)
    assert sum(causes(quick, "pod-a").values()) == 1


async def test_stream_that_the_engine_cuts_politely_is_relayed_and_counted_as_cut(
    quick: Town, scripted: MakeScripted
) -> None:
    quick.head("a", (await scripted(cut_politely)).host)
    async with quick.open_stream() as response:
        assert await response.read() == event("a") + event("", finish="abort") + DONE
    await until(lambda: quick.held == 0)
    assert outcome(quick, RequestOutcome.CUT) == 1
    assert causes(quick, "pod-a") == {"cut": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_that_hangs_costs_its_request_a_timeout_and_nobody_else(
    quick: Town, scripted: MakeScripted, stream: bool
) -> None:
    quick.head("a", (await scripted(hang)).host)
    status, body, _ = await quick.post(stream=stream)
    assert (status, body["error"]["code"]) == (504, "engine_timeout")
    assert causes(quick, "pod-a") == {"timeout": 1}
    assert quick.held == 0


async def test_slow_bytes_come_through_unchanged(quick: Town, scripted: MakeScripted) -> None:
    quick.head("a", (await scripted(byte_by_byte)).host)
    async with quick.open_stream() as response:
        assert await response.read() == event("ä") + event("", finish="stop") + DONE
    assert outcome(quick, RequestOutcome.COMPLETED) == 1


async def test_stream_that_says_no_end_is_counted_as_cut(quick: Town, scripted: MakeScripted) -> None:
    async def ends_early(connection: Connection) -> None:
        await connection.send(HEAD)
        await connection.chunk(event("a"))
        await connection.chunk(b"")

    quick.head("a", (await scripted(ends_early)).host)
    async with quick.open_stream() as response:
        assert await response.read() == event("a")
    await until(lambda: quick.held == 0)
    assert outcome(quick, RequestOutcome.CUT) == 1


async def test_answer_that_is_no_json_is_not_passed_on(quick: Town, scripted: MakeScripted) -> None:
    async def garbage(connection: Connection) -> None:
        await connection.answer(200, b"<html>")

    quick.head("a", (await scripted(garbage)).host)
    status, body, _ = await quick.post()
    assert (status, body["error"]["code"]) == (503, "no_ready_replica")
    assert quick.held == 0


async def test_redirect_of_an_engine_is_not_followed(quick: Town, scripted: MakeScripted) -> None:
    async def elsewhere(connection: Connection) -> None:
        await connection.answer(307, {}, headers=f"Location: http://{second.host}:8000/v1/completions\r\n")

    second = await scripted(whole_answer)
    quick.head("a", (await scripted(elsewhere)).host)
    status, body, _ = await quick.post()
    assert (status, body["error"]["code"]) == (502, "engine_failed")
    assert causes(quick, "pod-a") == {"failed": 1}
    assert quick.held == 0
    assert second.received == []


async def test_pod_that_vanishes_before_it_answered_loses_the_request_to_another(
    make_town: MakeTown, scripted: MakeScripted
) -> None:
    town = await make_town()  # with patience: only the vanishing can end the wait
    town.model()
    first, second = await scripted(hang), await scripted(whole_answer)
    head = town.head("a", first.host)
    asking = asyncio.ensure_future(town.post())
    await until(lambda: first.received)
    town.head("b", second.host)
    town.gone(head)
    status, _, _ = await asking
    assert status == 200
    assert len(second.received) == 1
    assert town.held == town.reserved_tokens() == 0


async def test_pod_that_vanishes_in_mid_stream_cuts_it(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await make_town()
    town.model()
    engine = await scripted(silent_after_a_token)
    head = town.head("a", engine.host)
    async with town.open_stream() as response:
        assert await response.content.readany() == event("a")
        town.gone(head)
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    await until(lambda: town.held == 0)
    await asyncio.wait_for(engine.left.wait(), 5)


async def test_draining_pod_keeps_its_streams_and_gets_nothing_new(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await make_town()
    town.model()
    go_on = asyncio.Event()

    async def waits(connection: Connection) -> None:
        await connection.send(HEAD)
        await connection.chunk(event("a"))
        await go_on.wait()
        await connection.chunk(event("", finish="stop") + DONE)
        await connection.chunk(b"")

    first, second = await scripted(waits), await scripted(whole_answer)
    town.head("a", first.host)
    async with town.open_stream() as response:
        await response.content.readany()
        town.head("b", second.host)
        town.head("a", first.host, draining=True)
        for _ in range(5):
            assert (await town.post())[0] == 200
        assert len(first.received) == 1
        go_on.set()
        assert (await response.read()).endswith(DONE)
    assert len(second.received) == 5
    assert town.held == 0


async def test_engine_gets_our_salt_and_name_and_nothing_of_the_callers_own(
    quick: Town, scripted: MakeScripted
) -> None:
    engine = await scripted(whole_answer)
    quick.head("a", engine.host)
    headers = {"Authorization": "Bearer secret", "X-Request-Id": "mine", "Cookie": "a=b", "Host": "evil.example"}
    await quick.post(model="default/tiny", cache_salt="mine", request_id="mine", headers=headers)
    (received,) = engine.received
    assert received.path == "/v1/completions"
    assert received.body["model"] == "tiny"
    assert received.body["cache_salt"] != "mine"
    assert len(received.body["cache_salt"]) == 43
    assert "request_id" not in received.body
    assert received.headers["x-request-id"].startswith("bayplan-")
    assert not {"authorization", "cookie"} & received.headers.keys()
    assert received.headers["host"].startswith(engine.host)
    assert json.dumps(received.body["prompt"]) == '"hello"'
