"""Requests that both engines understand alike: prompts as token ids, so that no tokenizer has a say in the counts."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from e2e.conformance.engines import MODEL, Engine
from e2e.conformance.records import EventStream, parse_events

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
FIRST_ID = 40
IDS = 200
"""Prompt ids are FIRST_ID … FIRST_ID + IDS - 1: ordinary tokens of both engines."""


def token_ids(count: int, *, seed: int = 0) -> list[int]:
    """A prompt of exactly `count` tokens; prompts of different seeds share no block."""
    return [FIRST_ID + (position * 7 + position // 11 + seed * 31) % IDS for position in range(count)]


def completion(prompt: object, *, max_tokens: int, **fields: object) -> dict[str, Any]:
    """Body of a completion that runs to its limit and always says the same."""
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }


def chat(content: object = "Where is the hatch?", *, max_tokens: int, **fields: object) -> dict[str, Any]:
    """Body of a chat completion of one user message."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }


@dataclass(frozen=True)
class Streamed:
    """A finished stream."""

    status: int
    content_type: str
    events: EventStream
    closed_cleanly: bool
    """Whether the body ended as HTTP says, not by a broken connection."""

    @property
    def finish_reasons(self) -> list[str]:
        """Every finish reason in the stream."""
        return [
            choice["finish_reason"]
            for chunk in self.events.chunks()
            for choice in chunk.get("choices", ())
            if choice.get("finish_reason") is not None
        ]

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The last usage that the stream carried."""
        found: Mapping[str, Any] | None = None
        for chunk in self.events.chunks():
            found = chunk.get("usage") or found
        return found


class OpenStream:
    """A stream that is being read; `first` is set once its first event has come."""

    def __init__(self, engine: Engine, path: str, body: Mapping[str, Any]) -> None:
        self.first = asyncio.Event()
        self._engine = engine
        self._path = path
        self._body = dict(body)
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> Streamed:
        received = bytearray()
        clean = True
        async with self._engine.client.post(self._engine.url + self._path, json=self._body) as response:
            try:
                async for piece in response.content.iter_any():
                    received += piece
                    if b"\n\n" in received:
                        self.first.set()
            except (aiohttp.ClientPayloadError, TimeoutError):
                # The real engine has been seen to lose its core at SIGTERM and to leave its streams open and silent.
                clean = False
            self.first.set()
            return Streamed(
                status=response.status,
                content_type=response.headers.get("Content-Type", ""),
                events=parse_events(bytes(received)),
                closed_cleanly=clean,
            )

    @property
    def finished(self) -> bool:
        """Whether the body has ended."""
        return self._task.done()

    async def result(self) -> Streamed:
        """The whole stream."""
        return await self._task

    async def disconnect(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def stream(engine: Engine, path: str, body: Mapping[str, Any]) -> Streamed:
    """Read one stream to its end."""
    return await OpenStream(engine, path, {**body, "stream": True}).result()
