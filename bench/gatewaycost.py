"""What a request and a chunk cost the gateway in CPU time, by the kernel's account of its process."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import psutil

from bench.gatewayhost import Host, Replica
from bench.measure import percentile

WARM_UP_SECONDS = 2.0
CONNECTIONS = 64
PROMPT = "The quick brown fox jumps over the lazy dog. " * 12
"""About half a kilobyte, as a chat's turn has."""


def stub_replica(*, pace_seconds: float = 0.02, seats: int = 100_000) -> Replica:
    """An engine that costs next to nothing."""
    return Replica(
        command=["-m", "bench.gatewaystub"],
        environment={"ENGINE_STUB_PACE": str(pace_seconds)},
        kv_blocks=1_000_000,
        max_num_seqs=seats,
    )


@asynccontextmanager
async def bare_proxy(engine: str) -> AsyncIterator[Host]:
    """Run the baseline in front of one engine."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.bareproxy", engine, stdout=PIPE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        url = f"{line.split(' on ')[1].strip()}/v1"
        yield Host(url=url, admin_url="", model="tiny", process=psutil.Process(process.pid), engines=(engine,))
    finally:
        process.kill()
        await process.wait()


@dataclass(frozen=True)
class Cost:
    """CPU microseconds of the gateway per unit of work, and how much work that was."""

    cpu_us: float
    units: int
    seconds: float
    latency_p50_ms: float
    latency_p99_ms: float


class _Client(asyncio.Protocol):
    """A connection that sends requests one after the other and reads each answer to its end."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._tail = b""
        self._left = -1
        self._waiter: asyncio.Future[None] | None = None
        self._is_stream = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(exc or ConnectionResetError())

    def data_received(self, data: bytes) -> None:
        """Look for the end of the answer."""
        if self._is_stream:
            self._tail = (self._tail + data)[-5:]
            if self._tail == b"0\r\n\r\n":
                self._end()
            return
        if self._left < 0:
            head, _, rest = data.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"not served: {data[:300]!r}")
            mark = head.lower().find(b"content-length:")
            self._left = int(head[mark + 15 :].split(b"\r\n", 1)[0]) - len(rest)
        else:
            self._left -= len(data)
        if self._left == 0:
            self._end()

    def _end(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def ask(self, request: bytes, *, stream: bool) -> None:
        """Send a request and wait for the end of its answer."""
        self._is_stream, self._left, self._tail = stream, -1, b""
        self._waiter = asyncio.get_running_loop().create_future()
        assert self.transport is not None
        self.transport.write(request)
        await self._waiter


def _request(host: Host, **fields: object) -> tuple[str, int, bytes]:
    at = urlsplit(host.url)
    body = json.dumps({"model": host.model, "prompt": PROMPT, **fields}, separators=(",", ":")).encode()
    head = (
        f"POST {at.path}/completions HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return at.hostname or "", at.port or 0, head.encode() + body


async def request_cost(host: Host, *, rate: float, seconds: float) -> Cost:
    """Send answers that are not streamed, at a fixed rate, over kept connections."""
    name, port, request = _request(host, max_tokens=16)
    loop = asyncio.get_running_loop()
    idle: asyncio.LifoQueue[_Client] = asyncio.LifoQueue()
    for _ in range(CONNECTIONS):
        _, client = await loop.create_connection(_Client, name, port)
        idle.put_nowait(client)
    latencies: list[float] = []

    async def one() -> None:
        client = await idle.get()
        started = time.perf_counter()
        await client.ask(request, stream=False)
        latencies.append(time.perf_counter() - started)
        idle.put_nowait(client)

    async def send(count: int) -> None:
        tasks = []
        begun = time.perf_counter()
        for number in range(count):
            if (wait := begun + number / rate - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one()))
        await asyncio.gather(*tasks)

    await send(round(rate * WARM_UP_SECONDS))
    latencies.clear()
    return await _measured(host, send(round(rate * seconds)), round(rate * seconds), latencies)


async def chunk_cost(host: Host, *, streams: int, tokens: int) -> Cost:
    """Read streams at the pace of the engine, all at once."""
    name, port, request = _request(host, max_tokens=tokens, stream=True)
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(_Client, name, port))[1] for _ in range(streams)]
    latencies: list[float] = []

    async def one(client: _Client) -> None:
        started = time.perf_counter()
        await client.ask(request, stream=True)
        latencies.append(time.perf_counter() - started)

    async def all_of_them() -> None:
        await asyncio.gather(*(one(client) for client in clients))

    return await _measured(host, all_of_them(), streams * tokens, latencies)


async def _measured(host: Host, work: Awaitable[None], units: int, latencies: list[float]) -> Cost:
    cpu, started = host.cpu_seconds(), time.perf_counter()
    await work
    spent, took = host.cpu_seconds() - cpu, time.perf_counter() - started
    return Cost(
        cpu_us=spent / units * 1e6,
        units=units,
        seconds=took,
        latency_p50_ms=(percentile(latencies, 0.5) or 0) * 1e3,
        latency_p99_ms=(percentile(latencies, 0.99) or 0) * 1e3,
    )
