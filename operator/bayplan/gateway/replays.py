"""Answers kept for idempotency keys that come back after their request was completed."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

NANOSECONDS = 1_000_000_000
LONGEST_ANSWER_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """One answer as it was sent."""

    content_type: str
    body: bytes
    until_ns: int


Key = tuple[str, str, str, str]
"""Model uid, tenant, idempotency key, digest of the payload."""


class Replays:
    """A bounded number of bytes of answers; the oldest go first."""

    def __init__(
        self, *, most_bytes: int, remember_seconds: int, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._most_bytes = most_bytes
        self._remember_ns = remember_seconds * NANOSECONDS
        self._now_ns = now_ns
        self._answers: OrderedDict[Key, KeptAnswer] = OrderedDict()
        self.bytes = 0

    @property
    def longest_bytes(self) -> int:
        """Longest answer that is kept."""
        return min(LONGEST_ANSWER_BYTES, self._most_bytes)

    def keep(self, key: Key, content_type: str, body: bytes) -> None:
        """Keep an answer."""
        if not 0 < len(body) <= self.longest_bytes:
            return
        self._drop(key)
        self._answers[key] = KeptAnswer(content_type, body, self._now_ns() + self._remember_ns)
        self.bytes += len(body)
        while self.bytes > self._most_bytes:
            self._drop(next(iter(self._answers)))

    def find(self, key: Key) -> KeptAnswer | None:
        """Return the answer, unless its time has passed."""
        answer = self._answers.get(key)
        if answer is not None and answer.until_ns <= self._now_ns():
            self._drop(key)
            return None
        return answer

    def _drop(self, key: Key) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self.bytes -= len(answer.body)
