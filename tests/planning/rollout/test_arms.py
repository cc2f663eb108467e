"""Which revisions have groups, and how many each."""

from dataclasses import replace
from fractions import Fraction

import pytest

from bayplan.api.rolloutwords import CapacityMode, Phase
from bayplan.planning.groups.replicas import SURGE
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.arms import Arms, arms_of, arms_without_plan
from bayplan.planning.rollout.plan import Plan
from bayplan.planning.rollout.state import Rejection, RolloutState, StageClock
from tests.planning.rollout.policies import policy

NOW = Fraction(0)
TRIAL = Plan(epoch=2, serving="r1", candidate="r2", cohort_salt="s", stable_min=3, candidate_replicas=2)
PROMOTED = Plan(epoch=3, serving="r2", previous="r1")


def state(plan: Plan, phase: Phase, **of: object) -> RolloutState:
    return replace(RolloutState(plan, phase, StageClock(NOW)), **of)  # type: ignore[arg-type]


class TestWithoutAPlan:
    def test_plainly_the_target_takes_the_place_of_everything_else(self) -> None:
        arms = arms_without_plan("r2", ["r1"], replaces_plainly=True, rejected=False, desired=3)

        assert (arms.serving, arms.serving_groups, arms.replaced) == ("r2", 3, None)
        assert arms.pools("r1")

    def test_a_rejected_target_is_not_even_plainly_replaced_to(self) -> None:
        arms = arms_without_plan("r2", ["r1"], replaces_plainly=True, rejected=True, desired=3)

        assert (arms.serving, arms.replaced) == ("r1", frozenset())
        assert not arms.pools("r2")

    def test_what_serves_goes_on_serving_while_a_rollout_is_waited_for(self) -> None:
        arms = arms_without_plan("r3", ["r2", "r1"], replaces_plainly=False, rejected=False, desired=3)

        assert (arms.serving, arms.replaced) == ("r2", frozenset({"r1"}))

    def test_a_replacement_that_has_begun_goes_on(self) -> None:
        arms = arms_without_plan("r2", ["r1", "r2"], replaces_plainly=False, rejected=False, desired=3)

        assert (arms.serving, arms.replaced) == ("r2", frozenset({"r1"}))

    def test_where_nothing_serves_yet_the_target_does(self) -> None:
        assert arms_without_plan("r1", [], replaces_plainly=False, rejected=False, desired=1).serving == "r1"

    def test_of_two_that_serve_the_rejected_one_is_replaced_above_the_floor(self) -> None:
        arms = arms_without_plan("r2", ["r2", "r1"], replaces_plainly=False, rejected=True, desired=3)

        assert (arms.serving, arms.replaced) == ("r1", frozenset({"r2"}))


class TestOnTrial:
    @pytest.mark.parametrize("phase", [Phase.WARM, Phase.SHADOW, Phase.CANARY])
    def test_the_candidate_grows_beside_a_serving_arm_that_does_not_shrink(self, phase: Phase) -> None:
        arms = arms_of(policy(), state(TRIAL, phase), desired=1, min_ready=None)

        assert (arms.serving, arms.serving_groups) == ("r1", 3)
        assert (arms.candidate, arms.candidate_groups, arms.candidate_grows) == ("r2", 2, True)
        assert (arms.pools("r1"), arms.pools("r2"), arms.pools("r0")) == (True, False, False)

    def test_drain_first_takes_its_groups_from_serving_down_to_what_must_stay(self) -> None:
        arms = arms_of(policy(), state(TRIAL, Phase.WARM, drain_first=True), desired=4, min_ready=0)

        assert arms.serving_groups == 3

    def test_what_is_being_rolled_back_gets_no_further_group(self) -> None:
        arms = arms_of(policy(), state(TRIAL, Phase.ROLLING_BACK), desired=3, min_ready=None)

        assert (arms.candidate_groups, arms.candidate_grows) == (2, False)

    def test_without_a_valid_policy_nothing_of_the_candidate_is_added(self) -> None:
        assert not arms_of(None, state(TRIAL, Phase.WARM), desired=3, min_ready=None).candidate_grows


class TestPromoted:
    def test_surge_bounds_what_stands_above_the_wanted_ones(self) -> None:
        arms = arms_of(policy(max_surge=3), state(PROMOTED, Phase.REPLACING), desired=4, min_ready=None)

        assert (arms.serving, arms.replaced, arms.surge, arms.kept_replaced) == ("r2", frozenset({"r1"}), 3, 0)
        assert arms.pools("r1")

    def test_with_a_time_to_retain_as_many_old_ones_stay(self) -> None:
        retaining = policy(max_surge=3, retain_seconds=Fraction(60))

        assert arms_of(retaining, state(PROMOTED, Phase.REPLACING), desired=4, min_ready=None).kept_replaced == 3

    def test_what_is_called_back_from_is_not_retained(self) -> None:
        retaining = policy(max_surge=3, retain_seconds=Fraction(60))
        called_back = state(PROMOTED, Phase.REPLACING, cause=Rejection("r1", "GateFailed", "", NOW))

        assert arms_of(retaining, called_back, desired=4, min_ready=None).kept_replaced == 0

    @pytest.mark.parametrize(
        ("capacity", "min_ready", "floor"),
        [
            (CapacityMode.AUTO, 2, 2),
            (CapacityMode.DRAIN_FIRST, 0, 0),
            (CapacityMode.AUTO, None, None),
            (CapacityMode.SURGE, 2, None),
        ],
    )
    def test_old_ones_make_room_only_down_to_a_declared_floor(
        self, capacity: CapacityMode, min_ready: int | None, floor: int | None
    ) -> None:
        arms = arms_of(policy(capacity=capacity), state(PROMOTED, Phase.REPLACING), desired=4, min_ready=min_ready)

        assert arms.floor == floor

    def test_retained_ones_are_kept_apart_from_the_pool(self) -> None:
        kept = state(Plan(epoch=4, serving="r2"), Phase.RETAINED, retained="r1")
        arms = arms_of(policy(max_surge=2), kept, desired=4, min_ready=None)

        assert (arms.retained, arms.retained_groups, arms.pools("r1")) == ("r1", 2, False)
        assert arms.revisions == {"r1", "r2"}

    def test_at_rest_there_is_one_arm(self) -> None:
        arms = arms_of(policy(), state(Plan(epoch=1, serving="r1"), Phase.STEADY), desired=2, min_ready=None)

        assert (arms.serving, arms.serving_groups, arms.surge) == ("r1", 2, SURGE)
        assert arms.revisions == {"r1"}


def test_one_revision_has_one_arm() -> None:
    with pytest.raises(InvalidInput, match="candidate"):
        Arms("r1", 1, candidate="r1")
