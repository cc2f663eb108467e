"""`PrometheusSource` against a real Prometheus server, and against one that does not answer."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from bayplan.planning.measurements import Unknown
from bayplan.telemetry.aliases import VLLM, Signal
from bayplan.telemetry.prometheus import PrometheusSource
from bayplan.telemetry.sources import EngineAnswer, EngineSource, GatewaySource, Trouble, TroubleKind
from e2e.prometheus import MissingPrometheusError, PrometheusServer, Target, ensure_prometheus
from tests.fakes.clock import until

HOST = "127.0.0.1"
WAIT_SECONDS = 30.0
ENGINE = """vllm:num_requests_running{engine="0"} 1
vllm:num_requests_waiting{engine="0"} %s
vllm:prompt_tokens_total{engine="0"} 60
vllm:prompt_tokens_total{engine="1"} 40
vllm:generation_tokens_total{engine="0"} 20
process_start_time_seconds 1234
"""
OWN = (ENGINE % 0).replace("vllm:generation_tokens_total", "fork_generated")
DOOR = """bayplan_gateway_demand_tokens_total{namespace="team",model="llama",kind="prompt"} 100
bayplan_gateway_demand_tokens_total{namespace="team",model="llama",kind="output"} 50
bayplan_gateway_queued_tokens{namespace="team",model="llama"} 7
bayplan_gateway_reserved_tokens{namespace="team",model="llama"} 30
process_start_time_seconds 1234
"""
EVIL = 'a"} or vector(1) #\\'
"""A namespace that would end a string that is not escaped; Prometheus takes any label value."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("prometheus"),
]


class Exposer:
    """Serves what a test sets."""

    def __init__(self) -> None:
        self.text = ""
        self.runner: web.AppRunner | None = None
        self.address = ""

    async def handle(self, _: web.Request) -> web.Response:
        return web.Response(text=self.text)

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.handle)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, HOST, 0).start()
        self.address = f"{HOST}:{self.runner.addresses[0][1]}"


Exposers = dict[str, Exposer]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def exposers() -> AsyncIterator[Exposers]:
    """By the name of the pod: Prometheus takes five seconds to learn of a target, so all are there from the start."""
    texts = {
        "timed-0": ENGINE % 0,
        "odd-0": ENGINE % "NaN",
        "own-0": OWN,
        "a.b|c": ENGINE % 0,
        "aXb": ENGINE % 0,
        "gateway-0": DOOR,
    }
    found = {pod: Exposer() for pod in texts}
    for pod, exposer in found.items():
        exposer.text = texts[pod]
        await exposer.start()
    yield found
    for exposer in found.values():
        assert exposer.runner is not None
        await exposer.runner.cleanup()


@asynccontextmanager
async def running(folder: Path, exposers: Exposers, *, honor_labels: bool) -> AsyncIterator[PrometheusServer]:
    """A server that scrapes all, on a machine that has the program or can fetch it."""
    try:
        await ensure_prometheus()
    except MissingPrometheusError as error:
        pytest.skip(str(error))
    namespaces = {"gateway-0": "system", "a.b|c": EVIL, "aXb": EVIL}
    targets = [
        Target(exposer.address, {"namespace": namespaces.get(pod, "team"), "pod": pod})
        for pod, exposer in exposers.items()
    ]
    async with PrometheusServer.run(folder, targets, scrape_seconds=0.5, honor_labels=honor_labels) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(exposers: Exposers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PrometheusServer]:
    async with running(tmp_path_factory.mktemp("prometheus"), exposers, honor_labels=False) as found:
        yield found


def engine(pod: str = "llama-0", namespace: str = "team") -> EngineSource:
    return EngineSource(f"uid of {pod}", namespace, pod, "10.0.0.1", "containerd://a")


async def trouble_of(source: PrometheusSource, pod: EngineSource, kind: TroubleKind) -> Trouble:
    """Ask until the pod has a trouble of that kind."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            trouble = (await source.read_engines([pod]))[pod.uid].trouble
            if trouble is not None and trouble.kind is kind:
                return trouble
            await asyncio.sleep(0.1)


async def first_reading(source: PrometheusSource, pod: EngineSource) -> EngineAnswer:
    """Ask until Prometheus has scraped the pod."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            answer = (await source.read_engines([pod]))[pod.uid]
            if answer.reading is not None:
                return answer
            await asyncio.sleep(0.1)


async def test_samples_come_with_the_time_of_their_scrape(server: PrometheusServer) -> None:
    source = PrometheusSource(server.url)
    pod = engine("timed-0")
    found = await first_reading(source, pod)
    asked = time.monotonic()
    gone = (await source.read_engines([engine("timed-1")]))["uid of timed-1"]
    elsewhere = (await source.read_engines([engine("timed-0", "other")]))[pod.uid]
    await source.close()

    assert found.trouble is None
    assert found.reading is not None
    assert (found.reading.served_tokens, found.reading.waiting_tokens) == (120, 0)
    assert found.reading.incarnation == "containerd://a 1234"
    assert asked - 5 < found.reading.at_seconds <= asked
    for answer in (gone, elsewhere):
        assert answer.trouble is not None
        assert (answer.reading, answer.trouble.kind) == (None, TroubleKind.UNREACHABLE)


