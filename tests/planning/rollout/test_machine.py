"""The life of a rollout: how a candidate gets on, what holds it, what takes its traffic away, and when that is over."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from bayplan.planning.gates.records import Gate, GateName, Handling, OnRegression
from bayplan.planning.gates.validity import check_gates
from bayplan.planning.measurements import Unknown
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.paper import PaperOutcome, PaperVerdict
from bayplan.planning.rollout.policy import CapacityMode, OnDeadline, RolloutPolicy, Waiver
from bayplan.planning.rollout.state import Phase
from bayplan.planning.rollout.surge import SurgeAnswer
from bayplan.planning.rollout.verdicts import Advance, HoldReason, Rest, RestReason, Rollback, RollbackReason
from bayplan.planning.rollout.world import ArmHeads, Head, World
from tests.planning.rollout.fleet import STEP, Fleet, heads, reasons
from tests.planning.rollout.policies import CANARY, GATES, LARGER, POLICY, PROMOTE, SHADOW, WARM, approval, policy

LADDER = ["Paper", "warm", "shadow", "canary-10", "canary-25", "promote"]


BEFOREHAND = {"desired", "floor", "surge", "quality"}


def at(stage: str, asked: RolloutPolicy = POLICY, **of: Any) -> Fleet:
    """A fleet whose candidate r2 has just entered that stage; what goes wrong does so from then on."""
    fleet = Fleet(policy=asked, **{name: value for name, value in of.items() if name in BEFOREHAND})
    fleet.until(stage)
    for name in of.keys() - BEFOREHAND:
        setattr(fleet, name, of[name])
    return fleet


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


class TestBeforeAnythingStarts:
    def test_papers_that_fail_reject_it_before_a_pod_exists(self) -> None:
        fleet = at("Paper")
        rejected = PaperVerdict(PaperOutcome.REJECTED, ("quantization: throughput: 0.5",))

        decision = fleet.step(paper=rejected)

        assert decision.verdict == Rollback(RollbackReason.STAGING_REJECTED, "quantization: throughput: 0.5")
        assert fleet.plan.epoch == 1
        assert fleet.run(3).verdict == Rest(RestReason.REJECTED, "r2: StagingRejected: quantization: throughput: 0.5")

    def test_papers_that_are_missing_are_waited_for(self) -> None:
        fleet = at("Paper")
        for _ in range(200):
            decision = fleet.step(paper=PaperVerdict(PaperOutcome.MISSING, ("speculation: rounds",)))

        assert reasons(decision) == [HoldReason.PAPER_MISSING]
        assert fleet.step().verdict == Advance("warm")

    def test_what_does_not_fit_is_said_with_the_choices_and_starts_nothing(self) -> None:
        fleet = at("Paper", policy(capacity=CapacityMode.SURGE), surge=SurgeAnswer((1,), "no node has 8 GPUs free"))

        decision = fleet.settle()

        assert reasons(decision) == [HoldReason.SURGE_DOES_NOT_FIT]
        assert "1 missing: no node has 8 GPUs free; choices: " in decision.verdict.holds[0].message  # type: ignore[union-attr]
        assert fleet.plan.candidate is None
        fleet.surge = SurgeAnswer((2,))
        assert fleet.step().verdict == Advance("warm")

    def test_while_placement_has_not_answered_nothing_starts(self) -> None:
        fleet = at("Paper", surge=None)

        assert reasons(fleet.settle()) == [HoldReason.SURGE_UNKNOWN]

    def test_draining_first_lowers_serving_by_what_the_candidate_has_and_no_further_than_the_floor(self) -> None:
        fleet = Fleet(policy=policy(capacity=CapacityMode.DRAIN_FIRST), surge=SurgeAnswer((0, 1, 2)))
        fleet.until("canary-10")

        assert (fleet.plan.stable_min, fleet.plan.candidate_replicas, fleet.stored.drain_first) == (2, 2, True)
        assert len(fleet.heads("r1").heads) == 2
        fleet.errors = 200
        fleet.run()
        assert len(fleet.heads("r1").heads) == 4

    def test_a_gate_that_nothing_can_judge_is_named_and_holds_before_anything_starts(self) -> None:
        gates = (Gate(GateName.TTFT, Fraction(7, 10)), GATES[1])
        fleet = at("Paper", policy(gates=gates))
        invalid = check_gates(gates, ttft_edges=[Fraction(1, 2), Fraction(1)], tpot_edges=[], has_prompts=False)

        decision = fleet.step(invalid=invalid)

        assert reasons(decision) == [HoldReason.GATE_INVALID]
        assert decision.verdict.holds[0].message.startswith("ttft: 0.7 s is no edge")  # type: ignore[union-attr]

    def test_a_watched_gate_that_nothing_can_judge_holds_nobody(self) -> None:
        gates = (Gate(GateName.TTFT, Fraction(7, 10), enforce=False), GATES[1])
        fleet = at("Paper", policy(gates=gates))

        assert fleet.step(invalid=check_gates(gates, ttft_edges=[], tpot_edges=[], has_prompts=False)).verdict == (
            Advance("warm")
        )

    def test_a_pause_starts_nothing(self) -> None:
        fleet = Fleet(policy=policy(paused=True))

        assert reasons(fleet.settle()) == [HoldReason.PAUSED]


class TestScaleThenShift:
    def test_the_weight_is_what_ready_capacity_carries_and_no_more(self) -> None:
        fleet = at("canary-25")
        fleet.desired = 8  # of which 25 % would take 3 replicas

        decision = fleet.settle()

        assert fleet.plan.weight == 20
        assert HoldReason.CAPACITY_NOT_READY in reasons(decision)

    def test_replicas_come_before_their_share(self) -> None:
        asked = policy(stages=(WARM, CANARY, replace(LARGER, weight=50), PROMOTE), max_surge=4)
        fleet = at("canary-50", asked, ready={"r2": 2})
        fleet.settle()
        assert (fleet.plan.candidate_replicas, fleet.plan.weight) == (4, 33)

        fleet.ready = {}
        fleet.settle(1)
        assert fleet.plan.weight == 50

    def test_a_candidate_that_loses_its_pods_loses_its_share_at_once(self) -> None:
        fleet = at("canary-25")
        fleet.settle()
        fleet.ready = {"r2": 0}

        decision = fleet.step()

        assert (fleet.plan.weight, fleet.plan.baseline) == (0, ())
        assert reasons(decision)[0] is HoldReason.CANDIDATE_NOT_WARM

    def test_a_pause_lets_the_share_fall_and_not_rise(self) -> None:
        fleet = at("canary-25")
        fleet.settle()
        fleet.change(paused=True)
        fleet.ready = {"r2": 1}
        fleet.settle()
        assert fleet.plan.weight == 20
        fleet.ready = {}
        fleet.settle()
        assert fleet.plan.weight == 20

    def test_the_baseline_is_as_large_as_the_candidate_on_nodes_of_its_own_and_stays(self) -> None:
        fleet = at("canary-10")
        fleet.settle()
        assert fleet.plan.baseline == ("r1-0", "r1-1")

        lost = tuple(head for head in heads("r1", 4).heads if head.uid != "r1-0")
        fleet.step(serving=ArmHeads(lost))
        assert fleet.plan.baseline == ("r1-1", "r1-2")

    @pytest.mark.parametrize(("nodes", "held"), [(1, True), (2, False)])
    def test_candidate_pods_on_one_node_prove_nothing(self, nodes: int, held: bool) -> None:
        fleet = at("warm", candidate_nodes=nodes)

        assert (reasons(fleet.step()) == [HoldReason.SINGLE_REPLICA]) is held

    def test_one_pod_is_enough_where_that_is_waived(self) -> None:
        fleet = Fleet(policy=policy(waivers=frozenset({Waiver.SINGLE_REPLICA})), candidate_nodes=1)
        fleet.run()

        assert fleet.plan.serving == "r2"

    def test_nothing_counts_before_every_live_gateway_carries_out_the_plan(self) -> None:
        fleet = at("canary-10", acknowledging=False, expired=True)

        decision = fleet.settle(20)

        assert reasons(decision)[0] is HoldReason.PLAN_NOT_ACKNOWLEDGED
        assert fleet.stored.evidence.windows == 0

    @pytest.mark.parametrize(("own", "held"), [(600, False), (601, True)])
    def test_a_share_that_the_plan_does_not_explain_holds(self, own: int, held: bool) -> None:
        fleet = at("canary-10")
        for _ in range(4):
            decision = fleet.step(window=fleet.window(routed_requests=4000, candidate_requests=own))

        assert (HoldReason.SHARE_EXCEEDED in reasons(decision)) is held

    def test_where_serving_made_room_down_to_nothing_the_candidate_answers_alone(self) -> None:
        asked = policy(
            stages=(WARM, CANARY, PROMOTE),
            capacity=CapacityMode.DRAIN_FIRST,
            waivers=frozenset({Waiver.SINGLE_REPLICA, Waiver.NO_BASELINE}),
        )
        fleet = Fleet(policy=asked, desired=1, floor=0, surge=SurgeAnswer((0, 1)))
        fleet.until("canary-10")
        fleet.settle(1)

        assert (fleet.plan.weight, fleet.plan.stable_min) == (100, 0)
        fleet.run()
        assert fleet.plan.serving == "r2"

    def test_a_serving_revision_that_fails_by_itself_gives_the_candidate_no_more_than_its_stage(self) -> None:
        fleet = at("canary-10")
        fleet.settle()
        fleet.ready = {"r1": 0}

        decision = fleet.step()

        assert fleet.plan.weight == 10
        assert HoldReason.NO_BASELINE in reasons(decision)


class TestChangesMidway:
    @pytest.mark.parametrize("stage", ["Paper", "warm", "shadow", "canary-10", "canary-25"])
    def test_going_back_to_what_serves_ends_it_at_once_and_rejects_nobody(self, stage: str) -> None:
        fleet = at(stage)
        fleet.wanted = "r1"

        verdict = fleet.step().verdict

        assert isinstance(verdict, Rollback)
        assert verdict.reason is RollbackReason.REVERTED
        assert fleet.run().verdict == Rest(RestReason.CURRENT, "r1 serves, not proven")
        fleet.wanted = "r2"
        assert fleet.step().verdict == Advance(Phase.PAPER)

    @pytest.mark.parametrize("stage", ["Paper", "warm", "shadow", "canary-10", "canary-25"])
    def test_a_third_revision_drops_the_candidate_keeps_serving_and_starts_from_the_first_stage(
        self, stage: str
    ) -> None:
        fleet = at(stage)
        fleet.wanted = "r3"
        fleet.step()
        assert fleet.history[-1] == RollbackReason.SUPERSEDED
        assert fleet.plan.routed == ("r1",)

        fleet.until("Paper", "warm")
        assert fleet.stored.candidate == "r3"
        fleet.run()
        assert fleet.plan.serving == "r3"

    def test_a_third_revision_waits_for_the_candidates_last_request_and_not_for_the_proof(self) -> None:
        fleet = at("canary-10", streams=Fraction(3), answering=False)
        fleet.wanted = "r3"
        assert reasons(fleet.settle(30)) == [HoldReason.PROVING]

        fleet.streams = Fraction(0)
        fleet.until(Phase.PAPER)

    @pytest.mark.parametrize("stage", ["Paper", "warm", "shadow", "canary-10", "canary-25"])
    def test_deletion_returns_the_traffic_first_and_abandons_the_candidate(self, stage: str) -> None:
        fleet = at(stage)
        fleet.step(deleting=True)

        assert fleet.history[-1] == RollbackReason.DELETED
        assert fleet.plan.routed == ("r1",)
        assert fleet.stored.rejection("r2") is not None

    @pytest.mark.parametrize("stage", ["Paper", "warm", "shadow", "canary-10", "canary-25"])
    def test_an_abort_is_terminal_for_the_revision_until_a_retry(self, stage: str) -> None:
        fleet = at(stage)
        fleet.change(abort="r2")
        assert isinstance(fleet.step().verdict, Rollback)
        last = fleet.run()
        assert isinstance(last.verdict, Rest)
        assert last.verdict.reason is RestReason.REJECTED

        fleet.change(abort=None, retry="1")
        fleet.run()
        assert fleet.plan.serving == "r2"

    def test_an_abort_of_another_revision_is_none_of_this_ones(self) -> None:
        fleet = Fleet(policy=policy(abort="r0"))

        fleet.run()
        assert fleet.plan.serving == "r2"

    def test_a_revision_that_is_aborted_before_it_begins_never_does(self) -> None:
        fleet = Fleet(policy=policy(abort="r2"))

        assert fleet.run().verdict == Rest(RestReason.REJECTED, "r2: Aborted: aborted before it began")

    def test_another_attempt_has_another_salt(self) -> None:
        fleet = at("warm")
        first = fleet.plan.cohort_salt
        fleet.wanted = "r1"
        fleet.run()
        fleet.wanted = "r2"
        fleet.until("warm")

        assert fleet.plan.cohort_salt not in ("", first)

    @pytest.mark.parametrize(
        "change", [{"gates": (replace(GATES[0], limit=Fraction(2)), GATES[1])}, {"prompt_set": "other"}]
    )
    def test_other_gates_start_the_stage_again_with_empty_counts(self, change: dict[str, Any]) -> None:
        fleet = at("canary-25")
        fleet.settle()
        assert fleet.stored.evidence.windows > 0
        fleet.change(**change)

        fleet.step()

        assert (fleet.stored.evidence.windows, fleet.stored.clock.started_at_seconds) == (0, fleet.now)
        assert (fleet.phase, fleet.stored.stage, fleet.plan.weight) == (Phase.CANARY, 3, 25)

    def test_other_stages_never_start_it_at_more_than_it_had(self) -> None:
        fleet = at("canary-25")
        fleet.settle()
        fleet.change(stages=(WARM, SHADOW, CANARY, replace(LARGER, weight=50), PROMOTE))

        fleet.step()

        assert (fleet.stored.stage, fleet.plan.weight) == (2, 10)

    def test_without_any_canary_so_small_it_starts_at_the_first_stage_with_traffic(self) -> None:
        fleet = at("canary-10")
        fleet.settle()
        fleet.change(stages=(WARM, SHADOW, LARGER, PROMOTE))

        fleet.step()

        assert (fleet.phase, fleet.plan.weight) == (Phase.SHADOW, 0)

    def test_loosening_the_gates_excuses_nothing_that_was_counted(self) -> None:
        fleet = at("canary-10", requests=0)
        fleet.settle(5)
        fleet.change(least=replace(POLICY.least, requests=1))

        decision = fleet.settle(5)

        assert HoldReason.INSUFFICIENT_EVIDENCE in reasons(decision)


class TestProof:
    def rolled_back(self, **of: Any) -> Fleet:
        fleet = at("canary-10")
        fleet.settle()
        for name, value in of.items():
            setattr(fleet, name, value)
        fleet.change(abort="r2")
        fleet.step()
        return fleet

    def test_the_candidates_pods_stay_until_nobody_can_be_sending_to_them(self) -> None:
        fleet = self.rolled_back(acknowledging=False)
        fleet.settle(30)
        assert fleet.plan.candidate_replicas == 2

        fleet.acknowledging = True
        fleet.settle()
        assert (fleet.plan.candidate, fleet.plan.candidate_replicas) == (None, 0)

    def test_streams_that_are_not_known_keep_them(self) -> None:
        fleet = self.rolled_back(streams=Unknown("scrape failed"))

        fleet.settle(30)
        assert fleet.plan.candidate == "r2"

    @pytest.mark.parametrize(
        ("trouble", "missing"),
        [
            ({"answering": False}, "serving has answered no request since"),
            ({"ready": {"r1": 3}}, "serving has 3 of 4 replicas ready"),
        ],
    )
    def test_it_is_over_when_serving_is_seen_to_do_its_work(self, trouble: dict[str, Any], missing: str) -> None:
        fleet = self.rolled_back(**trouble)

        decision = fleet.settle(20)

        assert decision.verdict.holds[0].message == missing  # type: ignore[union-attr]
        fleet.answering, fleet.ready = True, {}
        assert fleet.step().verdict == Advance(Phase.ROLLED_BACK)
        proof = fleet.stored.proof
        assert proof is not None
        assert proof.since_seconds < (proof.drained_at_seconds or 0) < (proof.answered_at_seconds or 0) + STEP

    def test_a_gateway_that_ran_out_is_not_waited_for(self) -> None:
        fleet = self.rolled_back(expired=True)

        assert isinstance(fleet.run(10).verdict, Rest)

    def test_evidence_and_gates_do_not_matter_on_the_way_back(self) -> None:
        fleet = self.rolled_back()
        fleet.change(paused=True)

        assert isinstance(fleet.run(10).verdict, Rest)


class TestAfterThePromotion:
    def test_both_revisions_are_one_pool_until_the_rest_is_replaced(self) -> None:
        fleet = Fleet(ready={"r2": 2})
        fleet.until("promote")
        assert fleet.plan.routed == ("r2", "r1")
        assert reasons(fleet.settle(10)) == [HoldReason.REPLACING]

        fleet.ready = {}
        fleet.settle()
        assert fleet.plan.routed == ("r2",)

    def test_the_spec_going_back_returns_at_once_and_is_proven(self) -> None:
        fleet = Fleet(ready={"r2": 2})
        fleet.until("promote")
        fleet.wanted = "r1"

        fleet.step()
        assert fleet.plan.routed == ("r1", "r2")
        assert fleet.run().verdict == Rest(RestReason.CURRENT, "r1 serves, not proven")
        assert fleet.stored.proof is not None
        assert fleet.stored.proof.proven

    @pytest.mark.parametrize("retain", [0, 1000])
    def test_an_abort_brings_the_old_revision_back_while_it_is_there(self, retain: int) -> None:
        fleet = Fleet(policy=policy(retain_seconds=Fraction(retain)), ready={} if retain else {"r2": 2})
        fleet.until(Phase.RETAINED if retain else "promote")
        fleet.change(abort="r2")

        assert fleet.step().verdict == Rollback(RollbackReason.ABORTED, "spec.abort names r2")
        last = fleet.run()
        assert last.verdict == Rest(RestReason.REJECTED, "r2: Aborted: spec.abort names r2")
        assert fleet.plan.routed == ("r1",)

    def test_going_back_to_a_retained_proven_revision_skips_the_gates(self) -> None:
        fleet = Fleet(policy=policy(retain_seconds=Fraction(10_000)))
        fleet.until(Phase.RETAINED)
        fleet.wanted = "r3"
        fleet.until(Phase.RETAINED)
        assert (fleet.plan.serving, fleet.stored.retained) == ("r3", "r2")
        fleet.history.clear()
        fleet.wanted = "r2"

        assert fleet.run().verdict == Rest(RestReason.CURRENT, "r2 serves, proven")
        assert fleet.history == [RollbackReason.REVERTED, Phase.ROLLING_BACK, Phase.STEADY]

    def test_going_back_to_a_retained_unproven_revision_goes_through_the_gates(self) -> None:
        fleet = Fleet(policy=policy(retain_seconds=Fraction(10_000)))
        fleet.until(Phase.RETAINED)
        fleet.history.clear()
        fleet.wanted = "r1"

        fleet.run()
        assert fleet.history == [*LADDER, Phase.RETAINED]

    def test_a_third_revision_waits_until_two_are_one_again(self) -> None:
        fleet = Fleet(ready={"r2": 2})
        fleet.until("promote")
        fleet.wanted = "r3"
        assert reasons(fleet.settle(10)) == [HoldReason.REPLACING]

        fleet.ready = {}
        fleet.run()
        assert fleet.plan.serving == "r3"

    @pytest.mark.parametrize("choice", list(OnDeadline))
    def test_a_replacement_that_lasts_too_long_pauses_or_returns(self, choice: OnDeadline) -> None:
        fleet = Fleet(policy=policy(on_deadline=choice), ready={"r2": 2})
        fleet.until("promote")
        fleet.settle(60)
        decision = fleet.step()

        if choice is OnDeadline.PAUSE:
            assert reasons(decision) == [HoldReason.DEADLINE_EXCEEDED, HoldReason.REPLACING]
        else:
            assert isinstance(decision.verdict, Rollback)
            assert fleet.plan.serving == "r1"

    @pytest.mark.parametrize("phase", [Phase.REPLACING, Phase.RETAINED])
    def test_a_promoted_revision_that_fails_under_all_the_load_is_called_back(self, phase: Phase) -> None:
        replacing = phase is Phase.REPLACING
        asked = policy(retain_seconds=Fraction(0 if replacing else 1000))
        fleet = Fleet(policy=asked, ready={"r2": 2} if replacing else {})
        fleet.until("promote" if replacing else phase)
        fleet.settle()
        assert fleet.phase is phase
        fleet.errors = 200

        fleet.run()

        assert RollbackReason.GATE_FAILED in fleet.history
        assert fleet.plan.routed == ("r1",)
        assert fleet.stored.proof is not None
        assert fleet.stored.proof.proven

    def test_after_the_promotion_other_gates_begin_with_empty_counts(self) -> None:
        fleet = Fleet(ready={"r2": 2})
        fleet.until("promote")
        fleet.settle(5)
        counted = fleet.stored.evidence.windows
        fleet.change(gates=(replace(GATES[0], limit=Fraction(1, 2)), GATES[1]))
        fleet.step()

        assert counted > 1
        assert fleet.stored.evidence.windows == 1

    def test_a_revision_that_is_rejected_while_another_is_retained_keeps_that(self) -> None:
        fleet = Fleet(policy=policy(retain_seconds=Fraction(10_000)))
        fleet.until(Phase.RETAINED)
        fleet.wanted = "r3"
        fleet.until(Phase.PAPER)
        fleet.step(paper=PaperVerdict(PaperOutcome.REJECTED, ("no",)))

        assert (fleet.phase, fleet.stored.retained) == (Phase.RETAINED, "r1")
        assert isinstance(fleet.step().verdict, Rest)


class TestInput:
    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"now_seconds": float("nan")}, "now_seconds"),
            ({"desired": -1}, "desired"),
            ({"floor": 0.5}, "floor"),
            ({"wanted": ""}, "wanted"),
            ({"candidate": heads("r1", 1)}, "heads"),
        ],
    )
    def test_a_world_that_cannot_be_is_refused(self, change: dict[str, Any], field: str) -> None:
        given: dict[str, Any] = {"now_seconds": 0, "wanted": "r2", "desired": 1, "floor": 0, "serving": heads("r1", 1)}
        with pytest.raises(InvalidInput) as error:
            World(**(given | change))

        assert error.value.field == field

    def test_a_pod_takes_requests_only_warm_and_ready(self) -> None:
        states = [Head("a", "n", ready=ready, warm=warm).serves for ready in (True, False) for warm in (True, False)]

        assert states == [True, False, False, False]
