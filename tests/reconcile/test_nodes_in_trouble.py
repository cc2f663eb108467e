"""Nodes that are lost, cordoned, emptied, removed or labelled with nonsense, under models that serve."""

from typing import Any

import pytest

from bayplan.api import names
from bayplan.cluster.errors import ServerError
from bayplan.cluster.resources import NODES, PODS, Key
from tests.reconcile.world import World, foreign_pod, node

Json = dict[str, Any]


async def serving(replicas: int = 1, *, nodes: int = 3, **changes: Any) -> tuple[World, Key]:
    cluster = World()
    for number in range(1, nodes + 1):
        cluster.add_node(f"n{number}", zone=f"zone-{number}")
    key = cluster.add_model(replicas=replicas, **changes)
    await cluster.run()
    assert cluster.status(key)["readyReplicas"] == replicas
    return cluster, key


def nodes_of(cluster: World) -> list[str]:
    """Nodes of the pods that are not leaving."""
    return sorted(
        str(pod["spec"].get("nodeName"))
        for pod in cluster.pods()
        if not pod["metadata"].get("deletionTimestamp")
        and names.ANNOTATION_DRAINING not in pod["metadata"]["annotations"]
    )


# --- lost -------------------------------------------------------------------------------------------------------------


async def test_a_node_counts_as_lost_only_after_the_limit() -> None:
    cluster, key = await serving()
    cluster.lose_node("n1")
    await cluster.advance(29)
    assert nodes_of(cluster) == ["n1"]
    await cluster.advance(2)
    assert nodes_of(cluster) == ["n2"]
    assert cluster.status(key)["readyReplicas"] == 1


async def test_a_short_silence_changes_nothing() -> None:
    cluster, _ = await serving()
    before = cluster.pod_names()
    cluster.lose_node("n1")
    await cluster.advance(20)
    cluster.find_node("n1")
    await cluster.advance(60)
    assert cluster.pod_names() == before


async def test_pods_terminating_on_a_lost_node_are_shown_and_in_no_count() -> None:
    cluster, key = await serving(2)
    cluster.lose_node("n1")
    await cluster.advance(40)
    status = cluster.status(key)
    assert [group["stage"] for group in status["placement"]["groups"]] == ["Lost", "Ready", "Ready"]
    assert (status["replicas"], status["readyReplicas"], status["drainingReplicas"], status["gpus"]) == (2, 2, 0, 2)
    assert cluster.reason(key, "Ready") == ("True", "Ready")
    writes = cluster.api.write_count()
    await cluster.advance(600)
    assert cluster.api.write_count() == writes


async def test_the_stale_pod_goes_when_its_node_comes_back() -> None:
    cluster, key = await serving()
    cluster.lose_node("n1")
    await cluster.advance(40)
    assert len(cluster.pods()) == 2
    cluster.find_node("n1")
    await cluster.advance(5)
    assert nodes_of(cluster) == ["n2"]
    assert len(cluster.pods()) == 1
    assert len(cluster.status(key)["placement"]["groups"]) == 1


async def test_a_lost_group_without_another_place_waits_with_a_reason() -> None:
    cluster, key = await serving(nodes=1)
    cluster.lose_node("n1")
    await cluster.advance(40)
    assert cluster.reason(key, "Placed") == ("False", "NoNodeMatches")
    placed = cluster.condition(key, "Placed")
    assert placed is not None
    assert "1 lost" in placed["message"]
    cluster.add_node("n9")
    await cluster.advance(5)
    assert cluster.status(key)["readyReplicas"] == 1


async def test_groups_of_a_deleted_node_are_replaced_at_once() -> None:
    cluster, key = await serving()
    cluster.dead_nodes.add("n1")
    cluster.api.remove(NODES, Key("", "n1"))
    await cluster.run()
    assert nodes_of(cluster) == ["n2"]
    assert cluster.status(key)["readyReplicas"] == 1


async def test_groups_of_a_node_deleted_while_no_operator_ran_are_replaced_after_the_limit() -> None:
    cluster, key = await serving()
    await cluster.operator.close()
    cluster.dead_nodes.add("n1")
    cluster.api.remove(NODES, Key("", "n1"))
    cluster.operator = cluster.new_operator()
    await cluster.advance(29)
    assert nodes_of(cluster) == ["n1"], "the node's own event may only be late"
    await cluster.advance(3)
    assert nodes_of(cluster) == ["n2"]
    assert cluster.status(key)["readyReplicas"] == 1


# --- cordon and drain -------------------------------------------------------------------------------------------------


async def test_a_cordon_means_nothing_new_and_leaves_what_runs() -> None:
    cluster, key = await serving()
    before = cluster.pod_names()
    cluster.cordon("n1")
    cluster.edit_spec(key, replicas=3)
    await cluster.advance(60)
    assert before[0] in cluster.pod_names()
    assert "n1" not in nodes_of(cluster)[1:]
    assert cluster.status(key)["readyReplicas"] == 3


async def test_an_old_cordon_moves_groups_away_the_replacement_first() -> None:
    cluster, key = await serving()
    cluster.cordon("n1")
    await cluster.advance(599)
    assert nodes_of(cluster) == ["n1"]
    await cluster.advance(10)
    assert nodes_of(cluster) == ["n2"]
    assert cluster.status(key)["readyReplicas"] == 1


