"""The rule of a plan: roles of pods, cohorts of keys, and a share that holds whatever comes."""

import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.gateway.arms import MOST_BEHIND, Arms, Role
from bayplan.gateway.endpoints import EngineFacts, HeadView, view_head
from bayplan.gateway.rollouts import read_plan
from bayplan.planning.admission.records import AdmissionRequest, Preference
from bayplan.planning.gates.counts import Arm
from bayplan.planning.rollout.cohort import Cohort
from bayplan.planning.rollout.plan import Plan
from tests.gateway.gatewaytown import FACTS, raw_head

ASKED = AdmissionRequest(tenant="a", prompt_tokens=10, max_output_tokens=10)


@dataclass(frozen=True)
class Stand:
    """A replica as a pool has it."""

    head: HeadView
    facts: EngineFacts
    role: Role


def plan(**fields: Any) -> Plan:
    return Plan(**{"epoch": 1, "serving": "r1", "candidate": "r2", "cohort_salt": "salt"} | fields)


def make(
    of: Plan, *, serving: int = 2, candidate: int = 2, lapsed: bool = False, former: Arms | None = None
) -> tuple[Arms, dict[str, Stand]]:
    arms = Arms(of, lapsed=lambda: lapsed, former=former)
    stands = {}
    for revision, number in (("r1", serving), ("r2", candidate)):
        for n in range(number):
            head = view_head(raw_head(f"{revision}-{n}", "10.0.0.1", revision=revision))
            stands[head.uid] = Stand(head, FACTS, arms.role(revision))
    arms.recount(stands)
    return arms, stands


class TestRoles:
    @pytest.mark.parametrize(
        ("fields", "roles"),
        [
            ({}, {"r1": Role.POOL, "r2": Role.NONE}),
            ({"weight": 10}, {"r1": Role.POOL, "r2": Role.CANDIDATE, "r0": Role.NONE}),
            ({"shadow_share": 10}, {"r1": Role.POOL, "r2": Role.CANDIDATE}),
            ({"weight": 100}, {"r1": Role.POOL, "r2": Role.POOL}),
            ({"candidate": None, "cohort_salt": "", "previous": "r0"}, {"r1": Role.POOL, "r0": Role.POOL}),
            ({"candidate": None, "cohort_salt": ""}, {"r1": Role.POOL, "r2": Role.NONE, "r0": Role.NONE}),
        ],
    )
    def test_only_revisions_of_the_plan_get_requests(self, fields: dict[str, Any], roles: dict[str, Role]) -> None:
        arms, _ = make(plan(**fields))
        assert {revision: arms.role(revision) for revision in roles} == roles

    def test_request_is_sent_to_the_candidate_only_as_its_own(self) -> None:
        arms, stands = make(plan(weight=50))
        candidate, serving = stands["pod-r2-0"], stands["pod-r1-0"]
        assert arms.arm(Cohort.CANDIDATE, candidate) is Arm.CANDIDATE
        assert arms.arm(Cohort.BASELINE, candidate) is None
        assert arms.arm(Cohort.REST, candidate) is None
        assert arms.arm(Cohort.CANDIDATE, serving) is Arm.SERVING

    def test_baseline_is_its_cohort_at_its_pods(self) -> None:
        arms, stands = make(plan(weight=50, baseline=("pod-r1-0",)))
        assert arms.arm(Cohort.BASELINE, stands["pod-r1-0"]) is Arm.BASELINE
        assert arms.arm(Cohort.BASELINE, stands["pod-r1-1"]) is Arm.SERVING
        assert arms.arm(Cohort.REST, stands["pod-r1-0"]) is Arm.SERVING

    def test_pod_that_takes_nothing_is_no_arm(self) -> None:
        arms, stands = make(plan(weight=50))
        gone = Stand(stands["pod-r1-0"].head, FACTS, Role.NONE)
        assert arms.arm(Cohort.REST, gone) is None

    def test_without_a_lease_the_candidate_gets_nothing_even_alone(self) -> None:
        for weight in (50, 100):
            arms, stands = make(plan(weight=weight), lapsed=True)
            assert arms.arm(Cohort.CANDIDATE, stands["pod-r2-0"]) is None
            standing, _ = make(arms.plan)
            for one in (arms, standing):
                for _ in range(100):
                    one.sent(Arm.SERVING)
            mine = next(f"s{n}" for n in range(1000) if standing.cohort(f"s{n}") is Cohort.CANDIDATE)
            assert arms.cohort(mine) is Cohort.REST

    def test_candidate_that_takes_only_shorter_sequences_is_left_out(self) -> None:
        arms, stands = make(plan(weight=50))
        short = EngineFacts(kv_blocks=1000, block_size=16, max_num_seqs=64, max_model_len=20)
        stands["pod-r2-0"] = Stand(stands["pod-r2-0"].head, short, Role.CANDIDATE)
        arms.recount(stands)
        assert set(arms.preference(Cohort.CANDIDATE, ASKED).beside) == {"pod-r2-0", "pod-r2-1"}
        longer = AdmissionRequest(tenant="a", prompt_tokens=11, max_output_tokens=10)
        assert set(arms.preference(Cohort.CANDIDATE, longer).beside) == {"pod-r2-1"}

    def test_only_the_baselines_cohort_asks_for_its_pods(self) -> None:
        arms, _ = make(plan(weight=50, baseline=("pod-r1-0", "gone")))
        mine = frozenset({"pod-r1-0"})
        assert arms.preference(Cohort.BASELINE, ASKED) == Preference(first=mine)
        assert arms.preference(Cohort.REST, ASKED) == Preference(spare=mine)
        assert arms.preference(Cohort.CANDIDATE, ASKED) == Preference(beside=["pod-r2-0", "pod-r2-1"], spare=mine)


