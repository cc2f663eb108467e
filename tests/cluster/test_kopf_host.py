"""How the Kopf host behaves when nothing works, on a scripted server."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from bayplan.cluster.cache import Store, object_key, version_number
from bayplan.cluster.client import ApiClient
from bayplan.cluster.clock import SystemClock, Timer
from bayplan.cluster.kopf_host import SHORT_LIVES_ACCEPTED, HostDied, KopfHost
from bayplan.cluster.resources import INFERENCE_MODELS, Key
from bayplan.cluster.resync import Resync
from tests.fakes.clock import until
from tests.fakes.server import ScriptedServer, refuse, reply

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Seen:
    key: Key
    uid: str
    resource_version: int


def project(raw: dict[str, Any]) -> Seen:
    metadata = raw["metadata"]
    return Seen(object_key(raw), metadata["uid"], version_number(metadata["resourceVersion"]))


class FastClock(SystemClock):
    """The real clock, twenty times as fast: waits between restarts are long on purpose."""

    def time(self) -> float:
        return super().time() * 20

    def call_later(self, delay: float, callback: Any) -> Timer:
        return super().call_later(delay / 20, callback)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()
    await server.start()
    yield server
    await server.stop()


def make_host(server: ScriptedServer, clock: SystemClock) -> KopfHost:
    client = ApiClient(server.credentials())
    return KopfHost(server.credentials(), [Resync(client, Store[Seen](INFERENCE_MODELS), project)], clock=clock)


async def test_a_host_that_cannot_stay_up_gives_up(server: ScriptedServer) -> None:
    server.others = [reply("<html>not an API</html>")]
    host = make_host(server, FastClock())
    with pytest.raises(HostDied, match="Kopf ended"):
        await asyncio.wait_for(host.run(), timeout=120)
    assert host.restarts == SHORT_LIVES_ACCEPTED


async def test_refused_credentials_do_not_make_it_spin(server: ScriptedServer) -> None:
    server.others = [refuse(401, "Unauthorized")]
    host = make_host(server, SystemClock())
    running = asyncio.create_task(host.run())
    started = asyncio.get_running_loop().time()
    await until(lambda: len(server.seen) >= 8)
    assert asyncio.get_running_loop().time() - started > 0.2, "a spin makes hundreds of requests in that time"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_end_takes_its_thread_along(server: ScriptedServer) -> None:
    server.others = [refuse(403, "Forbidden")]
    before = set(threading.enumerate())
    host = make_host(server, SystemClock())
    running = asyncio.create_task(host.run())
    await until(lambda: len(server.seen) >= 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await until(lambda: not [t for t in set(threading.enumerate()) - before if t.name == "kopf"])