async def test_lifting_the_cordon_in_time_moves_nothing() -> None:
    cluster, _ = await serving()
    cluster.cordon("n1")
    await cluster.advance(500)
    cluster.cordon("n1", on=False)
    await cluster.advance(200)
    cluster.cordon("n1")
    await cluster.advance(500)
    assert nodes_of(cluster) == ["n1"]


def annotate(obj: Json) -> None:
    obj["metadata"]["annotations"] = {names.ANNOTATION_NODE_DRAIN: "true"}


def taint(obj: Json) -> None:
    obj["spec"]["taints"] = [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]


@pytest.mark.parametrize("leave", [annotate, taint])
async def test_a_leaving_node_is_emptied_by_moving_groups_first(leave: Any) -> None:
    cluster, key = await serving()
    (old,) = cluster.pod_names()
    cluster.engine.at[cluster.address(old)].running = 1
    cluster.edit_node("n1", leave)
    await cluster.run()
    assert nodes_of(cluster) == ["n2"]
    assert names.ANNOTATION_DRAINING in cluster.pod(old)["metadata"]["annotations"]
    assert cluster.status(key)["readyReplicas"] == 1
    cluster.engine.at[cluster.address(old)].running = 0
    await cluster.advance(3)
    assert old not in cluster.pod_names()


async def test_a_leaving_node_without_another_place_keeps_its_groups() -> None:
    cluster, key = await serving(nodes=1)
    cluster.edit_node("n1", annotate)
    await cluster.advance(120)
    assert nodes_of(cluster) == ["n1"]
    assert cluster.status(key)["readyReplicas"] == 1
    assert cluster.reason(key, "Ready") == ("True", "Ready")
    assert cluster.reason(key, "Reconciling") == ("True", "Replacing")
    working = cluster.condition(key, "Reconciling")
    assert working is not None
    assert working["message"].startswith("1 replicas are to move off leaving nodes, which waits: ")
    assert "1 leaving" in working["message"]


# --- between plan and release -----------------------------------------------------------------------------------------


async def test_a_group_that_loses_its_place_before_the_release_is_given_back_and_planned_again() -> None:
    cluster = World()
    cluster.add_node("n1", gpus=1)
    cluster.add_node("n2", gpus=1)
    key = cluster.add_model()
    cluster.operator.deliver()
    # Nobody has told the operator yet.
    cluster.api.seed(PODS, foreign_pod("thief", "n1"))
    await cluster.operator.reconcile(key)
    assert cluster.pods() == []
    assert cluster.reason(key, "Placed") == ("False", "Reserving")
    placed = cluster.condition(key, "Placed")
    assert placed is not None
    assert "node n1 would hold 2 of 1 GPUs" in placed["message"]
    await cluster.advance(2)
    assert nodes_of(cluster) == ["n2"]


async def test_a_node_cordoned_before_the_release_is_noticed() -> None:
    cluster = World()
    cluster.add_node("n1", gpus=1)
    cluster.add_node("n2", gpus=1)
    key = cluster.add_model()
    cluster.operator.deliver()
    cluster.cordon("n1")
    await cluster.operator.reconcile(key)
    assert cluster.pods() == []
    await cluster.advance(2)
    assert nodes_of(cluster) == ["n2"]


async def test_a_group_whose_plan_is_gone_is_still_judged_by_its_own_reservation() -> None:
    """The only node of the product leaves between reservation and release, and with it every placeable shape."""
    cluster = World()
    cluster.add_node("n1")
    key = cluster.add_model()
    cluster.operator.deliver()
    cluster.api.fail_next("list", "pods", ServerError("unavailable", status=503))
    await cluster.operator.reconcile(key)
    assert len(cluster.pods()) == 1
    cluster.api.remove(NODES, Key("", "n1"))
    await cluster.advance(3)
    assert cluster.pods() == []
    assert cluster.reason(key, "MemoryFit") == ("Unknown", "NoMatchingGPU")


# --- a kubelet that refuses -------------------------------------------------------------------------------------------


async def test_a_node_whose_kubelet_refused_the_pod_is_left_out_of_the_next_attempt() -> None:
    cluster = World()
    cluster.add_node("n1")
    cluster.add_node("n2")
    key = cluster.add_model()
    await cluster.settle()
    cluster.schedule()
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
    cluster.edit_pod(cluster.pod_names()[0], lambda pod: pod["status"].update(refused))
    await cluster.settle()
    assert cluster.reason(key, "Warm") == ("False", "EngineFailed")
    await cluster.advance(15)
    assert nodes_of(cluster) == ["n2"]
    assert cluster.status(key)["readyReplicas"] == 1


# --- nonsense ---------------------------------------------------------------------------------------------------------


async def test_a_node_with_nonsense_labels_is_no_obstacle_to_the_others() -> None:
    cluster = World()
    odd = node("odd", labels={"nvidia.com/gpu.memory": "plenty", "nvidia.com/gpu.count": "-3", "x": "y"})
    odd["status"]["allocatable"]["nvidia.com/gpu"] = "many"
    cluster.api.seed(NODES, odd)
    cluster.api.seed(NODES, {"metadata": {"name": "bare"}, "spec": {}, "status": {}})
    cluster.add_node("n1")
    key = cluster.add_model()
    await cluster.run()
    assert nodes_of(cluster) == ["n1"]
    assert cluster.status(key)["readyReplicas"] == 1
    assert cluster.operator.errors == []
