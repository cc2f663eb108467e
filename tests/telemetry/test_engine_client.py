"""`HttpEngine` against servers that behave and servers that do not."""

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from bayplan.telemetry import engine as engine_module
from bayplan.telemetry.aliases import VLLM, Signal
from bayplan.telemetry.engine import (
    MAX_ANSWER_BYTES,
    EngineError,
    EngineLoad,
    EngineNotListeningError,
    EngineUnreachableError,
    HttpEngine,
    _sums,
)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
HOST = "127.0.0.1"


class Server:
    """One engine look-alike whose answers the test sets by path."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.bodies: list[Any] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.method == "POST":
            self.bodies.append(await request.json())
        return await self.answers[request.path](request)

    def text(self, path: str, body: str | bytes, *, status: int = 200, **headers: str) -> None:
        async def answer(_: web.Request) -> web.Response:
            raw = body.encode() if isinstance(body, str) else body
            return web.Response(body=raw, status=status, headers=headers)

        self.answers[path] = answer

    def json(self, path: str, body: Any) -> None:
        self.text(path, json.dumps(body))


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    found = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    monkeypatch.setattr(engine_module, "ENGINE_PORT", runner.addresses[0][1])
    yield found
    await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[HttpEngine]:
    found = HttpEngine(connect_timeout_seconds=10.0, read_timeout_seconds=20.0)
    yield found
    await found.close()


def completion(**changes: Any) -> dict[str, Any]:
    whole = {"choices": [{"text": " ready", "finish_reason": "length"}], "usage": {"completion_tokens": 3}}
    return {**whole, **changes}


async def generate(client: HttpEngine, address: str = HOST) -> int:
    return await client.generate(address, model="llama", prompt="Hi", max_tokens=3, timeout_seconds=20.0)


# --- what is asked and understood -------------------------------------------------------------------------------------


async def test_listed_models_are_returned(server: Server, client: HttpEngine) -> None:
    server.json("/v1/models", {"data": [{"id": "llama"}, {"id": "adapter"}]})
    assert await client.served_models(HOST) == ["llama", "adapter"]


@pytest.mark.parametrize("entry", [{"id": 7}, {"id": None}, {}, "llama", {"id": "x" * 257}, {"id": "\ud800"}])
async def test_entries_that_name_no_model_are_left_out(server: Server, client: HttpEngine, entry: Any) -> None:
    server.json("/v1/models", {"data": [entry, {"id": "llama"}]})
    assert await client.served_models(HOST) == ["llama"]


async def test_a_generation_is_a_real_completion_at_temperature_0(server: Server, client: HttpEngine) -> None:
    server.json("/v1/completions", completion())
    assert await generate(client) == 3
    assert server.bodies == [{"model": "llama", "prompt": "Hi", "max_tokens": 3, "temperature": 0}]


@pytest.mark.parametrize(
    "change",
    [
        {"choices": []},
        {"choices": None},
        {"usage": None},
        {"usage": {"completion_tokens": 0}},
        {"usage": {"completion_tokens": True}},
        {"usage": {"completion_tokens": "3"}},
        {"choices": [{"finish_reason": "abort"}]},
        {"choices": [{"finish_reason": None}]},
        {"choices": ["text"]},
    ],
)
async def test_an_answer_without_a_whole_generation_is_no_proof(
    server: Server, client: HttpEngine, change: dict[str, Any]
) -> None:
    server.json("/v1/completions", completion(**change))
    with pytest.raises(EngineError):
        await generate(client)


def metrics(running: str = "0", waiting: str = "0") -> str:
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f'vllm:num_requests_running{{engine="0",model_name="llama"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="llama"}} {waiting}\n'
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 9\n'
        "vllm:other_total NaN\n"
    )


@pytest.mark.parametrize(
    ("running", "waiting", "idle"), [("0", "0", True), ("0.0", "0", True), ("1", "0", False), ("0", "2", False)]
)
async def test_idle_is_nothing_running_and_nothing_waiting(
    server: Server, client: HttpEngine, running: str, waiting: str, idle: bool
) -> None:
    server.text("/metrics", metrics(running, waiting))
    assert (await client.load(HOST)).idle is idle


async def test_the_ranks_of_an_engine_are_summed_and_a_fraction_is_not_idle(server: Server, client: HttpEngine) -> None:
    ranks = metrics("2", "0") + 'vllm:num_requests_running{engine="1"} 0.5\nvllm:num_requests_waiting{engine="1"} 1\n'
    server.text("/metrics", ranks)
    assert await client.load(HOST) == EngineLoad(running=3, waiting=1)


async def test_gauges_have_the_names_that_the_user_says(server: Server) -> None:
    aliases = VLLM.preferring({Signal.RUNNING: ["fork:running"]})
    server.text("/metrics", "fork:running 4\nvllm:num_requests_waiting 1\n")
    found = HttpEngine(aliases=aliases, connect_timeout_seconds=10.0, read_timeout_seconds=20.0)
    assert await found.load(HOST) == EngineLoad(running=4, waiting=1)
    await found.close()


@pytest.mark.parametrize("gauge", ["NaN", "+Inf", "-1", "-0.5", "many", ""])
async def test_a_gauge_that_is_no_count_is_unknown_and_not_idle(server: Server, client: HttpEngine, gauge: str) -> None:
    server.text("/metrics", metrics(running=gauge))
    with pytest.raises(EngineError):
        await client.load(HOST)


async def test_a_negative_gauge_cannot_cancel_out_a_running_request(server: Server, client: HttpEngine) -> None:
    server.text("/metrics", metrics("1") + 'vllm:num_requests_running{engine="1"} -1\n')
    with pytest.raises(EngineError, match="not readable"):
        await client.load(HOST)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "vllm:num_requests_running 0\n", "<html></html>"])
async def test_missing_metrics_are_unknown_and_not_idle(server: Server, client: HttpEngine, text: str) -> None:
    server.text("/metrics", text)
    with pytest.raises(EngineError, match="has none of vllm:num_requests"):
        await client.load(HOST)


@pytest.mark.property
@given(junk=st.text(max_size=60))
def test_junk_after_the_metrics_name_raises_nothing_but_what_is_expected(junk: str) -> None:
    try:
        sums = _sums(f"vllm:num_requests_running{junk}\n", ("vllm:num_requests_running",))
    except (ValueError, LookupError, TypeError):
        return
    assert all(value >= 0 for value in sums.values())


# --- answers that must not be followed or believed --------------------------------------------------------------------


async def test_redirects_are_refused(server: Server, client: HttpEngine) -> None:
    server.text("/v1/models", "", status=302, Location="/secret")
    server.json("/secret", {"data": [{"id": "llama"}]})
    with pytest.raises(EngineError, match="answered 302"):
        await client.served_models(HOST)
    assert server.asked == ["/v1/models"]


@pytest.mark.parametrize(("extra", "accepted"), [(0, True), (1, False)])
async def test_answers_are_bounded(server: Server, client: HttpEngine, extra: int, accepted: bool) -> None:
    body = json.dumps({"data": [{"id": "llama"}]})
    server.text("/v1/models", body + " " * (MAX_ANSWER_BYTES + extra - len(body)))
    if accepted:
        assert await client.served_models(HOST) == ["llama"]
    else:
        with pytest.raises(EngineError, match="more than"):
            await client.served_models(HOST)


async def test_a_compressed_answer_is_not_blown_up(server: Server, client: HttpEngine) -> None:
    bomb = gzip.compress(b" " * (MAX_ANSWER_BYTES * 4))
    server.text("/v1/models", bomb, **{"Content-Encoding": "gzip"})
    with pytest.raises(EngineError, match="did not answer with JSON"):
        await client.served_models(HOST)


@pytest.mark.parametrize("body", ["", "no", "[1]", '"text"', "[" * 100_000, b"\xff\xfe"])
async def test_an_answer_that_is_no_json_object_is_an_error(
    server: Server, client: HttpEngine, body: str | bytes
) -> None:
    server.text("/v1/models", body)
    with pytest.raises(EngineError):
        await client.served_models(HOST)


@pytest.mark.parametrize("data", [None, {}, "llama"])
async def test_a_model_list_that_is_no_list_is_an_error(server: Server, client: HttpEngine, data: Any) -> None:
    server.json("/v1/models", {"data": data})
    with pytest.raises(EngineError, match="without a list of models"):
        await client.served_models(HOST)


async def test_an_error_status_is_told_with_its_beginning(server: Server, client: HttpEngine) -> None:
    server.text("/v1/completions", "CUDA error: " + "x" * 5000, status=500)
    with pytest.raises(EngineError, match="answered 500: CUDA error") as caught:
        await generate(client)
    assert len(str(caught.value)) < 300


# --- no answer --------------------------------------------------------------------------------------------------------


async def test_a_slow_answer_is_given_up_in_time(server: Server) -> None:
    client, released = HttpEngine(read_timeout_seconds=0.2), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{")
        await released.wait()
        return response

    server.answers["/v1/models"] = slow
    with pytest.raises(EngineUnreachableError, match="after at most"):
        await client.served_models(HOST)
    released.set()
    await client.close()


async def test_a_cut_answer_says_nothing_about_the_engine(server: Server, client: HttpEngine) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.abort()
        return response

    server.answers["/metrics"] = cut
    with pytest.raises(EngineUnreachableError):
        await client.load(HOST)


async def test_a_refused_connection_means_that_nothing_listens(
    client: HttpEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        monkeypatch.setattr(engine_module, "ENGINE_PORT", closed.getsockname()[1])
        with pytest.raises(EngineNotListeningError):
            await client.load(HOST)


@pytest.mark.parametrize("address", ["", "localhost", "example.com", "127.0.0.1:80", "127.0.0.1/x", "1.2.3", "[::1]"])
async def test_an_address_that_is_no_ip_is_never_asked(server: Server, client: HttpEngine, address: str) -> None:
    with pytest.raises(EngineError, match="is not an IP address"):
        await client.load(address)
    assert server.asked == []


async def test_an_address_of_one_interface_is_refused(client: HttpEngine) -> None:
    with pytest.raises(EngineError, match="valid on one interface only"):
        await client.load("fe80::1%eth0")


def test_an_ipv6_address_is_bracketed() -> None:
    assert engine_module._url("fd00::1", "/health") == f"http://[fd00::1]:{engine_module.ENGINE_PORT}/health"
    assert engine_module._url("10.1.2.3", "/health") == f"http://10.1.2.3:{engine_module.ENGINE_PORT}/health"


async def test_closing_twice_and_before_use_is_harmless() -> None:
    client = HttpEngine()
    await client.close()
    await client.close()


CACHE = 'vllm:cache_config_info{{block_size="16",engine="{rank}",num_gpu_blocks="{blocks}"}} 1.0\n'


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (CACHE.format(rank=0, blocks=4711), 4711),
        (CACHE.format(rank=0, blocks=4711) + CACHE.format(rank=1, blocks=4700), 4700),
        (CACHE.format(rank=0, blocks=4711) + CACHE.format(rank=1, blocks="None"), None),
        (CACHE.format(rank=0, blocks=0), None),
        ("", None),
        ('vllm:cache_config_info{block_size="16"} 1.0\n', None),
    ],
)
async def test_the_cache_is_that_of_the_rank_with_the_fewest_blocks(
    server: Server, client: HttpEngine, text: str, blocks: int | None
) -> None:
    server.text("/metrics", text)

    assert await client.cache_blocks(HOST) == blocks


async def test_unreadable_metrics_are_an_error_of_the_engine(server: Server, client: HttpEngine) -> None:
    server.text("/metrics", "vllm:cache_config_info{ 1\n")

    with pytest.raises(EngineError):
        await client.cache_blocks(HOST)
