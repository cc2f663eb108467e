"""The order of a decision and both sides of each of its limits."""

from fractions import Fraction

import pytest

from bayplan.planning.admission.forecast import Forecast, ObservedService, Prediction, Situation
from bayplan.planning.admission.records import (
    AdmissionRequest,
    Admitted,
    Footprint,
    Outcome,
    Queued,
    Resources,
    TenantPolicy,
)
from bayplan.planning.admission.sheds import Shed, ShedCode
from bayplan.planning.numbers import InvalidInput
from tests.planning.admission.pools import Pool, ask, policy, seconds, serve_once


class Predicts(ObservedService):
    """Says what it is told; drains one token per millisecond."""

    def __init__(self, *, wait: float = 0, first_token: float | None = None, completion: float | None = None) -> None:
        super().__init__()
        self.wait, self.first_token, self.completion = wait, first_token, completion

    def predict(self, request: AdmissionRequest, footprint: Footprint, situation: Situation) -> Prediction:
        service = [None if one is None else seconds(one) for one in (self.first_token, self.completion)]
        return Prediction(seconds(self.wait), *service)

    def drain_ns(self, tokens: int, reserved_tokens: int) -> int | None:
        return tokens * 1_000_000


class TestFootprint:
    @pytest.mark.parametrize(("tokens", "blocks"), [(15, 1), (16, 1), (17, 2)])
    def test_tokens_are_rounded_up_to_blocks(self, tokens: int, blocks: int) -> None:
        assert policy(block_size=16).footprint(ask(tokens)) == Footprint(tokens, blocks, 1)

    def test_every_sequence_counts_prompt_and_output_in_its_own_blocks(self) -> None:
        request = ask(17, output=10, sequences=3)

        assert policy(block_size=16).footprint(request) == Footprint(51, 6, 3)

    def test_draft_tokens_take_room_beyond_the_end(self) -> None:
        speculating = policy(block_size=16, speculative_tokens=4)

        assert speculating.footprint(ask(12)).kv_blocks == 1
        assert speculating.footprint(ask(13)).kv_blocks == 2

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"tenant": " "}, "tenant"),
            ({"tenant": ""}, "tenant"),
            ({"prompt_tokens": -1}, "prompt_tokens"),
            ({"prompt_tokens": 1.0}, "prompt_tokens"),
            ({"prompt_tokens": True}, "prompt_tokens"),
            ({"max_output_tokens": 10**12 + 1}, "max_output_tokens"),
            ({"max_output_tokens": "5"}, "max_output_tokens"),
            ({"sequences": 0}, "footprint"),
            ({"prompt_tokens": 0, "max_output_tokens": 0}, "footprint"),
            ({"complete_by_ns": float("nan")}, "complete_by_ns"),
            ({"first_token_by_ns": True}, "first_token_by_ns"),
            ({"idempotency_key": " "}, "idempotency_key"),
            ({"idempotency_key": "k" * 256}, "idempotency_key"),
            ({"idempotency_key": "k", "payload_digest": ""}, "payload_digest"),
        ],
    )
    def test_an_invalid_request_is_refused_by_the_name_of_its_field(
        self, fields: dict[str, object], field: str
    ) -> None:
        given = {"tenant": "a", "prompt_tokens": 1, "max_output_tokens": 1, "payload_digest": "p"} | fields

        with pytest.raises(InvalidInput) as caught:
            AdmissionRequest(**given)  # type: ignore[arg-type]

        assert caught.value.field == field

    def test_a_key_of_the_longest_length_and_a_prompt_without_output_pass(self) -> None:
        assert ask(1, idempotency_key="k" * 255).tokens == 1


