"""A whole gateway process but for the process: watches, sockets, Lease, and the way out."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from bayplan.api import names
from bayplan.cluster.apitimes import ApiTimes
from bayplan.cluster.clock import SystemClock
from bayplan.cluster.errors import ApiError, Unreachable
from bayplan.cluster.port import WatchEvent
from bayplan.cluster.resources import INFERENCE_MODELS, LEASES, PODS, Key
from bayplan.cluster.servertime import ServerTime
from bayplan.gateway.acknowledgements import GatewayPod
from bayplan.gateway.runtime import EXIT_CLEAN, GatewayRuntime, Sockets
from bayplan.gateway.settings import GatewaySettings
from bayplan.gateway.tenants import TenantsFile, anonymous_tenants
from tests.fakes.api import FakeApi
from tests.fakes.clock import until
from tests.gateway.conftest import MakeScripted
from tests.gateway.gatewaytown import SECRET, raw_head, raw_model
from tests.gateway.scriptedengine import DONE, HEAD, Connection, event, whole_answer
from tests.gateway.test_gateway_tenants import entry

TIMES = ApiTimes(watch=2.0, idle=0.5)


class StallingApi(FakeApi):
    """An API server whose watches fall silent: what happens is not told, until the client gives the stream up."""

    stalled = False

    async def watch(self, *args: Any, **options: Any) -> AsyncGenerator[WatchEvent, None]:
        async with aclosing(super().watch(*args, **options)) as events:
            async for one in events:
                if self.stalled:
                    await asyncio.sleep(options["idle_seconds"])
                    raise Unreachable("not a byte came")
                yield one


class Life:
    """One runtime over an API server in memory."""

    def __init__(self, **settings: Any) -> None:
        self.api = StallingApi()
        self._settings = replace(GatewaySettings(), drain_seconds=5.0, **settings)
        self.session = aiohttp.ClientSession()
        self.task: asyncio.Task[int] | None = None

    async def begin(self, *, tenants_file: TenantsFile | None = None) -> None:
        clock = SystemClock()
        self.runtime = GatewayRuntime(
            self.api,
            GatewayPod("system", "gateway-1", "gateway-uid"),
            self._settings,
            tenants=(tenants_file.load() if tenants_file else None) or anonymous_tenants(),
            tenants_file=tenants_file,
            secret=SECRET,
            counters={},
            sockets=Sockets("127.0.0.1", 0, 0),
            server_time=ServerTime(clock, local=lambda: datetime.now(UTC)),
            times=TIMES,
            clock=clock,
        )
        self.task = asyncio.ensure_future(self.runtime.run())
        await asyncio.wait_for(self.runtime.serving.wait(), 10)
        self.url = f"http://127.0.0.1:{self.runtime.client_port}"
        self.admin_url = f"http://127.0.0.1:{self.runtime.admin_port}"

    async def end(self) -> int:
        assert self.task is not None
        self.runtime.stop()
        return await asyncio.wait_for(self.task, 20)

    def post(self, **fields: Any) -> Any:
        headers = fields.pop("headers", None)
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 8, **fields}
        return self.session.post(self.url + "/v1/completions", json=body, headers=headers)

    async def status(self, **fields: Any) -> int:
        async with self.post(**fields) as response:
            await response.read()
            found: int = response.status
            return found

    async def until_status(self, status: int, **fields: Any) -> None:
        """Ask again and again until it is answered so."""
        async with asyncio.timeout(10):
            while True:
                if await self.status(**fields) == status:
                    return
                await asyncio.sleep(0.01)

    async def admin(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.admin_url + path) as response:
            return response.status, await response.text()

    def acknowledged(self) -> list[str]:
        leases = self.api.objects(LEASES)
        text = leases[0]["metadata"]["annotations"][names.ANNOTATION_DRAINING_PODS] if leases else "[]"
        found: list[str] = json.loads(text)
        return found


@pytest.fixture
async def life() -> AsyncIterator[Life]:
    made = Life()
    yield made
    if made.task is not None and not made.task.done():
        await made.end()
    await made.session.close()


class OpenStream:
    """A stream that goes on until the test lets it end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, connection: Connection) -> None:
        await connection.send(HEAD)
        await connection.chunk(event("a"))
        await self.may_end.wait()
        await connection.chunk(event("", finish="stop") + DONE)
        await connection.chunk(b"")


async def test_clients_are_answered_from_the_first_complete_picture_on(life: Life, scripted: MakeScripted) -> None:
    engine = await scripted(whole_answer)
    life.api.seed(INFERENCE_MODELS, raw_model())
    life.api.seed(PODS, raw_head("a", engine.host))
    await life.begin()
    assert await life.status() == 200
    assert (await life.admin("/readyz"))[0] == 200
    assert (await life.admin("/healthz"))[0] == 200
    assert "bayplan_gateway_requests_total" in (await life.admin("/metrics"))[1]
    assert json.loads((await life.admin("/evidence"))[1])["gateway"]["uid"] == "gateway-uid"
    assert await life.end() == EXIT_CLEAN


async def test_what_changes_in_the_cluster_changes_where_requests_go(life: Life, scripted: MakeScripted) -> None:
    first, second = await scripted(whole_answer), await scripted(whole_answer)
    await life.begin()
    assert await life.status() == 404
    life.api.seed(INFERENCE_MODELS, raw_model())

    await life.until_status(503)
    life.api.seed(PODS, raw_head("a", first.host))
    await life.until_status(200)
    life.api.seed(PODS, raw_head("b", second.host))
    life.api.remove(PODS, Key("default", "a"))
    await until(lambda: life.runtime.gateway.directory.head("pod-a") is None)
    seen = len(first.received)
    for _ in range(5):
        assert await life.status() == 200
    assert len(first.received) == seen


