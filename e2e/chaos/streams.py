"""What may happen to the lines of a watch on their way."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from e2e.chaos import replies
from e2e.chaos.apirequest import ApiRequest
from e2e.chaos.faults import FaultClass, Tamper
from e2e.chaos.snapshots import History

DELAY_SECONDS = (0.1, 1.5)


class Bytes(Protocol):
    """What is read: aiohttp's StreamReader."""

    def iter_any(self) -> AsyncIterator[bytes]:
        """Yield bytes as they arrive."""


class Sink(Protocol):
    """What is written: aiohttp's StreamResponse."""

    async def write(self, data: bytes) -> None:
        """Send bytes to the client."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What a stream asks of its proxy."""

    tamper: Tamper
    history: History
    count: Callable[[FaultClass], None]
    freeze: Callable[[int], None]
    """Let the resource stand still at a version."""
    thawed: Callable[[], Awaitable[None]]
    gap: Callable[[], None]
    """Refuse the next watch with 410."""
    lasting: Callable[[FaultClass], AbstractContextManager[None]]
    """Mark a fault as not over yet."""


class Freezer:
    """Resources that stand still, each at a version and for a time."""

    def __init__(self) -> None:
        self._frozen: dict[str, tuple[int, asyncio.Event]] = {}

    def freeze(self, resource: str, version: int, seconds: float) -> None:
        """Stop a resource; one that stands already stays where it is."""
        if resource in self._frozen:
            return
        thawed = asyncio.Event()
        self._frozen[resource] = (version, thawed)

        def thaw() -> None:
            del self._frozen[resource]
            thawed.set()

        asyncio.get_running_loop().call_later(seconds, thaw)

    @property
    def standing(self) -> bool:
        """Whether any resource stands still."""
        return bool(self._frozen)

    def version(self, resource: str) -> int | None:
        """Return the version at which a resource stands, None while it moves."""
        found = self._frozen.get(resource)
        return found[0] if found else None

    async def thawed(self, resource: str) -> None:
        """Return when the resource moves."""
        while (found := self._frozen.get(resource)) is not None:
            await found[1].wait()


async def relay(source: Bytes, sink: Sink, *, watch: ApiRequest, ways: Ways) -> bool:
    """Copy a watch line by line, doing to each event what the tamper says.

    Returns whether the stream ended well; when not, the connection is to be cut.
    """
    rest, before = b"", b""
    async for chunk in source.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for text in filter(None, lines):
            line = text + b"\n"
            await ways.thawed()
            kind, version = _read(line)
            ways.history.note(version)
            fault = ways.tamper.on_event(watch, kind) if kind in ("ADDED", "MODIFIED", "DELETED") else None
            ending = await _pass_on(line, before, sink, fault=fault, version=version, ways=ways)
            if ending is not None:
                return ending
            before = line
    return True


async def _pass_on(
    line: bytes, before: bytes, sink: Sink, *, fault: FaultClass | None, version: str, ways: Ways
) -> bool | None:
    """Write one line, or what stands in for it. Return None to go on, else whether the stream ended well."""
    if fault is not None:
        ways.count(fault)
    match fault:
        case FaultClass.WATCH_DROPPED:
            return False
        case FaultClass.WATCH_CUT:
            await sink.write(line[: len(line) // 2])
            return False
        case FaultClass.WATCH_EXPIRED:
            ways.gap()
            return False
        case FaultClass.WATCH_ERROR:
            await sink.write(replies.error_event(500, "InternalError"))
            return True
        case FaultClass.HTML:
            await sink.write(replies.PAGE)
            return True
        case FaultClass.WATCH_SILENT:
            with ways.lasting(fault):
                await asyncio.Event().wait()  # until the client gives up, which cancels this
        case FaultClass.WATCH_DELAYED:
            low, high = DELAY_SECONDS
            with ways.lasting(fault):
                await asyncio.sleep(low + (high - low) * ways.tamper.extent(fault))
            await sink.write(line)
        case FaultClass.WATCH_DUPLICATED:
            await sink.write(line + line + before)
        case FaultClass.FROZEN_KIND:
            ways.freeze(int(version) - 1)
            await ways.thawed()
            await sink.write(line)
        case _:
            await sink.write(line)
    return None


def _read(line: bytes) -> tuple[str, str]:
    event = json.loads(line)
    return event["type"], str((event["object"].get("metadata") or {}).get("resourceVersion") or "")
