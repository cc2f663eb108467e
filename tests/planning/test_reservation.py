from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.groups.assignment import Assignment
from bayplan.planning.groups.members import Group, Member
from bayplan.planning.groups.reservation import LivePod, LiveReads, Recheck, RecheckVerdict, recheck_group
from bayplan.planning.placement.inventory import Node
from tests.planning.fleets import node
from tests.planning.replicagroups import ago, assignment, build_one, member, members, ready, released

RELEASE, WAIT, GIVE_BACK, CHANGED = (
    RecheckVerdict.RELEASE,
    RecheckVerdict.WAIT,
    RecheckVerdict.GIVE_BACK,
    RecheckVerdict.CHANGED,
)
OURS = assignment(nodes=("n1",), gpus=2)
PAIR = assignment(nodes=("n1", "n2"), gpus=2)


def live(pod: Member, **changes: Any) -> LivePod:
    fields: dict[str, Any] = {
        "uid": pod.uid,
        "node": pod.node,
        "gpus": pod.gpus,
        "cpu_millis": pod.cpu_millis,
        "memory_bytes": pod.memory_bytes,
        "terminal": pod.terminal,
        "member": pod,
    }
    return LivePod(**{**fields, **changes})


def foreign(name: str = "other", on: str | None = "n1", **amounts: Any) -> LivePod:
    fields: dict[str, Any] = {"gpus": 0, "cpu_millis": 0, "memory_bytes": 0, "terminal": False}
    return LivePod(uid=name, node=on, **{**fields, **amounts})


def rival(plan: Assignment, *, namespace: str = "team", **changes: Any) -> list[Member]:
    """Gated pods of another model's group."""
    pods = members(plan, **changes)
    return [replace(p, namespace=namespace, uid=f"{namespace}-rival-{p.uid}", owner_uid="rival") for p in pods]


def named(name: str, *, nodes: tuple[str, ...] = ("n1",), gpus: int = 2) -> Assignment:
    return assignment(nodes=nodes, gpus=gpus, group=name)


def recheck(
    group: Group,
    others: Iterable[Member | LivePod] = (),
    *,
    nodes: Iterable[Node] | None = None,
    admits: dict[str, str] | None = None,
    predecessors: Iterable[str] = (),
) -> Recheck:
    pods = [pod if isinstance(pod, LivePod) else live(pod) for pod in (*group.members, *others)]
    reads = LiveReads.of([node("n1", 4), node("n2", 4)] if nodes is None else nodes, pods)
    return recheck_group(group, reads, admits=admits or {}, predecessors=predecessors)


def ours(plan: Assignment = OURS, *, created: datetime | None = None) -> Group:
    return build_one(members(plan, created=created or ago(10)))


# --- room -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("taken", "verdict"), [(1, RELEASE), (2, RELEASE), (3, GIVE_BACK)])
def test_a_bound_foreign_pod_goes_first_and_the_exact_rest_is_enough(taken: int, verdict: RecheckVerdict) -> None:
    found = recheck(ours(), [foreign(gpus=taken)])
    assert found.verdict is verdict
    if verdict is GIVE_BACK:
        assert found.reason == "node n1 would hold 5 of 4 GPUs"
    else:
        assert found.ranks == (0,)


@pytest.mark.parametrize(
    ("field", "limit", "text"),
    [
        ("cpu_millis", 96_000, "millicores of CPU"),
        ("memory_bytes", 2**40, "bytes of memory"),
    ],
)
def test_cpu_and_memory_count_like_gpus(field: str, limit: int, text: str) -> None:
    group = build_one(members(OURS, **{field: 1000}))
    fits = foreign(**{field: limit - 1000})
    over = foreign(**{field: limit - 999})
    assert recheck(group, [fits]).verdict is RELEASE
    assert recheck(group, [over]) == Recheck(GIVE_BACK, f"node n1 would hold {limit + 1} of {limit} {text}")


