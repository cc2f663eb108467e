"""Idempotency keys, releases, and replicas that change or vanish."""

from dataclasses import replace

import pytest

from bayplan.planning.admission.records import (
    AdmissionPolicy,
    Admitted,
    End,
    ReleaseOutcome,
    Replayed,
    TenantPolicy,
)
from bayplan.planning.admission.sheds import Shed, ShedCode, build_shed
from bayplan.planning.numbers import InvalidInput
from tests.planning.admission.pools import Pool, admitted, ask, policy, seconds


class TestKeys:
    def test_a_repeated_key_reserves_once_and_is_told_so(self) -> None:
        pool = Pool(100)
        first = pool.admit(40, idempotency_key="k")

        again = pool.ask(40, idempotency_key="k")

        assert isinstance(again, Replayed)
        assert again.original == first
        assert (again.shed.code, again.shed.status) == (ShedCode.IDEMPOTENCY_IN_FLIGHT, 409)
        assert again.shed.retry_after_ms is not None
        assert pool.readings.live_tokens == 40

    def test_another_payload_under_the_key_is_a_conflict_without_a_hint(self) -> None:
        pool = Pool(100)
        pool.admit(40, idempotency_key="k")

        shed = pool.shed(40, idempotency_key="k", payload_digest="other")

        assert (shed.code, shed.status, shed.retry_after_ms) == (ShedCode.IDEMPOTENCY_CONFLICT, 422, None)

    def test_keys_of_other_tenants_are_other_keys(self) -> None:
        pool = Pool(100)
        pool.admit(40, idempotency_key="k")

        assert isinstance(pool.ask(40, idempotency_key="k", tenant="b"), Admitted)

    def test_a_promoted_request_is_replayed_as_admitted(self) -> None:
        pool = Pool(10)
        running = pool.admit(10)
        pool.queue(10, idempotency_key="k")
        pool.release(running.ticket)

        again = pool.ask(10, idempotency_key="k")

        assert isinstance(again, Replayed)
        assert isinstance(again.original, Admitted)

    def test_a_completed_key_is_refused_until_it_is_forgotten(self) -> None:
        pool = Pool(100, remember_seconds=60)
        pool.release(pool.admit(10, idempotency_key="k").ticket)

        pool.later(59.9)
        shed = pool.shed(10, idempotency_key="k")
        assert (shed.code, shed.status, shed.retry_after_ms) == (ShedCode.IDEMPOTENCY_COMPLETED, 409, None)
        pool.later(0.1)
        assert isinstance(pool.ask(10, idempotency_key="k"), Admitted)

    @pytest.mark.parametrize("end", [End.CANCELLED, End.FAILED])
    def test_a_request_that_did_not_complete_may_be_tried_again(self, end: End) -> None:
        pool = Pool(100)
        pool.release(pool.admit(10, idempotency_key="k").ticket, end=end)

        assert isinstance(pool.ask(10, idempotency_key="k"), Admitted)

    def test_an_impatient_retry_is_answered_as_before_and_an_obedient_one_anew(self) -> None:
        pool = Pool(10, max_queued_requests=0)
        running = pool.admit(10)
        shed = pool.shed(10, idempotency_key="k")
        assert shed.retry_after_ms == 1000
        pool.release(running.ticket)

        pool.later(0.25)
        again = pool.shed(10, idempotency_key="k")
        assert (again.replay, again.code, again.retry_after_ms) == (True, ShedCode.QUEUE_FULL, 750)
        pool.later(0.75)
        assert isinstance(pool.ask(10, idempotency_key="k"), Admitted)

    def test_the_memory_for_ended_keys_is_bounded_and_running_ones_are_never_forgotten(self) -> None:
        pool = Pool(1000, max_remembered_keys=2)
        pool.admit(10, idempotency_key="running")
        for key in ("first", "second", "third"):
            pool.release(pool.admit(10, idempotency_key=key).ticket)

        assert isinstance(pool.ask(10, idempotency_key="first"), Admitted)
        assert isinstance(pool.ask(10, idempotency_key="third"), Shed)
        pool.later(10**6)
        assert isinstance(pool.ask(10, idempotency_key="running"), Replayed)


