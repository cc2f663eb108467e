"""The classes of faults, and which request or event meets one: decided by a seed, not by the order of arrival.

The i-th request of one kind meets the same fate under the same seed, whatever other requests come in between.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from e2e.chaos.apirequest import ApiRequest


class FaultClass(StrEnum):
    """What can go wrong between a client and the API server."""

    CRASH_BEFORE_WRITE = "crash-before-write"
    CRASH_AFTER_WRITE = "crash-after-write"
    CONFLICT = "conflict"
    """409; nothing was done."""
    INVALID = "invalid"
    """422; nothing was done."""
    THROTTLED = "throttled"
    """429 with Retry-After; nothing was done."""
    ERROR_AFTER_SUCCESS = "error-after-success"
    """500; the write was done."""
    SILENCE_AFTER_SUCCESS = "silence-after-success"
    """The write was done, and no answer comes until the client gives up."""
    HTML = "html"
    """A middle box answers in HTML: 502, or 200 with a page, or a page in the middle of a stream."""
    STALE_LIST = "stale-list"
    """A LIST is answered from an older snapshot."""
    STALE_GET = "stale-get"
    """A GET is answered from an older snapshot."""
    FROZEN_KIND = "frozen-kind"
    """One resource stands still in every read and watch while the others move on."""
    WATCH_DROPPED = "watch-dropped"
    """The stream ends before an event."""
    WATCH_DELAYED = "watch-delayed"
    """Events are late, in order."""
    WATCH_DUPLICATED = "watch-duplicated"
    """An event comes twice, and the one before it again after it."""
    WATCH_CUT = "watch-cut"
    """The stream ends in the middle of a line."""
    WATCH_SILENT = "watch-silent"
    """Nothing comes any more, bookmarks neither, and the connection stays."""
    WATCH_EXPIRED = "watch-expired"
    """The stream ends before a deletion, and the next watch is refused with 410."""
    WATCH_ERROR = "watch-error"
    """An ERROR event with code 500."""


CRASHES = frozenset({FaultClass.CRASH_BEFORE_WRITE, FaultClass.CRASH_AFTER_WRITE})
ON_WRITES = CRASHES | {
    FaultClass.CONFLICT,
    FaultClass.INVALID,
    FaultClass.THROTTLED,
    FaultClass.ERROR_AFTER_SUCCESS,
    FaultClass.SILENCE_AFTER_SUCCESS,
}
ON_EVENTS = frozenset(fault for fault in FaultClass if fault.startswith("watch-")) | {FaultClass.FROZEN_KIND}


class Tamper(Protocol):
    """Decides what is done to a request or an event. `None` leaves it alone."""

    def on_request(self, request: ApiRequest) -> FaultClass | None:
        """Decide about one request."""
        ...

    def on_event(self, watch: ApiRequest, event_type: str) -> FaultClass | None:
        """Decide about one ADDED, MODIFIED or DELETED of a watch."""
        ...

    def extent(self, fault: FaultClass) -> float:
        """Return a number in [0, 1) that says how long, how old, how much; drawn anew at each call."""
        ...


class Untouched:
    """Tampers with nothing."""

    def on_request(self, _: ApiRequest) -> FaultClass | None:
        """Leave every request alone."""
        return None

    def on_event(self, _watch: ApiRequest, _event_type: str) -> FaultClass | None:
        """Leave every event alone."""
        return None

    def extent(self, _: FaultClass) -> float:
        """Return 0: there is nothing to measure out."""
        return 0.0


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which classes, how likely at each opportunity, and how often each at most."""

    seed: int
    chances: Mapping[FaultClass, float]
    limit: int = 8
    """Injections per class; after the last one the world is left in peace."""


@dataclass(slots=True)
class SeededFaults:
    """A `Tamper` that follows a plan."""

    plan: FaultPlan
    chosen: Counter[FaultClass] = field(default_factory=Counter)
    stopped: bool = False
    _seen: Counter[tuple[FaultClass, str]] = field(default_factory=Counter)
    _drawn: Counter[FaultClass] = field(default_factory=Counter)

    def on_request(self, request: ApiRequest) -> FaultClass | None:
        """Decide about one request."""
        return next(
            (fault for fault in self.plan.chances if _meets(fault, request) and self._hits(fault, request)), None
        )

    def on_event(self, watch: ApiRequest, event_type: str) -> FaultClass | None:
        """Decide about one event; 410 only ever hides a deletion."""
        for fault in self.plan.chances:
            fits = fault in ON_EVENTS or fault is FaultClass.HTML
            if fault is FaultClass.WATCH_EXPIRED and event_type != "DELETED":
                continue
            if fits and self._hits(fault, watch):
                return fault
        return None

    def extent(self, fault: FaultClass) -> float:
        """Draw from the seed."""
        self._drawn[fault] += 1
        return random.Random(f"{self.plan.seed}|extent|{fault}|{self._drawn[fault]}").random()

    def stop(self) -> None:
        """Inject nothing more."""
        self.stopped = True

    def _hits(self, fault: FaultClass, request: ApiRequest) -> bool:
        index = self._seen[fault, request.kind_of_write]
        self._seen[fault, request.kind_of_write] += 1
        if self.stopped or self.chosen[fault] >= self.plan.limit:
            return False
        roll = random.Random(f"{self.plan.seed}|{fault}|{request.kind_of_write}|{index}").random()
        if roll >= self.plan.chances[fault]:
            return False
        self.chosen[fault] += 1
        return True


def _meets(fault: FaultClass, request: ApiRequest) -> bool:
    if not request.resource:
        return False
    if fault in ON_WRITES:
        return request.is_write
    if fault is FaultClass.STALE_LIST:
        return request.verb == "list"
    if fault is FaultClass.STALE_GET:
        return request.verb == "get"
    return fault is FaultClass.HTML
