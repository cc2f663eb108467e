"""Events for people: one per fact about an object, repeats within a window counted in its series.

What differs in its note is another fact: a second crash with another exit code is worth as much as the first. Ten
notes of one reason are told apart in a window; what comes then is counted with the last of them. Each new fact is
logged as well, for those who read logs and not events.

Recording never waits and never fails a reconcile: it fills a bounded queue that one task empties. What does not fit,
or is refused, is dropped and counted. A burst of events is spread over time: the API server that places hundreds of
models has better things to do than to store the story of it at once.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Literal

from bayplan.cluster.clock import Clock, SystemClock, sleep
from bayplan.cluster.errors import AlreadyExists, ApiError, LeaseLost
from bayplan.cluster.port import Json, Port
from bayplan.cluster.resources import EVENTS, Key, Resource

logger = logging.getLogger(__name__)

MAX_QUEUED = 5000
BURST = 100
PER_SECOND = 25.0
"""So many events are written at once, then at this rate; each carries the time at which it was recorded."""
MAX_REMEMBERED = 1024
MAX_NOTES = 10
"""Different notes of one object and reason in a window, as many as Kubernetes' own recorder tells apart."""
WINDOW_SECONDS = 600.0
SERIES_SECONDS = 60.0
"""A growing series is written at most this often."""
MAX_NOTE = 1024
MAX_NAME = 253

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that an event is about."""

    resource: Resource
    key: Key
    uid: str


_Kind = tuple[str, str, str]
"""Object's uid, type, reason."""


@dataclass(slots=True)
class _Entry:
    kind: _Kind
    note: str
    namespace: str
    name: str
    body: Json | None
    """Until it is written; afterwards only what a series needs is kept."""
    last_at: float
    written_at: float = 0.0
    count: int = 1
    written_count: int = 0
    queued: bool = True


class EventRecorder:
    """Records events as `controller`/`instance`. Run `run()` as a task; `record` works before and after, too."""

    def __init__(
        self,
        api: Port,
        *,
        controller: str,
        instance: str,
        clock: Clock | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.dropped = 0
        """Events not written: the queue was full, or the server refused them."""
        self._api = api
        self._controller = controller
        self._instance = instance[:128]
        self._clock = clock or SystemClock()
        self._now = now
        self._entries: OrderedDict[_Kind, dict[str, _Entry]] = OrderedDict()
        """By kind and note."""
        self._queue: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._next_turn = 0.0
        """When the next event may be written at the rate; as far behind the clock as a burst is long."""

    def record(self, subject: Subject, type_: EventType, reason: str, note: str, *, action: str = "Reconcile") -> None:
        """Record that `reason` holds for `subject`. Never blocks, never raises.

        The same reason and note for the same object again within ten minutes only counts up.
        """
        now = self._clock.time()
        kind = (subject.uid, type_, reason)
        self._forget_old(now)
        entries = self._entries.setdefault(kind, {})
        self._entries.move_to_end(kind)
        for old in [note for note, entry in entries.items() if now - entry.last_at >= WINDOW_SECONDS]:
            del entries[old]
        entry = entries.get(note)
        if entry is None and len(entries) >= MAX_NOTES:
            entry = next(reversed(entries.values()))
        if entry is not None:
            entry.count += 1
            entry.last_at = now
            return
        logger.info("%s %s: %s: %s", subject.resource.kind, subject.key, reason, note)
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            return
        stamp = self._stamp()
        digest = blake2b(f"{kind} {note} {stamp}".encode(), digest_size=8).hexdigest()
        entry = _Entry(
            kind=kind,
            note=note,
            namespace=subject.key.namespace or "default",
            name=f"{subject.key.name[: MAX_NAME - 17]}.{digest}",
            body=self._body(subject, type_, reason, note, action=action, stamp=stamp),
            last_at=now,
        )
        entries[note] = entry
        while len(self._entries) > MAX_REMEMBERED:
            self._entries.popitem(last=False)
        self._queue.append(entry)
        self._wake.set()

    async def run(self) -> None:
        """Write what is recorded, until cancelled."""
        while True:
            while self._queue:
                await self._take_turn()
                await self._write_next()
            self._wake.clear()
            await self._idle()
            self._queue_grown_series()

    async def flush(self) -> None:
        """Write what is queued now, without turns; for the end of a process."""
        while self._queue:
            await self._write_next()

    # --- inside --------------------------------------------------------------------------------------------------

    async def _take_turn(self) -> None:
        """Wait until the rate allows another event."""
        now = self._clock.time()
        self._next_turn = max(self._next_turn, now - BURST / PER_SECOND) + 1 / PER_SECOND
        await sleep(self._clock, self._next_turn - now)

    async def _idle(self) -> None:
        """Wait for a record, at most until series are due."""
        timer = self._clock.call_later(SERIES_SECONDS, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _forget_old(self, now: float) -> None:
        """Drop kinds whose window has passed; the one that was recorded longest ago comes first."""
        while self._entries:
            kind, entries = next(iter(self._entries.items()))
            if any(now - entry.last_at < WINDOW_SECONDS for entry in entries.values()):
                return
            del self._entries[kind]

    def _queue_grown_series(self) -> None:
        now = self._clock.time()
        for entry in (entry for entries in self._entries.values() for entry in entries.values()):
            grown = entry.count > entry.written_count
            if grown and not entry.queued and now - entry.written_at >= SERIES_SECONDS:
                entry.queued = True
                self._queue.append(entry)

    async def _write_next(self) -> None:
        if not self._queue:
            return  # written by a flush meanwhile
        entry = self._queue.popleft()
        entry.queued = False
        count = entry.count
        try:
            if entry.body is not None:
                body = {**entry.body, "metadata": {"name": entry.name, "namespace": entry.namespace}}
                await self._api.create_event(entry.namespace, body)
            else:
                series = {"count": count, "lastObservedTime": self._stamp()}
                await self._api.patch_merge(EVENTS, entry.namespace, entry.name, {"series": series})
        except AlreadyExists:
            pass  # The name is this entry's alone: an earlier try was done and its answer lost.
        except (ApiError, LeaseLost) as error:
            # Not worth a second try: the next time it happens is a new event.
            self.dropped += 1
            entries = self._entries.get(entry.kind, {})
            if entries.get(entry.note) is entry:
                del entries[entry.note]
            logger.info("event %s not written: %s", entry.kind[2], error)
            await sleep(self._clock, getattr(error, "retry_after", None) or 0.0)
            return
        entry.written_count = 1 if entry.body is not None else count
        entry.body = None
        entry.written_at = self._clock.time()

    def _body(self, subject: Subject, type_: EventType, reason: str, note: str, *, action: str, stamp: str) -> Json:
        regarding = {
            "apiVersion": subject.resource.api_version,
            "kind": subject.resource.kind,
            "name": subject.key.name,
            "uid": subject.uid,
        }
        if subject.key.namespace:
            regarding["namespace"] = subject.key.namespace
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "eventTime": stamp,
            "type": type_,
            "reason": reason[:128],
            "note": note if len(note) <= MAX_NOTE else note[: MAX_NOTE - 1] + "…",
            "action": action[:128],
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "regarding": regarding,
        }

    def _stamp(self) -> str:
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
