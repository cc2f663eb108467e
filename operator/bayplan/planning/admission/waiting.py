"""The bounded queue: who waits, how long at most, and who is small enough for the room that is free."""

from collections.abc import Iterator
from dataclasses import dataclass

from bayplan.planning.admission.fairness import Fairness, Flow
from bayplan.planning.admission.identities import Identity
from bayplan.planning.admission.ranking import Ranking
from bayplan.planning.admission.records import AdmissionRequest, Footprint


@dataclass(slots=True, eq=False)
class Entry:
    """One request from its arrival until it is let in or sent away."""

    request: AdmissionRequest
    footprint: Footprint
    flow: Flow
    identity: Identity | None
    arrived_ns: int
    expected_tokens: int
    """Prompt and expected output."""
    ticket: int = 0
    start_by_ns: int = 0
    passed_tokens: int = 0
    """Tokens let in past this request while it was first in line and did not fit."""
    kept: str | None = None
    """Replica whose room is kept for it, once enough has passed."""


class WaitingRoom:
    """All waiting requests, also by the latest start and by size."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._entries: dict[int, Entry] = {}
        self._by_start: Ranking[Entry] = Ranking()
        self._by_size: Ranking[Entry] = Ranking()
        self.tokens = 0
        """Worst-case tokens of all that wait."""
        self.expected_tokens = 0
        """Expected tokens of all that wait."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def find(self, ticket: int) -> Entry | None:
        """The waiting request under this ticket."""
        return self._entries.get(ticket)

    def join(self, entry: Entry) -> None:
        """Let it wait."""
        self._entries[entry.ticket] = entry
        self._by_start.put(entry, entry.start_by_ns)
        self._by_size.put(entry, entry.footprint.kv_blocks)
        self.tokens += entry.footprint.tokens
        self.expected_tokens += entry.expected_tokens
        self._fairness.joined(entry.flow, entry)

    def leave(self, entry: Entry) -> None:
        """It waits no longer."""
        del self._entries[entry.ticket]
        self._by_start.discard(entry)
        self._by_size.discard(entry)
        self.tokens -= entry.footprint.tokens
        self.expected_tokens -= entry.expected_tokens
        self._fairness.left(entry.flow, entry)

    @property
    def next_overdue_ns(self) -> int | None:
        """The first moment at which some request will have waited in vain: just after its latest start."""
        first = self._by_start.first
        return None if first is None else first.start_by_ns + 1

    def overdue(self, now_ns: int) -> Entry | None:
        """A request whose latest start has passed."""
        first = self._by_start.first
        return first if first is not None and first.start_by_ns < now_ns else None

    def smallest_first(self) -> Iterator[tuple[int, int, Entry]]:
        """Waiting requests by their KV blocks, which come first; among equals the oldest first."""
        return self._by_size.ascending

    @property
    def smallest_blocks(self) -> int:
        """KV blocks of the smallest waiting request. Only when one waits."""
        first = self._by_size.first
        return 0 if first is None else first.footprint.kv_blocks
