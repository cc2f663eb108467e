"""Replicas outside the pool, preferences, and copies: who may hold what, and that nobody else is any worse off."""

import random

import pytest

from bayplan.planning.admission.core import AdmissionCore
from bayplan.planning.admission.forecast import ObservedService, Prediction, Situation
from bayplan.planning.admission.records import (
    AdmissionRequest,
    Admitted,
    End,
    Footprint,
    Preference,
    Queued,
    Resources,
)
from bayplan.planning.admission.sheds import Shed, ShedCode
from tests.planning.admission.pools import Pool, ask, policy

TO_CANDIDATE = Preference(beside=("c",))


def decide(pool: Pool, tokens: int, preference: Preference | None = None, **fields: str) -> Admitted | Queued | Shed:
    decision = pool.core.decide(ask(tokens, **fields), pool.now, preference).decision
    assert isinstance(decision, Admitted | Queued | Shed)
    return decision


def replica_of(decision: object) -> str:
    assert isinstance(decision, Admitted), decision
    return decision.replica


class TestAside:
    def pool(self, *budgets: int, aside: int = 100, **fields: int) -> Pool:
        pool = Pool(*budgets, **fields)
        pool.replica("c", aside, aside=True)
        return pool

    def test_only_what_prefers_it_gets_room_there(self) -> None:
        pool = self.pool(10, aside=1000)
        assert replica_of(decide(pool, 5)) == "r0"
        assert replica_of(decide(pool, 5, TO_CANDIDATE)) == "c"
        assert replica_of(decide(pool, 5)) == "r0"
        assert isinstance(decide(pool, 5), Queued), "the pool is full, and the other replica is none of it"

    def test_full_one_sends_to_the_pool_and_what_waits_waits_for_the_pool(self) -> None:
        pool = self.pool(10, aside=10)
        assert replica_of(decide(pool, 10, TO_CANDIDATE)) == "c"
        assert replica_of(decide(pool, 10, TO_CANDIDATE)) == "r0"
        waiting = decide(pool, 10, TO_CANDIDATE)
        assert isinstance(waiting, Queued)
        assert pool.core.release(1, pool.now, end=End.COMPLETED).settled == ()
        (settled,) = pool.core.release(2, pool.now, end=End.COMPLETED).settled
        assert replica_of(settled.decision) == "r0"

    def test_draining_one_gets_nothing(self) -> None:
        pool = self.pool(10)
        pool.replica("c", 100, aside=True, draining=True)
        assert replica_of(decide(pool, 5, TO_CANDIDATE)) == "r0"

    def test_replica_of_the_pool_is_not_beside_it(self) -> None:
        pool = Pool(10, 20)
        assert replica_of(decide(pool, 5)) == "r1"
        assert replica_of(decide(pool, 5, Preference(beside=("r0",)))) == "r1"

    def test_pool_without_a_replica_refuses_whatever_is_aside(self) -> None:
        pool = self.pool()
        shed = decide(pool, 5)
        assert isinstance(shed, Shed)
        assert shed.code is ShedCode.NO_READY_REPLICA

    def test_bound_of_the_largest_request_is_the_pools(self) -> None:
        pool = self.pool(10, aside=100)
        shed = decide(pool, 50)
        assert isinstance(shed, Shed)
        assert shed.code is ShedCode.REQUEST_TOO_LARGE

    def test_nothing_is_moved_there(self) -> None:
        pool = self.pool(10, 10)
        admitted = decide(pool, 10)
        moved = pool.core.relocate(1, pool.now, avoid=frozenset()).decision
        assert {replica_of(admitted), replica_of(moved)} == {"r0", "r1"}
        decide(pool, 10)
        assert isinstance(pool.core.relocate(1, pool.now).decision, Shed)

    def test_request_is_moved_from_there_to_the_pool(self) -> None:
        pool = self.pool(10)
        assert replica_of(decide(pool, 5, TO_CANDIDATE)) == "c"
        assert replica_of(pool.core.relocate(1, pool.now, avoid=frozenset("c")).decision) == "r0"
        assert pool.core.readings().replicas["c"].holds == 0

    def test_what_goes_beside_the_pool_passes_nobody(self) -> None:
        """Else room would be kept for the first in line that others could have used meanwhile."""
        pool = self.pool(20, aside=1000)
        decide(pool, 10)
        assert isinstance(decide(pool, 15), Queued)
        for _ in range(3):
            assert replica_of(decide(pool, 15, TO_CANDIDATE)) == "c"
        assert replica_of(decide(pool, 5)) == "r0"

    def test_promoted_one_joins_the_pool_with_what_it_holds(self) -> None:
        pool = self.pool(10, aside=10)
        assert replica_of(decide(pool, 6, TO_CANDIDATE)) == "c"
        assert replica_of(decide(pool, 8)) == "r0"
        waiting = decide(pool, 4)
        assert isinstance(waiting, Queued)
        (settled,) = pool.replica("c", 10)
        assert replica_of(settled.decision) == "c"
        assert pool.core.readings().replicas["c"].kv_blocks == 10

    def test_time_in_the_queue_is_predicted_from_the_pool_alone(self) -> None:
        """Room on the candidate comes free for nobody who waits."""
        alone, beside = Pool(10), self.pool(10, aside=1000)
        for _ in range(20):
            assert replica_of(decide(beside, 10, TO_CANDIDATE)) == "c"
        for pool in (alone, beside):
            ticket = decide(pool, 10)
            assert isinstance(ticket, Admitted)
            pool.now += 1_000_000_000
            pool.core.release(ticket.ticket, pool.now, end=End.COMPLETED)
            decide(pool, 10)
        waits = [decide(pool, 10) for pool in (alone, beside)]
        assert all(isinstance(wait, Queued) for wait in waits)
        assert len({wait.predicted_wait_ns for wait in waits if isinstance(wait, Queued)}) == 1

    def test_slow_candidate_teaches_no_prediction(self) -> None:
        pool = self.pool(10)
        decide(pool, 10, TO_CANDIDATE)
        pool.now += 10**12
        pool.core.release(1, pool.now, end=End.COMPLETED, output_tokens=0)
        assert pool.core.forecast.drain_ns(10, 10) is None


