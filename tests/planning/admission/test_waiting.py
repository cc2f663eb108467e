"""Promotion, turns, and who may pass whom."""

from dataclasses import replace

from bayplan.planning.admission.records import Admitted, End, Queued, ReleaseOutcome, TenantPolicy
from bayplan.planning.admission.sheds import Shed, ShedCode
from tests.planning.admission.pools import Pool, admitted, ask, codes, seconds, tickets


class TestPromotion:
    def test_what_waits_is_let_in_when_room_appears(self) -> None:
        pool = Pool(10)
        running = pool.admit(10)
        first, second, third = pool.queue(4), pool.queue(6), pool.queue(1)
        pool.later(2)

        released = pool.release(running.ticket)

        assert admitted(released.settled) == [first.ticket, second.ticket]
        decision = released.settled[0].decision
        assert isinstance(decision, Admitted)
        assert decision.waited_ns == seconds(2)
        assert pool.release(third.ticket).outcome is ReleaseOutcome.WITHDRAWN

    def test_a_new_replica_lets_in_what_waits(self) -> None:
        pool = Pool(10)
        pool.admit(10)
        waiting = pool.queue(10)

        assert admitted(pool.replica("new", 20)) == [waiting.ticket]

    def test_a_withdrawn_request_is_never_let_in(self) -> None:
        pool = Pool(10)
        running = pool.admit(10)
        waiting = pool.queue(10)

        assert pool.release(waiting.ticket, end=End.CANCELLED).outcome is ReleaseOutcome.WITHDRAWN
        assert pool.release(running.ticket).settled == ()
        assert pool.release(waiting.ticket).outcome is ReleaseOutcome.NOT_HELD

    def test_a_smaller_newcomer_takes_room_that_nobody_waiting_can_use(self) -> None:
        pool = Pool(100)
        pool.admit(80)
        pool.queue(50)

        assert isinstance(pool.ask(20), Admitted)


class TestTimeouts:
    def test_at_its_latest_start_a_request_may_still_start_and_just_after_it_is_shed(self) -> None:
        pool = Pool(10, max_wait_seconds=5)
        pool.admit(10)
        waiting = pool.queue(10)
        assert waiting.start_by_ns == pool.now + seconds(5)
        assert pool.core.next_expiry_ns == waiting.start_by_ns + 1

        assert pool.core.expire(waiting.start_by_ns).settled == ()
        settled = pool.core.expire(waiting.start_by_ns + 1).settled

        assert tickets(settled) == [waiting.ticket]
        assert codes(settled) == [ShedCode.QUEUE_TIMEOUT]
        assert pool.core.next_expiry_ns is None

    def test_the_dead_neither_fill_the_queue_nor_keep_room(self) -> None:
        pool = Pool(10, max_queued_requests=1, max_wait_seconds=5)
        pool.admit(4)
        waiting = pool.queue(10)
        pool.later(6)

        decided = pool.decide(ask(6))

        assert codes(decided.settled) == [ShedCode.QUEUE_TIMEOUT]
        assert tickets(decided.settled) == [waiting.ticket]
        assert isinstance(decided.decision, Admitted)

    def test_a_clock_that_goes_back_stands_still(self) -> None:
        pool = Pool(10, max_wait_seconds=5)
        pool.admit(10)
        pool.later(-500)

        assert pool.queue(10).start_by_ns == pool.now + seconds(505)


class TestSize:
    def test_once_its_own_size_has_passed_a_large_request_has_its_replica_kept(self) -> None:
        pool = Pool(100)
        small = [pool.admit(20) for _ in range(5)]
        large = pool.queue(60)

        # Every end makes room for a small one only. Three of them are as much as the large one asks for.
        for hold in small[:3]:
            pool.release(hold.ticket)
            small.append(pool.admit(20))
        for hold in small[3:5]:
            pool.release(hold.ticket)
            assert isinstance(pool.ask(20), Queued)

        assert admitted(pool.release(small[5].ticket).settled) == [large.ticket]

    def test_other_replicas_go_on_while_one_is_kept(self) -> None:
        pool = Pool(100, 100)
        holds = [pool.admit(50) for _ in range(4)]
        kept = [hold for hold in holds if hold.replica == "r0"]
        other = [hold for hold in holds if hold.replica == "r1"]
        large = pool.queue(100)
        for number in range(2):  # 100 tokens pass, all on r0
            pool.release(kept[number].ticket)
            kept[number] = pool.admit(50)

        pool.release(kept[0].ticket)
        assert isinstance(pool.ask(50), Queued)
        passing = pool.release(other[0].ticket).settled
        assert [one.decision.replica for one in passing if isinstance(one.decision, Admitted)] == ["r1"]
        assert admitted(pool.release(kept[1].ticket).settled) == [large.ticket]

    def test_a_request_that_no_replica_can_hold_any_more_is_sent_away(self) -> None:
        pool = Pool(100, 50)
        pool.admit(100)
        pool.admit(40)
        large, small = pool.queue(80), pool.queue(50)

        changed = pool.core.remove_replica("r0", pool.now)

        assert tickets(changed.settled) == [large.ticket]
        assert codes(changed.settled) == [ShedCode.NO_READY_REPLICA]
        assert pool.release(small.ticket).outcome is ReleaseOutcome.WITHDRAWN

    def test_without_any_replica_the_queue_waits_for_one(self) -> None:
        pool = Pool(100)
        pool.admit(100)
        waiting = pool.queue(80)

        assert pool.core.remove_replica("r0", pool.now).settled == ()
        assert admitted(pool.replica("next", 100)) == [waiting.ticket]


