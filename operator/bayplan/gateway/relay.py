"""One answer of an engine on its way to the client: bytes unchanged, chunk by chunk, read beside.

Until the engine has shown that it works on the request nothing is sent, so that the request can still go elsewhere.
From the first byte on it cannot: what fails then is cut off visibly, never ended as if it were whole.
"""

import asyncio
import time
from collections.abc import Callable

import orjson
from aiohttp import web

from bayplan.gateway.evidence import Cause
from bayplan.gateway.sse import EventReader, Progress
from bayplan.gateway.upstream import Answer, EngineError

MOST_HELD_BACK_BYTES = 64 * 1024
MOST_ANSWER_BYTES = 64 * 2**20
MOST_UNSENT_BYTES = 64 * 1024
"""While more than this waits for the client to take it, the engine has to wait as well."""
RESCHEDULE_SECONDS = 1.0
"""A time limit that starts anew with each chunk is moved at most this often; moving it costs as much as a write."""


class NotServedError(Exception):
    """The engine did not serve the request, and the client has seen nothing: it may go elsewhere."""

    def __init__(self, cause: Cause, what: str) -> None:
        super().__init__(what)
        self.cause = cause


class CutError(Exception):
    """The answer ended before its end, and the client has seen a part of it."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.value)
        self.cause = cause


class Relayed:
    """What came through, for accounts; filled while it happens, so that it is true after a failure as well."""

    __slots__ = ("_keep_most", "_kept", "_kept_bytes", "content_type", "first_token_ns", "last_token_ns", "progress")

    def __init__(self, *, keep_most_bytes: int = 0) -> None:
        self.progress = Progress()
        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None
        self.content_type = ""
        self._keep_most = keep_most_bytes
        self._kept: list[bytes] = []
        self._kept_bytes = 0

    def keep(self, chunk: bytes) -> None:
        """Keep what is sent, as long as it stays small enough to be kept whole."""
        self._kept_bytes += len(chunk)
        if self._kept_bytes > self._keep_most:
            self._kept.clear()
        else:
            self._kept.append(chunk)

    @property
    def kept(self) -> bytes | None:
        """The whole body, or None when it is too long to be kept."""
        return b"".join(self._kept) if 0 < self._kept_bytes <= self._keep_most else None


class StreamRelay:
    """Carries one stream."""

    def __init__(
        self,
        request: web.Request,
        *,
        silence_seconds: float,
        headers: dict[str, str],
        on_first_token: Callable[[], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.at_client = False
        """It is the client that takes its time, not the engine."""
        self._request = request
        self._silence_seconds = silence_seconds
        self._headers = headers
        self._on_first_token = on_first_token
        self._now_ns = now_ns
        self._response: web.StreamResponse | None = None
        self._transport: asyncio.Transport | None = None
        self._chunked = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._reader = EventReader()
        self._relayed: Relayed
        self._patience: asyncio.Timeout
        self._now = asyncio.get_running_loop().time
        self._renewed = 0.0

    async def carry(self, answer: Answer, relayed: Relayed, patience: asyncio.Timeout) -> web.StreamResponse:
        """Carry the whole body; each chunk renews the patience.

        Raises NotServedError before the first byte, CutError after it.
        """
        relayed.progress = self._reader.progress
        relayed.content_type = answer.content_type
        self._relayed, self._patience = relayed, patience
        try:
            while chunk := await answer.read():
                self._note(chunk)
                sent = self._sendable(chunk)
                if sent:
                    relayed.keep(sent)
                    self.at_client = True
                    await self._send(sent, answer)
                    self.at_client = False
                self._renew()
        except EngineError as error:
            raise self.failed(Cause.CUT, str(error)) from None
        return await self._end(relayed.progress)

    def failed(self, cause: Cause, what: str = "no byte came in time") -> Exception:
        """What it means that the stream ends here: not served while the client has seen nothing, else cut."""
        if self._response is None:
            return NotServedError(Cause.FAILED if cause is Cause.CUT else cause, what)
        return CutError(cause)

    def _pass_on(self, chunk: bytes) -> bool:
        """Write a chunk in the very call that brought it from the engine: that spares the loop a turn of this task."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._patience.expired():
            return False
        if transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            return False
        self._note(chunk)
        self._relayed.keep(chunk)
        transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk)
        self._renew()
        return True

    def _renew(self) -> None:
        now = self._now()
        if now - self._renewed > RESCHEDULE_SECONDS:
            self._renewed = now
            self._patience.reschedule(now + self._silence_seconds)

    def _note(self, chunk: bytes) -> None:
        relayed, progress = self._relayed, self._reader.progress
        before = progress.output_events
        self._reader.feed(chunk)
        if progress.output_events != before:
            relayed.last_token_ns = now = self._now_ns()
            if relayed.first_token_ns is None:
                relayed.first_token_ns = now
                self._on_first_token()

    def _sendable(self, chunk: bytes) -> bytes:
        """What may go to the client now; nothing while the engine has not shown that it serves."""
        if self._response is not None:
            return chunk
        self._held.append(chunk)
        self._held_bytes += len(chunk)
        progress = self._reader.progress
        if progress.produced or self._held_bytes > MOST_HELD_BACK_BYTES:
            return b"".join(self._held)
        if progress.choices_ended and not progress.aborted:
            return b"".join(self._held)
        return b""

    async def _send(self, data: bytes, answer: Answer) -> None:
        response = self._response
        if response is None:
            response = web.StreamResponse(headers={**self._headers, "Content-Type": answer.content_type})
            self._response = response
            self._held.clear()
            await response.prepare(self._request)
            await response.write(data)
            self._transport = self._request.transport
            self._chunked = response.headers.get("Transfer-Encoding") == "chunked"
            answer.pass_to(self._pass_on)
        else:
            await response.write(data)

    async def _end(self, progress: Progress) -> web.StreamResponse:
        if self._response is None:
            # It ended, but with nothing in it: that is how a draining engine turns a completion away.
            raise NotServedError(Cause.CUT if progress.aborted else Cause.FAILED, "the stream was empty")
        await self._response.write_eof()
        return self._response


async def read_whole(answer: Answer, relayed: Relayed) -> bytes:
    """Read an answer that is not streamed. Raises NotServedError: the client has seen nothing of it."""
    relayed.content_type = answer.content_type
    parts: list[bytes] = []
    size = 0
    try:
        while chunk := await answer.read():
            size += len(chunk)
            if size > MOST_ANSWER_BYTES:
                raise NotServedError(Cause.FAILED, f"the answer has more than {MOST_ANSWER_BYTES} bytes")
            parts.append(chunk)
    except EngineError as error:
        raise NotServedError(Cause.FAILED, str(error)) from None
    whole = parts[0] if len(parts) == 1 else b"".join(parts)
    if answer.status == 200:
        read_progress(whole, relayed.progress)
    return whole


def read_progress(body: bytes, progress: Progress) -> None:
    """Take in a whole answer. Raises NotServedError for what is no JSON, or was cut."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise NotServedError(Cause.FAILED, "the answer is not JSON") from None
    if isinstance(answer, dict):
        progress.read(answer)
    if progress.aborted:
        raise NotServedError(Cause.CUT, "the engine cut the generation")
