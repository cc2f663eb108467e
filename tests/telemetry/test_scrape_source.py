"""`ScrapeSource` against servers on loopback: what is asked, what is understood, and how many at a time."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from bayplan.planning.measurements import Unknown
from bayplan.telemetry.aliases import VLLM, Signal
from bayplan.telemetry.scrape import ScrapeSource
from bayplan.telemetry.sources import EngineSource, GatewaySource, TroubleKind

HOST = "127.0.0.1"
METRICS = (
    "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
    "vllm:prompt_tokens_total 100\nvllm:generation_tokens_total 20\n"
)
ENTRY = {
    "demandPromptTokens": 100,
    "demandOutputTokens": 50,
    "queuedTokens": 7,
    "reservedTokens": 30,
    "pods": {"e1": {"reservedTokens": 20, "reservedRequests": 1}, "e2": {"reservedTokens": 10, "reservedRequests": 1}},
}
EVIDENCE: dict[str, Any] = {
    "gateway": {"uid": "g1", "startedAt": "2026-01-02T03:04:05Z"},
    "observedAt": "2026-01-02T03:05:05Z",
    "models": {"team/llama": ENTRY, "team/other": ENTRY | {"pods": {"e1": {"reservedTokens": 5}}}},
}
GATEWAY = GatewaySource("g1", "system", "gateway-0", HOST)


class Server:
    def __init__(self) -> None:
        self.answer: Callable[[], Awaitable[web.Response]] = self.metrics
        self.text = METRICS
        self.paths: list[str] = []
        self.port = 0

    async def metrics(self) -> web.Response:
        return web.Response(text=self.text)

    async def handle(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        return await self.answer()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    found.port = runner.addresses[0][1]
    yield found
    await runner.cleanup()


@pytest.fixture
async def source(server: Server) -> AsyncIterator[ScrapeSource]:
    found = ScrapeSource(
        clock=lambda: 42.0,
        most_at_once=3,
        engine_port=server.port,
        gateway_port=server.port,
        connect_timeout_seconds=10.0,
        timeout_seconds=20.0,
    )
    yield found
    await found.close()


def engine(uid: str = "e1", address: str = HOST) -> EngineSource:
    return EngineSource(uid, "team", f"llama-{uid}", address, "containerd://a")


def evidence(**changes: Any) -> str:
    return json.dumps(EVIDENCE | changes)


async def test_engines_are_read_with_the_time_of_the_answer(server: Server, source: ScrapeSource) -> None:
    found = (await source.read_engines([engine()]))["e1"]

    assert found.trouble is None
    assert found.reading is not None
    assert (found.reading.at_seconds, found.reading.served_tokens) == (42, 120)
    assert server.paths == ["/metrics"]


async def test_engines_with_names_of_their_own_are_read_by_them(server: Server) -> None:
    aliases = VLLM.preferring({Signal.OUTPUT_TOKENS: ["fork:generated"]})
    source = ScrapeSource(clock=lambda: 42.0, engine_port=server.port, aliases=aliases)
    server.text = METRICS.replace("vllm:generation_tokens_total", "fork:generated")
    found = (await source.read_engines([engine()]))["e1"]
    await source.close()

    assert found.trouble is None
    assert found.reading is not None
    assert found.reading.served_tokens == 120


async def test_one_silent_pod_says_nothing_about_the_others(source: ScrapeSource) -> None:
    found = await source.read_engines([engine(), engine("e2", "127.0.0.2"), engine("e3", "not an address")])

    assert found["e1"].trouble is None
    assert found["e2"].trouble is not None
    assert (found["e2"].reading, found["e2"].trouble.kind) == (None, TroubleKind.UNREACHABLE)
    assert found["e3"].trouble is not None
    assert found["e3"].trouble.kind is TroubleKind.INVALID


@pytest.mark.parametrize("text", ["<html>", "vllm:num_requests_running{ 1\n", "vllm:num_requests_running one\n"])
async def test_nonsense_is_no_metric(server: Server, source: ScrapeSource, text: str) -> None:
    server.text = text

    found = (await source.read_engines([engine()]))["e1"]

    assert found.trouble is not None
    assert found.trouble.kind in (TroubleKind.INVALID, TroubleKind.MISSING)


async def test_no_more_pods_are_asked_at_once_than_allowed(server: Server, source: ScrapeSource) -> None:
    asked, most, release = 0, 0, asyncio.Event()

    async def slowly() -> web.Response:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        if most == 3:
            release.set()
        await release.wait()
        asked -= 1
        return web.Response(text=METRICS)

    server.answer = slowly
    found = await source.read_engines([engine(f"e{number}") for number in range(12)])

    assert (len(found), most) == (12, 3)


async def test_a_gateway_says_what_arrived_waits_and_is_reserved(server: Server, source: ScrapeSource) -> None:
    server.text = evidence()

    found = (await source.read_gateways([GATEWAY]))["g1"]

    assert found.trouble is None
    reading = found.models["team/llama"]
    assert (reading.prompt_tokens, reading.output_tokens) == (100, 50)
    assert (reading.queued_tokens, reading.at_seconds) == (7, 42)
    assert reading.incarnation == "g1 2026-01-02T03:04:05Z"
    assert found.reserved_tokens == {"e1": 25, "e2": 10}
    assert server.paths == ["/evidence"]


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "null",
        "{",
        evidence(models=None),
        evidence(models=[]),
        evidence(gateway="g1"),
        evidence(gateway={"uid": "somebody else"}),
    ],
)
async def test_an_answer_of_another_form_is_invalid_as_a_whole(server: Server, source: ScrapeSource, body: str) -> None:
    server.text = body

    found = (await source.read_gateways([GATEWAY]))["g1"]

    assert (found.models, found.reserved_tokens) == ({}, None)
    assert found.trouble is not None
    assert (found.trouble.kind, "gateway-0" in found.trouble.message) == (TroubleKind.INVALID, True)


@pytest.mark.parametrize("name", ["demandPromptTokens", "demandOutputTokens", "queuedTokens"])
@pytest.mark.parametrize("bad", [None, -1, "7", True, [], float("nan"), float("inf"), 10**400, -(10**400)])
async def test_a_number_of_another_form_is_unknown_and_named(
    server: Server, source: ScrapeSource, name: str, bad: Any
) -> None:
    server.text = evidence(models={"team/llama": ENTRY | {name: bad}})

    found = (await source.read_gateways([GATEWAY]))["g1"]

    reading = found.models["team/llama"]
    assert any(isinstance(v, Unknown) for v in (reading.prompt_tokens, reading.output_tokens, reading.queued_tokens))
    assert found.trouble is not None
    assert name in found.trouble.message


@pytest.mark.parametrize("pods", [None, [], {"e1": None}, {"e1": {"reservedTokens": "many"}}])
async def test_reservations_of_another_form_are_left_out(server: Server, source: ScrapeSource, pods: Any) -> None:
    server.text = evidence(models={"team/llama": ENTRY | {"pods": pods}})

    found = (await source.read_gateways([GATEWAY]))["g1"]

    assert (found.reserved_tokens, found.trouble) == ({}, None)
