"""Replicas follow real requests through a real gateway, and nobody's stream is cut on the way down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bayplan.api import names
from e2e.localcluster.ports import free_ports
from e2e.prometheus import MissingPrometheusError, PrometheusServer, Target, ensure_prometheus
from e2e.scenarios.audit import quiet_writes
from e2e.scenarios.gatewaypod import complete, gateway_pod, start_gateway
from e2e.scenarios.restart import PATH, model, pods_of
from e2e.scenarios.stack import INVENTORIES, Stack, stack
from tests.fakes.clock import until

Json = dict[str, Any]
NAME = "small"
PROMPT = "x" * 16
OUTPUT_TOKENS = 4
REQUESTS_PER_SECOND = 20
"""24 tokens each by the gateway's bound of a prompt: 480 tokens a second ask for two replicas of 400 × 0.8."""
WINDOW_SECONDS = 8
QUIET_SECONDS = 6.0
AUTOSCALING: Json = {
    "minReplicas": 1,
    "maxReplicas": 3,
    "serviceTokensPerSecond": 400,
    "scaleUpCooldownSeconds": 0,
    "scaleDownStabilizationSeconds": WINDOW_SECONDS,
    "sampleSeconds": 2,
}
STREAMS, STREAM_TOKENS = 3, 2500
"""At 12 ms a step, some thirty seconds of 250 tokens a second: one replica's work, and longer than two windows."""

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]


class Watch:
    """Every status of the model, as often as it can be read."""

    def __init__(self, system: Stack) -> None:
        self._api = system.api
        self.status: Json = {}
        self.desired: list[int] = []
        self.counts: list[tuple[int, int, int]] = []
        """Pending, warming, ready."""

    async def run(self) -> None:
        while True:
            self.status = (await self._api.get(f"{PATH}/{NAME}")).get("status") or {}
            number = self.status.get("desiredReplicas")
            if number is not None and self.desired[-1:] != [number]:
                self.desired.append(number)
            counts = tuple(self.status.get(f"{word}Replicas", 0) for word in ("pending", "warming", "ready"))
            if self.counts[-1:] != [counts]:
                self.counts.append(counts)  # type: ignore[arg-type]
            await asyncio.sleep(0.1)

    def condition(self, kind: str) -> tuple[str, str]:
        found = (c for c in self.status.get("conditions", ()) if c["type"] == kind)
        return next(((c["status"], c["reason"]) for c in found), ("", ""))

    async def until(self, *, desired: int, ready: int) -> None:
        def reached() -> bool:
            return (self.status.get("desiredReplicas"), self.status.get("readyReplicas")) == (desired, ready)

        await until(reached, seconds=60, what=f"{desired} desired and {ready} ready")


@asynccontextmanager
async def load(session: aiohttp.ClientSession, url: str) -> AsyncIterator[list[int]]:
    """Short requests at a steady rate for the length of the block; yields their statuses."""
    statuses: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    async def one() -> None:
        status, _ = await complete(session, url, model=NAME_SERVED, prompt=PROMPT, max_tokens=OUTPUT_TOKENS)
        statuses.append(status)

    async def send() -> None:
        loop = asyncio.get_running_loop()
        start, sent = loop.time(), 0
        while True:
            while sent < (loop.time() - start) * REQUESTS_PER_SECOND:
                task = asyncio.create_task(one())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                sent += 1
            await asyncio.sleep(0.5 / REQUESTS_PER_SECOND)

    sender = asyncio.create_task(send())
    try:
        yield statuses
    finally:
        sender.cancel()
        await asyncio.gather(sender, *tasks, return_exceptions=True)


NAME_SERVED = "small-served"


def autoscaled(**changes: Any) -> Json:
    manifest = model(NAME, replicas=0)
    del manifest["spec"]["replicas"]
    manifest["spec"]["autoscaling"] = AUTOSCALING | changes
    manifest["spec"]["model"]["name"] = NAME_SERVED
    manifest["spec"]["drain"] = {"deadlineSeconds": 120}
    return manifest


