"""How a candidate gets on, what holds it, and what takes its traffic away."""

from dataclasses import replace
from fractions import Fraction

import pytest

from bayplan.api.rolloutwords import GateName, Handling, OnDeadline, OnRegression, Phase
from bayplan.planning.gates.records import Gate
from bayplan.planning.rollout.verdicts import Advance, HoldReason, Rest, RestReason, Rollback, RollbackReason
from tests.planning.rollout.fleet import STEP, Fleet, at, reasons
from tests.planning.rollout.policies import CANARY, GATES, LARGER, PROMOTE, SHADOW, WARM, approval, policy

LADDER = ["Paper", "warm", "shadow", "canary-10", "canary-25", "promote"]


class TestAGoodCandidate:
    def test_it_goes_through_every_stage_and_serves_as_proven_with_the_same_pods(self) -> None:
        fleet = Fleet()
        before = fleet.until("canary-25")
        pods = fleet.heads("r2").heads
        assert before.state.plan.candidate == "r2"

        last = fleet.run()

        assert fleet.history == [*LADDER, Phase.STEADY]
        assert last.verdict == Rest(RestReason.CURRENT, "r2 serves, proven")
        assert (fleet.plan.serving, fleet.plan.previous, fleet.plan.candidate) == ("r2", None, None)
        assert set(pods) <= set(fleet.heads("r2").heads)

    def test_the_first_revision_serves_as_not_proven(self) -> None:
        fleet = Fleet(wanted="r1", served=None)

        assert fleet.run(3).verdict == Rest(RestReason.CURRENT, "r1 serves, not proven")
        assert fleet.plan.routed == ("r1",)

    def test_what_serves_stays_when_git_names_something_else_at_first_sight(self) -> None:
        assert Fleet(served="r1", wanted="r2").step().state.plan.serving == "r1"

    def test_the_first_epoch_is_one_that_no_gateway_has_acknowledged(self) -> None:
        assert Fleet(epoch=7).step().state.plan.epoch == 8

    def test_at_rest_nothing_changes(self) -> None:
        fleet = Fleet()
        fleet.run()
        settled = fleet.step().state

        assert fleet.step().state == fleet.step().state == settled

    def test_no_request_goes_to_it_before_it_is_warm_nor_in_the_shadow_stage(self) -> None:
        fleet = Fleet()
        while fleet.step().state.phase is not Phase.CANARY:
            assert fleet.plan.weight == 0
            assert fleet.plan.shadow_share == 0 or fleet.phase is Phase.SHADOW

    def test_with_a_time_to_retain_the_old_revision_stays_without_traffic_and_then_goes(self) -> None:
        fleet = Fleet(policy=policy(retain_seconds=Fraction(45)))
        fleet.until(Phase.RETAINED)

        assert (fleet.plan.previous, fleet.stored.retained, fleet.plan.routed) == (None, "r1", ("r2",))
        holding = [reasons(fleet.step()) for _ in range(4)]
        assert holding == [[HoldReason.RETAINING]] * 4
        assert fleet.step().verdict == Advance(Phase.STEADY)
        assert fleet.stored.retained is None

    def test_serving_is_held_at_its_size_while_a_candidate_is_on_trial(self) -> None:
        fleet = at("canary-10")
        fleet.desired = 1

        assert fleet.settle().state.plan.stable_min == 4


