"""A tap on the wire before an engine: forwards bytes both ways and keeps the bodies of what the engine answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httptools


class _Bodies:
    """Takes the bodies out of a connection's answers."""

    def __init__(self, kept: list[bytes]) -> None:
        self._kept = kept
        self._parts: list[bytes] = []

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._kept.append(b"".join(self._parts))
        self._parts.clear()


@asynccontextmanager
async def tap(listen: tuple[str, int], engine: tuple[str, int]) -> AsyncIterator[list[bytes]]:
    """Forward from one address to the other; the list grows by each whole body that the engine sends."""
    kept: list[bytes] = []
    tasks: set[asyncio.Task[Any]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: Any) -> None:
        try:
            while data := await reader.read(65_536):
                if parser is not None:
                    parser.feed_data(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)
        try:
            upstream, downstream = await asyncio.open_connection(*engine)
        except OSError:
            writer.transport.abort()
            return
        parser = httptools.HttpResponseParser(_Bodies(kept))
        with suppress(asyncio.CancelledError):
            await asyncio.gather(forward(reader, downstream, None), forward(upstream, writer, parser))

    server = await asyncio.start_server(serve, *listen)
    try:
        yield kept
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