@pytest.mark.parametrize(("pods", "verdict"), [(2, RELEASE), (1, GIVE_BACK)])
def test_the_number_of_pods_counts(pods: int, verdict: RecheckVerdict) -> None:
    found = recheck(ours(), [foreign(gpus=0)], nodes=[node("n1", 4, pods=pods)])
    assert found.verdict is verdict


def test_pods_that_ended_or_run_elsewhere_hold_nothing_here() -> None:
    others = [foreign("a", gpus=4, terminal=True), foreign("b", "n9", gpus=4), foreign("c", None, gpus=4)]
    assert recheck(ours(), others).verdict is RELEASE


def test_a_pod_that_is_being_deleted_still_holds_its_gpus() -> None:
    leaving = [replace(m, deleting=True) for m in ready(named("llama-z-0-0", gpus=4))]
    assert recheck(ours(), leaving).verdict is GIVE_BACK


def test_every_rank_is_judged_on_its_own_node() -> None:
    assert recheck(ours(PAIR), [foreign(on="n2", gpus=2)]).ranks == (0, 1)
    found = recheck(ours(PAIR), [foreign(on="n2", gpus=3)])
    assert found == Recheck(GIVE_BACK, "node n2 would hold 5 of 4 GPUs")


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_node_that_is_gone_or_admits_no_more_gives_the_group_back() -> None:
    assert recheck(ours(PAIR), nodes=[node("n1", 4)]) == Recheck(GIVE_BACK, "node n2 is gone")
    found = recheck(ours(PAIR), admits={"n1": "", "n2": "tainted without a toleration (maintenance:NoSchedule)"})
    assert found.reason == "node n2: tainted without a toleration (maintenance:NoSchedule)"
    assert recheck(ours(PAIR), admits={"n1": "", "n2": "", "n3": "cordoned"}).verdict is RELEASE


# --- who yields -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "verdict"), [(11, GIVE_BACK), (10, GIVE_BACK), (9, RELEASE)], ids=["older", "same second", "younger"]
)
def test_a_gated_group_yields_to_older_ones_and_those_of_the_same_second(age: float, verdict: RecheckVerdict) -> None:
    others = rival(named("qwen-z-0-0", gpus=4), created=ago(age))
    assert recheck(ours(), others).verdict is verdict


def test_two_groups_of_the_same_second_both_yield() -> None:
    mine, theirs = members(OURS), rival(named("qwen-z-0-0", gpus=4))
    assert recheck(build_one(mine), theirs).verdict is GIVE_BACK
    assert recheck(build_one(theirs), mine).verdict is GIVE_BACK


@pytest.mark.parametrize("node_name", [None, "n1"], ids=["released", "bound"])
def test_a_younger_group_that_is_released_or_bound_wins(node_name: str | None) -> None:
    younger = [replace(m, node=node_name, uid="y") for m in released(named("qwen-z-0-0", gpus=4), created=ago(1))]
    assert recheck(ours(), younger).verdict is GIVE_BACK


def test_a_group_is_as_old_as_its_rank_0_however_late_its_other_ranks_came() -> None:
    """Compared rank by rank, each of the two would take itself for the older one, and both would be released."""
    head, rank1 = members(PAIR)
    slow = [replace(head, created=ago(10)), replace(rank1, created=ago(6))]
    between = rival(named("qwen-z-0-0", nodes=("n2",), gpus=4), created=ago(8))
    assert recheck(build_one(slow), between).verdict is RELEASE
    assert recheck(build_one(between), slow).verdict is GIVE_BACK


def test_ranks_that_an_older_reservation_has_still_to_create_count() -> None:
    head = rival(named("qwen-z-0-0", nodes=("n2", "n1"), gpus=4), created=ago(20))[:1]
    assert recheck(ours(), head).reason == "node n1 would hold 6 of 4 GPUs"
    younger = [replace(head[0], created=ago(2))]
    assert recheck(ours(), younger).verdict is RELEASE


