"""When a refused client should come back."""

from bayplan.planning.admission.forecast import Forecast
from bayplan.planning.admission.records import NANOSECONDS, AdmissionPolicy, Footprint

UNKNOWN_RETRY_MS = 1000
"""Hint before anything was observed."""


class RetryHints:
    """Hints from observed service.

    Refused work gets places in time one after the other, at the rate at which room comes free, behind what waits
    already. So clients that obey do not come back all at once, and many refusals lengthen the hint by themselves.
    """

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast
        self._next_return_ns = 0

    def for_room(
        self, footprint: Footprint, *, waiting_tokens: int, live_tokens: int, policy: AdmissionPolicy, now_ns: int
    ) -> int:
        """Milliseconds until room for this footprint may come free; takes the place in time."""
        wait = self._forecast.drain_ns(waiting_tokens + footprint.tokens, live_tokens)
        turn = self._forecast.drain_ns(footprint.tokens, live_tokens)
        if wait is None or turn is None:
            return UNKNOWN_RETRY_MS
        latest = now_ns + policy.max_retry_after_seconds * NANOSECONDS
        self._next_return_ns = min(latest, max(self._next_return_ns + turn, now_ns + wait))
        return _milliseconds(self._next_return_ns - now_ns)

    def for_quota(self, excess_tokens: int, *, live_tokens: int, policy: AdmissionPolicy) -> int:
        """Milliseconds until the tenant may have given back so many of its own tokens."""
        wait = self._forecast.drain_ns(excess_tokens, live_tokens)
        if wait is None:
            return UNKNOWN_RETRY_MS
        return min(policy.max_retry_after_seconds * 1000, _milliseconds(wait))


def _milliseconds(nanoseconds: int) -> int:
    return max(1, -(-nanoseconds // 1_000_000))
