"""Who is let in next, and whom the others may pass.

The first in line is the oldest request of the tenant whose turn it is. While it does not fit, others that fit may pass
it, so that no room lies idle; two rules bound that:

- size: once as many tokens as it asks for have passed it, the replica with the most room is kept for it alone.
- share: a tenant whose counter leads the first in line by more than all budgets hold is not let past.
"""

from bayplan.planning.admission.fairness import COUNTER_SCALE, Fairness, Flow
from bayplan.planning.admission.ledger import Account, Ledger
from bayplan.planning.admission.records import Footprint, Preference
from bayplan.planning.admission.waiting import Entry, WaitingRoom

MOST_TURNS = 64
"""Tenants asked in the order of their turns before the smallest waiting request is taken, whosever it is."""


class Turns:
    """Picks from the queue, and judges newcomers that would pass it."""

    def __init__(self, *, ledger: Ledger, fairness: Fairness, waiting: WaitingRoom, block_size: int) -> None:
        self._ledger = ledger
        self._fairness = fairness
        self._waiting = waiting
        self._block_size = block_size

    @property
    def first_in_line(self) -> tuple[Flow, int, Entry | None] | None:
        """Whose turn it is, with its counter and oldest request.

        While this stays the same and no room comes free, nobody can be let in who could not be before.
        """
        front = self._fairness.front
        return None if front is None else (front, front.counter, front.head)

    def pick(self) -> tuple[Entry, Account] | None:
        """The waiting request to let in now, and where; None when nobody may or fits."""
        front = self._fairness.front
        if front is None or front.head is None:
            return None
        head = front.head
        account = self._ledger.best(head.footprint)
        if account is not None:
            return head, account
        self._keep_room(head)
        kept = _kept(head)
        most_free = self._ledger.most_free_blocks(kept)
        if self._waiting.smallest_blocks > most_free:
            return None
        limit = self._highest_counter(front)
        for turn, (counter, _, flow) in enumerate(self._fairness.turns()):
            if counter > limit or turn == MOST_TURNS:
                break
            entry = flow.head
            if entry is not None and entry.footprint.kv_blocks <= most_free:
                account = self._ledger.best(entry.footprint, kept)
                if account is not None:
                    return entry, account
        for blocks, _, entry in self._waiting.smallest_first():
            if blocks > most_free:
                break
            account = self._ledger.best(entry.footprint, kept) if entry.flow.counter <= limit else None
            if account is not None:
                return entry, account
        return None

    def room_for(self, footprint: Footprint, flow: Flow, preference: Preference | None = None) -> Account | None:
        """The replica for a newcomer. What waits fits nowhere or may not pass, or it would wait no longer."""
        front = self._fairness.front
        kept: tuple[str, ...] = ()
        if front is not None and front.head is not None:
            if self._fairness.entry_counter(flow) > self._highest_counter(front):
                return None
            kept = _kept(front.head)
        if preference is None:
            return self._ledger.best(footprint, kept)
        return self._ledger.best_preferred(footprint, kept, preference)

    def note_passing(self, footprint: Footprint) -> None:
        """Someone goes in past the first in line."""
        front = self._fairness.front
        if front is not None and front.head is not None:
            front.head.passed_tokens += footprint.tokens
            self._keep_room(front.head)

    def tokens_ahead(self, footprint: Footprint, flow: Flow) -> int:
        """Waiting tokens that go in before a newcomer: its tenant's own, and of the others what is due to them."""
        own = flow.queued_tokens
        others = self._waiting.tokens - own
        weight = self._fairness.waiting_weight - (flow.weight if flow.entries else 0)
        return own + min(others, (own + footprint.tokens) * weight // flow.weight)

    def _highest_counter(self, front: Flow) -> int:
        return front.counter + self._ledger.budget_blocks * self._block_size * COUNTER_SCALE

    def _keep_room(self, head: Entry) -> None:
        if head.passed_tokens < head.footprint.tokens:
            return
        if head.kept is None or not self._ledger.keeps_room_for(head.kept, head.footprint):
            account = self._ledger.emptiest_for(head.footprint)
            head.kept = None if account is None else account.uid


def _kept(head: Entry) -> tuple[str, ...]:
    return () if head.kept is None else (head.kept,)
