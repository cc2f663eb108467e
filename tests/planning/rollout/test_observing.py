"""Which pods and rows a decision counts, by the phase that it stands in."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from bayplan.api.rolloutwords import CapacityMode, GateName, Phase, Waiver
from bayplan.planning.gates.counts import Arm, Row, Snapshot, SourceCounts, Window
from bayplan.planning.gates.records import EVERY_CLASS, Gate
from bayplan.planning.gates.validity import check_gates
from bayplan.planning.rollout.observing import Look, take_look, window_of
from bayplan.planning.rollout.verdicts import Rest
from bayplan.planning.rollout.world import ArmHeads
from tests.planning.rollout.counters import EDGES, row
from tests.planning.rollout.fleet import Fleet, room
from tests.planning.rollout.policies import CANARY, GATES, PROMOTE, WARM, policy

ARMS = {"r1-0": Arm.BASELINE, "r1-1": Arm.BASELINE, "r1-2": Arm.SERVING, "r1-3": Arm.SERVING}


def counters(fleet: Fleet, at: Any, requests: int, *, rest: int = 1, own_requests: int | None = None) -> Snapshot:
    """So many requests at every pod, in the arm that the plan gives it, and as many copies at the candidate's.

    Serving pods outside the baseline have `rest` times as many.
    """
    own = Arm.CANDIDATE if fleet.plan.candidate else Arm.SERVING
    made: list[Row] = [row(pod, arm, requests * (rest if arm is Arm.SERVING else 1)) for pod, arm in ARMS.items()]
    own_requests = requests if own_requests is None else own_requests
    made += [row(f"r2-{index}", own, own_requests) for index in range(4)]
    made += [row(f"r2-{index}", Arm.SHADOW, requests) for index in range(4)]
    return Snapshot({"g": SourceCounts(at, "1", tuple(made))})


def observed(fleet: Fleet, *, requests: int = 50, **of: Any) -> Window | None:
    """The window over the next ten seconds."""
    world = fleet.world(**of)
    earlier = take_look(world, counters(fleet, fleet.now, 0))
    later = take_look(world, counters(fleet, fleet.now + 10, requests))
    return window_of(fleet.policy, fleet.stored, world, earlier, later)


def requests_of(window: Window | None) -> dict[Arm, int]:
    assert window is not None
    assert window.problem == ""
    return {one.arm: one.tally.requests for one in window.tallies if one.workload_class == EVERY_CLASS}


@pytest.mark.parametrize("stage", ["shadow", "canary-10"])
def test_on_trial_the_candidate_is_compared_with_the_baseline_alone(stage: str) -> None:
    fleet = Fleet()
    fleet.until(stage)
    fleet.settle(1)

    window = observed(fleet)

    assert requests_of(window) == {Arm.BASELINE: 100, Arm.CANDIDATE: 100}
    assert window is not None
    assert window.routed_requests == 400
    assert window.candidate_requests == 200


def test_promoted_pods_are_compared_with_all_that_are_left_of_the_old_revision() -> None:
    fleet = Fleet(ready={"r2": 2})
    fleet.until("promote")

    assert requests_of(observed(fleet)) == {Arm.BASELINE: 200, Arm.CANDIDATE: 100}


def test_a_promoted_revision_that_serves_alone_is_still_counted() -> None:
    fleet = Fleet(policy=policy(retain_seconds=Fraction(100)))
    fleet.until(Phase.RETAINED)

    assert requests_of(observed(fleet)) == {Arm.CANDIDATE: 200}


@pytest.mark.parametrize("place", ["Paper", "warm", Phase.STEADY])
def test_other_phases_count_nothing(place: str) -> None:
    fleet = Fleet()
    fleet.until(place)

    assert observed(fleet) is None


def test_a_pod_that_was_not_warm_at_both_ends_enters_no_count() -> None:
    fleet = Fleet()
    fleet.until("canary-10")
    fleet.settle(1)
    world = fleet.world()
    half = replace(world, candidate=ArmHeads(world.candidate.heads[:1]))
    whole, part = (take_look(one, counters(fleet, fleet.now, 0)) for one in (world, half))
    later = Look(counters(fleet, fleet.now + 10, 50), whole.serving)

    window = window_of(fleet.policy, fleet.stored, world, part, later)

    assert requests_of(window)[Arm.CANDIDATE] == 50


def test_a_gateway_whose_lease_ran_out_is_not_expected() -> None:
    fleet = Fleet(expired=True)
    fleet.until("canary-10")
    fleet.settle(1)

    assert requests_of(observed(fleet))


def test_a_gate_that_nothing_can_judge_disturbs_no_other() -> None:
    gates = (Gate(GateName.TTFT, Fraction(7, 10), enforce=False), GATES[1])
    fleet = Fleet(policy=policy(gates=gates))
    fleet.until("canary-10")
    fleet.settle(1)
    invalid = check_gates(gates, ttft_edges=EDGES, tpot_edges=EDGES, has_prompts=False)

    assert requests_of(observed(fleet, invalid=invalid))


def test_without_a_baseline_knowingly_the_candidate_is_counted_alone() -> None:
    waivers = frozenset({Waiver.SINGLE_REPLICA, Waiver.NO_BASELINE})
    asked = policy(stages=(WARM, CANARY, PROMOTE), capacity=CapacityMode.DRAIN_FIRST, waivers=waivers)
    fleet = Fleet(policy=asked, desired=1, floor=0, surge=room(0, 1))
    fleet.until("canary-10")
    fleet.settle(1)

    assert requests_of(observed(fleet)) == {Arm.CANDIDATE: 50}


@pytest.mark.parametrize(
    ("rest", "history"),
    [
        (16, ["Paper", "warm", "shadow", "canary-10", "canary-25", "promote", Phase.STEADY]),
        # Every pod has alike here: half of all requests go to the candidate's, and none of its weights explains that.
        (1, ["Paper", "warm", "shadow", "canary-10"]),
    ],
)
def test_a_whole_rollout_runs_on_nothing_but_counters(rest: int, history: list[str]) -> None:
    fleet = Fleet()
    fleet.step()
    look: Look | None = None
    own = 0
    for made in range(0, 60 * 60, 60):
        own += 60 * bool(fleet.plan.weight or fleet.plan.candidate is None)
        world = replace(fleet.world(), now_seconds=fleet.now + 10)
        new = take_look(world, counters(fleet, fleet.now + 10, made, rest=rest, own_requests=own))
        window = None if look is None else window_of(fleet.policy, fleet.stored, world, look, new)
        look = new
        if isinstance(fleet.step(window=window).verdict, Rest):
            break

    assert fleet.history == history
