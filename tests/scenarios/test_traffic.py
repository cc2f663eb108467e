"""The checker of a candidate's traffic finds what it should find."""

from typing import Any

import pytest

from e2e.scenarios.traffic import TrafficWatch

Json = dict[str, Any]
PLAIN: Json = {"epoch": 1, "serving": "r1"}
CANARY: Json = {"epoch": 2, "serving": "r1", "candidate": "r2", "weight": 20}
SHADOW: Json = {"epoch": 3, "serving": "r1", "candidate": "r2", "shadowShare": 50}
PROMOTED: Json = {"epoch": 4, "serving": "r2", "previous": "r1"}


class Looks:
    """A watch that is fed looks; counts are cumulative by (revision, arm)."""

    def __init__(self, *plans: Json) -> None:
        self.watch = TrafficWatch("default/tiny")
        for plan in plans:
            self.watch.plan_seen({"status": {"plan": plan}})

    def look(self, epoch: int, started: str = "t", **requests: int) -> list[str]:
        rows = []
        for name, number in requests.items():
            revision, arm = name.split("_")
            rows.append(
                {
                    "namespace": "default",
                    "model": "tiny",
                    "pod": f"pod-{revision}",
                    "revision": revision,
                    "arm": arm,
                    "requests": number,
                }
            )
        plan = {"rollout": "uid", "epoch": epoch}
        evidence = {"gateway": {"startedAt": started}, "models": {"default/tiny": {"plan": plan}}, "rows": rows}
        self.watch.check(evidence)
        return self.watch.violations


def test_requests_within_the_plan_are_no_violation() -> None:
    looks = Looks(PLAIN, CANARY)
    looks.look(1, r1_serving=10)
    looks.look(2, r1_serving=14, r2_candidate=1)
    assert looks.look(2, r1_serving=50, r1_baseline=4, r2_candidate=11) == []
    assert (looks.watch.checked, looks.watch.candidate_requests) == (2, 11)


@pytest.mark.parametrize(
    ("epoch", "requests"),
    [
        (1, {"r2_candidate": 1}),
        (2, {"r2_serving": 1}),
        (2, {"r3_serving": 1}),
        (2, {"r2_shadow": 1}),
        (3, {"r2_candidate": 1}),
    ],
)
def test_request_outside_the_plans_arms_is_found(epoch: int, requests: dict[str, int]) -> None:
    looks = Looks(PLAIN, CANARY, SHADOW)
    looks.look(epoch, r1_serving=100)
    assert "outside plans" in looks.look(epoch, r1_serving=200, **requests)[0]


def test_change_of_plans_between_two_looks_allows_what_either_does() -> None:
    looks = Looks(CANARY, PLAIN, PROMOTED)
    looks.look(2, r1_serving=10)
    assert looks.look(1, r1_serving=19, r2_candidate=2) == []
    assert looks.look(1, r1_serving=25, r2_candidate=2) == []
    assert "outside" in looks.look(1, r1_serving=25, r2_candidate=3)[0]


@pytest.mark.parametrize(("candidate", "found"), [(26, 0), (27, 1)])
def test_more_than_the_weight_plus_one_request_is_found(candidate: int, found: int) -> None:
    looks = Looks(PLAIN, CANARY)
    looks.look(1, r1_serving=1000)
    looks.look(2, r1_serving=1000 + 50)
    # 20 % of 50 and of what came since, and one.
    assert len(looks.look(2, r1_serving=1000 + 125 - candidate, r2_candidate=candidate)) == found


def test_copies_are_in_no_share() -> None:
    looks = Looks(SHADOW)
    looks.look(3, r1_baseline=5)
    assert looks.look(3, r1_baseline=10, r2_shadow=5) == []
    assert looks.watch.candidate_requests == 0


def test_gateway_that_started_anew_or_an_unknown_plan_begins_a_new_count() -> None:
    looks = Looks(CANARY)
    looks.look(2, r1_serving=100)
    assert looks.look(2, started="later", r1_serving=1, r2_candidate=9) == []
    assert looks.look(9, started="later", r3_serving=9) == []
    assert looks.look(2, started="later", r1_serving=1, r2_candidate=9, r3_serving=9) == []
    assert looks.watch.checked == 0


def test_promoted_revision_serves_beside_the_old_one() -> None:
    looks = Looks(PROMOTED)
    looks.look(4, r1_serving=5)
    assert looks.look(4, r1_serving=6, r2_serving=7) == []
