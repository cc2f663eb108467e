"""Reflector and Kopf host against a real API server, with a proxy that cuts, holds and garbles their streams."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from bayplan.cluster.cache import Store, object_key, version_number
from bayplan.cluster.client import ApiClient
from bayplan.cluster.kopf_host import KopfHost
from bayplan.cluster.reflector import Reflector
from bayplan.cluster.resources import INFERENCE_MODELS, PODS, Key
from bayplan.cluster.resync import Resync
from tests.cluster.conftest import make_model, make_pod
from tests.fakes.clock import until
from tests.fakes.proxy import CuttingProxy

GONE = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
BROKEN = b'{"type":"ERROR","object":{"kind":"Status","code":500,"reason":"InternalError","message":"broken"}}\n'
HTML = b"<html><body>502 Bad Gateway</body></html>\n"
START_PODS = 500


@dataclass(frozen=True, slots=True)
class Seen:
    key: Key
    uid: str
    resource_version: int
    labels: tuple[tuple[str, str], ...] = ()


def project(raw: dict[str, Any]) -> Seen:
    metadata = raw["metadata"]
    labels = tuple(sorted((metadata.get("labels") or {}).items()))
    return Seen(object_key(raw), metadata["uid"], version_number(metadata["resourceVersion"]), labels)


class Running:
    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, work: Any) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running()
    yield running
    for task in running.tasks:
        task.cancel()
    await asyncio.gather(*running.tasks, return_exceptions=True)


def names(store: Store[Seen], namespace: str) -> list[str]:
    return sorted(obj.key.name for obj in store.values() if obj.key.namespace == namespace)


async def test_the_reflector_reports_a_deletion_hidden_in_a_410_gap(
    proxy: CuttingProxy, client: ApiClient, namespace: str, running: Running
) -> None:
    store: Store[Seen] = Store(PODS)
    deleted: list[str] = []
    store.subscribe(lambda old, new: deleted.append(old.key.name) if new is None and old is not None else None)
    for name in ("a", "b"):
        await client.create(PODS, namespace, make_pod(name))
    async with ApiClient(proxy.credentials()) as through:
        reflector = Reflector(through, store, project)
        running.start(reflector.run())
        await until(lambda: names(store, namespace) == ["a", "b"])
        await until(lambda: proxy.watches_open == 1)
        proxy.gate.clear()
        proxy.inject = [GONE]
        proxy.cut_watches()
        await client.delete(PODS, namespace, "b", grace_seconds=0)
        await client.create(PODS, namespace, make_pod("c"))
        assert names(store, namespace) == ["a", "b"]
        proxy.gate.set()
        await until(lambda: names(store, namespace) == ["a", "c"])
        assert deleted == ["b"]
        assert reflector.lists == 2
        await client.patch_merge(PODS, namespace, "a", {"metadata": {"labels": {"x": "y"}}})
        await until(lambda: (pod := store.get(Key(namespace, "a"))) and pod.labels == (("x", "y"),))
        running.tasks[0].cancel()
        await asyncio.gather(*running.tasks, return_exceptions=True)


async def test_the_reflector_waits_for_our_own_write(
    client: ApiClient, namespace: str, proxy: CuttingProxy, running: Running
) -> None:
    store: Store[Seen] = Store(PODS)
    await client.create(PODS, namespace, make_pod("a"))
    async with ApiClient(proxy.credentials()) as through:
        running.start(Reflector(through, store, project).run())
        await until(lambda: names(store, namespace) == ["a"] and proxy.watches_open == 1)
        proxy.gate.clear()
        proxy.cut_watches()
        await until(lambda: proxy.watches_open == 0)
        key = Key(namespace, "a")
        written = await client.patch_merge(PODS, namespace, "a", {"metadata": {"labels": {"x": "y"}}})
        store.expect(key, written["metadata"]["resourceVersion"], owner="model")
        assert store.is_behind(key)
        assert store.is_behind_for("model")
        proxy.gate.set()
        await until(lambda: not store.is_behind(key))
        assert (pod := store.get(key)) is not None
        assert pod.labels == (("x", "y"),)
        running.tasks[0].cancel()
        await asyncio.gather(*running.tasks, return_exceptions=True)


async def test_the_start_barrier_with_many_pods(client: ApiClient, namespace: str, running: Running) -> None:
    limit = asyncio.Semaphore(32)

    async def create(number: int) -> None:
        async with limit:
            await client.create(PODS, namespace, make_pod(f"p{number}", size_bytes=4000))

    await asyncio.gather(*(create(number) for number in range(START_PODS)))
    store: Store[Seen] = Store(PODS)
    reflector = Reflector(client, store, project)
    started = time.perf_counter()
    running.start(reflector.run())
    await reflector.synced.wait()
    seconds = time.perf_counter() - started
    print(f"\nstart barrier with {START_PODS} pods of 5 kB: {seconds:.2f} s")  # noqa: T201
    assert len(names(store, namespace)) == START_PODS
    assert seconds < 10


# --- Kopf ------------------------------------------------------------------------------------------------------------


class Streaming:
    """A Kopf host and a resync on one store, through the proxy."""

    def __init__(self, proxy: CuttingProxy, client: ApiClient, *, period_seconds: float = 3600.0) -> None:
        self.proxy = proxy
        self.store: Store[Seen] = Store(INFERENCE_MODELS)
        self.resync = Resync(client, self.store, project, period_seconds=period_seconds)
        self.host = KopfHost(proxy.credentials(), [self.resync])

    async def start(self, running: Running) -> None:
        running.start(self.resync.run())
        await self.resync.synced.wait()
        running.start(self.host.run())
        await until(lambda: self.proxy.watches_open == 1, what="Kopf's watch")


async def test_kopf_streams_our_kind_and_touches_nothing(
    proxy: CuttingProxy, client: ApiClient, namespace: str, running: Running
) -> None:
    before = await client.create(INFERENCE_MODELS, namespace, make_model("existing"))
    streaming = Streaming(proxy, client)
    await streaming.start(running)
    assert names(streaming.store, namespace) == ["existing"]
    await client.create(INFERENCE_MODELS, namespace, make_model("m"))
    await until(lambda: names(streaming.store, namespace) == ["existing", "m"])
    await client.patch_merge(INFERENCE_MODELS, namespace, "m", {"metadata": {"labels": {"x": "y"}}})
    await until(lambda: (m := streaming.store.get(Key(namespace, "m"))) and m.labels == (("x", "y"),))
    await client.delete(INFERENCE_MODELS, namespace, "m")
    await until(lambda: names(streaming.store, namespace) == ["existing"])
    assert set(proxy.methods) == {"GET"}
    after = await client.get(INFERENCE_MODELS, namespace, "existing")
    assert after["metadata"] == before["metadata"]
    assert streaming.resync.repairs == 0
    assert streaming.host.restarts == 0


async def test_a_deletion_that_kopf_misses_in_a_410_gap_is_found_at_once(
    proxy: CuttingProxy, client: ApiClient, namespace: str, running: Running
) -> None:
    for name in ("a", "b"):
        await client.create(INFERENCE_MODELS, namespace, make_model(name))
    streaming = Streaming(proxy, client)
    await streaming.start(running)
    proxy.gate.clear()
    proxy.inject = [GONE]
    proxy.cut_watches()
    await until(lambda: proxy.watches_open == 0)
    await client.delete(INFERENCE_MODELS, namespace, "b")
    await asyncio.sleep(0)
    assert names(streaming.store, namespace) == ["a", "b"]
    proxy.gate.set()
    await until(lambda: names(streaming.store, namespace) == ["a"])
    assert streaming.resync.repairs >= 1
    assert streaming.host.restarts == 0


@pytest.mark.parametrize("line", [BROKEN, HTML], ids=["error-500", "html"])
async def test_kopf_is_started_again_after_what_ends_it(
    proxy: CuttingProxy, client: ApiClient, namespace: str, running: Running, line: bytes
) -> None:
    await client.create(INFERENCE_MODELS, namespace, make_model("a"))
    streaming = Streaming(proxy, client)
    await streaming.start(running)
    proxy.inject = [line]
    proxy.cut_watches()
    await until(lambda: streaming.host.restarts == 1)
    await until(lambda: proxy.watches_open == 1)
    await client.create(INFERENCE_MODELS, namespace, make_model("b"))
    await until(lambda: names(streaming.store, namespace) == ["a", "b"])
    assert not any(task.done() for task in running.tasks)


async def test_the_resync_completes_and_prunes_what_no_stream_told(client: ApiClient, namespace: str) -> None:
    store: Store[Seen] = Store(INFERENCE_MODELS)
    resync = Resync(client, store, project, period_seconds=3600)
    await client.create(INFERENCE_MODELS, namespace, make_model("a"))
    task = asyncio.create_task(resync.run())
    await resync.synced.wait()
    assert names(store, namespace) == ["a"]
    await client.create(INFERENCE_MODELS, namespace, make_model("b"))
    await client.delete(INFERENCE_MODELS, namespace, "a")
    assert names(store, namespace) == ["a"]
    resync.request()
    await until(lambda: names(store, namespace) == ["b"])
    assert resync.repairs == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
