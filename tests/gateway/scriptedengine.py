"""An engine that does exactly what a test says, byte by byte, on the engine's port of an address of its own."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bayplan.api.names import ENGINE_PORT
from tests.gateway.gatewaytown import loopback

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Connection:
    """One exchange: read `request`, then write."""

    request: Received
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def answer(self, status: int, body: object, *, headers: str = "") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
        await self.send(head.encode() + data)

    def reset(self) -> None:
        """Tear the connection with a RST."""
        transport: Any = self.writer.transport
        transport.abort()

    async def until_client_leaves(self) -> None:
        with suppress(ConnectionError):
            while await self.reader.read(1024):
                pass


Script = Callable[[Connection], Awaitable[None]]


def event(text: str, *, finish: str | None = None, index: int = 0) -> bytes:
    """One completion event as vLLM writes it."""
    choice = {"index": index, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def whole_stream(connection: Connection, tokens: int = 5) -> None:
    """A stream as it should be."""
    await connection.send(HEAD)
    for _ in range(tokens):
        await connection.chunk(event("x"))
    await connection.chunk(event("", finish="stop") + DONE)
    await connection.chunk(b"")


async def whole_answer(connection: Connection) -> None:
    """An answer as it should be."""
    choices = [{"index": 0, "text": "hi", "finish_reason": "stop"}]
    await connection.answer(200, {"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


@dataclass
class ScriptedEngine:
    """Plays one script per generation request; the last one is repeated."""

    scripts: list[Script]
    host: str = field(default_factory=loopback)
    received: list[Received] = field(default_factory=list)
    metrics: str = ""
    """What `/metrics` answers; without a text 404."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has left an exchange."""

    async def start(self) -> "ScriptedEngine":
        self._server = await asyncio.start_server(self._serve, self.host, ENGINE_PORT)
        self._tasks: set[asyncio.Task[None]] = set()
        return self

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:]) if k}
                if head[0].startswith("GET /metrics "):
                    status = 200 if self.metrics else 404
                    await Connection(Received("/metrics", headers, {}), writer, reader).answer(
                        status, self.metrics.encode(), headers="Connection: close\r\n"
                    )
                    break
                body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
                self.received.append(Received(head[0].split(" ")[1], headers, body))
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                await script(Connection(self.received[-1], writer, reader))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            self.left.set()
        finally:
            self._tasks.discard(task)
            writer.close()
