"""The bytes of a watch: lines of JSON of any length, cut wherever the network likes."""

from collections.abc import AsyncIterator
from typing import Protocol

from bayplan.cluster.codec import loads
from bayplan.cluster.errors import Unreachable, error_from_status
from bayplan.cluster.port import WatchEvent

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Far above any object that the server stores; a longer line is not the API's."""
_TYPES = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})


class ByteStream(Protocol):
    """What is needed of aiohttp's StreamReader."""

    def iter_any(self) -> AsyncIterator[bytes]:
        """Yield bytes as they arrive."""


async def lines(stream: ByteStream) -> AsyncIterator[bytes]:
    """Yield complete lines without their end, in linear time however long they are.

    What follows the last line end is dropped: a cut line is no event, and the watch is continued from the last one.
    """
    held: list[bytes] = []
    size = 0
    async for chunk in stream.iter_any():
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            held.append(part)
            line = b"".join(held)
            held.clear()
            size = 0
            if line.strip():
                yield line
        if rest:
            held.append(rest)
            size += len(rest)
            if size > MAX_LINE_BYTES:
                raise Unreachable(f"a watch line of more than {MAX_LINE_BYTES} bytes is not the API's")


def decode_event(line: bytes, *, exact_numbers: bool) -> WatchEvent:
    """Decode one line. Raises the named error of an ERROR event, Unreachable for anything that is not an event."""
    try:
        event = loads(line, exact_numbers=exact_numbers)
        kind, subject = event["type"], event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise Unreachable(f"a watch line is not an event: {line[:80]!r}") from error
    if not isinstance(subject, dict):
        raise Unreachable(f"a watch event without an object: {line[:80]!r}")
    if kind == "ERROR":
        code = subject.get("code")
        raise error_from_status(subject, status=code if isinstance(code, int) else 500)
    if kind not in _TYPES or not isinstance(subject.get("metadata"), dict):
        raise Unreachable(f"a watch line is not an event: {line[:80]!r}")
    return WatchEvent(kind, subject)
