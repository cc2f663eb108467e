from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from bayplan.api.inferencemodel_status import Stage
from bayplan.planning.groups.assignment import Assignment
from bayplan.planning.groups.members import Group
from bayplan.planning.groups.replicas import Actions, Backoff, Creation, Target, decide
from bayplan.planning.layout.split import Split
from bayplan.planning.measurements import Unknown
from tests.planning.replicagroups import (
    NOW,
    REVISION,
    TEMPLATE,
    ago,
    assignment,
    build,
    build_one,
    exited,
    in_stage,
    member,
    members,
    ready,
    released,
    running,
)

OLD = "9f8e7d6c5b"
BACKOFF = Backoff(first_seconds=10, longest_seconds=300, forgiven_after_seconds=600)
NOTHING = Actions()


def target(replicas: int, **more: Any) -> Target:
    return Target(**{"replicas": replicas, "revision": REVISION, "template": TEMPLATE, **more})


def act(groups: Any, wish: Target, **more: Any) -> Actions:
    return decide(groups, wish, now=NOW, backoff=BACKOFF, **more)


def of(stage: Stage, *ordinals: int, since: Any = NOW, **more: Any) -> list[Group]:
    """Groups of the target revision in one stage, the later the younger by a second."""
    plans = [assignment(ordinal=o, nodes=(f"n{o}",), **more) for o in ordinals]
    return [build_one(in_stage(stage, plan, since=since)) for plan in plans]


def named(groups: Any) -> list[int]:
    return [group.ordinal for group in groups]


# --- up and down ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [0, 1, 3])
def test_missing_replicas_are_created_in_ordinal_order(replicas: int) -> None:
    assert act([], target(replicas)).create == tuple(Creation(ordinal=o, attempt=0) for o in range(replicas))


def test_only_the_difference_is_created_in_the_lowest_free_ordinals() -> None:
    groups = of(Stage.READY, 1) + of(Stage.WARMING, 3)
    assert act(groups, target(4)).create == (Creation(0, 0), Creation(2, 0))


@pytest.mark.parametrize("stage", [Stage.RESERVED, Stage.BINDING, Stage.WARMING, Stage.READY])
def test_a_slot_in_any_living_stage_is_not_created_again(stage: Stage) -> None:
    assert act(of(stage, 0), target(1)).create == ()


def test_a_group_that_leaves_keeps_its_ordinal_but_not_its_place_in_the_count() -> None:
    going = build([replace(m, deleting=True) for m in of(Stage.DRAINING, 0)[0].members])
    assert act(going, target(1)).create == (Creation(1, 0),)


def test_scaling_down_takes_unserving_groups_first_the_earliest_stage_first() -> None:
    groups = of(Stage.READY, 0) + of(Stage.WARMING, 1) + of(Stage.BINDING, 2) + of(Stage.RESERVED, 3)
    for replicas, gone in ((4, []), (3, [3]), (2, [2, 3]), (1, [1, 2, 3])):
        actions = act(groups, target(replicas))
        assert (named(r.group for r in actions.remove), actions.drain) == (gone, ())
    actions = act(groups, target(0))
    assert (named(r.group for r in actions.remove), named(actions.drain)) == ([1, 2, 3], [0])


def test_scaling_down_takes_the_youngest_of_one_stage() -> None:
    warming = of(Stage.WARMING, 0, since=ago(5)) + of(Stage.WARMING, 1, since=ago(50))
    assert named(r.group for r in act(warming, target(1)).remove) == [0]
    serving = of(Stage.READY, 0, since=ago(5)) + of(Stage.READY, 1, since=ago(50))
    assert named(act(serving, target(1)).drain) == [0]


def test_serving_groups_are_drained_and_never_removed_at_once() -> None:
    actions = act(of(Stage.READY, 0, 1, 2), target(1))
    assert (len(actions.drain), actions.remove) == (2, ())


def test_suspending_drains_everything_that_serves_and_removes_the_rest() -> None:
    groups = of(Stage.READY, 0, 1) + of(Stage.WARMING, 2) + of(Stage.FAILED, 3, since=ago(1))
    actions = act(groups, target(0))
    assert (named(actions.drain), named(r.group for r in actions.remove)) == ([1, 0], [2, 3])
    assert actions.create == ()


def test_a_model_as_wanted_needs_nothing() -> None:
    assert act(of(Stage.READY, 0, 1) + of(Stage.WARMING, 2), target(3)) == NOTHING


def test_reserved_groups_are_released_when_complete_and_completed_when_not() -> None:
    plan = assignment(ordinal=1, nodes=("n1", "n2"))
    whole, half = build_one(members(assignment(nodes=("n3", "n4")))), build_one([member(plan)])
    actions = act([whole, half], target(2))
    assert (named(actions.release), named(actions.complete)) == ([0], [1])