class TestRelease:
    def test_a_second_release_changes_nothing(self) -> None:
        pool = Pool(100)
        pool.admit(10)
        hold = pool.admit(40)

        assert pool.release(hold.ticket).outcome is ReleaseOutcome.RELEASED
        assert pool.release(hold.ticket).outcome is ReleaseOutcome.NOT_HELD
        assert pool.readings.live_tokens == 10

    def test_negative_output_is_refused_and_nothing_is_released(self) -> None:
        pool = Pool(100)
        hold = pool.admit(40)

        with pytest.raises(InvalidInput, match="output_tokens"):
            pool.release(hold.ticket, output_tokens=-1)

        assert pool.readings.live_tokens == 40


class TestReplicas:
    def test_holds_go_with_a_vanished_replica_and_late_releases_miss_its_successor(self) -> None:
        pool = Pool(100)
        hold = pool.admit(60)
        assert pool.core.remove_replica("r0", pool.now).dropped == (hold.ticket,)
        pool.replica("r0", 100)
        pool.admit(30)

        assert pool.release(hold.ticket).outcome is ReleaseOutcome.DROPPED
        assert pool.release(hold.ticket).outcome is ReleaseOutcome.NOT_HELD
        assert pool.readings.live_tokens == 30

    def test_a_draining_replica_keeps_its_holds_and_gets_nothing_until_it_is_undrained(self) -> None:
        pool = Pool(100, 40)
        hold = pool.admit(50)
        pool.replica("r0", 100, draining=True)

        assert pool.admit(40).replica == "r1"
        waiting = pool.queue(10)
        assert pool.readings.replicas["r0"].tokens == 50
        assert pool.release(hold.ticket).settled == ()
        assert admitted(pool.replica("r0", 100)) == [waiting.ticket]

    def test_a_shrunken_replica_admits_only_once_its_holds_fit_again(self) -> None:
        pool = Pool(100)
        holds = [pool.admit(40), pool.admit(40)]
        pool.replica("r0", 50)

        waiting = pool.queue(10)
        assert admitted(pool.release(holds[0].ticket).settled) == [waiting.ticket]

    def test_an_unknown_replica_can_vanish(self) -> None:
        assert Pool(10).core.remove_replica("never", 0).dropped == ()

    @pytest.mark.parametrize(("blocks", "sequences"), [(0, 1), (1, 0), (-1, 1)])
    def test_a_replica_without_room_is_refused(self, blocks: int, sequences: int) -> None:
        with pytest.raises(InvalidInput):
            Pool().replica("r", blocks, sequences=sequences)

    def test_a_refused_request_moves_to_another_replica_under_its_ticket(self) -> None:
        pool = Pool(100, 100, 100)
        hold = pool.admit(60)
        others = {"r0", "r1", "r2"} - {hold.replica}
        avoided = min(others)

        moved = pool.core.relocate(hold.ticket, pool.now, avoid=frozenset({avoided})).decision

        assert isinstance(moved, Admitted)
        assert (moved.ticket, moved.replica) == (hold.ticket, (others - {avoided}).pop())
        assert pool.readings.live_tokens == 60
        assert pool.release(hold.ticket).outcome is ReleaseOutcome.RELEASED

    def test_a_request_that_cannot_move_is_shed_and_holds_nothing(self) -> None:
        pool = Pool(100)
        hold = pool.admit(60)

        shed = pool.core.relocate(hold.ticket, pool.now).decision

        assert isinstance(shed, Shed)
        assert (shed.code, shed.status) == (ShedCode.NO_READY_REPLICA, 503)
        assert pool.readings.live_tokens == 0
        with pytest.raises(KeyError):
            pool.core.relocate(hold.ticket, pool.now)

    def test_a_request_whose_replica_vanished_can_move_and_counts_for_its_tenants_quota(self) -> None:
        pool = Pool(100, tenants={"a": TenantPolicy(max_live_tokens=60)})
        hold = pool.admit(60)
        pool.core.remove_replica("r0", pool.now)
        pool.replica("r1", 100)

        assert isinstance(pool.core.relocate(hold.ticket, pool.now).decision, Admitted)
        assert pool.shed(1).code is ShedCode.TENANT_QUOTA


