"""Who holds what on which replica.

A hold is KV blocks and sequence slots of one named replica, never of a sum over replicas: a request runs in one engine.
It points at the very account that it was taken from, so that a replica which vanishes and comes back under its old name
starts empty and late releases cannot reach it.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from bayplan.planning.admission.fairness import Flow
from bayplan.planning.admission.forecast import Service
from bayplan.planning.admission.identities import Identity
from bayplan.planning.admission.ranking import Ranking
from bayplan.planning.admission.records import (
    AdmissionRequest,
    End,
    Footprint,
    Preference,
    ReplicaReading,
    Resources,
)
from bayplan.planning.numbers import InvalidInput, count, named


class Account:
    """One replica: its limits, and what is left of its budget. Negative when the budget shrank below the holds."""

    __slots__ = (
        "aside",
        "budget",
        "capacity",
        "draining",
        "free_blocks",
        "free_sequences",
        "holds",
        "limit",
        "tokens",
        "uid",
    )

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.capacity = Resources(0, 0)
        self.budget = Resources(0, 0)
        self.limit = Resources(0, 0)  # the most that a single request can ever have here
        self.draining = False
        self.aside = False  # outside the pool: only what names it gets room here
        self.free_blocks = 0
        self.free_sequences = 0
        self.tokens = 0
        self.holds: dict[int, Hold] = {}

    @property
    def pooled(self) -> bool:
        """Whether any request may get room here."""
        return not (self.draining or self.aside)

    def fits(self, footprint: Footprint) -> bool:
        """Whether the request could be reserved here now."""
        return (
            footprint.kv_blocks <= self.free_blocks
            and footprint.sequences <= self.free_sequences
            and footprint.within(self.limit)
        )

    def reading(self) -> ReplicaReading:
        """The account for metrics."""
        return ReplicaReading(
            budget=self.budget,
            draining=self.draining,
            holds=len(self.holds),
            tokens=self.tokens,
            kv_blocks=self.budget.kv_blocks - self.free_blocks,
            sequences=self.budget.sequences - self.free_sequences,
        )


@dataclass(slots=True)
class Hold:
    """One reservation, from admission to release."""

    ticket: int
    request: AdmissionRequest
    footprint: Footprint
    flow: Flow
    identity: Identity | None
    account: Account
    admitted_ns: int
    charged_tokens: int
    """What the tenant's counter was charged."""
    first_token_ns: int | None = None
    copy: bool = False
    """Of a request that somebody else answers: it is nobody's, and nothing is learnt from it."""

    def service(self, now_ns: int, end: End, output_tokens: int | None) -> Service:
        """What the forecast learns when it is given back now. Only a completed one tells how much output was used."""
        first = self.first_token_ns
        return Service(
            footprint=self.footprint,
            request=self.request,
            held_ns=now_ns - self.admitted_ns,
            first_token_ns=None if first is None else first - self.admitted_ns,
            output_tokens=output_tokens if end is End.COMPLETED else None,
        )


