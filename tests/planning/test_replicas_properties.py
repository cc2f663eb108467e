"""`decide` against a simple world that does what it says, with failures and changes in between."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api.inferencemodel_status import Stage
from bayplan.planning.groups.assignment import Assignment
from bayplan.planning.groups.members import Group, Member
from bayplan.planning.groups.replicas import ALIVE, SURGE, Actions, Target, decide
from tests.planning.replicagroups import NOW, REVISION, TEMPLATE, ago, assignment, build_one, in_stage, members

OLD = "9f8e7d6c5b"
LONG_AGO = ago(1000)
"""Longer than any pause: failed groups are due at once."""
NEXT = {
    Stage.BINDING: Stage.WARMING,
    Stage.WARMING: Stage.READY,
}


@dataclass
class Slot:
    plan: Assignment
    stage: Stage
    going: bool = False

    def group(self) -> Group:
        pods: Iterable[Member] = in_stage(self.stage, self.plan, since=LONG_AGO)
        if self.stage is Stage.RESERVED and len(self.plan.ranks) > 1 and not self.going:
            pods = members(self.plan)
        if self.going:
            pods = [replace(pod, deleting=True) for pod in pods]
        lost = {self.plan.ranks[0].node: LONG_AGO} if self.stage is Stage.LOST else {}
        return build_one(pods, lost=lost)


@dataclass
class Replicas:
    """One model's groups by name. `apply` does what was decided, `progress` what the cluster does by itself."""

    slots: dict[str, Slot] = field(default_factory=dict)

    def groups(self) -> list[Group]:
        return [slot.group() for _, slot in sorted(self.slots.items())]

    def apply(self, actions: Actions, target: Target) -> None:
        for removal in actions.remove:
            self._delete(removal.group.name)
        for group in actions.drain:
            self.slots[group.name].stage = Stage.DRAINING
        for group in actions.release:
            self.slots[group.name].stage = Stage.BINDING
        for creation in actions.create:
            plan = assignment(
                ordinal=creation.ordinal,
                attempt=creation.attempt,
                failures=creation.failures,
                replaces=creation.predecessor,
                revision=target.revision,
            )
            assert plan.group not in self.slots, "a name was given out twice"
            self.slots[plan.group] = Slot(plan, Stage.RESERVED)

    def _delete(self, name: str) -> None:
        slot = self.slots[name]
        if slot.stage is Stage.RESERVED:
            del self.slots[name]
        else:
            slot.going = True

    def progress(self, name: str, *, fails: bool = False) -> None:
        slot = self.slots[name]
        if slot.stage is Stage.DRAINING and not slot.going:
            slot.going = True
        elif slot.going:
            del self.slots[name]
        elif slot.stage in (Stage.WARMING, Stage.READY) and fails:
            slot.stage = Stage.FAILED
        else:
            slot.stage = NEXT.get(slot.stage, slot.stage)


def ready(groups: Iterable[Group]) -> set[str]:
    return {group.name for group in groups if group.stage is Stage.READY}


def alive(groups: Iterable[Group]) -> set[str]:
    return {group.name for group in groups if group.stage in ALIVE}


@st.composite
def replicas(draw: st.DrawFn) -> Replicas:
    found = Replicas()
    slots = st.tuples(st.integers(0, 4), st.integers(0, 2), st.sampled_from([REVISION, OLD]))
    for ordinal, attempt, revision in draw(st.lists(slots, max_size=6, unique=True)):
        plan = assignment(ordinal=ordinal, attempt=attempt, revision=revision)
        found.slots[plan.group] = Slot(plan, draw(st.sampled_from(list(Stage))), going=draw(st.booleans()))
    return found


TARGETS = st.builds(
    Target, replicas=st.integers(0, 5), revision=st.sampled_from([REVISION, OLD]), template=st.just(TEMPLATE)
)


def check_one_decision(groups: list[Group], target: Target, actions: Actions) -> None:
    """What holds for every single decision, whatever it met."""
    gone = {removal.group.name for removal in actions.remove} | {group.name for group in actions.drain}
    assert len(ready(groups) - gone) >= min(target.replicas, len(ready(groups)))
    living = len(alive(groups) - gone) + len(actions.create)
    assert living <= max(target.replicas + SURGE, len(alive(groups)))
    removed = {removal.group.name for removal in actions.remove}
    assert not removed & {group.name for group in (*actions.drain, *actions.release, *actions.complete)}
    assert not removed & ready(groups), "a serving group leaves by draining only"
    made = [(creation.ordinal, creation.attempt) for creation in actions.create]
    assert len(set(made)) == len(made)


@pytest.mark.property
@given(world=replicas(), target=TARGETS, moving=st.sets(st.sampled_from(["n1"])), frozen=st.booleans())
def test_no_decision_goes_below_the_floor_or_above_the_surge(
    world: Replicas, target: Target, moving: set[str], frozen: bool
) -> None:
    wish = replace(target, frozen=frozen)
    groups = world.groups()
    actions = decide(groups, wish, now=NOW, moving_nodes=moving)
    check_one_decision(groups, wish, actions)
    assert decide(list(reversed(groups)), wish, now=NOW, moving_nodes=moving) == actions, "order must not matter"


@pytest.mark.property
@settings(max_examples=150)
@given(world=replicas(), targets=st.lists(TARGETS, min_size=1, max_size=3), data=st.data())
def test_decisions_applied_to_a_world_that_obeys_end_in_what_is_wanted(
    world: Replicas, targets: list[Target], data: st.DataObject
) -> None:
    for target in targets:
        for _ in range(data.draw(st.integers(0, 6))):
            step(world, target)
            for name in data.draw(st.lists(st.sampled_from([*sorted(world.slots), ""]), max_size=4)):
                if name in world.slots:
                    world.progress(name, fails=data.draw(st.booleans()))
    for _ in range(60):
        before = world.groups()
        step(world, target)
        for name in list(world.slots):
            if world.slots[name].stage is not Stage.LOST:
                world.progress(name)
        if world.groups() == before:
            break
    serving = [group for group in world.groups() if group.stage is not Stage.LOST]
    assert [group.stage for group in serving] == [Stage.READY] * target.replicas
    assert all(target.matches(group) for group in serving)
    assert decide(world.groups(), target, now=NOW) == Actions()


def step(world: Replicas, target: Target) -> None:
    groups = world.groups()
    actions = decide(groups, target, now=NOW)
    check_one_decision(groups, target, actions)
    world.apply(actions, target)