def test_a_surplus_reservation_is_neither_released_nor_completed() -> None:
    actions = act(of(Stage.RESERVED, 0), target(0))
    assert (named(r.group for r in actions.remove), actions.release, actions.complete) == ([0], (), ())


# --- replacement ------------------------------------------------------------------------------------------------------


def old(stage: Stage, *ordinals: int, since: Any = NOW, **more: Any) -> list[Group]:
    return of(stage, *ordinals, since=since, revision=OLD, **more)


def test_one_group_above_the_wanted_count_is_made_for_a_replacement() -> None:
    actions = act(old(Stage.READY, 0, 1, 2), target(3))
    assert (actions.create, actions.drain, actions.remove) == ((Creation(0, 0),), (), ())


@pytest.mark.parametrize("stage", [Stage.RESERVED, Stage.BINDING, Stage.WARMING])
def test_nothing_more_happens_until_the_replacement_serves(stage: Stage) -> None:
    actions = act(old(Stage.READY, 0, 1, 2) + of(stage, 0), target(3))
    assert (actions.create, actions.drain, actions.remove) == ((), (), ())


def test_once_the_replacement_serves_the_oldest_old_group_drains() -> None:
    groups = old(Stage.READY, 0, since=ago(5)) + old(Stage.READY, 1, since=ago(50)) + of(Stage.READY, 0)
    actions = act(groups, target(2))
    assert ([g.ordinal for g in actions.drain], actions.create) == ([1], ())
    assert actions.drain[0].revision == OLD


def test_the_next_replacement_waits_until_the_drained_group_is_going() -> None:
    groups = old(Stage.READY, 0, 1) + of(Stage.READY, 0)
    draining = old(Stage.DRAINING, 2)
    assert act(groups + draining, target(3)).create == ()
    going = build([replace(m, deleting=True) for m in draining[0].members])
    assert act([*groups, *going], target(3)).create == (Creation(1, 0),)


def test_old_groups_that_do_not_serve_yet_go_at_once() -> None:
    actions = act(old(Stage.WARMING, 0) + old(Stage.READY, 1), target(2))
    assert named(r.group for r in actions.remove) == [0]
    assert actions.create == (Creation(0, 0), Creation(1, 0))


def test_without_a_serving_old_group_all_replacements_start_together() -> None:
    assert len(act(old(Stage.WARMING, 0, 1, 2), target(3)).create) == 3


def test_more_replicas_during_a_replacement_come_from_the_new_revision() -> None:
    assert len(act(old(Stage.READY, 0, 1), target(4)).create) == 3


def test_fewer_replicas_during_a_replacement_take_old_groups_first() -> None:
    groups = old(Stage.READY, 0, 1, since=ago(90)) + of(Stage.READY, 0, since=ago(1))
    assert [g.revision for g in act(groups, target(1)).drain] == [OLD, OLD]


def test_a_crash_looping_new_revision_costs_no_old_group() -> None:
    serving = old(Stage.READY, 0, 1)
    failed = of(Stage.FAILED, 0, since=ago(3))
    waiting = act(serving + failed, target(2))
    assert (waiting.create, waiting.drain, waiting.remove) == ((), (), ())
    assert waiting.recheck_after_seconds == 7
    due = act(serving + of(Stage.FAILED, 0, since=ago(10)), target(2))
    assert due.create == (Creation(0, 1, failures=1, predecessor=failed[0].name),)
    assert due.drain == ()


def test_going_back_to_the_old_revision_drops_the_failed_new_group() -> None:
    actions = act(old(Stage.READY, 0, 1) + of(Stage.FAILED, 0), target(2, revision=OLD))
    assert (named(r.group for r in actions.remove), actions.create, actions.drain) == ([0], (), ())


def test_a_changed_pod_template_alone_replaces_groups_under_new_ordinals() -> None:
    actions = act(of(Stage.READY, 0, 1), target(2, template="t1"))
    assert actions.create == (Creation(2, 0),)


def test_revisions_that_share_the_part_in_names_do_not_share_ordinals() -> None:
    cousin = REVISION[:5] + "fffff"
    assert act(of(Stage.READY, 0, revision=cousin), target(1)).create == (Creation(1, 0),)


def test_another_layout_for_the_groups_product_replaces_it_and_an_unknown_product_keeps_it() -> None:
    group = of(Stage.READY, 0)
    product = group[0].assignment.gpu_product  # type: ignore[union-attr]
    assert act(group, target(1, layouts=((product, Split(1)),))) == NOTHING
    assert act(group, target(1, layouts=(("NVIDIA-L4", Split(2)),))) == NOTHING
    assert act(group, target(1, layouts=((product, Split(2)),))).create == (Creation(1, 0),)