class Ledger:
    """Accounts of all replicas and the holds on them."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.tokens = 0
        """Tokens reserved on all replicas of the pool."""
        self.budget_blocks = 0
        """KV blocks of the budgets of all routable replicas."""
        self._holds: dict[int, Hold] = {}
        self._free: Ranking[Account] = Ranking()  # routable replicas with a free slot, by free blocks
        self._limits: tuple[Resources, ...] = ()  # distinct ones of routable replicas: mostly a single one
        self._capacities: tuple[Resources, ...] = ()

    def __len__(self) -> int:
        return len(self._holds)

    def find(self, ticket: int) -> Hold | None:
        """The hold under this ticket."""
        return self._holds.get(ticket)

    @property
    def has_routable(self) -> bool:
        """Whether any replica takes new requests."""
        return bool(self._capacities)

    @property
    def largest(self) -> Resources:
        """The most blocks and the most slots of any routable replica."""
        return Resources(
            max((capacity.kv_blocks for capacity in self._capacities), default=0),
            max((capacity.sequences for capacity in self._capacities), default=0),
        )

    def exceeds_all(self, footprint: Footprint) -> bool:
        """Whether routable replicas exist, and none of them could ever run it, be it empty."""
        return bool(self._capacities) and not any(footprint.within(capacity) for capacity in self._capacities)

    def could_hold(self, footprint: Footprint) -> bool:
        """Whether the budget of some routable replica could hold it when nothing else is reserved."""
        return any(footprint.within(limit) for limit in self._limits)

    def best(self, footprint: Footprint, avoid: Collection[str] = ()) -> Account | None:
        """The routable replica with the most free blocks among those that fit it now."""
        blocks = footprint.kv_blocks
        for free, _, account in self._free.descending:
            if free < blocks:
                return None
            if account.fits(footprint) and account.uid not in avoid:
                return account
        return None

    def best_preferred(self, footprint: Footprint, avoid: Collection[str], preference: Preference) -> Account | None:
        """The same, by preference."""
        if preference.first:
            named_ones = (self.accounts.get(uid) for uid in preference.first if uid not in avoid)
            account = _freest((one for one in named_ones if one is not None and one.pooled), footprint)
            if account is not None:
                return account
        if preference.spare:
            account = self.best(footprint, (*avoid, *preference.spare))
            if account is not None and 2 * account.free_blocks >= account.budget.kv_blocks:
                return account
        return self.best(footprint, avoid)

    def best_beside(self, footprint: Footprint, uids: Collection[str]) -> Account | None:
        """Of these replicas outside the pool the one with the most free blocks, among those that fit it now."""
        named_ones = (self.accounts.get(uid) for uid in uids)
        return _freest((one for one in named_ones if one is not None and one.aside and not one.draining), footprint)

    def most_free_blocks(self, avoid: Collection[str] = ()) -> int:
        """Free blocks of the emptiest routable replica that has a free slot."""
        return next((free for free, _, account in self._free.descending if account.uid not in avoid), 0)

    def emptiest_for(self, footprint: Footprint) -> Account | None:
        """The routable replica that will have room for it the soonest: most free blocks, of those large enough."""
        fitting = (account for account in self._routable() if footprint.within(account.limit))
        return max(fitting, key=lambda account: (account.free_blocks, account.free_sequences), default=None)

    def keeps_room_for(self, uid: str, footprint: Footprint) -> bool:
        """Whether this replica is routable and large enough for the request."""
        account = self.accounts.get(uid)
        return account is not None and account.pooled and footprint.within(account.limit)

    def reserve(self, hold: Hold) -> None:
        """Enter the hold. It fits: the caller has asked."""
        account, footprint = hold.account, hold.footprint
        account.free_blocks -= footprint.kv_blocks
        account.free_sequences -= footprint.sequences
        account.tokens += footprint.tokens
        account.holds[hold.ticket] = hold
        self._holds[hold.ticket] = hold
        if not account.aside:
            self.tokens += footprint.tokens
        hold.flow.live_tokens += footprint.tokens
        self._rank(account)

    def give_back(self, hold: Hold) -> None:
        """Remove the hold."""
        account, footprint = hold.account, hold.footprint
        del account.holds[hold.ticket]
        account.free_blocks += footprint.kv_blocks
        account.free_sequences += footprint.sequences
        account.tokens -= footprint.tokens
        del self._holds[hold.ticket]
        if not account.aside:
            self.tokens -= footprint.tokens
        hold.flow.live_tokens -= footprint.tokens
        self._rank(account)

    def set(self, uid: str, *, capacity: Resources, budget: Resources, draining: bool, aside: bool = False) -> None:
        """Add a replica or change its limits or place; holds stay. Raises InvalidInput that names the field."""
        named(uid, "replica")
        for name, least in (("kv_blocks", 1), ("sequences", 1)):
            count(getattr(capacity, name), name, least=least)
            count(getattr(budget, name), f"budget.{name}", least=0)
        if budget.sequences > capacity.sequences:
            raise InvalidInput("budget.sequences", f"must be at most the capacity of {capacity.sequences}")
        account = self.accounts.get(uid) or Account(uid)
        account.free_blocks += budget.kv_blocks - account.budget.kv_blocks
        account.free_sequences += budget.sequences - account.budget.sequences
        account.capacity, account.budget = capacity, budget
        account.limit = Resources(min(capacity.kv_blocks, budget.kv_blocks), budget.sequences)
        account.draining = draining
        if account.aside is not aside:
            account.aside = aside
            self.tokens += -account.tokens if aside else account.tokens
        self.accounts[uid] = account
        self._rank(account)
        self._recount()

    def remove(self, uid: str) -> tuple[Hold, ...]:
        """Forget a replica; returns the holds that are lost with it."""
        account = self.accounts.get(uid)
        if account is None:
            return ()
        lost = tuple(account.holds.values())
        for hold in lost:
            self.give_back(hold)
        del self.accounts[uid]
        self._free.discard(account)
        self._recount()
        return lost

    def _routable(self) -> Iterator[Account]:
        return (account for account in self.accounts.values() if account.pooled)

    def _rank(self, account: Account) -> None:
        if not account.pooled or account.free_sequences < 1 or account.uid not in self.accounts:
            self._free.discard(account)
        else:
            self._free.put(account, account.free_blocks)

    def _recount(self) -> None:
        self._limits = tuple({account.limit for account in self._routable()})
        self._capacities = tuple({account.capacity for account in self._routable()})
        self.budget_blocks = sum(account.budget.kv_blocks for account in self._routable())


def _freest(accounts: Iterable[Account], footprint: Footprint) -> Account | None:
    """The one with the most free blocks among those that fit it now."""
    return max((one for one in accounts if one.fits(footprint)), key=lambda one: one.free_blocks, default=None)