class TestOwnBound:
    def test_equal_to_the_bound_passes_and_one_more_is_refused_for_good(self) -> None:
        pool = Pool(500, max_tokens_per_request=100)

        assert isinstance(pool.ask(100), Admitted)
        shed = pool.shed(101)

        assert (shed.code, shed.status, shed.retry_after_ms) == (ShedCode.REQUEST_TOO_LARGE, 400, None)

    def test_a_tenants_tighter_bound_counts_and_a_wider_one_does_not(self) -> None:
        pool = Pool(
            500,
            max_tokens_per_request=100,
            tenants={
                "tight": TenantPolicy(max_tokens_per_request=50),
                "wide": TenantPolicy(max_tokens_per_request=300),
            },
        )

        assert isinstance(pool.ask(50, tenant="tight"), Admitted)
        assert pool.shed(51, tenant="tight").code is ShedCode.REQUEST_TOO_LARGE
        assert pool.shed(101, tenant="wide").code is ShedCode.REQUEST_TOO_LARGE

    def test_what_fits_only_the_sum_of_replicas_is_refused_for_good(self) -> None:
        pool = Pool(60, 60)

        assert isinstance(pool.ask(60), Admitted)
        shed = pool.shed(61)

        assert (shed.code, shed.retry_after_ms) == (ShedCode.REQUEST_TOO_LARGE, None)
        assert "needs 61 KV blocks" in shed.message
        assert "largest has 60" in shed.message

    def test_more_sequences_than_any_replica_has_are_refused_for_good(self) -> None:
        pool = Pool(60, 60, sequences=4)

        assert isinstance(pool.ask(1, sequences=4), Admitted)
        assert pool.shed(1, sequences=5).code is ShedCode.REQUEST_TOO_LARGE

    def test_a_bound_above_what_one_replica_holds_is_no_policy(self) -> None:
        policy(max_tokens_per_request=96, block_size=16, speculative_tokens=4).require_room(Resources(7, 1))
        policy(max_tokens_per_request=108, block_size=16, speculative_tokens=4).require_room(Resources(7, 1))

        with pytest.raises(InvalidInput) as caught:
            policy(max_tokens_per_request=109, block_size=16, speculative_tokens=4).require_room(Resources(7, 1))

        assert caught.value.field == "max_tokens_per_request"
        assert "at most 108" in caught.value.message


class TestQuota:
    def quota(self, tokens: int) -> dict[str, object]:
        return {"tenants": {"a": TenantPolicy(max_live_tokens=tokens)}}

    def test_equal_to_the_quota_passes_and_one_more_is_shed_until_something_ends(self) -> None:
        pool = Pool(500, **self.quota(100))
        first = pool.admit(60)
        pool.admit(40)

        shed = pool.shed(1)
        assert (shed.code, shed.status) == (ShedCode.TENANT_QUOTA, 429)
        assert shed.retry_after_ms is not None

        pool.release(first.ticket)
        assert isinstance(pool.ask(60), Admitted)

    def test_another_tenant_is_not_touched(self) -> None:
        pool = Pool(500, **self.quota(100))
        pool.admit(100)

        assert isinstance(pool.ask(100, tenant="b"), Admitted)

    def test_a_request_above_the_whole_quota_gets_no_hint(self) -> None:
        pool = Pool(500, **self.quota(100))

        assert pool.shed(101).retry_after_ms is None
        assert isinstance(pool.ask(100), Admitted)

    def test_the_hint_is_when_the_tenant_will_have_given_back_the_excess(self) -> None:
        pool = Pool(500, forecast=Predicts(), **self.quota(100))
        pool.admit(90)

        assert pool.shed(40).retry_after_ms == 30

    def test_a_tenants_share_of_the_queue_is_bounded(self) -> None:
        pool = Pool(10, tenants={"a": TenantPolicy(max_queued_requests=2)})
        pool.admit(10)
        pool.queue(10)
        pool.queue(10)

        assert pool.shed(10).code is ShedCode.QUEUE_FULL
        pool.queue(10, tenant="b")


