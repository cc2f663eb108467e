"""Who gets the candidate: sticky, in proportion, and never more than its share."""

import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.cohort import (
    Cohort,
    cohort_key,
    derive_salt,
    find_cohort,
    forget_behind,
    within_share,
)

KEYS = [f"session {number}" for number in range(20_000)]


def cohorts(weight: int, baseline: int, salt: str = "salt") -> list[Cohort]:
    return [find_cohort(key, salt=salt, weight_percent=weight, baseline_percent=baseline) for key in KEYS]


class TestCohorts:
    def test_shares_of_keys_are_as_asked(self) -> None:
        found = cohorts(10, 10)

        for cohort in (Cohort.CANDIDATE, Cohort.BASELINE):
            assert abs(found.count(cohort) / len(KEYS) - 0.1) < 0.01

    def test_a_larger_weight_moves_nobody_out_of_either_arm(self) -> None:
        small, large = cohorts(10, 10), cohorts(25, 25)

        assert all(new is old for old, new in zip(small, large, strict=True) if old is not Cohort.REST)

    def test_above_half_the_baseline_gets_what_is_left(self) -> None:
        found = cohorts(70, 70)

        assert Cohort.REST not in found
        assert abs(found.count(Cohort.CANDIDATE) / len(KEYS) - 0.7) < 0.01

    @pytest.mark.parametrize(("weight", "only"), [(0, Cohort.REST), (100, Cohort.CANDIDATE)])
    def test_nothing_and_everything_are_exact(self, weight: int, only: Cohort) -> None:
        assert set(cohorts(weight, 0)) == {only}

    def test_another_attempt_picks_other_sessions(self) -> None:
        salts = [derive_salt(rollout_uid="u", revision="r2", attempt=attempt) for attempt in (1, 2)]
        first, second = (
            {key for key, cohort in zip(KEYS, cohorts(10, 0, salt), strict=True) if cohort is Cohort.CANDIDATE}
            for salt in salts
        )

        assert abs(len(first & second) / len(KEYS) - 0.01) < 0.005
        assert salts[0] == derive_salt(rollout_uid="u", revision="r2", attempt=1)
        assert derive_salt(rollout_uid="ab", revision="c", attempt=1) != derive_salt(
            rollout_uid="a", revision="bc", attempt=1
        )

    def test_the_session_goes_before_the_conversation_and_that_before_the_request(self) -> None:
        assert cohort_key(session="a", conversation="a", request_id="a") == "session a"
        assert cohort_key(session="", conversation="a", request_id="a") == "conversation a"
        assert cohort_key(session=None, conversation=None, request_id="a") == "request a"
        with pytest.raises(InvalidInput, match="request_id"):
            cohort_key(session=None, conversation=None, request_id=" ")

    @pytest.mark.parametrize("weight", [-1, 101, 1.5, True])
    def test_what_is_no_percentage_is_refused(self, weight: Any) -> None:
        with pytest.raises(InvalidInput, match="weight_percent"):
            find_cohort("k", salt="s", weight_percent=weight, baseline_percent=0)


class TestShare:
    @pytest.mark.parametrize(
        ("routed", "candidate", "within"), [(0, 0, True), (8, 1, False), (9, 1, True), (18, 2, False), (19, 2, True)]
    )
    def test_it_is_the_weight_and_one_request_at_most(self, routed: int, candidate: int, within: bool) -> None:
        assert within_share(weight_percent=10, routed=routed, candidate=candidate) is within

    def test_weight_zero_lets_nothing_pass(self) -> None:
        assert not within_share(weight_percent=0, routed=1000, candidate=0)

    @given(
        weight=st.integers(1, 99),
        gateways=st.integers(1, 4),
        heaviness=st.floats(0, 1),
        seed=st.integers(0, 2**32),
    )
    def test_however_heavy_its_sessions_no_window_exceeds_the_share_over_all_gateways(
        self, weight: int, gateways: int, heaviness: float, seed: int
    ) -> None:
        chance = random.Random(seed)
        routed, candidate = [0] * gateways, [0] * gateways
        for _ in range(300):
            at = chance.randrange(gateways)
            wants = chance.random() < heaviness
            if wants and within_share(
                weight_percent=weight, routed=routed[at], candidate=candidate[at], gateways=gateways
            ):
                candidate[at] += 1
            routed[at] += 1

        assert sum(candidate) <= Fraction(weight, 100) * sum(routed) + 1

    @given(weight=st.integers(1, 100), gateways=st.integers(1, 4), seed=st.integers(0, 2**32))
    def test_gateways_that_know_of_no_others_keep_to_the_weight_together(
        self, weight: int, gateways: int, seed: int
    ) -> None:
        chance = random.Random(seed)
        routed, candidate = [0] * gateways, [0] * gateways
        for _ in range(300):
            at = chance.randrange(gateways)
            if within_share(weight_percent=weight, routed=routed[at], candidate=candidate[at], gateways=None):
                candidate[at] += 1
            routed[at] += 1
            assert 100 * sum(candidate) <= weight * sum(routed)

    @given(weight=st.integers(1, 99), most=st.integers(1, 30), quiet=st.integers(0, 3000))
    def test_what_did_not_come_is_made_up_for_only_so_far(self, weight: int, most: int, quiet: int) -> None:
        routed = forget_behind(weight_percent=weight, routed=quiet, candidate=0, most_behind=most)
        burst = 0
        while within_share(weight_percent=weight, routed=routed + burst, candidate=burst, gateways=None):
            burst += 1

        assert burst <= most + Fraction(weight, 100) * burst + 1
        assert routed == quiet or burst >= most

    def test_nothing_is_forgotten_that_a_window_owes(self) -> None:
        assert forget_behind(weight_percent=10, routed=199, candidate=0, most_behind=20) == 199
        assert forget_behind(weight_percent=10, routed=201, candidate=0, most_behind=20) == 200
        assert forget_behind(weight_percent=0, routed=201, candidate=0, most_behind=20) == 201

    def test_a_cohort_of_just_its_share_is_hardly_ever_turned_away(self) -> None:
        chance, candidate, turned = random.Random(7), 0, 0
        for routed in range(1000):
            if chance.random() < 0.1:
                if within_share(weight_percent=12, routed=routed, candidate=candidate):
                    candidate += 1
                else:
                    turned += 1

        assert turned < 20

    @pytest.mark.parametrize(
        ("field", "change"),
        [("candidate", {"candidate": 3}), ("routed", {"routed": -1}), ("gateways", {"gateways": 0})],
    )
    def test_counts_that_cannot_be_are_refused(self, field: str, change: dict[str, int]) -> None:
        with pytest.raises(InvalidInput, match=field):
            within_share(**({"weight_percent": 10, "routed": 2, "candidate": 1} | change))
