"""What people change midway, when a rollback is over, and what follows a promotion."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from bayplan.api.rolloutwords import OnDeadline, Phase
from bayplan.planning.measurements import Unknown
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.paper import PaperOutcome, PaperVerdict
from bayplan.planning.rollout.verdicts import Advance, HoldReason, Rest, RestReason, Rollback, RollbackReason
from bayplan.planning.rollout.world import Head, World
from tests.planning.rollout.fleet import STEP, Fleet, at, heads, reasons
from tests.planning.rollout.policies import CANARY, GATES, LARGER, POLICY, PROMOTE, SHADOW, WARM, policy

LADDER = ["Paper", "warm", "shadow", "canary-10", "canary-25", "promote"]


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
