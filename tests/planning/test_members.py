import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.inferencemodel_status import Stage
from bayplan.planning.groups.assignment import MAX_FACT, MAX_RANKS, Assignment
from bayplan.planning.groups.members import Defect, GroupLimits, attempt_of, group_name, ordinal_of, short_revision
from tests.planning.replicagroups import (
    NOW,
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

PAIR = assignment(nodes=("n1", "n2"), gpus=2)
LIMITS = GroupLimits()


# --- the reservation --------------------------------------------------------------------------------------------------


def test_an_assignment_survives_its_annotation_with_the_same_plan_id() -> None:
    plan = assignment(nodes=("n1", "n2"), gpus=4, attempt=3, failures=2, replaces="llama-x-0-2", facts=("4 × free",))
    again = Assignment.from_json(plan.to_json())
    assert again == plan
    assert again.plan_id == plan.plan_id


@pytest.mark.parametrize(
    "change",
    [{"nodes": ("n2",)}, {"gpus": 2}, {"attempt": 1}, {"failures": 1}, {"template": "t1"}, {"replaces": "other"}],
)
def test_every_difference_makes_another_plan(change: dict[str, Any]) -> None:
    assert assignment(**change).plan_id != assignment().plan_id


def _raw(**changes: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(PAIR.to_json())
    return {**raw, **changes}


@pytest.mark.parametrize(
    "raw",
    [
        [],
        "text",
        None,
        {},
        _raw(group=""),
        _raw(group=7),
        _raw(revision=None),
        _raw(layout={"tensor": 2}),
        _raw(layout=[2, 2]),
        _raw(layout={"tensor": True, "pipeline": 2}),
        _raw(layout={"tensor": 2.0, "pipeline": 2}),
        _raw(layout={"tensor": 2, "pipeline": 1}),
        _raw(ranks=[]),
        _raw(ranks={"node": "n1"}),
        _raw(ranks=[{"node": "n1", "gpus": 2}, {"node": "n1", "gpus": 2}]),
        _raw(ranks=[{"node": "n1", "gpus": 0}, {"node": "n2", "gpus": 4}]),
        _raw(ranks=[{"node": "n1", "gpus": 3}, {"node": "n2", "gpus": 1}]),
        _raw(ranks=[{"node": "n" * 254, "gpus": 2}, {"node": "n2", "gpus": 2}]),
        _raw(ranks=[{"node": "\ud800", "gpus": 2}, {"node": "n2", "gpus": 2}]),
        _raw(attempt=-1),
        _raw(attempt=1_000_001),
        _raw(failures="2"),
        _raw(facts=["x" * (MAX_FACT + 1)]),
        _raw(facts=["\ud800"]),
        _raw(facts=7),
    ],
)
def test_an_annotation_that_is_no_whole_assignment_is_refused_with_a_reason(raw: Any) -> None:
    with pytest.raises(ValueError, match="unreadable assignment"):
        Assignment.from_json(json.dumps(raw))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "NaN", '{"group": "a"'])
def test_an_annotation_that_is_no_json_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match="unreadable assignment"):
        Assignment.from_json(text)


@pytest.mark.parametrize(("count", "accepted"), [(MAX_RANKS, True), (MAX_RANKS + 1, False)])
def test_the_number_of_ranks_is_bounded(count: int, accepted: bool) -> None:
    text = assignment(nodes=[f"n{i}" for i in range(count)]).to_json()
    if accepted:
        assert len(Assignment.from_json(text).ranks) == count
    else:
        with pytest.raises(ValueError, match="1 to 64 different nodes"):
            Assignment.from_json(text)


def test_the_longest_fact_is_still_read() -> None:
    plan = assignment(facts=("x" * MAX_FACT,))
    assert Assignment.from_json(plan.to_json()) == plan


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.property
@given(changes=st.dictionaries(st.sampled_from(sorted(_raw())), JSON, max_size=3))
def test_no_annotation_does_worse_than_being_refused(changes: dict[str, Any]) -> None:
    try:
        found = Assignment.from_json(json.dumps(_raw(**changes)))
    except ValueError:
        return
    assert found.tensor * found.pipeline == sum(rank.gpus for rank in found.ranks)
    assert Assignment.from_json(found.to_json()).plan_id == found.plan_id


# --- names ------------------------------------------------------------------------------------------------------------


