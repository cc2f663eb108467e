"""What is looked at before anything starts, and how traffic follows capacity."""

from dataclasses import replace
from fractions import Fraction

import pytest

from bayplan.api.rolloutwords import CapacityMode, GateName, Waiver
from bayplan.planning.gates.records import Gate
from bayplan.planning.gates.validity import check_gates
from bayplan.planning.rollout.paper import PaperOutcome, PaperVerdict
from bayplan.planning.rollout.verdicts import Advance, HoldReason, Rest, RestReason, Rollback, RollbackReason
from bayplan.planning.rollout.world import ArmHeads
from tests.planning.rollout.fleet import Fleet, at, heads, reasons, room
from tests.planning.rollout.policies import CANARY, GATES, LARGER, PROMOTE, WARM, policy


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
        fleet = at("Paper", policy(capacity=CapacityMode.SURGE), surge=room(1, missing="no node has 8 GPUs free"))

        decision = fleet.settle()

        assert reasons(decision) == [HoldReason.SURGE_DOES_NOT_FIT]
        assert "1 missing: no node has 8 GPUs free; choices: " in decision.verdict.holds[0].message  # type: ignore[union-attr]
        assert fleet.plan.candidate is None
        fleet.surge = room(2)
        assert fleet.step().verdict == Advance("warm")

    def test_while_placement_has_not_answered_nothing_starts(self) -> None:
        fleet = at("Paper", surge=None)

        assert reasons(fleet.settle()) == [HoldReason.SURGE_UNKNOWN]

    def test_draining_first_lowers_serving_by_what_the_candidate_has_and_no_further_than_the_floor(self) -> None:
        fleet = Fleet(policy=policy(capacity=CapacityMode.DRAIN_FIRST), surge=room(0, 1, 2))
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
        fleet = Fleet(policy=asked, desired=1, floor=0, surge=room(0, 1))
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