async def test_draining_pod_is_acknowledged_once_its_requests_have_arrived(life: Life, scripted: MakeScripted) -> None:
    arrived, stream = asyncio.Event(), OpenStream()

    async def late(connection: Connection) -> None:
        await arrived.wait()
        await stream(connection)

    engine = await scripted(late)
    life.api.seed(INFERENCE_MODELS, raw_model())
    life.api.seed(PODS, raw_head("a", engine.host))
    await life.begin()
    asking = asyncio.ensure_future(life.post(stream=True).__aenter__())
    await until(lambda: engine.received)
    life.api.seed(PODS, raw_head("a", engine.host, draining=True))
    await until(lambda: life.runtime.gateway.directory.draining() == {"pod-a": True})
    assert life.acknowledged() == []
    arrived.set()
    await until(lambda: life.acknowledged() == ["pod-a"])
    stream.may_end.set()
    assert (await (await asking).read()).endswith(DONE)
    life.api.remove(PODS, Key("default", "a"))
    await until(lambda: life.acknowledged() == [])


async def test_stop_cuts_no_stream_refuses_new_requests_and_withdraws_the_lease(
    life: Life, scripted: MakeScripted
) -> None:
    stream = OpenStream()
    engine = await scripted(stream)
    life.api.seed(INFERENCE_MODELS, raw_model())
    life.api.seed(PODS, raw_head("a", engine.host))
    await life.begin()
    async with life.post(stream=True) as response:
        await response.content.readany()
        assert life.task is not None
        life.runtime.stop()
        await until(lambda: life.runtime.gateway.routes.draining)
        assert (await life.admin("/readyz"))[0] == 503
        assert (await life.admin("/healthz"))[0] == 200
        async with life.post() as refused:
            assert refused.status == 503
            assert (await refused.json())["error"]["code"] == "draining"
        assert life.api.objects(LEASES)  # still there: its acknowledgements count while it has streams
        stream.may_end.set()
        assert (await response.read()).endswith(DONE)
    assert await asyncio.wait_for(life.task, 10) == EXIT_CLEAN
    assert life.api.objects(LEASES) == []


async def test_streams_that_outlast_the_drain_are_cut(scripted: MakeScripted) -> None:
    life = Life()
    life._settings = replace(life._settings, drain_seconds=0.1)
    life.api.seed(INFERENCE_MODELS, raw_model())
    life.api.seed(PODS, raw_head("a", (await scripted(OpenStream())).host))
    await life.begin()
    async with life.post(stream=True) as response:
        await response.content.readany()
        assert await life.end() == EXIT_CLEAN
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    assert life.runtime.gateway.held == 0
    await life.session.close()


async def test_requests_go_on_while_the_api_server_is_away(life: Life, scripted: MakeScripted) -> None:
    engine = await scripted(whole_answer)
    life.api.seed(INFERENCE_MODELS, raw_model())
    life.api.seed(PODS, raw_head("a", engine.host))
    await life.begin()
    for verb in ("watch", "list", "apply"):
        for _ in range(50):
            life.api.fail_next(verb, "*", ApiError("away"))
    life.api.compact()
    for _ in range(20):
        assert await life.status() == 200
        await asyncio.sleep(0.01)
    # What nobody told is found by the next list: the engine has gone meanwhile, and another came.
    other = await scripted(whole_answer)
    life.api.remove(PODS, Key("default", "a"))
    life.api.seed(PODS, raw_head("b", other.host))
    life.api._failures.clear()
    await until(lambda: life.runtime.gateway.directory.head("pod-b") is not None)
    assert life.runtime.gateway.directory.head("pod-a") is None
    assert await life.status() == 200
    assert len(other.received) >= 1


async def test_stalled_watch_costs_nobody_a_place_and_heals_by_itself(life: Life, scripted: MakeScripted) -> None:
    first, second = await scripted(whole_answer), await scripted(whole_answer)
    life.api.seed(INFERENCE_MODELS, raw_model())
    life.api.seed(PODS, raw_head("a", first.host))
    await life.begin()
    assert await life.status() == 200
    life.api.stalled = True
    await first.stop()
    life.api.remove(PODS, Key("default", "a"))
    life.api.seed(PODS, raw_head("b", second.host))
    for _ in range(5):
        assert await life.status() == 503
    gateway = life.runtime.gateway
    assert gateway.directory.head("pod-a") is not None  # nobody has said that it is gone
    assert gateway.held == 0
    assert second.received == []
    life.api.stalled = False
    await life.until_status(200)
    assert gateway.directory.head("pod-a") is None
    assert len(second.received) == 1


async def test_keys_that_change_under_the_process_count(
    life: Life, scripted: MakeScripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayplan.gateway.runtime.TENANTS_SECONDS", 0.02)
    path = tmp_path / "tenants.yaml"
    path.write_text(yaml.safe_dump({"tenants": [entry()]}))
    life.api.seed(INFERENCE_MODELS, raw_model())
    life.api.seed(PODS, raw_head("a", (await scripted(whole_answer)).host))
    await life.begin(tenants_file=TenantsFile(path, classes={"default": None}))
    old, new = ({"Authorization": f"Bearer {key}"} for key in ("key-a", "key-b"))
    assert (await life.status(headers=old), await life.status(headers=new)) == (200, 401)
    path.write_text("tenants: [")
    await asyncio.sleep(0.1)
    assert await life.status(headers=old) == 200
    path.write_text(yaml.safe_dump({"tenants": [entry(key="key-b")]}))
    await life.until_status(200, headers=new)
    assert await life.status(headers=old) == 401