class TestTurns:
    def test_the_tenant_that_was_given_least_is_next(self) -> None:
        pool = Pool(100)
        running = pool.admit(100, tenant="full")
        for _ in range(3):
            pool.queue(30, tenant="many")
        one = pool.queue(30, tenant="few")

        settled = pool.release(running.ticket).settled

        assert one.ticket in admitted(settled)[:2]

    def test_a_tenant_with_twice_the_weight_gets_twice_the_tokens(self) -> None:
        pool = Pool(90, tenants={"double": TenantPolicy(weight=2)})
        running = pool.admit(90, tenant="full")
        owner = {}
        for _ in range(20):
            for tenant in ("single", "double"):
                owner[pool.queue(10, tenant=tenant).ticket] = tenant

        let_in = [owner[ticket] for ticket in admitted(pool.release(running.ticket).settled)]

        assert sorted(let_in) == ["double"] * 6 + ["single"] * 3

    def test_idle_time_earns_nothing(self) -> None:
        pool = Pool(100)
        for _ in range(5):
            pool.release(pool.admit(100, tenant="busy", output=50).ticket, output_tokens=50)
        running = pool.admit(100, tenant="busy")
        owner = {}
        for _ in range(6):
            owner[pool.queue(20, tenant="busy").ticket] = "busy"
        for _ in range(6):
            owner[pool.queue(20, tenant="back").ticket] = "back"

        let_in = [owner[ticket] for ticket in admitted(pool.release(running.ticket).settled)]

        assert {let_in.count("busy"), let_in.count("back")} <= {2, 3}

    def test_a_tenants_share_is_what_its_answers_used_not_what_they_might_have(self) -> None:
        pool = Pool(100)
        running = pool.admit(100, tenant="full")
        brief, long = (pool.queue(50, tenant=tenant, output=40).ticket for tenant in ("brief", "long"))
        assert admitted(pool.release(running.ticket).settled) == [brief, long]
        pool.queue(100, tenant="long")
        following = pool.queue(100, tenant="brief")
        pool.release(brief, output_tokens=0)

        assert admitted(pool.release(long, output_tokens=40).settled) == [following.ticket]

    def test_who_promises_more_than_it_uses_gains_nothing_over_who_comes_later(self) -> None:
        pool = Pool(100)
        pool.release(pool.admit(100, tenant="a", output=90).ticket, output_tokens=5)  # answers use little of it
        hold = pool.admit(100, tenant="a", output=90)
        pool.queue(60, tenant="a", output=50)
        late = pool.queue(60, tenant="late", output=50)
        another = pool.queue(60, tenant="a", output=50)

        first = pool.release(hold.ticket, output_tokens=5).settled
        second = pool.release(first[0].ticket, output_tokens=3).settled

        assert admitted(second) == [late.ticket]
        assert pool.release(another.ticket).outcome is ReleaseOutcome.WITHDRAWN

    def test_a_full_queue_takes_from_the_tenant_with_the_most_waiting(self) -> None:
        pool = Pool(10, max_queued_requests=3)
        pool.admit(10)
        waiting = [pool.queue(10, tenant="flood") for _ in range(3)]
        assert pool.shed(10, tenant="flood").code is ShedCode.QUEUE_FULL

        decided = pool.decide(ask(10, tenant="late"))

        assert isinstance(decided.decision, Queued)
        assert tickets(decided.settled) == [waiting[-1].ticket]
        assert codes(decided.settled) == [ShedCode.QUEUE_FULL]

    def test_nobody_is_displaced_for_a_tenant_that_would_have_as_much_waiting(self) -> None:
        pool = Pool(30, max_queued_requests=2)
        pool.admit(30)
        pool.queue(10, tenant="a")
        pool.queue(10, tenant="a")

        assert isinstance(pool.ask(20, tenant="b"), Shed)
        assert isinstance(pool.ask(19, tenant="b"), Queued)

    def test_changed_weights_count_for_what_waits(self) -> None:
        pool = Pool(90)
        running = pool.admit(90, tenant="full")
        owner = {}
        for _ in range(9):
            for tenant in ("x", "y"):
                owner[pool.queue(10, tenant=tenant).ticket] = tenant
        pool.core.set_policy(replace(pool.core.policy, tenants={"x": TenantPolicy(weight=2)}))
        owner[pool.queue(10, tenant="x").ticket] = "x"

        let_in = [owner[ticket] for ticket in admitted(pool.release(running.ticket).settled)]

        assert sorted(let_in) == ["x"] * 6 + ["y"] * 3
