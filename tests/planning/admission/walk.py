"""A random life of a pool: arrivals, ends, duplicates, replicas that come, shrink, drain and vanish, jumping clocks."""

import random

from bayplan.planning.admission.core import AdmissionCore
from bayplan.planning.admission.records import (
    AdmissionPolicy,
    AdmissionRequest,
    Admitted,
    End,
    ReleaseOutcome,
    Resources,
    TenantPolicy,
)
from bayplan.planning.admission.sheds import Shed
from tests.planning.admission.pools import seconds
from tests.planning.admission.shadow import Shadow, ShadowReplica

BLOCK_SIZE = 16
UIDS = ("a", "b", "c", "d")


class Walk:
    def __init__(self, seed: int, *, tenants: int = 6) -> None:
        self.random = random.Random(seed)
        self.tenants = tenants
        self.core = AdmissionCore(
            AdmissionPolicy(
                block_size=BLOCK_SIZE,
                max_tokens_per_request=2000,
                max_queued_requests=self.random.choice((0, 5, 40)),
                max_wait_seconds=20,
                remember_seconds=30,
                max_remembered_keys=50,
                tenants={
                    "t0": TenantPolicy(weight=3),
                    "t1": TenantPolicy(max_live_tokens=3000, max_queued_requests=3, max_wait_seconds=5),
                },
            )
        )
        self.shadow = Shadow(BLOCK_SIZE)
        self.dropped: dict[int, AdmissionRequest] = {}
        self.ended: list[int] = []
        self.now = seconds(5000)
        for uid in UIDS[:2]:
            self.change_replica(uid)

    def run(self, events: int) -> None:
        kinds = [
            (self.arrive, 40),
            (self.end, 30),
            (self.first_token, 8),
            (self.withdraw, 4),
            (self.end_again, 3),
            (self.pass_time, 8),
            (self.relocate, 3),
            (lambda: self.change_replica(self.random.choice(UIDS)), 2),
            (self.lose_replica, 1),
        ]
        actions = [action for action, _ in kinds]
        weights = [weight for _, weight in kinds]
        for action in self.random.choices(actions, weights, k=events):
            action()
            self.shadow.agrees(self.core.readings())

    def finish(self) -> None:
        """Bring everything to its end: nothing may be left over."""
        while self.shadow.held or self.dropped or self.shadow.waiting:
            self.end()
            self.withdraw()
            self.forget_dropped()
        readings = self.core.readings()
        self.shadow.agrees(readings)
        assert readings.live_tokens == readings.queued_tokens == 0

    def arrive(self) -> None:
        pick = self.random
        key = f"k{pick.randrange(40)}" if pick.random() < 0.3 else None
        request = AdmissionRequest(
            tenant=f"t{pick.randrange(self.tenants)}",
            prompt_tokens=pick.choice((1, 15, 16, 17, 200, 900)),
            max_output_tokens=pick.choice((0, 1, 16, 300, 1100)),
            sequences=pick.choice((1, 1, 1, 1, 3)),
            first_token_by_ns=self.now + seconds(pick.uniform(-1, 30)) if pick.random() < 0.3 else None,
            complete_by_ns=self.now + seconds(pick.uniform(0, 60)) if pick.random() < 0.3 else None,
            idempotency_key=key,
            payload_digest=pick.choice(("p", "q")),
        )
        before = self.core.readings()
        decided = self.core.decide(request, self.now)
        self.shadow.settled(decided.settled)
        if isinstance(decided.decision, Shed) and not decided.settled:
            after = self.core.readings()
            assert after.replicas == before.replicas
            assert after.queued_requests == before.queued_requests
        self.shadow.decided(request, decided.decision)
        assert self.core.expire(self.now).settled == (), "somebody could have been let in and was not"

    def end(self) -> None:
        if not self.shadow.held:
            return
        ticket = self.random.choice(list(self.shadow.held))
        _, request = self.shadow.held.pop(ticket)
        promised = request.max_output_tokens * request.sequences
        used = self.random.choice((None, self.random.randint(0, promised)))
        end = self.random.choice((End.COMPLETED, End.COMPLETED, End.CANCELLED, End.FAILED))
        released = self.core.release(ticket, self.now, end=end, output_tokens=used)
        assert released.outcome is ReleaseOutcome.RELEASED
        self.ended.append(ticket)
        self.shadow.settled(released.settled)

    def end_again(self) -> None:
        """Late and repeated releases change nothing; the first one after a loss finds it dropped."""
        if self.dropped and self.random.random() < 0.5:
            self.forget_dropped()
        elif self.ended:
            released = self.core.release(self.random.choice(self.ended), self.now, end=End.FAILED)
            assert released.outcome is ReleaseOutcome.NOT_HELD
            assert released.settled == ()

    def forget_dropped(self) -> None:
        if self.dropped:
            ticket = self.random.choice(list(self.dropped))
            del self.dropped[ticket]
            released = self.core.release(ticket, self.now, end=End.FAILED)
            assert released.outcome is ReleaseOutcome.DROPPED
            self.ended.append(ticket)
            self.shadow.settled(released.settled)

    def first_token(self) -> None:
        if self.shadow.held:
            self.core.first_token(self.random.choice(list(self.shadow.held)), self.now)

    def withdraw(self) -> None:
        if not self.shadow.waiting:
            return
        ticket = self.random.choice(list(self.shadow.waiting))
        del self.shadow.waiting[ticket]
        released = self.core.release(ticket, self.now, end=End.CANCELLED)
        assert released.outcome is ReleaseOutcome.WITHDRAWN
        self.ended.append(ticket)
        self.shadow.settled(released.settled)

    def pass_time(self) -> None:
        self.now += seconds(self.random.choice((-3, 0.001, 0.1, 1, 10)))
        self.shadow.settled(self.core.expire(self.now).settled)

    def relocate(self) -> None:
        source = self.random.choice((self.dropped, self.shadow.held))
        if not source:
            return
        ticket = self.random.choice(list(source))
        if source is self.dropped:
            request = self.dropped.pop(ticket)
        else:
            _, request = self.shadow.held.pop(ticket)
        moved = self.core.relocate(ticket, self.now, avoid=frozenset({self.random.choice(UIDS)}))
        if isinstance(moved.decision, Admitted):
            assert moved.decision.ticket == ticket
            self.shadow.enter(moved.decision, request)
        else:
            assert isinstance(moved.decision, Shed)
            self.ended.append(ticket)
        self.shadow.settled(moved.settled)

    def change_replica(self, uid: str) -> None:
        pick = self.random
        capacity = Resources(pick.choice((64, 130, 400)), pick.choice((2, 8, 64)))
        budget = pick.choice((None, Resources(pick.randint(0, 500), pick.randint(0, capacity.sequences))))
        draining = pick.random() < 0.2
        promised = budget or capacity
        self.shadow.replicas[uid] = ShadowReplica(promised.kv_blocks, promised.sequences, draining)
        changed = self.core.set_replica(uid, capacity=capacity, budget=budget, draining=draining, now_ns=self.now)
        assert changed.dropped == ()
        self.shadow.settled(changed.settled)

    def lose_replica(self) -> None:
        uid = self.random.choice(UIDS)
        lost = {ticket: request for ticket, (where, request) in self.shadow.held.items() if where == uid}
        for ticket in lost:
            del self.shadow.held[ticket]
        self.shadow.replicas.pop(uid, None)
        self.dropped |= lost
        changed = self.core.remove_replica(uid, self.now)
        assert set(changed.dropped) == set(lost)
        self.shadow.settled(changed.settled)