@asynccontextmanager
async def watched(system: Stack, manifest: Json) -> AsyncIterator[Watch]:
    """Create the model and watch its status for the length of the block."""
    await system.api.apply([manifest], namespace="default")
    watch = Watch(system)
    watching = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_nothing_falls_while_prometheus_is_away_and_it_does_once_it_answers(tmp_path: Path) -> None:
    try:
        await ensure_prometheus()
    except MissingPrometheusError as error:
        pytest.skip(str(error))
    (port,) = free_ports(1)
    telemetry = {"prometheusUrl": f"http://127.0.0.1:{port}", "scrapeSeconds": 2}
    async with (
        stack(name="prometheus", inventory=INVENTORIES / "demo.yaml", telemetry=telemetry) as system,
        watched(system, autoscaled(minReplicas=2)) as watch,
    ):
        await watch.until(desired=2, ready=2)
        await system.api.patch(f"{PATH}/{NAME}", {"spec": {"autoscaling": {"minReplicas": 1}}})
        away = ("False", "MetricsUnreachable")
        await until(lambda: watch.condition("ScalingActive") == away, seconds=60, what="the outage in the condition")
        await asyncio.sleep(WINDOW_SECONDS + 3 * AUTOSCALING["sampleSeconds"])
        assert watch.desired == [2]

        targets = [
            Target(
                f"{pod['status']['podIP']}:{names.ENGINE_PORT}",
                {"namespace": "default", "pod": pod["metadata"]["name"]},
            )
            for pod in await pods_of(system.api, NAME)
        ]
        async with PrometheusServer.run(tmp_path, targets, port=port):
            await watch.until(desired=1, ready=1)
        assert watch.condition("ScalingActive") == ("True", "DemandKnown")
        assert watch.desired == [2, 1]


async def test_replicas_follow_requests_and_leave_when_their_streams_have_ended() -> None:
    async with (
        stack(name="scaling", inventory=INVENTORIES / "demo.yaml") as system,
        aiohttp.ClientSession() as session,
    ):
        url = await start_gateway(system.api, gateway_pod(system.cluster.kubeconfig_path))
        async with watched(system, autoscaled()) as watch:
            await follow(system, session, url, watch)


async def follow(system: Stack, session: aiohttp.ClientSession, url: str, watch: Watch) -> None:
    await watch.until(desired=1, ready=1)
    known = ("True", "DemandKnown")
    await until(lambda: watch.condition("ScalingActive") == known, seconds=30, what="known demand")

    # Demand rises: one step, and every state on the way is seen.
    async with load(session, url) as statuses:
        await watch.until(desired=2, ready=2)
        await asyncio.sleep(3 * AUTOSCALING["sampleSeconds"])
    assert watch.desired == [1, 2], watch.status["scaling"]
    assert (0, 1, 1) in watch.counts
    assert statuses
    assert set(statuses) == {200}

    # Demand falls while streams run: the operator dies in mid-window, so another window passes; no stream is cut.
    streams = [
        asyncio.create_task(
            complete(session, url, model=NAME_SERVED, prompt=f"{PROMPT}{number}", max_tokens=STREAM_TOKENS)
        )
        for number in range(STREAMS)
    ]
    await asyncio.sleep(WINDOW_SECONDS / 2)
    await system.kill_operator(system.operators[0])
    loop = asyncio.get_running_loop()
    killed_at = loop.time()
    await system.start_operator()
    await watch.until(desired=1, ready=1)
    assert loop.time() - killed_at >= WINDOW_SECONDS
    assert watch.status["drainingReplicas"] == 1
    assert not all(stream.done() for stream in streams), "the drain began while streams ran"
    for status, text in await asyncio.gather(*streams):
        assert status == 200
        assert '"finish_reason":"length"' in text.replace(" ", "")
        assert text.rstrip().endswith("[DONE]")

    async def one_left() -> bool:
        return len(await pods_of(system.api, NAME)) == 1

    await system.api.wait_until(one_left, what="the drained replica to go")
    assert watch.desired == [1, 2, 1]
    await until(lambda: watch.status["drainingReplicas"] == 0, what="the last status")
    assert await quiet_writes(system.cluster, QUIET_SECONDS) == []
