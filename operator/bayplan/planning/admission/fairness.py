"""Whose turn it is: tenants are served by tokens, after the Virtual Token Counter (Sheng et al., arXiv 2401.00588).

Every tenant has a counter of the tokens it was given, divided by its weight. A request is charged what it is expected
to use when it is let in, corrected to what it used when it ends: charging its worst case meanwhile would lift others,
who come in between, behind a tenant that promises itself more than it uses. The waiting tenant with the lowest counter
is next. A tenant that comes back is lifted to the lowest counter of those that wait, so that idle time earns nothing.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bayplan.planning.admission.ranking import Ranking

if TYPE_CHECKING:
    from bayplan.planning.admission.waiting import Entry

COUNTER_SCALE = 1_000_000
"""Counter units of one token at weight 1, so that division by weights stays whole."""


class Flow:
    """One tenant's counter, what it has waiting (oldest first) and what it holds."""

    __slots__ = ("counter", "entries", "head", "live_tokens", "queued_tokens", "tenant", "weight")

    def __init__(self, tenant: str, weight: int) -> None:
        self.tenant = tenant
        self.weight = weight
        self.counter = 0
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self.head: Entry | None = None  # the request that has waited longest
        self.queued_tokens = 0
        self.live_tokens = 0

    @property
    def tail(self) -> "Entry":
        """The request that came last. Only of a flow that waits."""
        return next(reversed(self.entries.values()))

    def units(self, tokens: int) -> int:
        """Counter units of so many tokens."""
        return tokens * COUNTER_SCALE // self.weight

    @property
    def load(self) -> int:
        """Waiting tokens in counter units."""
        return self.units(self.queued_tokens)


class Fairness:
    """The counters of all tenants and the order of those that wait."""

    def __init__(self) -> None:
        self._flows: dict[str, Flow] = {}
        self._turns: Ranking[Flow] = Ranking()
        self._loads: Ranking[Flow] = Ranking()
        self._served = 0  # counter of the latest tenant whose turn it was
        self.waiting_weight = 0
        """Sum of the weights of tenants that wait."""

    def flow(self, tenant: str, weight: int) -> Flow:
        """The tenant's flow, from now on with this weight."""
        flow = self._flows.get(tenant)
        if flow is None:
            flow = self._flows[tenant] = Flow(tenant, weight)
        elif flow.weight != weight:
            self._reweigh(flow, weight)
        return flow

    def __len__(self) -> int:
        return len(self._flows)

    @property
    def front(self) -> Flow | None:
        """The waiting flow whose turn it is."""
        return self._turns.first

    @property
    def heaviest(self) -> Flow | None:
        """The waiting flow with the most queued tokens for its weight."""
        return self._loads.last

    def turns(self) -> Iterator[tuple[int, int, Flow]]:
        """Waiting flows in the order of their turns, with their counters."""
        return self._turns.ascending

    def entry_counter(self, flow: Flow) -> int:
        """The counter with which this flow competes for a new request: lifted when it has nothing waiting."""
        if flow.entries:
            return flow.counter
        front = self._turns.first
        return max(flow.counter, self._served if front is None else front.counter)

    def joined(self, flow: Flow, entry: "Entry") -> None:
        """Count in a request that begins to wait."""
        if not flow.entries:
            flow.counter = self.entry_counter(flow)
            flow.head = entry
            self.waiting_weight += flow.weight
            self._turns.put(flow, flow.counter)
        flow.entries[entry.ticket] = entry
        flow.queued_tokens += entry.footprint.tokens
        self._loads.put(flow, flow.load)

    def left(self, flow: Flow, entry: "Entry") -> None:
        """Count out a request that no longer waits."""
        del flow.entries[entry.ticket]
        flow.queued_tokens -= entry.footprint.tokens
        if flow.entries:
            if flow.head is entry:
                flow.head = next(iter(flow.entries.values()))
            self._loads.put(flow, flow.load)
            return
        flow.head = None
        self.waiting_weight -= flow.weight
        self._turns.discard(flow)
        self._loads.discard(flow)

    def charge(self, flow: Flow, tokens: int) -> None:
        """Count tokens as given, while the flow's own request still waits or none does."""
        counter = self.entry_counter(flow)
        front = self._turns.first
        if front is None or front is flow:
            self._served = max(self._served, counter)
        flow.counter = counter + flow.units(tokens)
        if flow.entries:
            self._turns.put(flow, flow.counter)

    def correct(self, flow: Flow, tokens: int) -> None:
        """Add what a request used beyond its charge; negative for what it left."""
        flow.counter += flow.units(tokens)
        if flow.entries:
            self._turns.put(flow, flow.counter)

    def forget_idle(self, flow: Flow) -> None:
        """Drop a flow that its next request would start afresh anyway."""
        if not flow.entries and not flow.live_tokens and flow.counter <= self._served:
            self._flows.pop(flow.tenant, None)

    def _reweigh(self, flow: Flow, weight: int) -> None:
        if flow.entries:
            self.waiting_weight += weight - flow.weight
        flow.weight = weight
        if flow.entries:
            self._loads.put(flow, flow.load)