class TestDeadline:
    def test_a_start_just_in_time_passes_and_a_nanosecond_later_does_not(self) -> None:
        pool = Pool(100, forecast=Predicts(wait=2, completion=3))

        assert isinstance(pool.ask(10, complete_by_ns=pool.now + seconds(5)), Admitted)
        shed = pool.shed(10, complete_by_ns=pool.now + seconds(5) - 1)

        assert (shed.code, shed.status) == (ShedCode.DEADLINE_UNMEETABLE, 429)
        assert shed.retry_after_ms is not None

    def test_the_first_token_has_its_own_deadline(self) -> None:
        pool = Pool(100, forecast=Predicts(wait=2, first_token=0.5, completion=60))

        assert isinstance(pool.ask(10, first_token_by_ns=pool.now + seconds(2.5)), Admitted)
        shed = pool.shed(10, first_token_by_ns=pool.now + seconds(2.5) - 1)
        assert shed.code is ShedCode.DEADLINE_UNMEETABLE

    def test_it_is_judged_before_capacity(self) -> None:
        pool = Pool(100, forecast=Predicts(wait=2))

        pool.shed(10, complete_by_ns=pool.now + seconds(1))

        assert pool.readings.live_tokens == 0

    def test_what_the_service_alone_would_miss_gets_no_hint(self) -> None:
        pool = Pool(100, forecast=Predicts(completion=3))

        assert pool.shed(10, complete_by_ns=pool.now + seconds(3) - 1).retry_after_ms is None
        assert isinstance(pool.ask(10, complete_by_ns=pool.now + seconds(3)), Admitted)

    def test_a_predicted_wait_beyond_the_longest_one_is_shed_at_once(self) -> None:
        forecast = Predicts(wait=30)
        pool = Pool(10, forecast=forecast, max_wait_seconds=30, tenants={"b": TenantPolicy(max_wait_seconds=29)})
        pool.admit(10)

        pool.queue(10)
        assert pool.shed(10, tenant="b").code is ShedCode.DEADLINE_UNMEETABLE
        forecast.wait = 30.001
        assert pool.shed(10).code is ShedCode.DEADLINE_UNMEETABLE

    def test_without_any_observation_nobody_is_shed_for_a_deadline(self) -> None:
        pool = Pool(10)
        pool.admit(10)

        queued = pool.queue(10, complete_by_ns=pool.now + 1)

        assert queued.predicted_wait_ns is None

    def test_own_bound_comes_before_quota_before_readiness_before_deadline(self) -> None:
        tenants = {"a": TenantPolicy(max_tokens_per_request=50, max_live_tokens=20)}
        pool = Pool(forecast=Predicts(wait=5), tenants=tenants)
        late = {"complete_by_ns": pool.now}

        assert pool.shed(51, **late).code is ShedCode.REQUEST_TOO_LARGE
        assert pool.shed(21, **late).code is ShedCode.TENANT_QUOTA
        assert pool.shed(20, **late).code is ShedCode.NO_READY_REPLICA
        pool.replica("r", 20)
        assert pool.shed(20, **late).code is ShedCode.DEADLINE_UNMEETABLE


class TestCapacity:
    def test_the_last_block_and_the_last_slot_can_be_had(self) -> None:
        pool = Pool(10, sequences=2)
        pool.admit(9)
        pool.admit(1)
        assert isinstance(pool.ask(1), Queued)

        pool = Pool(10, sequences=2)
        pool.admit(1)
        pool.admit(1)
        assert isinstance(pool.ask(1), Queued)

    def test_a_reservation_is_of_one_replica_that_has_both_parts(self) -> None:
        pool = Pool()
        pool.replica("blocks", 100, sequences=1)
        pool.replica("slots", 10, sequences=50)
        assert pool.admit(1).replica == "blocks"

        assert isinstance(pool.ask(50), Queued)
        assert pool.admit(5).replica == "slots"

    def test_the_replica_with_the_most_free_blocks_is_taken(self) -> None:
        pool = Pool(100, 120, 90)

        assert [pool.admit(25).replica for _ in range(4)] == ["r1", "r0", "r1", "r2"]

    def test_a_full_queue_sheds_with_a_hint_and_changes_nothing(self) -> None:
        pool = Pool(10, max_queued_requests=1)
        pool.admit(10)
        pool.queue(10)
        before = pool.readings

        shed = pool.shed(10)

        assert (shed.code, shed.status) == (ShedCode.QUEUE_FULL, 429)
        assert shed.retry_after_ms is not None
        after = pool.readings
        assert (after.replicas, after.queued_requests, after.queued_tokens) == (
            before.replicas,
            before.queued_requests,
            before.queued_tokens,
        )

    def test_without_a_queue_contention_sheds_at_once(self) -> None:
        pool = Pool(10, max_queued_requests=0)
        pool.admit(10)

        assert pool.shed(1).code is ShedCode.QUEUE_FULL

    def test_without_a_ready_replica_the_answer_is_503_with_the_configured_hint(self) -> None:
        shed = Pool(not_ready_retry_after_seconds=7).shed(10)

        assert (shed.code, shed.status, shed.retry_after_ms) == (ShedCode.NO_READY_REPLICA, 503, 7000)

    def test_a_closed_pool_sends_everybody_away_and_keeps_what_is_admitted(self) -> None:
        pool = Pool(10)
        running = pool.admit(10)
        waiting = pool.queue(5)

        closed = pool.core.close(pool.now)

        assert [(one.ticket, one.decision.code) for one in closed.settled if isinstance(one.decision, Shed)] == [
            (waiting.ticket, ShedCode.DRAINING)
        ]
        assert pool.shed(1).status == 503
        assert pool.readings.live_tokens == 10
        pool.release(running.ticket)
        assert pool.readings.live_tokens == 0


