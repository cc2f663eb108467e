"""How long one admission decision takes, and whether 10⁵ random events leak or double a hold.

Decisions are timed by the CPU time of their thread: what others do on the machine does not count. Holds are checked
after every event against an account that knows only what was admitted and given back, and shares no code with the core.
"""

import heapq
import random
import time
from dataclasses import dataclass, field

from bayplan.planning.admission.core import AdmissionCore
from bayplan.planning.admission.records import (
    AdmissionPolicy,
    AdmissionRequest,
    Admitted,
    End,
    Queued,
    ReleaseOutcome,
    Resources,
    Settled,
)
from bayplan.planning.admission.sheds import Shed
from bench.measure import percentile

BLOCK_SIZE = 16
SECOND = 1_000_000_000
TENANTS = 64
REPLICAS = 4
SERVICE_SECONDS = 5.0
RUNNING = 340
"""About so many requests of the sizes below run at the same time in the replicas."""


def _policy(queued: int) -> AdmissionPolicy:
    return AdmissionPolicy(block_size=BLOCK_SIZE, max_tokens_per_request=8192, max_queued_requests=queued)


@dataclass
class Times:
    """Microseconds of decisions, and how many of them were refusals."""

    p50: float
    p99: float
    decisions: int
    shed_share: float


def decision_times(*, pressure: float, decisions: int, seed: int, rounds: int = 1) -> Times:
    """Time `decide` of 64 tenants at 4 replicas. `pressure` is offered work / what the replicas get done.

    The same life is played `rounds` times; of each decision the least time counts, since a round only adds to it what
    the machine did besides.
    """
    lives = [_timed_life(pressure=pressure, decisions=decisions, seed=seed) for _ in range(rounds)]
    times = [min(same) for same in zip(*(times for times, _ in lives), strict=True)]
    return Times(percentile(times, 0.5) or 0, percentile(times, 0.99) or 0, decisions, lives[0][1] / decisions)


def _timed_life(*, pressure: float, decisions: int, seed: int) -> tuple[list[float], int]:
    """Microseconds of each decision, and how many were refusals."""
    dice = random.Random(seed)
    core = AdmissionCore(_policy(256))
    for number in range(REPLICAS):
        core.set_replica(f"pod-{number}", capacity=Resources(7500, 128), now_ns=0)
    now = 0
    ends: list[tuple[int, int]] = []
    times: list[float] = []
    sheds = 0

    def settle(settled: tuple[Settled, ...]) -> None:
        for one in settled:
            if isinstance(one.decision, Admitted):
                core.first_token(one.ticket, now)
                heapq.heappush(ends, (now + round(dice.expovariate(1 / SERVICE_SECONDS) * SECOND), one.ticket))

    for _ in range(decisions):
        arrival = now + round(dice.expovariate(pressure * RUNNING / SERVICE_SECONDS) * SECOND)
        while ends and ends[0][0] <= arrival:
            now, ticket = heapq.heappop(ends)
            settle(core.release(ticket, now, end=End.COMPLETED, output_tokens=dice.randrange(50, 300)).settled)
        now = arrival
        settle(core.expire(now).settled)
        request = AdmissionRequest(
            tenant=f"t{dice.randrange(TENANTS)}",
            prompt_tokens=dice.randrange(100, 2000),
            max_output_tokens=dice.randrange(100, 600),
            first_token_by_ns=now + 2 * SECOND,
        )
        begun = time.thread_time_ns()
        decided = core.decide(request, now)
        times.append((time.thread_time_ns() - begun) / 1000)
        settle(decided.settled)
        if isinstance(decided.decision, Admitted):
            settle((Settled(decided.decision.ticket, decided.decision),))
        sheds += isinstance(decided.decision, Shed)
    return times, sheds


@dataclass
class Holds:
    """What the random life found."""

    events: int = 0
    leaked: int = 0
    """Events after which the core held what nobody has, or lacked what somebody has."""
    double: int = 0
    """Holds given out beyond a budget, twice for one ticket, or given back twice."""
    left_over: int = 0
    """Holds and waiting requests when everybody had gone."""
    admitted: int = 0


