"""The gateway in front of two real vLLM processes: what only a real engine can prove of it.

The engines stand behind heads as operator and kubelet leave them; the gateway is a process of its own. Checked: streams
come through byte by byte, salts keep prefixes apart on the engine's own counters, a client that leaves frees the
engine, a drain cuts nothing and turns nobody away, and a stream that the engine cuts is counted as cut.
"""

import asyncio
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import aiohttp
import yaml

from bayplan.api import names
from e2e.conformance.engines import BLOCK_SIZE, MAX_MODEL_LEN, MAX_NUM_SEQS, MODEL, REAL, REPOSITORY, Engine, running
from e2e.conformance.tap import tap
from e2e.localcluster import Cluster, KubeApi, local_cluster
from e2e.localcluster.processes import SupervisedProcess
from e2e.scenarios.heads import LONG_AGO, PODS, create_ready_head, create_serving_model
from e2e.scenarios.stack import wait_for_line

NAMESPACE = "default"
HOSTS = ("127.0.71.11", "127.0.71.12")
TENANTS = ("a", "b")
DRAIN_FLAGS = ("--shutdown-timeout", "30")
PROMPT = "Which berth is free? " * 6
"""Several blocks of the tiny model's byte-level tokens."""
LONG_TOKENS = 800
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
RUNNING = "vllm:num_requests_running"
HITS = "vllm:prefix_cache_hits_total"
GRACE_SECONDS = 5.0
"""Of the pod whose engine is cut."""
FREED_SECONDS = 5.0
"""The engine's gauge follows its steps; the connection itself is cut within milliseconds."""


class GatewayCheckError(RuntimeError):
    """The gateway in front of the real engine did not do what it must."""


@dataclass
class GatewayCheck:
    """What was seen."""

    streamed_bytes: int = 0
    hits_within_a_domain: float = 0.0
    hits_across_domains: float = 0.0
    freed_seconds: float = 0.0
    streams_through_the_drain: int = 0
    requests_during_the_drain: int = 0
    cut_streams: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)

    def summary(self) -> str:
        """One sentence."""
        return (
            f"{self.streamed_bytes} bytes streamed unchanged; {self.hits_within_a_domain:.0f} prompt tokens reused "
            f"inside a trust domain and {self.hits_across_domains:.0f} across; engine free {self.freed_seconds:.2f} s "
            f"after its client left; {self.streams_through_the_drain} streams and "
            f"{self.requests_during_the_drain} new requests "
            f"came whole through a drain; {self.cut_streams} cut stream counted as cut"
        )


def _require(condition: object, what: str) -> None:
    if not condition:
        raise GatewayCheckError(what)


@dataclass
class _Scene:
    api: KubeApi
    engines: list[Engine]
    pods: list[Any]
    url: str
    admin_url: str
    session: aiohttp.ClientSession
    wires: list[list[bytes]]
    """Bodies that went over the wire, by engine."""

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"model": MODEL, "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **fields}

    def ask(self, *, tenant: str = "a", path: str = "/v1/completions", **fields: Any) -> Any:
        headers = {"Authorization": f"Bearer key-{tenant}"}
        return self.session.post(self.url + path, json=self.body(**fields), headers=headers)

    async def total(self, sample: str) -> float:
        return sum([(await engine.scrape()).total(sample) for engine in self.engines])

    async def outcomes(self) -> dict[str, int]:
        async with self.session.get(self.admin_url + "/metrics") as response:
            text = await response.text()
        found = re.findall(r'bayplan_gateway_requests_total\{.*outcome="(\w+)"\} ([\d.]+)', text)
        return {outcome: int(float(count)) for outcome, count in found}

    async def reserved(self) -> int:
        async with self.session.get(self.admin_url + "/evidence") as response:
            return sum(model["reservedTokens"] for model in (await response.json())["models"].values())


async def gateway_on_real_engines(*, say: Callable[[str], None]) -> GatewayCheck:
    """Run all checks. Raises GatewayCheckError, EngineError."""
    found = GatewayCheck()
    say("gateway: starting a control plane and two real engines")
    async with local_cluster(name="gateway-conformance", provider="embedded") as cluster, _scene(cluster) as scene:
        for name, check in (
            ("streams byte by byte", _streams),
            ("salts", _salts),
            ("a client that leaves", _leaving),
            ("a drain", _drain),
            ("a cut", _cut),
        ):
            say(f"gateway: {name}")
            await check(scene, found)
        found.outcomes = await scene.outcomes()
        _require(await scene.reserved() == 0, "reservations are left over")
    say(f"gateway: {json.dumps(asdict(found))}")
    return found