class TestABadCandidate:
    @pytest.mark.parametrize(
        ("trouble", "gate"), [({"late": 100}, GateName.TTFT), ({"errors": 11}, GateName.ERROR_RATE)]
    )
    @pytest.mark.parametrize("stage", ["shadow", "canary-10", "canary-25"])
    def test_it_loses_its_traffic_by_the_name_of_its_gate_with_that_very_decision(
        self, stage: str, trouble: dict[str, int], gate: GateName
    ) -> None:
        fleet = at(stage)
        for name, value in trouble.items():
            setattr(fleet, name, value)

        while not isinstance((decision := fleet.step()).verdict, Rollback):
            assert not isinstance(decision.verdict, Advance)

        assert decision.verdict.reason is RollbackReason.GATE_FAILED
        assert decision.verdict.message.startswith(gate.value)
        assert (fleet.plan.weight, fleet.plan.shadow_share) == (0, 0)
        assert decision.gates[0].gate.name is gate

    def test_it_is_proven_and_not_tried_again(self) -> None:
        fleet = at("canary-10", errors=200)
        last = fleet.run()

        assert fleet.history[-2:] == [RollbackReason.GATE_FAILED, Phase.ROLLED_BACK]
        assert last.verdict == Rest(RestReason.REJECTED, "r2: GateFailed: error-rate: error rate 1, at most 0.05")
        assert fleet.stored.proof is not None
        assert fleet.stored.proof.proven
        assert fleet.plan.routed == ("r1",)
        assert fleet.run(5).verdict == last.verdict

    def test_all_failing_gates_are_reported_the_worst_first(self) -> None:
        fleet = at("canary-10", errors=200, late=200)

        fleet.run(3)
        failed = next(decision for decision in fleet.seen if isinstance(decision.verdict, Rollback))

        assert [result.gate.name for result in failed.gates] == ["ttft", "error-rate"]  # 20 times, 20 times
        assert all(result.handling is Handling.ROLL_BACK for result in failed.gates)

    def test_quality_below_its_floor_rolls_back_and_without_answers_it_holds(self) -> None:
        gates = (*GATES, Gate(GateName.QUALITY_FLOOR, Fraction(85, 100)))
        fleet = at("shadow", policy(gates=gates, prompt_set="set"), quality={"r1": (90, 10), "r2": (80, 20)})
        silent = at("shadow", policy(gates=gates, prompt_set="set"), quality={"r1": (90, 10)})

        assert fleet.settle(1).verdict == Rollback(
            RollbackReason.GATE_FAILED, "quality-floor: quality 0.8, at least 0.85"
        )
        assert reasons(silent.settle(9)) == [HoldReason.INSUFFICIENT_EVIDENCE]

    def test_an_unwarmed_candidate_holds_however_bad_and_ends_by_its_deadline(self) -> None:
        fleet = at("warm", policy(on_deadline=OnDeadline.ROLLBACK), ready={"r2": 1}, errors=200)
        fleet.trouble = "crash loop: exit code 1, 5 times"

        assert reasons(fleet.settle(60)) == [HoldReason.CANDIDATE_TROUBLE]
        assert fleet.stored.clock.elapsed(fleet.now) == 600
        assert fleet.step().verdict == Rollback(RollbackReason.DEADLINE_EXCEEDED, "warm outlasted its 600 s")

    def test_a_thin_candidate_holds_however_bad(self) -> None:
        fleet = at("canary-10", requests=1, late=1, errors=1)

        assert HoldReason.INSUFFICIENT_EVIDENCE in reasons(fleet.settle(30))

    @pytest.mark.parametrize(("requests", "held"), [(49, True), (50, False)])
    def test_even_without_gates_both_arms_need_their_samples(self, requests: int, held: bool) -> None:
        fleet = at("canary-10", policy(gates=()), requests=requests)

        decision = fleet.settle(4)

        assert fleet.stored.evidence.windows == 2
        assert (HoldReason.INSUFFICIENT_EVIDENCE in reasons(decision)) is held

    def test_a_last_window_in_doubt_holds_whatever_was_counted_before(self) -> None:
        fleet = at("canary-10")
        fleet.settle(4)

        for _ in range(3):
            decision = fleet.step(window=fleet.window(problem="gateway g started anew"))
        assert reasons(decision) == [HoldReason.NOT_COMPARABLE]
        assert fleet.step().verdict == Advance("canary-25")

    def test_a_miss_that_the_baseline_shares_holds_and_asks_for_tuning(self) -> None:
        fleet = at("canary-10")
        fleet.late = 40
        for _ in range(5):
            decision = fleet.step(window=fleet.window(baseline_late=40))

        assert HoldReason.GATE_SHARED in reasons(decision)

    def test_a_watched_gate_decides_nothing(self) -> None:
        watched = (GATES[0], replace(GATES[1], enforce=False))
        fleet = Fleet(policy=policy(gates=watched), errors=200)

        assert fleet.run().verdict == Rest(RestReason.CURRENT, "r2 serves, proven")


class TestFreeze:
    def frozen(self) -> Fleet:
        gates = (GATES[0], replace(GATES[1], on_regression=OnRegression.FREEZE))
        fleet = at("canary-10", policy(gates=gates), errors=200)
        fleet.settle()
        return fleet

    def test_it_keeps_the_traffic_where_it_is_until_somebody_decides(self) -> None:
        fleet = self.frozen()
        fleet.errors = 0

        decision = fleet.settle(20)

        assert reasons(decision)[0] is HoldReason.FROZEN
        assert fleet.plan.weight == 10

    def test_a_retry_starts_the_stage_again_with_empty_counts(self) -> None:
        fleet = self.frozen()
        fleet.errors = 0
        fleet.change(retry="1")

        fleet.step()

        assert (fleet.stored.frozen, fleet.stored.evidence.windows) == ("", 0)
        assert fleet.run().verdict == Rest(RestReason.CURRENT, "r2 serves, proven")

    def test_an_abort_ends_it(self) -> None:
        fleet = self.frozen()
        fleet.change(abort="r2")

        assert fleet.step().verdict == Rollback(RollbackReason.ABORTED, "spec.abort names r2")


