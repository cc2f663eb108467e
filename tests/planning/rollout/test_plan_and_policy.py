"""What a plan and a policy can be, whether a candidate fits, and when a rollback is over."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from bayplan.api.rolloutwords import CapacityMode, GateName, StageKind, Waiver
from bayplan.planning.gates.records import Gate
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.plan import Plan, serving_groups
from bayplan.planning.rollout.policy import Stage
from bayplan.planning.rollout.proof import GatewayAck, RollbackProof, lagging, prove
from bayplan.planning.rollout.surge import SurgeAnswer, SurgeDecision, SurgeOutcome, decide_surge
from tests.planning.rollout.fleet import room
from tests.planning.rollout.policies import CANARY, DEADLINE, LARGER, POLICY, PROMOTE, SHADOW, WARM, policy

PLAN = Plan(epoch=3, serving="r1", candidate="r2", cohort_salt="s", candidate_replicas=2, weight=10, baseline=("b",))


class TestPlan:
    def test_the_epoch_rises_with_a_change_and_only_with_one(self) -> None:
        assert PLAN.change(weight=10) is PLAN
        assert PLAN.change(weight=25) == replace(PLAN, weight=25, epoch=4)

    def test_nothing_is_routed_to_a_candidate_without_a_share(self) -> None:
        assert PLAN.routed == ("r1", "r2")
        assert PLAN.change(weight=0).routed == ("r1",)
        assert PLAN.change(weight=0, shadow_share=5).routed == ("r1", "r2")
        assert Plan(epoch=1, serving="r2", previous="r1").routed == ("r2", "r1")

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"epoch": 0}, "epoch"),
            ({"serving": ""}, "serving"),
            ({"weight": 101}, "weight"),
            ({"weight": 0.1}, "weight"),
            ({"candidate": None}, "weight"),
            ({"candidate": None, "weight": 0}, "candidate"),
            ({"candidate": "r1"}, "candidate"),
            ({"previous": "r2"}, "candidate"),
            ({"cohort_salt": ""}, "cohort_salt"),
            ({"shadow_share": 1}, "shadow_share"),
            ({"stable_min": -1}, "stable_min"),
        ],
    )
    def test_a_plan_that_nobody_could_carry_out_is_refused(self, change: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidInput) as error:
            PLAN.change(**change)

        assert error.value.field == field

    @pytest.mark.parametrize(
        ("desired", "drain_first", "groups"), [(5, False, 5), (3, False, 4), (7, True, 5), (5, True, 4), (0, True, 4)]
    )
    def test_serving_keeps_its_least_and_makes_room_only_where_asked(
        self, desired: int, drain_first: bool, groups: int
    ) -> None:
        assert serving_groups(replace(PLAN, stable_min=4), desired=desired, drain_first=drain_first) == groups


class TestPolicy:
    @pytest.mark.parametrize(
        "stages",
        [
            (WARM, PROMOTE),
            (WARM, SHADOW, PROMOTE),
            (CANARY, PROMOTE),
            (WARM, CANARY),
            (WARM, CANARY, SHADOW, PROMOTE),
            (WARM, SHADOW, SHADOW, CANARY, PROMOTE),
            (WARM, WARM, CANARY, PROMOTE),
            (),
        ],
    )
    def test_stages_stand_in_their_order_and_a_shadow_alone_never_promotes(self, stages: tuple[Stage, ...]) -> None:
        with pytest.raises(InvalidInput, match="stages"):
            policy(stages=stages)

    @pytest.mark.parametrize("second", [10, 9])
    def test_weights_increase(self, second: int) -> None:
        with pytest.raises(InvalidInput, match="weight: must increase from canary to canary"):
            policy(stages=(WARM, CANARY, replace(LARGER, weight=second), PROMOTE))

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"weight": 100}, "weight"),
            ({"weight": 0}, "weight"),
            ({"deadline_seconds": 0}, "deadline_seconds"),
            ({"bake_seconds": DEADLINE}, "deadline_seconds"),
            ({"bake_seconds": float("nan")}, "bake_seconds"),
            ({"kind": StageKind.WARM}, "weight"),
        ],
    )
    def test_a_stage_that_cannot_be_is_refused(self, change: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidInput) as error:
            replace(CANARY, **change)

        assert error.value.field == field

    @pytest.mark.parametrize(
        "change",
        [
            {"gates": POLICY.gates[:1]},
            {"gates": (replace(POLICY.gates[0], limit=Fraction(2)), POLICY.gates[1])},
            {"gates": (replace(POLICY.gates[0], enforce=False), POLICY.gates[1])},
            {"stages": (WARM, CANARY, PROMOTE)},
            {"least": replace(POLICY.least, requests=99)},
            {"waivers": frozenset({Waiver.NO_BASELINE})},
            {"prompt_set": "set"},
        ],
    )
    def test_the_digest_covers_whatever_a_candidate_must_pass(self, change: dict[str, Any]) -> None:
        assert policy(**change).digest != POLICY.digest

    def test_the_digest_leaves_out_what_people_do_while_it_runs(self) -> None:
        assert policy(paused=True, approvals=frozenset({("r2", "promote")}), retry="1").digest == POLICY.digest

    @pytest.mark.parametrize(("serving", "replicas"), [(0, 2), (6, 2), (7, 3), (9, 3), (10, 4)])
    def test_a_quarter_of_the_traffic_takes_a_quarter_of_all_replicas(self, serving: int, replicas: int) -> None:
        assert POLICY.replicas_for(LARGER, serving_replicas=serving) == replicas

    def test_two_gates_on_one_thing_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match="gates"):
            policy(gates=(Gate(GateName.TTFT, Fraction(1)), Gate(GateName.TTFT, Fraction(2))))


def surge(
    placeable: tuple[int, ...], capacity: str, *, serving: int = 4, floor: int = 2, nodes: int = 2, **of: Any
) -> SurgeDecision:
    asked = policy(capacity=CapacityMode(capacity), **of)
    answer = room(*placeable, missing="8 GPUs needed on one node, 4 free", nodes=nodes)
    return decide_surge(asked, answer, serving_replicas=serving, floor=floor)


class TestSurge:
    @pytest.mark.parametrize(("placeable", "fits"), [(2, True), (1, False)])
    def test_the_peak_over_all_stages_must_fit_beside_serving(self, placeable: int, fits: bool) -> None:
        decision = surge((placeable,), "Surge")

        assert (decision.fits, decision.peak_replicas, decision.drain_replicas, decision.stable_min) == (fits, 2, 0, 4)

    def test_a_refusal_says_what_is_missing_and_the_choices(self) -> None:
        decision = surge((1,), "Surge")

        assert decision.message == (
            "2 candidate replicas needed at the peak, 1 placeable, 1 missing: 8 GPUs needed on one node, 4 free"
        )
        assert "capacity: Auto or DrainFirst, to drain serving replicas first" in decision.choices
        assert "waive SingleReplica, to judge a single candidate replica" in decision.choices

    @pytest.mark.parametrize("capacity", ["Surge", "Auto", "DrainFirst"])
    def test_room_on_one_node_is_none_where_replicas_are_compared(self, capacity: str) -> None:
        decision = surge((4, 4, 4, 4, 4), capacity, nodes=1)

        assert not decision.fits
        assert decision.message == (
            "candidate replicas needed on 2 nodes, or a slow node would look like a slow revision; room on 1 (n1), "
            "1 missing: no second node has 8 GPUs free"
        )
        assert decision.choices[0] == "free or add room for 1 group on another node"
        assert "waive SingleReplica, to judge a single candidate replica" in decision.choices
        assert surge((4, 4, 4, 4, 4), capacity, nodes=2).fits

    def test_a_single_node_is_enough_where_that_is_waived(self) -> None:
        assert surge((4,), "Surge", nodes=1, waivers=frozenset({Waiver.SINGLE_REPLICA})).fits

    def test_auto_drains_as_few_as_possible_and_only_if_it_must(self) -> None:
        assert surge((2, 3, 4), "Auto").outcome is SurgeOutcome.FITS
        drained = surge((0, 1, 2, 3), "Auto")
        assert (drained.outcome, drained.drain_replicas, drained.stable_min) == (SurgeOutcome.DRAINS_FIRST, 2, 2)
        assert surge((1, 2), "Auto").drain_replicas == 1

    def test_drain_first_never_has_more_replicas_than_before(self) -> None:
        decision = surge((9, 9, 9), "DrainFirst")

        assert (decision.drain_replicas, decision.peak_replicas, decision.stable_min) == (2, 2, 2)

    @pytest.mark.parametrize(("floor", "fits"), [(2, True), (3, False)])
    def test_the_floor_is_never_broken(self, floor: int, fits: bool) -> None:
        decision = surge((0, 1, 2, 3, 4), "DrainFirst", floor=floor)

        assert decision.fits is fits
        assert fits or "lower minReady: 4 serving, at least 3 must stay" in decision.choices

    def test_a_floor_of_zero_is_allowed_and_named_as_downtime(self) -> None:
        both = frozenset({Waiver.SINGLE_REPLICA, Waiver.NO_BASELINE})
        one: dict[str, Any] = {"waivers": both, "serving": 1, "stages": (WARM, CANARY, PROMOTE)}

        decision = surge((0, 1), "DrainFirst", floor=0, **one)

        assert (decision.outcome, decision.stable_min) == (SurgeOutcome.DRAINS_FIRST, 0)
        assert decision.message.endswith("0 stay: downtime until the candidate is warm")
        assert not surge((0, 1), "DrainFirst", floor=1, **one).fits

    @pytest.mark.parametrize("change", [{"waivers": frozenset({Waiver.SINGLE_REPLICA})}, {"stages": POLICY.stages}])
    def test_the_last_serving_replica_stays_where_stages_need_it(self, change: dict[str, Any]) -> None:
        both = frozenset({Waiver.SINGLE_REPLICA, Waiver.NO_BASELINE})
        one: dict[str, Any] = {"waivers": both, "serving": 1, "stages": (WARM, CANARY, PROMOTE)}

        decision = surge((0, 1), "DrainFirst", floor=0, **(one | change))

        assert not decision.fits
        assert any("waive NoBaseline" in choice for choice in decision.choices)

    @pytest.mark.parametrize(("most", "fits"), [(4, True), (3, False)])
    def test_max_surge_bounds_the_candidate_whatever_is_free(self, most: int, fits: bool) -> None:
        decision = surge((99,), "Surge", serving=10, max_surge=most)

        assert decision.fits is fits
        assert fits or decision.message == "the stages need 4 candidate replicas, maxSurge allows 3"

    def test_a_surge_that_no_draining_cures_names_max_surge(self) -> None:
        decision = surge((99,), "Surge", max_surge=1)

        assert decision.message == "the stages need 2 candidate replicas, maxSurge allows 1"
        assert decision.choices[0] == "raise maxSurge to 2"

    @pytest.mark.parametrize("placeable", [(), (-1,), (1.5,)])
    def test_an_answer_that_is_none_is_refused(self, placeable: Any) -> None:
        with pytest.raises(InvalidInput, match="placeable"):
            SurgeAnswer(placeable, ((),) * len(placeable))

    @pytest.mark.parametrize("nodes", [(), (("a",), ("b",))])
    def test_an_answer_without_the_nodes_of_each_is_refused(self, nodes: Any) -> None:
        with pytest.raises(InvalidInput, match="nodes"):
            SurgeAnswer((2,), nodes)


class TestProof:
    def prove(self, proof: RollbackProof | None = None, *, now: int = 20, **of: Any) -> RollbackProof:
        given: dict[str, Any] = {
            "lagging_gateways": (),
            "candidate_streams": Fraction(0),
            "serving_ready": 3,
            "full_size": 3,
            "answered_at_seconds": Fraction(11),
        }
        earlier = proof or RollbackProof(since_seconds=Fraction(10))
        return prove(earlier, now_seconds=Fraction(now), **(given | of))

    def test_it_is_proven_when_every_part_is_true(self) -> None:
        proof = self.prove()

        assert (proof.proven, proof.missing) == (True, ())
        assert proof.acknowledged_at_seconds == proof.answered_at_seconds == 20

    @pytest.mark.parametrize(
        ("change", "missing"),
        [
            ({"lagging_gateways": ("g1",)}, "1 gateway not acknowledged: g1"),
            ({"candidate_streams": Fraction(1)}, "requests at the candidate: 1"),
            ({"candidate_streams": Unknown("scrape failed")}, "requests at the candidate: not known, scrape failed"),
            ({"serving_ready": 2}, "serving has 2 of 3 replicas ready"),
            ({"answered_at_seconds": Fraction(10)}, "serving has answered no request since"),
            ({"answered_at_seconds": None}, "serving has answered no request since"),
        ],
    )
    def test_each_part_alone_keeps_it_open_and_is_named(self, change: dict[str, Measured], missing: str) -> None:
        proof = self.prove(**change)

        assert (proof.proven, proof.missing) == (False, (missing,))

    def test_times_are_those_of_the_first_moment_and_fall_with_the_fact(self) -> None:
        early = self.prove(serving_ready=2)
        late = self.prove(early, now=30)
        lost = self.prove(late, now=40, serving_ready=2)

        assert (early.drained_at_seconds, late.drained_at_seconds, late.restored_at_seconds) == (20, 20, 30)
        assert lost.restored_at_seconds is None
        assert not lost.proven

    def test_no_stream_counts_while_a_gateway_may_still_send(self) -> None:
        proof = self.prove(lagging_gateways=("g1",))

        assert (proof.drained_at_seconds, proof.returned) == (None, False)

    def test_where_no_replica_is_wanted_no_answer_is_owed(self) -> None:
        assert self.prove(serving_ready=0, full_size=0, answered_at_seconds=None).proven

    def test_a_gateway_whose_lease_ran_out_is_waited_for_no_longer(self) -> None:
        acks = [GatewayAck("a", 5), GatewayAck("b", 4), GatewayAck("c", 4, live=False)]

        assert lagging(acks, 5) == ("b",)
        assert lagging(acks, 4) == ()