async def test_names_of_the_users_own_are_asked_for_as_well(server: PrometheusServer) -> None:
    aliases = VLLM.preferring({Signal.OUTPUT_TOKENS: ["fork_generated"]})
    source = PrometheusSource(server.url, aliases=aliases)
    found = await first_reading(source, engine("own-0"))
    await source.close()

    assert found.reading is not None
    assert found.reading.served_tokens == 120


async def test_nan_is_unknown_and_a_missing_metric_is_named_with_the_nearest(
    server: PrometheusServer, exposers: Exposers
) -> None:
    source = PrometheusSource(server.url)
    pod = engine("odd-0")
    found = await first_reading(source, pod)
    exposers["odd-0"].text = (ENGINE % 0).replace("num_requests_waiting", "num_requests_waiting_now")
    later = await trouble_of(source, pod, TroubleKind.MISSING)
    await source.close()

    assert found.trouble is not None
    assert found.trouble.kind is TroubleKind.INVALID
    assert "num_requests_waiting is nan" in found.trouble.message
    assert found.reading is not None
    assert isinstance(found.reading.waiting_tokens, Unknown)
    assert "nearest that it has is vllm:num_requests_waiting_now" in later.message


async def test_names_that_would_end_a_string_are_only_names(server: PrometheusServer) -> None:
    source = PrometheusSource(server.url)
    found = await first_reading(source, engine("a.b|c", EVIL))
    others = await source.read_engines([engine("c", EVIL), engine("a.b", EVIL)])
    await source.close()

    assert found.trouble is None
    assert [answer.reading for answer in others.values()] == [None, None]


@pytest.mark.parametrize("honor_labels", [True, False])
async def test_doors_are_read_whoever_keeps_the_namespace_label(
    exposers: Exposers, tmp_path: Path, server: PrometheusServer, honor_labels: bool
) -> None:
    gateway = GatewaySource("g1", "system", "gateway-0", HOST)
    async with AsyncExitStack() as stack:
        if honor_labels:
            server = await stack.enter_async_context(running(tmp_path, exposers, honor_labels=True))
        source = PrometheusSource(server.url)
        async with asyncio.timeout(WAIT_SECONDS):
            found = (await source.read_gateways([gateway]))["g1"]
            while not found.models:
                await asyncio.sleep(0.1)
                found = (await source.read_gateways([gateway]))["g1"]
        await source.close()

    assert list(found.models) == ["team/llama"]
    reading = found.models["team/llama"]
    assert (reading.prompt_tokens, reading.output_tokens, reading.queued_tokens) == (100, 50, 7)
    assert found.trouble is None
    assert reading.incarnation == "g1 1234"
    assert found.reserved_tokens is None


async def test_a_date_that_is_wrong_is_found_out(server: PrometheusServer) -> None:
    right = PrometheusSource(server.url)
    await first_reading(right, engine("timed-0"))
    await right.close()
    behind = PrometheusSource(server.url, now=lambda: datetime.now(UTC) - timedelta(seconds=60))
    found = (await behind.read_engines([engine("timed-0")]))["uid of timed-0"]
    await behind.close()

    assert found.trouble is not None
    assert (found.reading, found.trouble.kind) == (None, TroubleKind.INVALID)
    assert "future" in found.trouble.message


async def test_a_server_that_is_away_or_says_something_else_is_unknown(exposers: Exposers) -> None:
    gateway = GatewaySource("g1", "system", "gateway-0", HOST)
    no_prometheus = f"http://{exposers['aXb'].address}"
    for url, kind in (("http://127.0.0.2:9", TroubleKind.UNREACHABLE), (no_prometheus, TroubleKind.INVALID)):
        source = PrometheusSource(url)
        engines = await source.read_engines([engine()])
        doors = await source.read_gateways([gateway])
        await source.close()
        for trouble in (engines["uid of llama-0"].trouble, doors["g1"].trouble):
            assert trouble is not None
            assert (trouble.kind, url in trouble.message) == (kind, True)


async def test_a_server_that_hangs_does_not_stop_the_loop() -> None:
    asked = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    source = PrometheusSource(f"http://{HOST}:{port}", timeout_seconds=2)
    work = asyncio.create_task(source.read_engines([engine()]))
    await until(asked.is_set, what="the query")
    turns = 0
    while not work.done():
        turns += 1
        await asyncio.sleep(0.01)
    found = (await work)["uid of llama-0"]
    await source.close()
    server.close()

    assert turns > 10
    assert found.trouble is not None
    assert found.trouble.kind is TroubleKind.UNREACHABLE