@dataclass
class _Life:
    dice: random.Random
    core: AdmissionCore
    found: Holds = field(default_factory=Holds)
    now: int = 0
    budgets: dict[str, tuple[int, int]] = field(default_factory=dict)
    held: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)

    def enter(self, ticket: int, replica: str, footprint: tuple[int, int]) -> None:
        self.found.admitted += 1
        self.found.double += ticket in self.held
        self.held[ticket] = (replica, *footprint)
        blocks = sum(b for where, b, _ in self.held.values() if where == replica)
        seats = sum(s for where, _, s in self.held.values() if where == replica)
        budget = self.budgets.get(replica, (0, 0))
        self.found.double += blocks > budget[0] or seats > budget[1]

    def settle(self, settled: tuple[Settled, ...]) -> None:
        for one in settled:
            footprint = self.waiting.pop(one.ticket, None)
            if footprint is None:
                self.found.double += 1
            elif isinstance(one.decision, Admitted):
                self.enter(one.ticket, one.decision.replica, footprint)
            else:
                self.gone.append(one.ticket)

    def check(self) -> None:
        """Recount everything."""
        readings = self.core.readings()
        for uid in {*readings.replicas, *(where for where, _, _ in self.held.values())}:
            own = [(b, s) for where, b, s in self.held.values() if where == uid]
            reading = readings.replicas.get(uid)
            seen = (0, 0, 0) if reading is None else (reading.kv_blocks, reading.sequences, reading.holds)
            self.found.leaked += seen != (sum(b for b, _ in own), sum(s for _, s in own), len(own))
        self.found.leaked += readings.queued_requests != len(self.waiting)

    # -- events

    def arrive(self) -> None:
        dice = self.dice
        sequences = dice.choice((1, 1, 1, 2))
        prompt, output = dice.randrange(1, 900), dice.randrange(1, 500)
        key = f"k{dice.randrange(50)}" if dice.random() < 0.2 else None
        deadline = self.now + dice.randrange(30) * SECOND if dice.random() < 0.5 else None
        request = AdmissionRequest(
            tenant=f"t{dice.randrange(9)}",
            prompt_tokens=prompt,
            max_output_tokens=output,
            sequences=sequences,
            first_token_by_ns=deadline,
            idempotency_key=key,
            payload_digest=dice.choice("ab"),
        )
        footprint = (-(-(prompt + output) // BLOCK_SIZE) * sequences, sequences)
        decided = self.core.decide(request, self.now)
        self.settle(decided.settled)
        match decided.decision:
            case Admitted() as admitted:
                self.enter(admitted.ticket, admitted.replica, footprint)
            case Queued() as queued:
                self.waiting[queued.ticket] = footprint

    def leave(self) -> None:
        if not self.held:
            return
        ticket = self.dice.choice(list(self.held))
        del self.held[ticket]
        end = self.dice.choice(list(End))
        released = self.core.release(ticket, self.now, end=end, output_tokens=self.dice.choice((None, 10)))
        self.found.leaked += released.outcome is not ReleaseOutcome.RELEASED
        self.gone.append(ticket)
        self.settle(released.settled)

    def leave_the_queue(self) -> None:
        if self.waiting:
            ticket = self.dice.choice(list(self.waiting))
            del self.waiting[ticket]
            released = self.core.release(ticket, self.now, end=End.CANCELLED)
            self.found.leaked += released.outcome is not ReleaseOutcome.WITHDRAWN
            self.gone.append(ticket)
            self.settle(released.settled)

    def leave_again(self) -> None:
        if self.gone:
            released = self.core.release(self.dice.choice(self.gone[-1000:]), self.now, end=End.COMPLETED)
            self.found.double += released.outcome is not ReleaseOutcome.NOT_HELD
            self.settle(released.settled)

    def wait(self) -> None:
        self.now += round(self.dice.choice((-2, 0.01, 0.2, 2)) * SECOND)
        self.settle(self.core.expire(self.now).settled)

    def change_replica(self) -> None:
        uid = f"pod-{self.dice.randrange(4)}"
        budget = (self.dice.choice((100, 300, 900)), self.dice.choice((4, 16, 64)))
        if any(where == uid for where, _, _ in self.held.values()):
            budget = (max(budget[0], self.budgets[uid][0]), max(budget[1], self.budgets[uid][1]))
        self.budgets[uid] = budget
        changed = self.core.set_replica(
            uid, capacity=Resources(*budget), now_ns=self.now, draining=self.dice.random() < 0.2
        )
        self.settle(changed.settled)

    def lose_replica(self) -> None:
        uid = f"pod-{self.dice.randrange(4)}"
        lost = {ticket for ticket, (where, _, _) in self.held.items() if where == uid}
        for ticket in lost:
            del self.held[ticket]
        self.dropped |= lost
        self.budgets.pop(uid, None)
        changed = self.core.remove_replica(uid, self.now)
        self.found.leaked += set(changed.dropped) != lost
        self.settle(changed.settled)

    def forget_dropped(self) -> None:
        if self.dropped:
            ticket = self.dropped.pop()
            released = self.core.release(ticket, self.now, end=End.FAILED)
            self.found.leaked += released.outcome is not ReleaseOutcome.DROPPED
            self.gone.append(ticket)
            self.settle(released.settled)


def random_holds(*, events: int, seed: int) -> Holds:
    """Play a pool's random life; every event is followed by a recount."""
    life = _Life(random.Random(seed), AdmissionCore(_policy(20)))
    for _ in range(4):
        life.change_replica()
    kinds = [
        (life.arrive, 45),
        (life.leave, 30),
        (life.leave_the_queue, 5),
        (life.leave_again, 5),
        (life.wait, 8),
        (life.change_replica, 2),
        (life.lose_replica, 1),
        (life.forget_dropped, 4),
    ]
    actions, weights = [action for action, _ in kinds], [weight for _, weight in kinds]
    for action in life.dice.choices(actions, weights, k=events):
        action()
        life.found.events += 1
        life.check()
    while life.held or life.waiting or life.dropped:
        life.leave()
        life.leave_the_queue()
        life.forget_dropped()
    readings = life.core.readings()
    life.found.left_over = readings.queued_requests + sum(r.holds for r in readings.replicas.values())
    return life.found