@asynccontextmanager
async def _scene(cluster: Cluster) -> AsyncIterator[_Scene]:
    await cluster.apply(REPOSITORY / "crds")
    async with AsyncExitStack() as stack:
        # The second one is cut in the end, so it gets no time to shut down.
        kinds = [replace(REAL, name=f"real {host}", host=host) for host in HOSTS]
        engines = [
            await stack.enter_async_context(running(kind, extra_flags=flags))
            for kind, flags in zip(kinds, (DRAIN_FLAGS, ()), strict=True)
        ]
        wires = [
            await stack.enter_async_context(tap((engine.host, names.ENGINE_PORT), (engine.host, engine.port)))
            for engine in engines
        ]
        api = await stack.enter_async_context(cluster.api())
        model = await create_serving_model(
            api, NAMESPACE, MODEL, max_model_len=MAX_MODEL_LEN, max_num_seqs=MAX_NUM_SEQS
        )
        facts = {"block_size": BLOCK_SIZE, "max_num_seqs": MAX_NUM_SEQS, "max_model_len": MAX_MODEL_LEN}
        pods = [
            await create_ready_head(api, NAMESPACE, model, host, name=f"tiny-{number}", kv_blocks=1000, **facts)
            for number, host in enumerate(HOSTS)
        ]
        gateway = _start_gateway(cluster)
        stack.push_async_callback(gateway.stop)
        client_line = await wait_for_line(gateway, "clients on ", 60)
        admin_line = await wait_for_line(gateway, "the cluster on ", 60)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120), connector=aiohttp.TCPConnector(limit=0))
        )
        yield _Scene(
            api=api,
            engines=engines,
            pods=pods,
            url=client_line.split("clients on ")[1].strip(),
            admin_url=admin_line.split("the cluster on ")[1].strip(),
            session=session,
            wires=wires,
        )


def _start_gateway(cluster: Cluster) -> SupervisedProcess:
    keys = {name: f"sha256:{hashlib.sha256(f'key-{name}'.encode()).hexdigest()}" for name in TENANTS}
    tenants = cluster.folder / "tenants.yaml"
    tenants.write_text(yaml.safe_dump({"tenants": [{"name": name, "keys": [key]} for name, key in keys.items()]}))
    configuration = cluster.folder / "gateway.yaml"
    section = {"listen": {"address": "127.0.0.1", "port": 0, "adminPort": 0}, "tenantsFile": str(tenants)}
    configuration.write_text(yaml.safe_dump({"gateway": section, "logging": {"format": "console"}}))
    environment = {"KUBECONFIG": str(cluster.kubeconfig_path), "POD_NAME": "gateway-0", "POD_NAMESPACE": NAMESPACE}
    return SupervisedProcess.start(
        [sys.executable, "-m", "bayplan", "gateway", "--config", str(configuration)],
        name="gateway",
        log_path=cluster.folder / "gateway.log",
        environment={**os.environ, **environment},
        folder=REPOSITORY,
    )


async def _streams(scene: _Scene, found: GatewayCheck) -> None:
    """What the client got is what the engine put on the wire, to the last byte."""
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "prompt": None}),
    )
    for path, fields in asked:
        for stream in ({"stream": True, **USAGE}, {"stream": True}, {}):
            async with scene.ask(path=path, max_tokens=200, **stream, **fields) as response:
                _require(response.status == 200, f"{path}: status {response.status}")
                relayed = await response.read()
            sent = [body for bodies in scene.wires for body in bodies if body == relayed]
            _require(len(sent) == 1, f"{path}: no engine sent these {len(relayed)} bytes")
            found.streamed_bytes += len(relayed)