class TestPolicy:
    def test_new_bounds_count_from_now_on(self) -> None:
        pool = Pool(100)
        pool.core.set_policy(replace(pool.core.policy, max_tokens_per_request=10))

        assert pool.shed(11).code is ShedCode.REQUEST_TOO_LARGE

    def test_what_footprints_are_counted_in_cannot_change_under_way(self) -> None:
        pool = Pool(100)

        with pytest.raises(InvalidInput, match="block_size"):
            pool.core.set_policy(replace(pool.core.policy, block_size=32))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("block_size", 0),
            ("max_tokens_per_request", 0),
            ("max_queued_requests", -1),
            ("max_wait_seconds", -1),
            ("speculative_tokens", -1),
            ("remember_seconds", 1.5),
            ("max_retry_after_seconds", 121),
            ("not_ready_retry_after_seconds", 0),
        ],
    )
    def test_an_invalid_policy_is_refused_by_the_name_of_its_field(self, field: str, value: object) -> None:
        with pytest.raises(InvalidInput) as caught:
            policy(**{field: value})

        assert caught.value.field == field

    @pytest.mark.parametrize("field", ["weight", "max_live_tokens", "max_tokens_per_request"])
    def test_a_tenant_without_any_share_is_refused(self, field: str) -> None:
        with pytest.raises(InvalidInput, match=field):
            TenantPolicy(**{field: 0})

    def test_the_limits_themselves_are_allowed(self) -> None:
        smallest = policy(max_queued_requests=0, max_wait_seconds=0, remember_seconds=0, max_retry_after_seconds=120)

        assert isinstance(smallest, AdmissionPolicy)
        assert TenantPolicy(max_queued_requests=0, max_wait_seconds=0).weight == 1


class TestSheds:
    @pytest.mark.parametrize("code", list(ShedCode))
    def test_every_code_has_one_status_and_one_form(self, code: ShedCode) -> None:
        shed = build_shed(code, "why", retry_after_ms=1500)
        body, headers = shed.body()["error"], shed.headers()

        assert shed.status in {400, 409, 422, 429, 503}
        assert (body["code"], body["message"]) == (code.value, "why")
        if shed.retry_after_ms is None:
            assert headers == {"x-should-retry": "false"}
            assert "retry_after" not in body
        else:
            assert headers == {"retry-after": "2", "retry-after-ms": "1500", "x-should-retry": "true"}
            assert body["retry_after"] == 2

    @pytest.mark.parametrize(("given", "said"), [(0, 1), (1, 1), (120_000, 120_000), (120_001, 120_000)])
    def test_hints_stay_within_what_clients_obey(self, given: int, said: int) -> None:
        assert build_shed(ShedCode.QUEUE_FULL, "", retry_after_ms=given).retry_after_ms == said

    def test_refused_clients_are_told_to_come_back_one_after_the_other(self) -> None:
        pool = Pool(100, max_queued_requests=0)
        hold = pool.admit(100)
        pool.later(1)
        pool.release(hold.ticket)
        pool.admit(100)

        # 100 tokens are held for one second on average: 10 tokens come free in 100 ms.
        assert [pool.shed(10).retry_after_ms for _ in range(3)] == [100, 200, 300]

    def test_the_longest_hint_is_the_policys(self) -> None:
        pool = Pool(100, max_queued_requests=0, max_retry_after_seconds=2)
        pool.release(pool.admit(100).ticket)
        hold = pool.admit(100)
        pool.later(1000)
        pool.release(hold.ticket)
        pool.admit(100)

        assert pool.shed(100).retry_after_ms == 2000


class TestForecast:
    def test_a_wait_is_predicted_from_how_long_tokens_were_held(self) -> None:
        pool = Pool(100)
        hold = pool.admit(100)
        pool.later(10)
        pool.release(hold.ticket)
        pool.admit(100)

        assert pool.queue(20).predicted_wait_ns == seconds(2)
        assert pool.queue(30).predicted_wait_ns == seconds(5)
        # Another tenant's due is as much as it asks for: of the 50 waiting, 10 go first.
        assert pool.queue(10, tenant="b").predicted_wait_ns == seconds(2)

    def test_a_deadline_counts_prediction_of_wait_and_service(self) -> None:
        pool = Pool(100)
        hold = pool.admit(100, output=11)
        pool.later(1)
        pool.core.first_token(hold.ticket, pool.now)
        pool.later(1)
        pool.release(hold.ticket, output_tokens=11)

        # First token after 1 s, then 0.1 s per token.
        assert isinstance(pool.ask(50, output=6, complete_by_ns=pool.now + seconds(1.5)), Admitted)
        late = pool.ask(50, output=6, complete_by_ns=pool.now + seconds(1.5) - 1)
        assert isinstance(late, Shed)
        assert late.code is ShedCode.DEADLINE_UNMEETABLE
        assert isinstance(pool.decide(ask(50, first_token_by_ns=pool.now + seconds(1))).decision, Admitted)
