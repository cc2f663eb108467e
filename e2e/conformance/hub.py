"""A model hub on loopback: files of one gated model, by the requests that the hub's own client library makes."""

import hashlib
import json
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

HOST = "127.0.71.4"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What is served, and what was taken of it."""

    url: str
    token: str
    asked_without_token: int = 0
    sent_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of answers, by file."""


def checkpoint(tensors: Mapping[str, int]) -> bytes:
    """A safetensors file of 16-bit tensors of these numbers of elements, all zero."""
    entries: dict[str, Any] = {}
    end = 0
    for name, elements in tensors.items():
        entries[name] = {"dtype": "BF16", "shape": [elements], "data_offsets": [end, end + 2 * elements]}
        end += 2 * elements
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + bytes(end)


@asynccontextmanager
async def hub(model: str, files: Mapping[str, bytes], *, token: str) -> AsyncIterator[Hub]:
    """Serve `files` of `model` (owner/name) at every revision to whoever shows `token`."""
    found = Hub(url="", token=token)

    async def resolve(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {token}":
            found.asked_without_token += 1
            return web.Response(status=401, headers={"X-Error-Code": "GatedRepo"})
        name = request.match_info["file"]
        if name not in files:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        whole = files[name]
        part = request.http_range
        content = whole[part.start or 0 : part.stop]
        if request.method != "HEAD":
            found.sent_bytes[name] = found.sent_bytes.get(name, 0) + len(content)
        return web.Response(
            status=200 if len(content) == len(whole) else 206,
            body=content,
            headers={"ETag": f'"{hashlib.sha256(whole).hexdigest()}"', "X-Repo-Commit": COMMIT},
        )

    application = web.Application()
    application.router.add_get(f"/{model}/resolve/{{revision}}/{{file}}", resolve)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        found.url = f"http://{HOST}:{runner.addresses[0][1]}"
        yield found
    finally:
        await runner.cleanup()
