"""Pods that are not what they seem: corrupt reservations, foreign owners, edited labels."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from bayplan.api import names
from bayplan.cluster.resources import PODS, Key
from tests.reconcile.world import NAMESPACE, TWO_NODES, World, foreign_pod

Json = dict[str, Any]


async def serving(*, nodes: int = 3, **changes: Any) -> tuple[World, Key]:
    cluster = World()
    for number in range(1, nodes + 1):
        cluster.add_node(f"n{number}")
    key = cluster.add_model(**changes)
    await cluster.run()
    assert cluster.status(key)["readyReplicas"] == 1
    return cluster, key


# --- our own pods, edited ---------------------------------------------------------------------------------------------


def assignment_of(pod: Json) -> Json:
    found: Json = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_ASSIGNMENT])
    return found


def corrupt(text: str) -> Callable[[Json], None]:
    return lambda pod: pod["metadata"]["annotations"].update({names.ANNOTATION_ASSIGNMENT: text})


def forge(**changes: Any) -> Callable[[Json], None]:
    def change(pod: Json) -> None:
        pod["metadata"]["annotations"][names.ANNOTATION_ASSIGNMENT] = json.dumps({**assignment_of(pod), **changes})

    return change


def label(**labels: str) -> Callable[[Json], None]:
    return lambda pod: pod["metadata"]["labels"].update({f"bayplan.dev/{key}": value for key, value in labels.items()})


def without_label(name: str) -> Callable[[Json], None]:
    def change(pod: Json) -> None:
        pod["metadata"]["labels"].pop(name, None)

    return change


@pytest.mark.parametrize(
    "edit",
    [
        corrupt(""),
        corrupt("{"),
        corrupt("[" * 10_000),
        corrupt("null"),
        forge(ranks=[]),
        forge(ranks=[{"node": "x" * 300, "gpus": 1}]),
        forge(ranks=[{"node": "\ud800", "gpus": 1}]),
        forge(ranks=[{"node": "n9", "gpus": 1}]),
        forge(ranks=[{"node": "n1", "gpus": 2}]),
        forge(layout={"tensor": 3, "pipeline": 1}),
        forge(facts=["\ud800"]),
        label(rank="7"),
        label(rank="nonsense"),
        label(group="another"),
        label(revision="0000000000"),
        label(template="0000000000"),
        label(model="another"),
        label(**{"model-uid": "another"}),
        without_label(names.LABEL_MODEL),
        without_label(names.LABEL_MODEL_UID),
        lambda pod: pod["metadata"]["labels"].clear(),
        lambda pod: pod["metadata"]["annotations"].pop(names.ANNOTATION_ASSIGNMENT),
        lambda pod: pod["metadata"]["annotations"].update({names.ANNOTATION_PLAN_ID: "x"}),
    ],
)
async def test_an_edited_reservation_is_reported_and_its_group_replaced(edit: Callable[[Json], None]) -> None:
    cluster, key = await serving()
    (pod,) = cluster.pods()
    cluster.dead_nodes.add("n1")
    cluster.edit_pod(pod, edit)
    await cluster.run()
    assert cluster.operator.errors == []
    told = [
        event.message for event in cluster.operator.events.emitted if event.reason == "GroupBroken" and event.warning
    ]
    defects = ("unreadable", "rank 0 is missing", "not those of one plan", "do not name the model")
    assert len([message for message in told if any(defect in message for defect in defects)]) == 1
    cluster.dead_nodes.clear()
    await cluster.advance(10)
    assert cluster.status(key)["readyReplicas"] == 1
    assert cluster.pods()[0]["metadata"]["uid"] != pod["metadata"]["uid"]
    assert len(cluster.pods()) == 1


@pytest.mark.parametrize(
    "edit",
    [
        lambda pod: pod["metadata"]["annotations"].update({names.ANNOTATION_PLAN_ID: "x"}),
        label(model="another"),
        without_label(names.LABEL_MODEL),
        lambda pod: pod["metadata"]["labels"].clear(),
    ],
)
async def test_an_edited_reservation_of_one_rank_takes_the_whole_group(edit: Callable[[Json], None]) -> None:
    cluster, key = await serving(**TWO_NODES)
    before = {pod["metadata"]["uid"] for pod in cluster.pods()}
    cluster.edit_pod(cluster.pods()[1], edit)
    await cluster.advance(10)
    assert cluster.status(key)["readyReplicas"] == 1
    assert not before & {pod["metadata"]["uid"] for pod in cluster.pods()}


async def test_a_pod_that_somebody_released_to_another_node_goes_with_its_group() -> None:
    """Whoever takes the gate away by hand lets the scheduler choose; status would name nodes that nobody holds."""
    cluster, key = await serving(**TWO_NODES)
    before = {pod["metadata"]["uid"] for pod in cluster.pods()}
    second = cluster.pods()[1]
    (free,) = {"n1", "n2", "n3"} - {pod["spec"]["nodeName"] for pod in cluster.pods()}
    cluster.edit_pod(second, lambda pod: pod["spec"].update(nodeName=free))
    await cluster.advance(10)
    told = [event.message for event in cluster.operator.events.emitted if event.reason == "GroupBroken"]
    assert len([message for message in told if "another node than its reservation names" in message]) == 1
    assert cluster.status(key)["readyReplicas"] == 1
    assert not before & {pod["metadata"]["uid"] for pod in cluster.pods()}


# --- somebody else's pods ---------------------------------------------------------------------------------------------


def stranger(name: str, on: str | None, *, owner: str | None = "someone", gpus: int = 2, **labels: str) -> Json:
    ours = {
        names.LABEL_MODEL: "llama",
        names.LABEL_GROUP: "llama-45a1f-7-0",
        names.LABEL_RANK: "0",
        names.LABEL_REVISION: "45a1f75617",
        **labels,
    }
    pod = foreign_pod(name, on, gpus=gpus, labels=ours)
    pod["metadata"]["namespace"] = NAMESPACE
    plan = {"group": "llama-45a1f-7-0", "ranks": [{"node": "n1", "gpus": 2}]}
    pod["metadata"]["annotations"] = {
        names.ANNOTATION_ASSIGNMENT: json.dumps(plan),
        names.ANNOTATION_PLAN_ID: "0123456789ab",
    }
    if owner is not None:
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": owner, "controller": True}
        pod["metadata"]["ownerReferences"] = [reference]
    return pod


@pytest.mark.parametrize("owner", ["someone", None])
async def test_a_stranger_with_our_labels_is_reported_once_and_never_touched(owner: str | None) -> None:
    cluster, key = await serving()
    status = cluster.status(key)
    seeded = cluster.api.seed(PODS, stranger("intruder", "n3", owner=owner))
    await cluster.run()
    await cluster.advance(300)
    cluster.operator.enqueue(key)
    await cluster.run()
    told = [event for event in cluster.operator.events.emitted if event.reason == "ForeignPod"]
    assert [(event.key, event.warning) for event in told] == [(key, True)]
    assert "pod intruder carries this model's labels but is not owned by it" in told[0].message
    now = cluster.pod("intruder")
    assert now["metadata"]["annotations"] == seeded["metadata"]["annotations"]
    assert not now["metadata"].get("deletionTimestamp")
    assert cluster.status(key) == status


async def test_a_bound_stranger_holds_its_gpus_and_a_waiting_one_holds_nothing() -> None:
    cluster = World()
    cluster.add_node("n1")
    cluster.api.seed(PODS, stranger("waiting", None))
    bound = cluster.add_model(parallelism={"tensor": 2})
    await cluster.run()
    assert cluster.status(bound)["readyReplicas"] == 1

    cluster = World()
    cluster.add_node("n1")
    cluster.api.seed(PODS, stranger("bound", "n1", gpus=1))
    pending = cluster.add_model(parallelism={"tensor": 2})
    await cluster.run()
    assert cluster.reason(pending, "Placed") == ("False", "InsufficientGPU")
    cluster.api.remove(PODS, Key(NAMESPACE, "bound"))
    await cluster.advance(2)
    assert cluster.status(pending)["readyReplicas"] == 1


async def test_a_stranger_under_a_group_of_ours_does_not_disturb_it() -> None:
    cluster, key = await serving()
    (pod,) = cluster.pods()
    group = pod["metadata"]["labels"][names.LABEL_GROUP]
    cluster.api.seed(PODS, stranger("twin", "n3", **{names.LABEL_GROUP: group}))
    await cluster.advance(60)
    assert cluster.status(key)["readyReplicas"] == 1
    assert [p["metadata"]["uid"] for p in cluster.pods() if p["metadata"]["name"] != "twin"] == [pod["metadata"]["uid"]]


async def test_the_same_model_in_two_namespaces_is_two_models() -> None:
    """Equal specs give equal names; nothing of one may count as the other's."""
    cluster = World()
    cluster.add_node("n1")
    cluster.add_node("n2")
    first, second = cluster.add_model(**TWO_NODES), cluster.add_model(namespace="other", **TWO_NODES)
    await cluster.run()
    ready = [key for key in (first, second) if cluster.status(key)["readyReplicas"] == 1]
    assert len(ready) == 1
    (waiting,) = {first, second} - set(ready)
    assert cluster.status(waiting)["pendingReplicas"] == 1
    cluster.add_node("n3")
    cluster.add_node("n4")
    await cluster.advance(5)
    assert [cluster.status(key)["readyReplicas"] for key in (first, second)] == [1, 1]
    by_node = [pod["spec"]["nodeName"] for pod in cluster.pods()]
    assert sorted(by_node) == ["n1", "n2", "n3", "n4"]
    cluster.exit_engine(cluster.pods()[0]["metadata"]["name"])
    await cluster.advance(15)
    assert [cluster.status(key)["readyReplicas"] for key in (first, second)] == [1, 1]