# --- a target without a place -----------------------------------------------------------------------------------------


def test_a_frozen_target_takes_nothing_away() -> None:
    groups = old(Stage.READY, 0) + old(Stage.WARMING, 1)
    frozen = act(groups, target(2, frozen=True), moving_nodes={"n0", "n1"})
    assert (frozen.create, frozen.drain, frozen.remove) == ((), (), ())


def test_the_replica_with_the_least_work_left_leaves_and_one_whose_work_is_unknown_last() -> None:
    groups = of(Stage.READY, 0, 1, 2)
    first, second, third = (group.name for group in groups)
    work = {first: Fraction(900), second: Unknown("lost"), third: Fraction(901)}
    assert named(act(groups, target(1), remaining_tokens=work).drain) == [0, 2]


# --- demand that returns ----------------------------------------------------------------------------------------------


def test_a_drain_is_taken_back_before_anything_is_created_the_latest_first() -> None:
    leaving = of(Stage.DRAINING, 0, since=ago(60)) + of(Stage.DRAINING, 1, since=ago(5))
    one = act(of(Stage.READY, 2) + leaving, target(2))
    assert (named(one.undrain), one.create) == ([1], ())
    all_and_one = act(of(Stage.READY, 2) + leaving, target(4))
    assert (named(all_and_one.undrain), all_and_one.create) == ([1, 0], (Creation(3, 0),))
    assert act(of(Stage.READY, 2) + leaving, target(1)) == NOTHING


@pytest.mark.parametrize(
    "change",
    [{"deleting": True}, {"phase": "Failed"}, {"container_id": None}, {"template": "t1"}, {"revision": OLD}],
)
def test_a_group_that_ends_or_is_not_as_wanted_is_not_brought_back(change: dict[str, Any]) -> None:
    group = build_one([replace(m, **change) for m in of(Stage.DRAINING, 0)[0].members])
    assert act([group], target(1)).undrain == ()


def test_a_group_on_a_node_to_be_emptied_is_not_brought_back() -> None:
    actions = act(of(Stage.DRAINING, 0), target(1), moving_nodes={"n0"})
    assert (actions.undrain, len(actions.create)) == ((), 1)


def test_half_of_a_group_is_not_brought_back() -> None:
    plan = assignment(nodes=("n1", "n2"))
    half = build_one([replace(m, draining_since=NOW) for m in ready(plan)[:1]])
    assert act([half], target(1)).undrain == ()


def test_a_frozen_target_still_scales_down() -> None:
    assert named(act(old(Stage.READY, 0, 1), target(1, frozen=True)).drain) == [1]


def test_a_half_reserved_group_of_another_spec_is_never_completed() -> None:
    plan = assignment(nodes=("n1", "n2"), revision=OLD)
    half = [build_one([member(plan)])]
    actions = act(half, target(1, frozen=True))
    assert (actions.complete, actions.release, actions.create) == ((), (), ())
    assert named(act(half, target(1, revision=OLD, frozen=True)).complete) == [0]


# --- moving nodes -----------------------------------------------------------------------------------------------------


def test_groups_on_a_node_to_be_emptied_are_replaced_before_they_leave() -> None:
    groups = of(Stage.READY, 0, 1)
    first = act(groups, target(2), moving_nodes={"n1"})
    assert (first.create, first.drain) == ((Creation(2, 0),), ())
    then = act(groups + of(Stage.READY, 2), target(2), moving_nodes={"n1"})
    assert (then.create, named(then.drain)) == ((), [1])


def test_any_rank_on_a_moving_node_moves_the_group() -> None:
    group = build_one(ready(assignment(nodes=("n1", "n2"))))
    assert act([group], target(1), moving_nodes={"n2"}).create == (Creation(1, 0),)
    assert act([group], target(1), moving_nodes={"n3"}) == NOTHING


def test_a_group_that_warms_on_a_moving_node_goes_at_once() -> None:
    assert named(r.group for r in act(of(Stage.WARMING, 0), target(1), moving_nodes={"n0"}).remove) == [0]


# --- failures ---------------------------------------------------------------------------------------------------------


def failed(failures: int = 0, *, since: float, **more: Any) -> Group:
    return build_one(exited(assignment(failures=failures, **more), at=ago(since)))


@pytest.mark.parametrize(
    ("failures", "delay"), [(0, 10), (1, 20), (2, 40), (4, 160), (5, 300), (9, 300), (1_000_000, 300)]
)
def test_the_pause_before_the_next_attempt_doubles_up_to_a_bound(failures: int, delay: float) -> None:
    early = act([failed(failures, since=delay - 1)], target(1))
    assert (early.create, early.remove, early.recheck_after_seconds) == ((), (), 1)
    due = act([failed(failures, since=delay)], target(1))
    assert due.create == (Creation(0, 1, failures=failures + 1, predecessor=failed(since=1).name),)
    assert due.recheck_after_seconds is None


