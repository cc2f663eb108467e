"""What a Target says beside its count: surge, groups that are kept, the floor, arms that do not grow."""

from typing import Any

from bayplan.api.inferencemodel_status import Stage
from bayplan.planning.groups.members import Group
from bayplan.planning.groups.replicas import Actions, Creation, Target, decide
from tests.planning.replicagroups import NOW, REVISION, TEMPLATE, ago, assignment, build_one, in_stage

OLD = "9f8e7d6c5b"


def of(stage: Stage, *ordinals: int, **more: Any) -> list[Group]:
    plans = [assignment(ordinal=o, nodes=(f"n{o}",), **more) for o in ordinals]
    return [build_one(in_stage(stage, plan, since=ago(60 - plan.ranks[0].gpus))) for plan in plans]


def act(groups: list[Group], replicas: int, *, others: list[Group] | None = None, **more: Any) -> Actions:
    target = Target(replicas=replicas, revision=REVISION, template=TEMPLATE, **more)
    return decide(groups, target, now=NOW, others=others or ())


def names(groups: Any) -> list[str]:
    return [f"{'old' if group.revision == OLD else 'new'} {group.ordinal}" for group in groups]


def test_a_larger_surge_makes_more_new_groups_at_once() -> None:
    old = of(Stage.READY, 0, 1, 2, revision=OLD)

    assert len(act(old, 3).create) == 1
    assert len(act(old, 3, surge=2).create) == 2


def test_kept_old_groups_stay_when_the_new_ones_are_at_full_size() -> None:
    groups = of(Stage.READY, 0, 1, 2) + of(Stage.READY, 0, 1, 2, revision=OLD)

    assert names(act(groups, 3).drain) == ["old 0", "old 1", "old 2"]
    assert names(act(groups, 3, kept_outdated=2).drain) == ["old 0"]
    assert names(act(groups, 3, kept_outdated=3).drain) == []


def test_what_is_not_kept_goes_before_new_groups_need_its_place_and_the_count_holds() -> None:
    groups = of(Stage.READY, 0, 1) + of(Stage.READY, 0, 1, 2, 3, revision=OLD)
    actions = act(groups, 4, surge=2, kept_outdated=2)

    assert (names(actions.drain), actions.create) == (["old 0", "old 1"], ())
    after = of(Stage.READY, 0, 1) + of(Stage.READY, 2, 3, revision=OLD)
    assert len(act(after, 4, surge=2, kept_outdated=2).create) == 2


def test_old_groups_yield_down_to_the_floor_and_only_if_there_is_one() -> None:
    groups = of(Stage.READY, 0) + of(Stage.READY, 0, 1, 2, revision=OLD)

    assert act(groups, 4).yields == ()
    assert names(act(groups, 4, floor=2).yields) == ["old 0", "old 1"]
    assert names(act(groups, 4, floor=4).yields) == []
    assert names(act(groups, 4, floor=0).yields) == ["old 0", "old 1", "old 2"]


def test_an_arm_that_does_not_grow_gets_no_group_and_no_retry() -> None:
    assert act(of(Stage.READY, 0), 3, grows=False).create == ()
    failed = of(Stage.FAILED, 0)
    assert act(failed, 3, grows=False).create == ()


def test_names_of_other_arms_are_taken() -> None:
    other = of(Stage.READY, 0)

    assert act([], 1, others=other).create == (Creation(1, 0),)