@pytest.mark.parametrize("change", [{"gated": False, "node": "n2"}, {"deleting": True}, {"phase": "Failed"}])
def test_ranks_of_a_reservation_that_is_no_longer_being_made_do_not_count(change: dict[str, Any]) -> None:
    head = rival(named("qwen-z-0-0", nodes=("n2", "n1"), gpus=4), created=ago(20))[:1]
    assert recheck(ours(), [replace(head[0], **change)]).verdict is RELEASE


def test_a_released_rank_counts_where_its_affinity_pins_it_although_its_reservation_is_gone() -> None:
    orphan = replace(released(named("qwen-z-0-0", nodes=("n2", "n1"), gpus=4))[1], uid="orphan")
    assert recheck(ours(), [orphan]).verdict is GIVE_BACK
    assert recheck(ours(), [replace(orphan, pinned_node="n2")]).verdict is RELEASE


def test_a_gated_rank_without_a_reservation_is_nowhere() -> None:
    orphan = rival(named("qwen-z-0-0", nodes=("n2", "n1"), gpus=4), created=ago(20))[1]
    assert recheck(ours(), [orphan]).verdict is RELEASE


def test_groups_of_one_name_in_two_namespaces_are_two_groups() -> None:
    """Equal specs give equal names everywhere; the other's pods are neither ours nor in our places."""
    twin = rival(replace(OURS), namespace="elsewhere", created=ago(20))
    found = recheck(ours(), [*twin, foreign(gpus=1)])
    assert found.reason == "node n1 would hold 5 of 4 GPUs"
    moved = rival(assignment(nodes=("n2",), gpus=2), namespace="elsewhere", created=ago(20))
    assert recheck(ours(), [*moved, foreign(gpus=2)]).verdict is RELEASE


def test_a_later_read_of_a_pod_replaces_an_earlier_one() -> None:
    """Between the list of unbound pods and that of the node the pod was bound."""
    pod = replace(released(named("qwen-z-0-0", gpus=2))[0], uid="moving")
    bound = replace(pod, node="n1")
    assert recheck(ours(), [pod, bound]).verdict is RELEASE
    assert recheck(ours(), [pod, bound, foreign(gpus=1)]).verdict is GIVE_BACK


# --- predecessors -----------------------------------------------------------------------------------------------------

SUCCESSOR = assignment(nodes=("n1", "n2"), gpus=2, attempt=1, replaces=PAIR.group)


def test_a_rank_waits_while_its_predecessor_holds_its_own_node_and_the_others_go_on() -> None:
    head, rank1 = ready(PAIR)
    both = recheck(ours(SUCCESSOR), [head, rank1], predecessors=[PAIR.group])
    assert (both.verdict, both.ranks) == (WAIT, ())
    assert both.reason == "the previous group still holds n1, n2"
    one = recheck(ours(SUCCESSOR), [rank1], predecessors=[PAIR.group])
    assert (one.verdict, one.ranks, one.reason) == (WAIT, (0,), "the previous group still holds n2")
    assert recheck(ours(SUCCESSOR), [], predecessors=[PAIR.group]).verdict is RELEASE


def test_ended_pods_of_the_predecessor_hold_nothing() -> None:
    ended = [replace(m, phase="Failed") for m in ready(PAIR)]
    assert recheck(ours(SUCCESSOR), ended, predecessors=[PAIR.group]).verdict is RELEASE


def test_the_predecessors_gpus_are_the_successors_own_but_nobody_elses() -> None:
    mine = ours(SUCCESSOR)
    nodes = [node("n1", 2), node("n2", 2)]
    assert recheck(mine, ready(PAIR), predecessors=[PAIR.group], nodes=nodes).verdict is WAIT
    assert recheck(mine, ready(PAIR), nodes=nodes).verdict is GIVE_BACK