class TestBudget:
    def test_a_budget_above_the_capacity_admits_more_at_once_but_nothing_larger(self) -> None:
        pool = Pool()
        pool.replica("r", 100, budget=Resources(100, 1000).scaled(Fraction(3, 2)))

        pool.admit(100)
        pool.admit(50)

        assert isinstance(pool.ask(1), Queued)
        assert pool.shed(101).code is ShedCode.REQUEST_TOO_LARGE

    def test_a_request_above_the_budget_but_not_above_the_replica_may_come_back(self) -> None:
        pool = Pool()
        pool.replica("r", 100, budget=Resources(40, 10))

        shed = pool.shed(41)

        assert (shed.code, shed.status) == (ShedCode.NO_READY_REPLICA, 503)
        assert shed.retry_after_ms is not None
        assert isinstance(pool.ask(40), Admitted)


class TestReadings:
    def test_every_outcome_and_code_is_named_from_the_start(self) -> None:
        readings = Pool(10).readings

        assert set(readings.outcomes) == set(Outcome)
        assert set(readings.sheds) == set(ShedCode)
        assert not any(readings.outcomes.values())

    def test_demand_counts_what_more_replicas_could_serve_whatever_became_of_it(self) -> None:
        pool = Pool(
            100,
            max_queued_requests=0,
            max_tokens_per_request=200,
            tenants={"poor": TenantPolicy(max_live_tokens=1)},
        )
        pool.admit(100, output=40)
        pool.shed(50, output=10)  # queue full
        pool.shed(150)  # no replica holds it
        pool.shed(50, tenant="poor")

        demand = pool.readings.demand

        assert (demand.requests, demand.prompt_tokens, demand.max_output_tokens) == (2, 100, 50)

    def test_expected_output_follows_what_answers_use(self) -> None:
        pool = Pool(1000)
        serve_once(pool, tokens=20, output=10)
        hold = pool.admit(30, output=10)
        pool.release(hold.ticket, output_tokens=5)
        before = pool.readings.demand.expected_output_tokens

        pool.admit(1000, output=100)
        waiting = pool.queue(50, output=20)

        use = (10 * 0.98 + 5) / (10 * 0.98 + 10)
        assert pool.readings.demand.expected_output_tokens - before == pytest.approx(120 * use, abs=2)
        assert pool.readings.queued_tokens == 50
        assert pool.readings.queued_expected_tokens == pytest.approx(30 + 20 * use, abs=1)
        pool.release(waiting.ticket)
        assert pool.readings.queued_expected_tokens == 0

    def test_outcomes_count_a_request_that_waited_twice(self) -> None:
        pool = Pool(10)
        running = pool.admit(10)
        pool.queue(10)
        pool.release(running.ticket)

        outcomes = pool.readings.outcomes

        assert (outcomes[Outcome.ADMITTED], outcomes[Outcome.QUEUED], outcomes[Outcome.COMPLETED]) == (2, 1, 1)


def test_the_forecast_of_the_core_can_be_replaced() -> None:
    forecast: Forecast = Predicts()

    assert Pool(10, forecast=forecast).core.forecast is forecast