def run(arms: Arms, keys: list[str]) -> list[Arm]:
    """Send a request per key, as a gateway does; which arm each went to."""
    sent = []
    for key in keys:
        cohort = arms.cohort(key)
        arm = {Cohort.CANDIDATE: Arm.CANDIDATE, Cohort.BASELINE: Arm.BASELINE, Cohort.REST: Arm.SERVING}[cohort]
        arms.sent(arm)
        sent.append(arm)
    return sent


class TestShare:
    @given(
        weight=st.integers(1, 50),
        sessions=st.integers(1, 40),
        skew=st.floats(0, 3),
        seed=st.integers(0, 2**32),
    )
    def test_whatever_sessions_come_no_prefix_and_no_stretch_has_more_than_its_share(
        self, weight: int, sessions: int, skew: float, seed: int
    ) -> None:
        chance = random.Random(seed)
        arms, _ = make(plan(weight=weight, baseline=("pod-r1-0", "pod-r1-1")))
        weights = [(1 + n) ** -skew for n in range(sessions)]
        sent = run(arms, [f"s{n}" for n in chance.choices(range(sessions), weights, k=400)])
        for arm in (Arm.CANDIDATE, Arm.BASELINE):
            mine = [one is arm for one in sent]
            prefix = 0
            for routed, one in enumerate(mine, start=1):
                prefix += one
                assert prefix <= Fraction(weight, 100) * routed
            start = chance.randrange(400)
            stretch = mine[start:]
            assert sum(stretch) <= Fraction(weight, 100) * len(stretch) + MOST_BEHIND + 1

    def test_long_silence_is_no_licence_for_a_burst(self) -> None:
        arms, _ = make(plan(weight=50))
        inside = next(f"s{n}" for n in range(1000) if self.belongs(arms, f"s{n}"))
        for _ in range(10_000):
            arms.sent(Arm.SERVING)
        burst = 0
        while arms.cohort(inside) is Cohort.CANDIDATE:
            arms.sent(Arm.CANDIDATE)
            burst += 1
        assert MOST_BEHIND <= burst <= 2 * MOST_BEHIND

    @staticmethod
    def belongs(arms: Arms, key: str) -> bool:
        """Whether the candidate's cohort has the key, the cap aside."""
        fresh, _ = make(arms.plan)
        for _ in range(1000):
            fresh.sent(Arm.SERVING)
        return fresh.cohort(key) is Cohort.CANDIDATE

    def test_many_small_sessions_come_close_to_the_weight_in_both_arms(self) -> None:
        arms, _ = make(plan(weight=20, baseline=("pod-r1-0", "pod-r1-1")))
        sent = run(arms, [f"session {n}" for n in range(5000)])
        for arm in (Arm.CANDIDATE, Arm.BASELINE):
            assert 0.18 <= sent.count(arm) / 5000 <= 0.2

    def test_session_stays_where_it_is_while_the_weight_rises(self) -> None:
        for key in (f"s{n}" for n in range(300)):
            former = None
            for weight in (5, 20, 50):
                arms, _ = make(plan(weight=weight, baseline=("pod-r1-0", "pod-r1-1")))
                for _ in range(1000):
                    arms.sent(Arm.SERVING)
                cohort = arms.cohort(key)
                assert former in (None, Cohort.REST, cohort)
                former = cohort

    def test_no_more_than_the_ready_part_goes_to_the_candidate(self) -> None:
        arms, _ = make(plan(weight=50), serving=9, candidate=1)
        sent = run(arms, [f"session {n}" for n in range(3000)])
        assert 0.08 <= sent.count(Arm.CANDIDATE) / 3000 <= 0.1

    @pytest.mark.parametrize("candidate", [0, 2])
    def test_plan_without_a_weight_or_without_a_ready_candidate_sends_it_nothing(self, candidate: int) -> None:
        of = plan(weight=50) if candidate == 0 else plan()
        arms, _ = make(of, candidate=candidate)
        assert Arm.CANDIDATE not in run(arms, [f"session {n}" for n in range(200)])

    def test_counts_go_on_over_epochs_of_the_same_weight_and_begin_anew_with_another(self) -> None:
        arms, _ = make(plan(weight=10))
        for _ in range(9):
            arms.sent(Arm.SERVING)
        key = next(f"s{n}" for n in range(1000) if self.belongs(arms, f"s{n}"))
        same, _ = make(plan(epoch=2, weight=10), former=arms)
        assert same.cohort(key) is Cohort.CANDIDATE
        other, _ = make(plan(epoch=3, weight=11), former=same)
        assert other.cohort(key) is Cohort.REST
        salted, _ = make(plan(epoch=4, weight=10, cohort_salt="another"), former=same)
        assert salted.cohort(key) is not Cohort.CANDIDATE


