"""Date and time as the API server has them, from the Date of its answers.

Ages are differences between stamps of the API server and our own time. With a wall clock that is wrong, or set while
we run, every new group would look too old to wait for, and would be made and given back for ever. So the wall clock
counts only until the first answer; from then on the server's date goes on by our monotonic clock.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from bayplan.cluster.clock import Clock

RESOLUTION_SECONDS = 1.0
"""A Date has whole seconds: on average it is half a second behind."""
TOLERANCE_SECONDS = 1.5
"""Smaller differences are the resolution and the way here, not a clock."""
PROMPT_SECONDS = 1.0
"""An answer that took longer says too little about now."""


class ServerTime:
    """`now()` for everything that is compared with, or written to, the API server."""

    def __init__(self, clock: Clock, *, local: Callable[[], datetime]) -> None:
        self._clock = clock
        self._local = local
        self._date: datetime | None = None
        self._at = 0.0

    def now(self) -> datetime:
        """Return the present date and time in UTC."""
        if self._date is None:
            return self._local()
        return self._date + timedelta(seconds=self._clock.time() - self._at)

    def observe(self, date: str | None, *, took_seconds: float) -> None:
        """Take in the Date header of an answer that has just come; what is no date is ignored."""
        if date is None or took_seconds > PROMPT_SECONDS:
            return
        try:
            found = parsedate_to_datetime(date)
        except ValueError:
            return
        if found.tzinfo is None:
            return
        found = found.astimezone(UTC) + timedelta(seconds=RESOLUTION_SECONDS / 2)
        if self._date is None or abs((found - self.now()).total_seconds()) > TOLERANCE_SECONDS:
            self._date, self._at = found, self._clock.time()