def test_ordinal_and_attempt_are_read_back_from_a_name() -> None:
    name = group_name(model="my-7b-model", revision="0123456789", ordinal=12, attempt=3)
    assert (ordinal_of(name), attempt_of(name)) == (12, 3)
    assert short_revision("0123456789") in name


@pytest.mark.parametrize("name", ["", "x", "a-b", "a-b-c", "a-1234567-1234567", "-", "--"])
def test_foreign_names_read_as_zero(name: str) -> None:
    assert (ordinal_of(name), attempt_of(name)) == (0, 0)


# --- stages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.LOST])
@pytest.mark.parametrize("plan", [assignment(), PAIR])
def test_pods_show_the_stage_and_its_start(stage: Stage, plan: Assignment) -> None:
    group = build_one(in_stage(stage, plan, since=ago(20)))
    assert (group.stage, group.since, group.defect) == (stage, ago(20), None)


def test_a_group_with_one_gated_rank_is_still_reserved() -> None:
    head, rank1 = released(PAIR)
    group = build_one([head, replace(rank1, gated=True, ungated_at=None)])
    assert (group.stage, group.missing_ranks) == (Stage.RESERVED, ())


def test_a_group_with_one_unbound_rank_is_binding_with_the_schedulers_word() -> None:
    head, rank1 = running(PAIR, since=ago(10))
    unbound = replace(rank1, node=None, scheduling_message="0/3 nodes are available")
    group = build_one([head, unbound])
    assert (group.stage, group.message) == (Stage.BINDING, "0/3 nodes are available")


def test_a_group_is_warming_until_every_rank_is_warm_and_the_head_ready() -> None:
    head, rank1 = ready(PAIR, since=ago(5))
    assert build_one([head, rank1]).stage is Stage.READY
    assert build_one([head, replace(rank1, warm_container_id=None)]).stage is Stage.WARMING
    assert build_one([replace(head, ready=False), rank1]).stage is Stage.WARMING
    assert build_one([head, replace(rank1, ready=False)]).stage is Stage.READY


def test_warmth_of_another_container_does_not_count() -> None:
    (head,) = ready(assignment())
    assert build_one([replace(head, container_id="c-other")]).stage is Stage.WARMING
    assert not replace(head, container_id="c-other").warm
    assert not replace(head, warm_container_id=None, container_id=None).warm


def test_a_waiting_container_says_why_it_waits() -> None:
    (head,) = running(assignment())
    waiting = replace(head, waiting_reason="ErrImagePull", waiting_message="no such image")
    assert build_one([waiting]).message == "ErrImagePull: no such image"
    assert build_one([replace(waiting, waiting_message="")]).message == "ErrImagePull"


def test_a_given_up_warm_up_fails_the_group_since_then() -> None:
    (head,) = running(assignment(), since=ago(100))
    group = build_one([replace(head, warmup_failed="no generation within 9 s", warmup_failed_at=ago(7))])
    assert (group.stage, group.since, group.message) == (Stage.FAILED, ago(7), "no generation within 9 s")


def test_one_ended_rank_fails_the_whole_group_with_its_exit_code() -> None:
    group = build_one(exited(PAIR, at=ago(3), code=137))
    assert (group.stage, group.since, group.defect) == (Stage.FAILED, ago(3), None)
    assert group.message == f"pod {PAIR.group}-0: engine exited with code 137 (Error)"


def test_the_first_rank_to_end_is_the_one_that_is_named() -> None:
    head, rank1 = exited(PAIR, at=ago(3), code=1)
    first = replace(exited(PAIR, at=ago(9), code=139)[0], name="later-name", rank=1, assignment=None)
    group = build_one([head, replace(first, group=rank1.group)])
    assert (group.since, "139" in group.message) == (ago(9), True)


def test_a_pod_that_its_kubelet_refused_fails_the_group_with_the_kubelets_reason() -> None:
    (head,) = running(assignment())
    refused = replace(head, phase="Failed", exit=None, failed_reason="UnexpectedAdmissionError", created=ago(4))
    group = build_one([refused])
    assert (group.stage, group.since) == (Stage.FAILED, ago(4))
    assert group.message == f"pod {head.name} failed: UnexpectedAdmissionError"
    assert "no reason given" in build_one([replace(refused, failed_reason="")]).message


def test_an_engine_that_ends_with_success_fails_the_group_too() -> None:
    (head,) = exited(assignment(), code=0)
    assert build_one([replace(head, phase="Succeeded")]).stage is Stage.FAILED


