"""Copies of requests for a candidate that has no users yet: sent beside the request itself, their answers dropped.

A copy holds room on the candidate like a request, and yields in everything else: it never waits, none is begun while
anybody waits or the gateway is busy, its answer is read to a bound and thrown away, it is billed to nobody and no
outcome of a user's. It ends early when its request is given up, or the candidate gets requests of its own.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from bayplan.gateway.accounts import Job, account
from bayplan.gateway.bodies import Buffers
from bayplan.gateway.delivery import Services
from bayplan.gateway.evidence import Cause, RowKey
from bayplan.gateway.places import CopyPlace, Place
from bayplan.gateway.pools import Pool
from bayplan.gateway.relay import RESCHEDULE_SECONDS, NotServedError, Relayed, read_progress
from bayplan.gateway.sse import EventReader
from bayplan.gateway.upstream import Answer, EngineBrokeOffError, EngineUnreachableError
from bayplan.planning.admission.records import AdmissionRequest
from bayplan.planning.gates.counts import Arm

MOST_COPIES = 128
"""Copies under way at the same time."""
MOST_COPY_BYTES = 2**20
"""More of an answer is not read: the copy is given up and counts as no error."""
TAG = "-copy"
"""End of a copy's request id."""


class CopyOutcome(StrEnum):
    """What became of a request that the plan wants copied."""

    SENT = "sent"
    DROPPED = "dropped"
    """No room on the candidate, or the gateway had better things to do."""


class Copies:
    """All copies of this gateway."""

    def __init__(self, services: Services, buffers: Buffers) -> None:
        self.counts: Counter[tuple[str, str, CopyOutcome]] = Counter()
        """By namespace, model and outcome."""
        self._services = services
        self._buffers = buffers
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, pool: Pool, place: Place, asked: AdmissionRequest, job: Job, payload: Callable[[], bytes]
    ) -> "asyncio.Task[None] | None":
        """Begin a copy of the request that `place` was given to, if the plan wants one and nothing speaks against it.

        `payload` makes its body. Cancelling the task ends the copy.
        """
        if not pool.wants_copy(place):
            return None
        key = pool.model.key
        room = pool.copy(asked) if len(self._tasks) < MOST_COPIES else None
        body = b"" if room is None else payload()
        if room is not None and not self._buffers.take_spare(len(body)):
            room.release()
            room = None
        if room is None:
            self.counts[key.namespace, key.name, CopyOutcome.DROPPED] += 1
            return None
        self.counts[key.namespace, key.name, CopyOutcome.SENT] += 1
        own = replace(job, request_id=job.request_id + TAG, keep_bytes=0)
        task = asyncio.get_running_loop().create_task(self._run(pool, room, own, body), name="copy")
        room.on_lost = task.cancel
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(task, room, len(body)))
        return task

    def retain(self, models: set[tuple[str, str]]) -> None:
        """Forget what is about models that exist no more."""
        for key in [key for key in self.counts if key[:2] not in models]:
            del self.counts[key]

    async def close(self) -> None:
        """End all."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- inside

    def _ended(self, task: asyncio.Task[None], room: CopyPlace, taken: int) -> None:
        self._tasks.discard(task)
        self._buffers.taken -= taken
        room.release()

    async def _run(self, pool: Pool, room: CopyPlace, job: Job, body: bytes) -> None:
        head = self._services.directory.head(room.replica)
        if head is None or head.address is None or head.draining:
            return
        key, now_ns = pool.model.key, self._services.now_ns
        row = self._services.evidence.row(
            RowKey(key.namespace, key.name, head.uid, head.revision, Arm.SHADOW, job.workload_class)
        )
        relayed = Relayed()
        row.begin(now_ns())
        cause: Cause | None = Cause.CANCELLED
        try:
            cause = await self._exchange(head.address, job, body, relayed)
        finally:
            account(row, job, relayed, cause, now_ns=now_ns())

    async def _exchange(self, address: str, job: Job, body: bytes, relayed: Relayed) -> Cause | None:
        settings = self._services.settings
        answer: Answer | None = None
        try:
            limit = settings.silence_seconds if job.stream else settings.whole_answer_seconds
            async with asyncio.timeout(limit) as patience:
                answer = await self._services.upstream.send(address, job.path, body, job.request_id)
                if answer.status != 200:
                    return Cause.REFUSED if 400 <= answer.status < 500 and answer.status != 429 else Cause.FAILED
                if job.stream:
                    return await self._read_stream(answer, relayed, patience)
                return await self._read_whole(answer, relayed)
        except TimeoutError:
            return Cause.TIMEOUT
        except EngineUnreachableError:
            return Cause.UNREACHABLE
        except EngineBrokeOffError:
            return Cause.CUT if relayed.progress.produced else Cause.FAILED
        finally:
            if answer is not None:
                answer.close()

    async def _read_stream(self, answer: Answer, relayed: Relayed, patience: asyncio.Timeout) -> Cause | None:
        reader, loop = EventReader(), asyncio.get_running_loop()
        progress = relayed.progress = reader.progress
        size, moved = 0, 0.0
        while chunk := await answer.read():
            size += len(chunk)
            if size > MOST_COPY_BYTES:
                return Cause.CANCELLED
            if (now := loop.time()) - moved > RESCHEDULE_SECONDS:
                moved = now
                patience.reschedule(now + self._services.settings.silence_seconds)
            events = progress.output_events
            reader.feed(chunk)
            if progress.output_events != events:
                relayed.last_token_ns = token_ns = self._services.now_ns()
                relayed.first_token_ns = relayed.first_token_ns or token_ns
        if not progress.produced and not progress.choices_ended:
            return Cause.CUT if progress.aborted else Cause.FAILED
        return None if progress.done and not progress.aborted else Cause.CUT

    async def _read_whole(self, answer: Answer, relayed: Relayed) -> Cause | None:
        parts: list[bytes] = []
        size = 0
        while chunk := await answer.read():
            size += len(chunk)
            if size > MOST_COPY_BYTES:
                return Cause.CANCELLED
            parts.append(chunk)
        try:
            read_progress(b"".join(parts), relayed.progress)
        except NotServedError as error:
            return error.cause
        return None