class TestPreference:
    def test_first_ones_are_taken_before_the_freest(self) -> None:
        pool = Pool(100, 100, 10)
        assert replica_of(decide(pool, 5, Preference(first=("r2",)))) == "r2"
        assert replica_of(decide(pool, 8, Preference(first=("r2",)))) in {"r0", "r1"}

    def test_spare_ones_are_left_alone_while_another_is_at_most_half_full(self) -> None:
        pool = Pool(100, 100)
        spare = Preference(spare=("r1",))
        assert replica_of(decide(pool, 50, spare)) == "r0"
        assert replica_of(decide(pool, 1, spare)) == "r0", "exactly half is free"
        assert replica_of(decide(pool, 1, spare)) == "r1"

    def test_spare_ones_are_used_rather_than_waiting(self) -> None:
        pool = Pool(10, 100)
        assert replica_of(decide(pool, 50, Preference(spare=("r1",)))) == "r1"

    def test_preference_lets_nobody_past_those_that_wait(self) -> None:
        pool = Pool(10, 10)
        plain = Pool(10, 10)
        for one in (pool, plain):
            decide(one, 10, tenant="b")
            decide(one, 9, tenant="b")
            decide(one, 10, tenant="b")
        for _ in range(30):
            told = decide(pool, 1, Preference(first=("r1",)), tenant="c")
            untold = decide(plain, 1, tenant="c")
            assert type(told) is type(untold)
            if isinstance(told, Admitted):
                pool.core.release(told.ticket, pool.now, end=End.COMPLETED, output_tokens=0)
            if isinstance(untold, Admitted):
                plain.core.release(untold.ticket, plain.now, end=End.COMPLETED, output_tokens=0)
        assert pool.readings.queued_requests == plain.readings.queued_requests > 0


