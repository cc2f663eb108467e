"""Request bodies, read whole within bounds of size, time, and memory of all of them together."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from bayplan.gateway.refusals import RefusalCode, Refused


class Buffers:
    """How many bytes are kept for requests in progress. Raises Refused (503) beyond the bound."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self.taken = 0
        """Bytes that are kept now; give back by taking off."""

    @contextmanager
    def lease(self) -> Iterator["BufferLease"]:
        """Give back at the end of the block whatever was taken in it."""
        lease = BufferLease(self)
        try:
            yield lease
        finally:
            lease.give_back()

    def take(self, count: int) -> None:
        """Take so many bytes; raises Refused (503)."""
        if self.taken + count > self._most:
            raise Refused(RefusalCode.GATEWAY_BUSY, "too many large requests are in progress")
        self.taken += count

    def take_spare(self, count: int) -> bool:
        """Take so many bytes if half of the bound stays free: for what may as well be left undone."""
        if 2 * (self.taken + count) > self._most:
            return False
        self.taken += count
        return True


class BufferLease:
    """What one request has taken."""

    __slots__ = ("_buffers", "_taken")

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._taken = 0

    def take(self, count: int) -> None:
        """Take so many bytes more; raises Refused (503)."""
        self._buffers.take(count)
        self._taken += count

    def give_back(self) -> None:
        """Give everything back."""
        self._buffers.taken -= self._taken
        self._taken = 0


async def read_body(request: web.Request, lease: BufferLease, *, most_bytes: int, seconds: float) -> bytes:
    """Return the body. Raises Refused: 413, 408 or 503."""
    check_length(request, most_bytes)
    content = request.content
    if content.is_eof() and content.exception() is None:
        # It came with its head, as most do.
        whole = content.read_nowait(-1)
        if len(whole) > most_bytes:
            raise _too_large(most_bytes)
        lease.take(len(whole))
        return whole
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while part := await content.readany():
                size += len(part)
                if size > most_bytes:
                    raise _too_large(most_bytes)
                lease.take(len(part))
                parts.append(part)
    except TimeoutError:
        raise Refused(RefusalCode.BODY_TOO_SLOW, f"the body did not arrive whole within {seconds:g} s") from None
    except (web.RequestPayloadError, ValueError, EOFError):
        raise Refused(RefusalCode.INVALID_REQUEST, "the body breaks off or is not encoded as its headers say") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_length(request: web.Request, most_bytes: int) -> None:
    """Refuse (413) by the stated length, before a byte of the body is read."""
    stated = request.content_length
    if stated is not None and stated > most_bytes:
        raise _too_large(most_bytes)


def _too_large(most_bytes: int) -> Refused:
    return Refused(RefusalCode.BODY_TOO_LARGE, f"the body must have at most {most_bytes} bytes")