def test_a_group_of_the_predecessors_name_in_another_namespace_is_no_predecessor() -> None:
    twin = [replace(m, namespace="elsewhere", uid=f"e-{m.uid}") for m in ready(PAIR)]
    found = recheck(ours(SUCCESSOR), twin, predecessors=[PAIR.group], nodes=[node("n1", 2), node("n2", 2)])
    assert found.verdict is GIVE_BACK


def test_ranks_that_were_released_before_are_neither_judged_nor_named_again() -> None:
    head, rank1 = members(SUCCESSOR)
    bound = replace(released(SUCCESSOR)[0], node="n1", uid=head.uid)
    half = build_one([bound, rank1])
    found = recheck(half, [foreign(gpus=9)], admits={"n1": "cordoned"})
    assert (found.verdict, found.ranks) == (RELEASE, (1,))
    waiting = recheck(half, [ready(PAIR)[1]], predecessors=[PAIR.group])
    assert (waiting.verdict, waiting.ranks) == (WAIT, ())


def test_what_was_released_since_the_cache_was_read_is_not_released_again() -> None:
    mine = ours()
    seen = replace(released(OURS)[0], node="n1")
    reads = LiveReads.of([node("n1", 4)], [live(seen)])
    assert recheck_group(mine, reads, admits={}) == Recheck(RELEASE, ranks=())


# --- the group itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"plan_id": "another"}, {"deleting": True}, {"phase": "Failed"}],
)
def test_a_group_that_is_not_what_was_reserved_is_looked_at_again(change: dict[str, Any]) -> None:
    mine = ours(PAIR)
    seen = [live(mine.members[0]), live(replace(mine.members[1], **change))]
    reads = LiveReads.of([node("n1", 4), node("n2", 4)], seen)
    assert recheck_group(mine, reads, admits={}).verdict is CHANGED


def test_a_missing_or_disowned_member_is_a_changed_world() -> None:
    mine = ours(PAIR)
    head, rank1 = (live(m) for m in mine.members)
    nodes = [node("n1", 4), node("n2", 4)]
    assert recheck_group(mine, LiveReads.of(nodes, [head]), admits={}).verdict is CHANGED
    disowned = LiveReads.of(nodes, [head, replace(rank1, member=None)])
    assert recheck_group(mine, disowned, admits={}).verdict is CHANGED


def test_a_group_without_a_reservation_is_a_changed_world() -> None:
    broken = build_one([replace(member(OURS), assignment=None)])
    assert recheck(broken).verdict is CHANGED


# --- property ---------------------------------------------------------------------------------------------------------

RIVALS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(["gated", "released", "bound"]),
        st.sampled_from([0, 1, 2]),
        st.sampled_from([("n1",), ("n2",), ("n1", "n2"), ("n2", "n1")]),
    ),
    max_size=5,
)


@pytest.mark.property
@given(rivals=RIVALS)
def test_of_groups_that_see_each_other_all_may_be_released_that_pass(
    rivals: list[tuple[int, str, int, tuple[str, ...]]],
) -> None:
    """Whatever passes on the same reads can be released together without over-allocating a node."""
    pods: list[Member] = []
    gated: list[Group] = []
    for number, (gpus, state, age, nodes) in enumerate(rivals):
        plan = assignment(nodes=nodes, gpus=gpus, ordinal=number)
        found = members(plan, created=ago(age)) if state == "gated" else released(plan, created=ago(age))
        if state == "bound":
            found = [replace(m, node=plan.ranks[m.rank or 0].node) for m in found]
        if state == "gated":
            gated.append(build_one(found))
        pods += found
    reads = LiveReads.of([node("n1", 4), node("n2", 4)], [live(pod) for pod in pods])
    passed = [g for g in gated if recheck_group(g, reads, admits={}).verdict is RELEASE]
    for name in ("n1", "n2"):
        fixed = sum(p.gpus for p in pods if not p.gated and name in (p.node, p.pinned_node))
        freed = sum(rank.gpus for g in passed if g.assignment for rank in g.assignment.ranks if rank.node == name)
        assert freed == 0 or fixed + freed <= 4