class TestCopies:
    def pool(self) -> Pool:
        pool = Pool(10, tenants={})
        pool.replica("c", 10, aside=True)
        return pool

    def test_copy_holds_room_on_the_candidate_until_it_is_given_back_once(self) -> None:
        pool = self.pool()
        copy = pool.core.copy(ask(6), pool.now, ("c",))
        assert replica_of(copy) == "c"
        assert pool.core.copy(ask(6), pool.now, ("c",)) is None
        assert pool.readings.replicas["c"].kv_blocks == 6
        assert copy is not None
        pool.core.release_copy(copy.ticket)
        pool.core.release_copy(copy.ticket)
        assert pool.readings.replicas["c"].kv_blocks == 0

    def test_copy_is_nobodys_and_counted_nowhere(self) -> None:
        pool = self.pool()
        before = pool.readings
        copy = pool.core.copy(ask(6), pool.now, ("c",))
        assert copy is not None
        pool.now += 10**12
        pool.core.release_copy(copy.ticket)
        after = pool.readings
        assert (after.demand, after.outcomes, after.sheds) == (before.demand, before.outcomes, before.sheds)
        assert pool.core.forecast.drain_ns(10, 10) is None

    def test_nothing_is_copied_while_somebody_waits_or_after_the_end(self) -> None:
        pool = self.pool()
        decide(pool, 10)
        assert isinstance(decide(pool, 10), Queued)
        assert pool.core.copy(ask(1), pool.now, ("c",)) is None
        pool.core.release(1, pool.now, end=End.COMPLETED)
        pool.core.release(2, pool.now, end=End.COMPLETED)
        assert pool.core.copy(ask(1), pool.now, ("c",)) is not None
        pool.core.close(pool.now)
        assert pool.core.copy(ask(1), pool.now, ("c",)) is None

    def test_copy_goes_with_its_replica_and_is_no_lost_request(self) -> None:
        pool = self.pool()
        copy = pool.core.copy(ask(6), pool.now, ("c",))
        assert pool.core.remove_replica("c", pool.now).dropped == ()
        assert copy is not None
        pool.core.release_copy(copy.ticket)

    def test_request_is_not_given_back_as_a_copy(self) -> None:
        pool = self.pool()
        decide(pool, 6)
        pool.core.release_copy(1)
        assert pool.readings.replicas["r0"].kv_blocks == 6


class Told(ObservedService):
    """A forecast that remembers what it was told."""

    reserved_tokens = 0

    def predict(self, request: AdmissionRequest, footprint: Footprint, situation: Situation) -> Prediction:
        self.reserved_tokens = situation.reserved_tokens
        return super().predict(request, footprint, situation)


@pytest.mark.parametrize("seed", range(20))
def test_however_replicas_change_places_tokens_are_those_of_the_pool(seed: int) -> None:
    """What predictions rest on against a recount, over random entries, ends and changes of place."""
    chance, told = random.Random(seed), Told()
    core = AdmissionCore(policy(max_queued_requests=0), told)
    places = dict.fromkeys("abc", (False, False))
    for uid in places:
        core.set_replica(uid, capacity=Resources(50, 50), now_ns=0)
    tickets: list[int] = []
    for now in range(300):
        match chance.randrange(4):
            case 0:
                uid = chance.choice("abc")
                places[uid] = draining, aside = chance.random() < 0.2, chance.random() < 0.5
                core.set_replica(uid, capacity=Resources(50, 50), now_ns=now, draining=draining, aside=aside)
            case 1 if tickets:
                core.release(tickets.pop(chance.randrange(len(tickets))), now, end=End.COMPLETED)
            case _:
                beside = [uid for uid, (_, aside) in places.items() if aside]
                preference = Preference(beside=beside, spare=("a",)) if chance.random() < 0.5 else None
                pooled = sum(one.tokens for uid, one in core.readings().replicas.items() if not places[uid][1])
                told.reserved_tokens = pooled
                decision = core.decide(ask(chance.randint(1, 9)), now, preference).decision
                assert told.reserved_tokens == pooled
                if isinstance(decision, Admitted):
                    tickets.append(decision.ticket)
                    draining, aside = places[decision.replica]
                    assert not draining
                    assert preference is not None or not aside
        assert all(0 <= one.kv_blocks <= 50 for one in core.readings().replicas.values())