class TestShadow:
    def test_share_of_copies_is_at_most_the_baselines_part_of_the_pool(self) -> None:
        arms, _ = make(plan(shadow_share=100, baseline=("pod-r1-0",)), serving=4)
        sent = run(arms, [f"session {n}" for n in range(2000)])
        assert Arm.CANDIDATE not in sent
        assert 0.22 <= sent.count(Arm.BASELINE) / 2000 <= 0.25

    def test_baselines_requests_are_copied_and_no_others(self) -> None:
        arms, _ = make(plan(shadow_share=50, baseline=("pod-r1-0", "pod-r1-1")))
        assert arms.copies(Cohort.BASELINE)
        assert not arms.copies(Cohort.REST)
        assert not make(plan(weight=50, baseline=("pod-r1-0",)))[0].copies(Cohort.BASELINE)
        assert not make(plan(shadow_share=50, baseline=("pod-r1-0",)), lapsed=True)[0].copies(Cohort.BASELINE)

    def test_without_a_ready_baseline_pod_nobody_is_the_baselines(self) -> None:
        arms, _ = make(plan(shadow_share=100, baseline=("gone",)))
        assert set(run(arms, [f"session {n}" for n in range(100)])) == {Arm.SERVING}


WIRE = {
    "epoch": 7,
    "serving": "r1",
    "previous": "r0",
    "candidate": "r2",
    "weight": 10,
    "cohortSalt": "abc",
    "stableMin": 2,
    "candidateReplicas": 2,
    "baseline": ["a", "b"],
}


def test_plan_is_read_as_it_stands_in_the_status() -> None:
    read = read_plan(WIRE)
    assert read == Plan(
        epoch=7,
        serving="r1",
        previous="r0",
        candidate="r2",
        weight=10,
        cohort_salt="abc",
        stable_min=2,
        candidate_replicas=2,
        baseline=("a", "b"),
    )


@pytest.mark.parametrize(
    "change",
    [{"epoch": 0}, {"weight": 101}, {"candidate": None}, {"candidate": "r1"}, {"shadowShare": 5}, {"serving": ""}],
)
def test_plan_that_nobody_could_carry_out_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_plan(WIRE | change)