def test_the_failed_group_stays_visible_through_the_pause_and_goes_once_its_successor_is_there() -> None:
    group = failed(since=30)
    assert act([group], target(1)).remove == ()
    successor = build_one(members(assignment(attempt=1, replaces=group.name)))
    actions = act([group, successor], target(1))
    assert (named(r.group for r in actions.remove), actions.create) == ([0], ())


@pytest.mark.parametrize(("served", "failures"), [(599, 4), (600, 1), (601, 1)])
def test_having_served_long_enough_forgives_earlier_failures(served: float, failures: int) -> None:
    pods = exited(assignment(failures=3), at=ago(200), warm_since=ago(200 + served))
    (creation,) = act([build_one(pods)], target(1)).create
    assert creation.failures == failures


def test_a_group_that_never_was_warm_is_not_forgiven() -> None:
    (creation,) = act([failed(3, since=5000)], target(1)).create
    assert creation.failures == 4


def test_a_given_up_warm_up_counts_as_a_failure_and_its_gpus_as_the_successors_own() -> None:
    (head,) = running(assignment())
    group = build_one([replace(head, warmup_failed="no generation", warmup_failed_at=ago(10))])
    assert act([group], target(1)).create == (Creation(0, 1, failures=1, predecessor=group.name),)


def test_failed_groups_beyond_the_wanted_count_are_dropped_the_highest_ordinals_first() -> None:
    groups = of(Stage.READY, 5) + of(Stage.FAILED, 0, 1, 2, since=ago(1))
    actions = act(groups, target(2))
    assert named(r.group for r in actions.remove) == [1, 2]
    assert actions.recheck_after_seconds == 9


def test_a_waiting_failure_holds_its_place_in_the_count() -> None:
    assert act(of(Stage.FAILED, 0, since=ago(1)), target(2)).create == (Creation(1, 0),)


def test_the_earliest_pause_decides_when_to_look_again() -> None:
    groups = of(Stage.FAILED, 0, since=ago(1)) + of(Stage.FAILED, 1, since=ago(8))
    assert act(groups, target(2)).recheck_after_seconds == 2


def test_a_defective_group_is_removed_with_its_reason_and_its_slot_made_anew() -> None:
    late = build_one([member(assignment(nodes=("n1", "n2")), created=ago(31))])
    actions = act([late], target(1))
    assert [(r.group.name, r.reason) for r in actions.remove] == [(late.name, late.message)]
    assert actions.create == (Creation(1, 0),)
    assert (actions.complete, actions.release) == ((), ())


def test_an_unconfirmed_group_is_removed_and_planned_again() -> None:
    late = build_one(released(assignment(), since=ago(61)))
    actions = act([late], target(1))
    assert (named(r.group for r in actions.remove), len(actions.create)) == ([0], 1)


# --- lost nodes -------------------------------------------------------------------------------------------------------


def lost(plan: Assignment, **changes: Any) -> Group:
    return build_one([replace(m, **changes) for m in ready(plan)], lost={plan.ranks[0].node: ago(1)})


def test_a_lost_group_is_removed_and_replaced_at_once_by_a_successor_that_names_it() -> None:
    group = lost(assignment(failures=2))
    actions = act([group], target(1))
    assert named(r.group for r in actions.remove) == [0]
    assert actions.create == (Creation(0, 1, failures=2, predecessor=group.name),)


def test_a_lost_group_whose_pods_cannot_end_is_neither_removed_nor_replaced_again() -> None:
    group = lost(assignment(), deleting=True)
    successor = build_one(running(assignment(attempt=1, nodes=("n2",), replaces=group.name)))
    assert act([group, successor], target(1)) == NOTHING


def test_the_attempt_after_a_lost_one_goes_on_from_the_highest_seen() -> None:
    group = lost(assignment(), deleting=True)
    crashed = build_one(exited(assignment(attempt=1, nodes=("n2",)), at=ago(50)))
    (creation,) = act([group, crashed], target(1)).create
    assert (creation.attempt, creation.predecessor) == (2, crashed.name)


def test_a_lost_group_of_an_older_revision_gives_its_slot_to_the_new_one() -> None:
    group = lost(assignment(revision=OLD))
    assert act([group], target(1)).create == (Creation(0, 0),)


def test_a_lost_group_that_is_not_wanted_any_more_is_only_removed() -> None:
    actions = act([lost(assignment())], target(0))
    assert (len(actions.remove), actions.create) == (1, ())