def test_a_group_on_a_lost_node_is_lost_since_the_first_loss() -> None:
    group = build_one(ready(PAIR), lost={"n2": ago(4), "n1": ago(9)})
    assert (group.stage, group.since, group.lost_nodes) == (Stage.LOST, ago(9), ("n1", "n2"))
    assert group.message == "node n1, n2 is lost"
    assert build_one(ready(PAIR), lost={"n3": ago(4)}).stage is Stage.READY


def test_a_reservation_for_a_lost_node_is_not_lost_because_nothing_is_bound_there() -> None:
    assert build_one(members(PAIR), lost={"n1": ago(9)}).stage is Stage.RESERVED


def test_an_ended_pod_on_a_lost_node_is_a_failure_not_a_loss() -> None:
    assert build_one(exited(assignment()), lost={"n1": ago(9)}).stage is Stage.FAILED


def test_a_leaving_group_on_a_lost_node_is_lost() -> None:
    leaving = [replace(m, draining_since=ago(2)) for m in ready(assignment())]
    assert build_one(leaving, lost={"n1": ago(9)}).stage is Stage.LOST


def test_a_group_drains_from_the_heads_annotation_or_when_any_rank_is_being_deleted() -> None:
    head, rank1 = ready(PAIR)
    assert build_one([replace(head, draining_since=ago(8)), rank1]).stage is Stage.DRAINING
    assert build_one([head, replace(rank1, draining_since=ago(8))]).stage is Stage.READY
    one_gone = build_one([head, replace(rank1, deleting=True)])
    assert (one_gone.stage, one_gone.deleting) == (Stage.DRAINING, False)
    assert build_one([replace(head, deleting=True), replace(rank1, deleting=True)]).deleting


def test_a_failed_group_that_is_wholly_on_its_way_out_is_leaving() -> None:
    (head,) = exited(assignment())
    assert build_one([replace(head, deleting=True)]).stage is Stage.DRAINING


# --- defects ----------------------------------------------------------------------------------------------------------


def test_without_rank_0_there_is_no_reservation() -> None:
    group = build_one([member(PAIR, 1)])
    assert (group.stage, group.defect, group.assignment) == (Stage.FAILED, Defect.NO_RESERVATION, None)


def test_a_rank_that_is_no_number_is_no_rank_0() -> None:
    group = build_one([replace(member(assignment()), rank=None)])
    assert group.defect is Defect.NO_RESERVATION


def test_an_unreadable_assignment_is_a_defect_that_says_what_is_wrong() -> None:
    bad = replace(member(assignment()), assignment=None, assignment_error="unreadable assignment: KeyError('group')")
    group = build_one([bad])
    assert group.defect is Defect.UNREADABLE
    assert group.message.endswith("KeyError('group')")


def test_a_missing_assignment_is_a_defect() -> None:
    assert build_one([replace(member(assignment()), assignment=None)]).defect is Defect.UNREADABLE


@pytest.mark.parametrize("rank", [0, 1])
def test_mixed_plan_ids_are_a_defect(rank: int) -> None:
    pods = members(PAIR)
    pods[rank] = replace(pods[rank], plan_id="another")
    assert build_one(pods).defect is Defect.MIXED_PLANS


@pytest.mark.parametrize("change", [{"revision": "edited"}, {"template": "edited"}])
def test_labels_that_contradict_the_reservation_are_a_defect(change: dict[str, str]) -> None:
    head, rank1 = ready(PAIR)
    assert build_one([head, replace(rank1, **change)]).defect is Defect.MIXED_PLANS
    assert build_one([replace(head, **change), rank1]).defect is Defect.MIXED_PLANS


def test_duplicate_and_excess_ranks_are_a_defect() -> None:
    head, rank1 = members(PAIR)
    assert build_one([head, rank1, replace(rank1, name="copy", uid="copy")]).defect is Defect.MIXED_PLANS
    assert build_one([head, rank1, replace(rank1, name="extra", uid="extra", rank=2)]).defect is Defect.MIXED_PLANS
    assert build_one([head, rank1, replace(rank1, name="odd", uid="odd", rank=None)]).defect is Defect.MIXED_PLANS


def test_an_assignment_of_another_group_is_a_defect() -> None:
    stolen = assignment(ordinal=5)
    pods = [replace(m, group="llama-0a1b2-0-0") for m in members(stolen)]
    assert build_one(pods).defect is Defect.MIXED_PLANS


