"""An engine that costs next to nothing, so that what is measured is the gateway: `python -m bench.gatewaystub HOST`.

A request for a stream gets `max_tokens` events, one each `ENGINE_STUB_PACE` seconds (0 sends them at once, one write
each), any other one answer. The bytes are a real engine's in form and length.
"""

import asyncio
import json
import os
import sys
from typing import cast

import uvloop

from bayplan.api.names import ENGINE_PORT

_EVENT = (
    b'data: {"id":"cmpl-bayplan-0123456789ab-1","object":"text_completion","created":1764460800,"model":"tiny",'
    b'"choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
)
_LAST = (
    b'data: {"id":"cmpl-bayplan-0123456789ab-1","object":"text_completion","created":1764460800,"model":"tiny",'
    b'"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null}]}\n\n'
    b"data: [DONE]\n\n"
)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
_ANSWER = json.dumps(
    {
        "id": "cmpl-bayplan-0123456789ab-1",
        "object": "text_completion",
        "created": 1764460800,
        "model": "tiny",
        "choices": [{"index": 0, "text": " token" * 16, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 16, "total_tokens": 32, "completion_tokens": 16},
    }
).encode()
_WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_ANSWER) + _ANSWER


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP's chunked coding."""
    return b"%x\r\n" % len(data) + data + b"\r\n"


_CHUNK, _END = chunk(_EVENT), chunk(_LAST) + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection from the gateway."""

    def __init__(self, pace_seconds: float) -> None:
        self._pace = pace_seconds
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """Write no more."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Answer each whole request."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            if head.startswith(b"get "):
                self._nothing()
                return
            mark = head.find(b"content-length:")
            length = int(head[mark + 15 :].split(b"\r\n", 1)[0]) if mark >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(body)

    def _nothing(self) -> None:
        """It has no metrics."""
        assert self._transport is not None
        self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self._transport.close()

    def _answer(self, body: bytes) -> None:
        assert self._transport is not None
        if b'"stream":true' not in body:
            self._transport.write(_WHOLE)
            return
        self._transport.write(_HEAD)
        self._next(int(json.loads(body)["max_tokens"]))

    def _next(self, left: int) -> None:
        if self._transport is None:
            return
        if left == 0:
            self._transport.write(_END)
            return
        self._transport.write(_CHUNK)
        asyncio.get_running_loop().call_later(self._pace, self._next, left - 1)


async def _serve(host: str, pace_seconds: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(pace_seconds), host, ENGINE_PORT)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], float(os.environ.get("ENGINE_STUB_PACE", "0.02"))))
