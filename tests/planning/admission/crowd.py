"""Tenants that always have something waiting, in a pool whose requests end in random order."""

import random
from collections import Counter
from collections.abc import Callable, Mapping

from bayplan.planning.admission.core import AdmissionCore
from bayplan.planning.admission.records import (
    AdmissionRequest,
    Admitted,
    End,
    Queued,
    Resources,
    Settled,
    TenantPolicy,
)
from tests.planning.admission.pools import ask, policy, seconds

Size = Callable[[random.Random], int]


class Crowd:
    """`sizes` draws each tenant's next request in tokens; an answer uses `use` of its output, half of the request."""

    def __init__(
        self,
        seed: int,
        *,
        sizes: Mapping[str, Size],
        budgets: tuple[int, ...] = (1000,),
        weights: Mapping[str, int] | None = None,
        use: float = 1.0,
        backlog: int = 3,
    ) -> None:
        self.random = random.Random(seed)
        self.sizes = sizes
        self.use = use
        self.backlog = backlog
        tenants = {tenant: TenantPolicy(weight=weight) for tenant, weight in (weights or {}).items()}
        self.core = AdmissionCore(
            policy(max_queued_requests=10_000, tenants=tenants, max_tokens_per_request=max(budgets))
        )
        self.now = seconds(1)
        self.free = dict.fromkeys((f"r{number}" for number in range(len(budgets))), 0)
        self.budget = sum(budgets)
        self.waiting: dict[int, AdmissionRequest] = {}
        self.held: dict[int, tuple[str, AdmissionRequest]] = {}
        self.given: Counter[str] = Counter()
        """Tokens given to each tenant: what is reserved, and what ended requests used."""
        self.passed: Counter[int] = Counter()
        """Tokens admitted while the request was its tenant's oldest waiting one."""
        for (uid, _), budget in zip(self.free.items(), budgets, strict=True):
            self.free[uid] = budget
            self.core.set_replica(uid, capacity=Resources(budget, 10_000), now_ns=self.now)

    def fill(self) -> None:
        """Let every tenant have its backlog again."""
        for tenant, size in self.sizes.items():
            while sum(request.tenant == tenant for request in self.waiting.values()) < self.backlog:
                self.arrive(tenant, size(self.random))

    def arrive(self, tenant: str, tokens: int) -> int:
        """One request; returns its ticket."""
        request = ask(tokens, tenant=tenant, output=tokens // 2)
        decided = self.core.decide(request, self.now)
        assert isinstance(decided.decision, Admitted | Queued), decided
        self._let_in(decided.settled)
        self.waiting[decided.decision.ticket] = request
        if isinstance(decided.decision, Admitted):
            self._let_in((Settled(decided.decision.ticket, decided.decision),))
        return decided.decision.ticket

    def end_one(self, *, oldest: bool = False) -> None:
        """A request ends: a random one, or the one that was let in first."""
        self.now += seconds(0.01)
        ticket = next(iter(self.held)) if oldest else self.random.choice(list(self.held))
        uid, request = self.held.pop(ticket)
        used = int(request.max_output_tokens * self.use)
        self.free[uid] += request.tokens
        self.given[request.tenant] -= request.max_output_tokens - used
        self._let_in(self.core.release(ticket, self.now, end=End.COMPLETED, output_tokens=used).settled)

    def oldest(self, tenant: str) -> int | None:
        return min((ticket for ticket, request in self.waiting.items() if request.tenant == tenant), default=None)

    def roomy(self) -> set[str]:
        """Replicas on which something that waits would fit."""
        smallest = min((request.tokens for request in self.waiting.values()), default=None)
        return set() if smallest is None else {uid for uid, free in self.free.items() if free >= smallest}

    def _let_in(self, settled: tuple[Settled, ...]) -> None:
        for one in settled:
            assert isinstance(one.decision, Admitted)
            request = self.waiting.pop(one.ticket)
            self.held[one.ticket] = (one.decision.replica, request)
            self.free[one.decision.replica] -= request.tokens
            self.given[request.tenant] += request.tokens
            for tenant in self.sizes:
                oldest = self.oldest(tenant)
                if oldest is not None and oldest < one.ticket:
                    self.passed[oldest] += request.tokens