@pytest.mark.parametrize(("age", "defect"), [(29.9, None), (30.0, None), (30.1, Defect.INCOMPLETE)])
def test_a_group_may_be_incomplete_up_to_the_limit(age: float, defect: Defect | None) -> None:
    group = build_one([member(PAIR, created=ago(age))])
    assert (group.defect, group.missing_ranks) == (defect, (1,))
    assert group.stage is (Stage.FAILED if defect else Stage.RESERVED)


def test_a_complete_group_has_no_incomplete_limit() -> None:
    assert build_one(members(PAIR, created=ago(3600))).defect is None


@pytest.mark.parametrize("pods", [released(PAIR), running(PAIR), ready(PAIR)])
def test_a_member_gone_after_the_release_is_a_defect_at_once(pods: list[Any]) -> None:
    assert build_one(pods[:1]).defect is Defect.MEMBER_GONE


@pytest.mark.parametrize(("age", "defect"), [(59.9, None), (60.0, None), (60.1, Defect.UNCONFIRMED)])
def test_a_released_group_has_a_limit_to_be_bound(age: float, defect: Defect | None) -> None:
    assert build_one(released(PAIR, since=ago(age), created=ago(500))).defect is defect
    head, rank1 = released(PAIR, since=ago(age), created=ago(500))
    assert build_one([replace(head, node="n1"), rank1]).defect is defect


def test_a_bound_group_needs_no_confirmation() -> None:
    assert build_one(running(PAIR, since=ago(3600))).defect is None


def test_the_confirm_limit_of_a_partly_released_group_counts_released_ranks_only() -> None:
    head, rank1 = released(PAIR, since=ago(600))
    gated = replace(rank1, gated=True, ungated_at=None, created=ago(900))
    assert build_one([replace(head, node="n1"), gated]).defect is None
    assert build_one([head, gated]).defect is Defect.UNCONFIRMED


def test_limits_are_configuration() -> None:
    limits = GroupLimits(incomplete_seconds=2, confirm_seconds=3)
    assert build_one([member(PAIR, created=ago(2.5))], limits=limits).defect is Defect.INCOMPLETE
    assert build_one(released(PAIR, since=ago(3.5)), limits=limits).defect is Defect.UNCONFIRMED


# --- building ---------------------------------------------------------------------------------------------------------


def test_groups_come_in_name_order_with_members_by_rank() -> None:
    pods = [*members(PAIR), *members(assignment(ordinal=1)), *members(assignment(ordinal=2, attempt=4))]
    groups = build(reversed(pods))
    assert [g.ordinal for g in groups] == [0, 1, 2]
    assert [m.rank for m in groups[0].members] == [0, 1]
    assert (groups[2].attempt, groups[0].key) == (4, f"team/{PAIR.group}")


def test_pods_without_a_group_label_are_groups_of_their_own() -> None:
    odd = [replace(member(assignment()), group="", name=name, uid=name) for name in ("a", "b")]
    assert [g.name for g in build(odd)] == ["a", "b"]


ODD_MEMBERS = st.builds(
    lambda plan, **changes: replace(member(plan), **changes),
    st.sampled_from([assignment(), PAIR, assignment(ordinal=1)]),
    uid=st.uuids().map(str),
    rank=st.none() | st.integers(0, 70),
    group=st.sampled_from(["", PAIR.group, "x"]),
    plan_id=st.sampled_from(["", PAIR.plan_id]),
    assignment=st.sampled_from([None, PAIR]),
    gated=st.booleans(),
    node=st.none() | st.sampled_from(["n1", "n2"]),
    phase=st.sampled_from(["Pending", "Running", "Failed", "Succeeded", "Nonsense"]),
    deleting=st.booleans(),
    draining_since=st.none() | st.just(NOW),
    ungated_at=st.none() | st.just(NOW - timedelta(days=1)),
    container_id=st.none() | st.just("c"),
    warm_container_id=st.none() | st.just("c"),
)


@pytest.mark.property
@given(pods=st.lists(ODD_MEMBERS, max_size=6))
def test_nonsense_becomes_groups_and_never_an_exception(pods: list[Any]) -> None:
    groups = build(pods, lost={"n2": ago(5)})
    assert sum(len(group.members) for group in groups) == len(pods)
    for group in groups:
        assert group.defect is None or group.stage is Stage.FAILED
        if group.stage in (Stage.RESERVED, Stage.BINDING, Stage.WARMING, Stage.READY):
            assert group.assignment is not None
            assert {m.plan_id for m in group.members} == {group.assignment.plan_id}