async def _salts(scene: _Scene, found: GatewayCheck) -> None:
    """The engine's own counter: hits for the tenant that asked before, none for another with the same words."""

    async def hits(tenant: str, **fields: Any) -> float:
        before = await scene.total(HITS)
        async with scene.ask(tenant=tenant, prompt="Salted: " + PROMPT, **fields) as response:
            _require(response.status == 200, f"tenant {tenant}: status {response.status}")
            await response.read()
        await asyncio.sleep(0.5)
        return await scene.total(HITS) - before

    for _ in range(4):  # twice on each engine
        found.hits_within_a_domain += await hits("a")
    found.hits_across_domains = await hits("b", cache_salt="a")
    _require(found.hits_within_a_domain > 0, "no prefix was reused inside a trust domain")
    _require(found.hits_across_domains == 0, f"{found.hits_across_domains} tokens were reused across trust domains")


async def _leaving(scene: _Scene, found: GatewayCheck) -> None:
    response = await scene.ask(stream=True, max_tokens=LONG_TOKENS).__aenter__()
    await response.content.readany()
    response.close()
    started = time.monotonic()
    while await scene.total(RUNNING) or await scene.reserved():
        found.freed_seconds = time.monotonic() - started
        _require(found.freed_seconds < FREED_SECONDS, "the engine goes on after its client has left")
        await asyncio.sleep(0.02)


async def _drain(scene: _Scene, found: GatewayCheck) -> None:
    """Annotate, wait for the acknowledgement, end the engine: running streams end whole, new requests go elsewhere."""
    streams = [
        asyncio.create_task(_whole(scene, max_tokens=LONG_TOKENS), name=f"stream {number}") for number in range(4)
    ]
    await asyncio.sleep(0.3)
    pod = scene.pods[0]
    path = f"{PODS.format(NAMESPACE)}/{pod['metadata']['name']}"
    await scene.api.patch(path, {"metadata": {"annotations": {names.ANNOTATION_DRAINING: LONG_AGO}}})

    async def acknowledged() -> bool:
        leases = await scene.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gateway-0")
        return pod["metadata"]["uid"] in json.loads(leases["metadata"]["annotations"][names.ANNOTATION_DRAINING_PODS])

    await scene.api.wait_until(acknowledged, what="the acknowledgement")
    scene.engines[0].main_process().send_signal(signal.SIGTERM)
    while not all(stream.done() for stream in streams) or found.requests_during_the_drain < 10:
        await _whole(scene, max_tokens=4)
        found.requests_during_the_drain += 1
    for stream in streams:
        await stream
    found.streams_through_the_drain = len(streams)
    await scene.api.delete(path, gracePeriodSeconds="0")
    await scene.engines[0].wait_exit()
    scene.engines.pop(0)


async def _whole(scene: _Scene, *, max_tokens: int) -> None:
    async with scene.ask(stream=True, max_tokens=max_tokens, **USAGE) as response:
        _require(response.status == 200, f"status {response.status}: {(await response.read())[:300]!r}")
        raw = await response.read()
    _require(raw.endswith(b"data: [DONE]\n\n"), f"a stream ended with {raw[-100:]!r}")
    _require(f'"completion_tokens":{max_tokens}'.encode() in raw, "a stream has fewer tokens than asked for")


async def _cut(scene: _Scene, found: GatewayCheck) -> None:
    """SIGTERM without a drain: vLLM ends its streams as if they were whole; the gateway must not believe it.

    It may also lose its core and leave them open; then they end as in a cluster, when the kubelet kills what is left.
    """
    before = await scene.outcomes()
    response = await scene.ask(stream=True, max_tokens=LONG_TOKENS).__aenter__()
    await response.content.readany()
    scene.engines[0].main_process().send_signal(signal.SIGTERM)
    reading = asyncio.create_task(_until_it_ends(response))
    await asyncio.wait([reading], timeout=GRACE_SECONDS)
    await scene.engines[0].process.stop()
    await reading
    await _until_nothing_is_reserved(scene)
    after = await scene.outcomes()
    found.cut_streams = after["cut"] - before["cut"]
    _require(found.cut_streams == 1, f"the cut stream was counted as {after}, before {before}")


async def _until_it_ends(response: aiohttp.ClientResponse) -> None:
    with suppress(aiohttp.ClientError):  # a connection that breaks is a cut that everybody sees
        await response.read()
    response.close()


async def _until_nothing_is_reserved(scene: _Scene) -> None:
    async with asyncio.timeout(FREED_SECONDS):
        while True:
            if not await scene.reserved():
                return
            await asyncio.sleep(0.02)
