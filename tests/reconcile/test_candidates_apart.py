"""Where a candidate's replicas go: all on one node, they would be compared with that node, and held for it."""

from typing import Any

import pytest

from bayplan.cluster.resources import Key
from tests.reconcile.staging import NEW, NEW_ENGINE, OLD, Staging, at_phase, phase


async def test_candidates_go_to_nodes_of_their_own_where_the_tightest_fit_is_one_node() -> None:
    cluster = Staging(nodes=0)
    for name in ("n1", "n2"):
        cluster.add_node(name, gpus=4, zone="zone-a")
    model = cluster.add_model(replicas=1, update="Rollout", drain={"deadlineSeconds": 60})
    key = cluster.add_rollout()
    await cluster.flow(15)
    cluster.edit_spec(model, engine=NEW_ENGINE)

    assert await cluster.flow(90, until=at_phase(cluster, key, "Canary"))
    assert {pod["spec"]["nodeName"] for pod in cluster.by_image(NEW)} == {"n1", "n2"}


async def changed(gpus: dict[str, int], *, replicas: int, **rollout: Any) -> tuple[Staging, Key]:
    """A new revision of a model whose replicas have come to nodes of so many GPUs in that order."""
    cluster = Staging(nodes=0)
    first, *others = gpus
    cluster.add_node(first, gpus=gpus[first], zone="zone-a")
    model = cluster.add_model(replicas=replicas, update="Rollout", drain={"deadlineSeconds": 60})
    key = cluster.add_rollout(**rollout)
    await cluster.flow(15)
    for name in others:
        cluster.add_node(name, gpus=gpus[name], zone="zone-a")
    cluster.edit_spec(model, engine=NEW_ENGINE)
    await cluster.flow(30)
    return cluster, key


@pytest.mark.parametrize("capacity", ["Surge", "Auto"])
async def test_room_on_one_node_alone_is_refused_before_anything_starts(capacity: str) -> None:
    cluster, key = await changed({"n1": 1, "n2": 4}, replicas=1, capacity=capacity)
    assert phase(cluster, key) == "Paper"
    assert cluster.rollout_condition(key, "SurgeFits") == ("False", "SurgeDoesNotFit")
    message = cluster.rollout_message(key, "SurgeFits")
    assert "candidate replicas needed on 2 nodes" in message
    assert "room on 1 (n2), 1 missing: " in message
    assert "free or add room for 1 group on another node" in message
    assert cluster.by_image(NEW) == []

    cluster.add_node("n3", gpus=1, zone="zone-a")
    assert await cluster.flow(60, until=at_phase(cluster, key, "Warm"))


async def test_one_node_is_enough_where_a_single_replica_is_judged() -> None:
    cluster, key = await changed({"n1": 1, "n2": 4}, replicas=1, capacity="Surge", waivers=["SingleReplica"])
    assert cluster.rollout_condition(key, "SurgeFits") == ("True", "Fits")


async def test_room_that_draining_makes_too_late_for_a_second_node_is_none() -> None:
    """Both candidates would stand on the free node before a serving replica has made room beside it."""
    cluster, key = await changed({"n1": 2, "n2": 2}, replicas=2, capacity="Auto", minReady=1)
    assert cluster.rollout_condition(key, "SurgeFits") == ("False", "SurgeDoesNotFit")
    assert {pod["spec"]["nodeName"] for pod in cluster.by_image(OLD)} == {"n1"}


async def test_draining_makes_room_on_the_second_node_for_what_found_none() -> None:
    cluster, key = await changed({"n1": 2, "n2": 1}, replicas=2, capacity="Auto", minReady=1)
    assert cluster.rollout_condition(key, "SurgeFits") == ("True", "DrainsFirst")
    assert await cluster.flow(90, until=at_phase(cluster, key, "Canary"))
    assert {pod["spec"]["nodeName"] for pod in cluster.by_image(NEW)} == {"n1", "n2"}