class TestTime:
    @pytest.mark.parametrize("stage", ["warm", "shadow", "canary-10"])
    def test_a_stage_that_outlasts_its_deadline_pauses_and_never_goes_on_by_itself(self, stage: str) -> None:
        fleet = at(stage, requests=0, ready={"r2": 1} if stage == "warm" else {})

        assert HoldReason.DEADLINE_EXCEEDED not in reasons(fleet.settle(60))  # at the deadline
        assert HoldReason.DEADLINE_EXCEEDED in reasons(fleet.step())
        fleet.requests, fleet.ready = 200, {}
        assert reasons(fleet.settle(30)) == [HoldReason.DEADLINE_EXCEEDED]

    def test_a_retry_gives_a_late_stage_its_time_again(self) -> None:
        fleet = at("canary-10", requests=0)
        fleet.settle(70)
        fleet.requests = 200
        fleet.change(retry="again")

        assert fleet.run().verdict == Rest(RestReason.CURRENT, "r2 serves, proven")

    def test_a_pause_stops_the_clock_and_the_way_on_and_nothing_else(self) -> None:
        fleet = at("canary-10")
        fleet.settle(1)
        fleet.change(paused=True)
        fleet.settle(200)
        assert reasons(fleet.step()) == [HoldReason.PAUSED, HoldReason.BAKING]
        assert fleet.stored.clock.elapsed(fleet.now) == 2 * STEP

        fleet.errors = 10_000  # of 40,000 by then
        fleet.requests = 10_000
        assert isinstance(fleet.settle(1).verdict, Rollback)

    def test_a_pause_ends_where_it_began(self) -> None:
        fleet = at("canary-10", requests=0)
        fleet.settle(50)
        fleet.change(paused=True)
        fleet.settle(100)
        fleet.change(paused=False)
        fleet.requests = 200

        fleet.run()

        assert fleet.plan.serving == "r2"

    def test_a_stage_bakes_for_its_least_time(self) -> None:
        slow = replace(CANARY, bake_seconds=Fraction(100))
        fleet = at("canary-10", policy(stages=(WARM, slow, PROMOTE)))

        assert reasons(fleet.settle(9)) == [HoldReason.BAKING]
        assert fleet.step().verdict == Advance("promote")


class TestApproval:
    def test_it_is_asked_for_before_the_stage_is_entered_and_is_of_one_revision(self) -> None:
        fleet = Fleet(policy=policy(stages=(WARM, SHADOW, CANARY, LARGER, approval(PROMOTE))))
        fleet.until("canary-25")
        fleet.change(approvals=frozenset({("r3", "promote"), ("r2", "canary-25")}))
        assert reasons(fleet.settle(20)) == [HoldReason.AWAITING_APPROVAL]

        fleet.change(approvals=frozenset({("r2", "promote")}))
        assert fleet.step().verdict == Advance("promote")

    def test_waiting_for_it_outlasts_no_deadline_while_everything_else_is_met(self) -> None:
        asked = policy(stages=(WARM, CANARY, approval(PROMOTE)), on_deadline=OnDeadline.ROLLBACK)
        fleet = at("canary-10", asked)

        assert reasons(fleet.settle(100)) == [HoldReason.AWAITING_APPROVAL]
        fleet.change(approvals=frozenset({("r2", "promote")}))
        assert fleet.step().verdict == Advance("promote")

    def test_what_fails_while_it_is_waited_for_is_rolled_back(self) -> None:
        fleet = at("canary-10", policy(stages=(WARM, CANARY, approval(PROMOTE))))
        fleet.settle(20)
        fleet.errors = 200

        fleet.settle(3)
        assert RollbackReason.GATE_FAILED in fleet.history

    def test_even_the_first_gpu_may_wait_for_it(self) -> None:
        fleet = at("Paper", policy(stages=(approval(WARM), CANARY, PROMOTE)))

        assert reasons(fleet.step()) == [HoldReason.AWAITING_APPROVAL]
        assert fleet.plan.candidate is None
