"""From whatever a rollout has been through there is a way on and a way back, and on the way nothing is ever unsafe."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api.rolloutwords import CapacityMode, OnDeadline, Phase
from bayplan.planning.measurements import Unknown
from bayplan.planning.rollout.balance import carried_percent
from bayplan.planning.rollout.paper import PaperOutcome, PaperVerdict
from bayplan.planning.rollout.plan import Plan
from bayplan.planning.rollout.state import TRYING
from bayplan.planning.rollout.verdicts import Advance, Decision, Rest, RestReason, Rollback
from bayplan.planning.rollout.world import World
from tests.planning.rollout.fleet import Fleet, room
from tests.planning.rollout.policies import GATES, PROMOTE, WARM, approval, policy

Event = Callable[[Fleet], None]
KIND = {
    "ready": {},
    "trouble": "",
    "candidate_nodes": 4,
    "acknowledging": True,
    "requests": 200,
    "late": 0,
    "errors": 0,
    "streams": Fraction(0),
    "answering": True,
    "desired": 4,
    "floor": 2,
}
"""A world in which whatever is asked for happens."""


def sets(**of: object) -> Event:
    def event(fleet: Fleet) -> None:
        for name, value in of.items():
            setattr(fleet, name, value)
        look(fleet)

    return event


def asks(**of: object) -> Event:
    def event(fleet: Fleet) -> None:
        fleet.change(**of)
        look(fleet)

    return event


def sees(**of: object) -> Event:
    return lambda fleet: look(fleet, **of)


def waits(fleet: Fleet) -> None:
    fleet.now += 700
    look(fleet)


def retries(fleet: Fleet) -> None:
    fleet.change(retry=f"{fleet.now}")
    look(fleet)


def restarts_the_gateway(fleet: Fleet) -> None:
    fleet.epoch = 0
    look(fleet)


STRICTER = (replace(GATES[0], limit=Fraction(1, 2)), GATES[1])
EVENTS: dict[str, Event] = {
    "look": sees(),
    "wait": waits,
    "retry": retries,
    "gateway restarts": restarts_the_gateway,
    "r1 wanted": sets(wanted="r1"),
    "r2 wanted": sets(wanted="r2"),
    "r3 wanted": sets(wanted="r3"),
    "candidate gone": sets(ready={"r2": 0, "r3": 0}),
    "candidate small": sets(ready={"r2": 1, "r3": 1}, trouble="crash loop"),
    "serving gone": sets(ready={"r1": 0}),
    "all ready": sets(ready={}, trouble=""),
    "one node": sets(candidate_nodes=1),
    "errors": sets(errors=200),
    "late": sets(late=200),
    "silence": sets(requests=0),
    "well": sets(errors=0, late=0, requests=200),
    "no acknowledgement": sets(acknowledging=False),
    "acknowledgement": sets(acknowledging=True),
    "streams": sets(streams=Unknown("scrape failed")),
    "no answer": sets(answering=False),
    "more demand": sets(desired=9),
    "no demand": sets(desired=0),
    "pause": asks(paused=True),
    "resume": asks(paused=False),
    "abort r2": asks(abort="r2"),
    "abort r3": asks(abort="r3"),
    "no abort": asks(abort=None),
    "stricter": asks(gates=STRICTER),
    "as before": asks(gates=GATES),
    "roll back when late": asks(on_deadline=OnDeadline.ROLLBACK),
    "approval": asks(stages=(WARM, *policy().stages[1:-1], approval(PROMOTE))),
    "fewer stages": asks(stages=(WARM, policy().stages[3], PROMOTE)),
    "drain first": asks(capacity=CapacityMode.DRAIN_FIRST),
    "retain": asks(retain_seconds=Fraction(500)),
    "deletion": sees(deleting=True),
    "papers missing": sees(paper=PaperVerdict(PaperOutcome.MISSING, ("rounds",))),
    "papers fail": sees(paper=PaperVerdict(PaperOutcome.REJECTED, ("ttft",))),
    "no window": sees(window=None),
    "no room": sets(surge=room(0, missing="no node")),
    "room": sets(surge=room(9)),
}
PLACES = ["Paper", "warm", "shadow", "canary-10", "canary-25", "promote", Phase.RETAINED, "rolled back"]


def look(fleet: Fleet, **of: object) -> Decision:
    """One decision, with everything that must be true of any."""
    before = fleet.stored
    ahead = replace(fleet, now=fleet.now + 10)
    world = ahead.world(**of)
    decision = fleet.step(**of)
    _check(fleet, before.plan, decision, world)
    return decision


def _check(fleet: Fleet, before: Plan, decision: Decision, world: World) -> None:
    plan, state, verdict = decision.state.plan, decision.state, decision.verdict
    assert plan.epoch == before.epoch + (replace(plan, epoch=before.epoch) != before)
    if plan.weight:
        assert state.phase is Phase.CANARY
        assert plan.weight <= fleet.policy.stages[state.stage].weight
        # What is ready was looked at in this decision, unless it has just entered the next stage.
        assert plan.weight <= max(carried_percent(world), 0 if not isinstance(verdict, Advance) else before.weight)
        assert set(plan.baseline) <= {head.uid for head in world.serving.serving} or isinstance(verdict, Advance)
    assert not plan.shadow_share or state.phase is Phase.SHADOW
    if plan.serving != before.serving:
        assert isinstance(verdict, Rollback) or (isinstance(verdict, Advance) and verdict.to == "promote")
        assert before.serving in plan.routed  # nobody loses what serves before the other can
    if isinstance(verdict, Rollback) and plan.serving == before.serving:
        assert plan.routed == ((plan.serving, plan.previous) if plan.previous else (plan.serving,))
    if state.phase in TRYING and state.drain_first:
        assert plan.stable_min >= min(fleet.floor, 1)
    if state.phase in TRYING and not isinstance(verdict, Rollback):
        assert state.rejection(state.candidate or "") is None
    if isinstance(verdict, Advance) and verdict.to == "promote":
        assert not fleet.policy.paused
        assert not state.frozen


def be_kind(fleet: Fleet) -> None:
    for name, value in KIND.items():
        setattr(fleet, name, value)
    fleet.surge = room(*(9,) * 5)
    fleet.candidate_nodes = 4


def start(place: str) -> Fleet:
    fleet = Fleet(policy=policy(retain_seconds=Fraction(200) if place is Phase.RETAINED else Fraction(0)))
    if place == "rolled back":
        fleet.errors = 200
        fleet.run()
        fleet.errors = 0
    else:
        fleet.until(place)
    return fleet


def run_out(fleet: Fleet) -> Rest:
    for _ in range(120):
        verdict = look(fleet).verdict
        if isinstance(verdict, Rest):
            return verdict
    raise AssertionError(f"never at rest: {fleet.phase}, {verdict}, {fleet.history[-6:]}")


def require_a_way_on(fleet: Fleet) -> None:
    """In a kind world, with everything that people can give, what is wanted comes to serve alone."""
    be_kind(fleet)
    every = frozenset((revision, stage.name) for revision in ("r1", "r2", "r3") for stage in fleet.policy.stages)
    fleet.change(paused=False, abort=None, retry="the way on", approvals=every, gates=GATES)

    assert run_out(fleet).reason is RestReason.CURRENT
    assert fleet.plan.routed == (fleet.wanted,)


def require_a_way_back(fleet: Fleet) -> None:
    """An abort leads to one revision that serves alone, and what was aborted is not it."""
    be_kind(fleet)
    returning = fleet.phase is Phase.REPLACING and fleet.stored.cause is not None
    other = None if returning else fleet.plan.previous or fleet.stored.retained
    fleet.change(abort=fleet.wanted)

    rest = run_out(fleet)
    if rest.reason is RestReason.REJECTED:
        assert fleet.plan.serving != fleet.wanted
        assert fleet.stored.proof is None or fleet.stored.proof.proven
    else:
        assert other is None  # it serves, and nothing is left to go back to
    assert len(fleet.plan.routed) == 1


def both_ways(fleet: Fleet) -> None:
    require_a_way_back(replace(fleet, history=list(fleet.history), seen=[]))
    require_a_way_on(replace(fleet, history=list(fleet.history), seen=[]))


@pytest.mark.parametrize("place", PLACES)
def test_after_any_event_in_any_place_there_is_a_way_on_and_a_way_back(place: str) -> None:
    begun = start(place)
    reached = set()
    for name, event in EVENTS.items():
        fleet = replace(begun, history=[], seen=[])
        event(fleet)
        key = (replace(fleet.stored, evidence=begun.stored.evidence), fleet.policy, fleet.wanted, fleet.now)
        if key not in reached:
            reached.add(key)
            try:
                both_ways(fleet)
            except AssertionError as error:
                raise AssertionError(f"after {name} in {place}: {error}") from error


@pytest.mark.property
@given(place=st.sampled_from(PLACES), names=st.lists(st.sampled_from(sorted(EVENTS)), max_size=20))
@settings(max_examples=60, deadline=None)
def test_after_any_sequence_of_events_there_is_a_way_on_and_a_way_back(place: str, names: list[str]) -> None:
    fleet = start(place)
    for name in names:
        EVENTS[name](fleet)

    both_ways(fleet)
