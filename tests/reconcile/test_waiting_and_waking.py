"""What waits says why, is woken by what it waits for, and does not keep trying what cannot work."""

from collections.abc import Callable

from bayplan.cluster.resources import INFERENCE_MODELS, PODS, Key
from tests.reconcile.test_model_changes import serving as serving_replicas
from tests.reconcile.world import Json, World, foreign_pod


def world(*nodes: str) -> World:
    cluster = World()
    for name in nodes:
        cluster.add_node(name)
    return cluster


def message(cluster: World, key: Key, kind: str) -> str:
    found = cluster.condition(key, kind)
    assert found is not None
    return str(found["message"])


async def test_a_replacement_that_waits_for_room_is_woken_when_there_is_some() -> None:
    cluster, key = await serving_replicas(1, nodes=1)
    (old,) = cluster.pod_names()
    cluster.api.seed(PODS, foreign_pod("tenant", "n1"))
    cluster.edit_spec(key, template={"priorityClassName": "high"})
    await cluster.advance(400)
    assert cluster.pod_names() == [old]
    assert cluster.reason(key, "Current") == ("False", "Replacing")
    cluster.api.remove(PODS, Key("other", "tenant"))
    await cluster.advance(10)
    (new,) = cluster.pod_names()
    assert new != old
    assert cluster.reason(key, "Current") == ("True", "Current")


async def test_counts_are_true_while_the_spec_is_refused() -> None:
    cluster, key = await serving_replicas(2)
    cluster.edit_spec(key, placement={"spread": {"level": "no-such-level"}})
    await cluster.run()
    assert cluster.reason(key, "Ready") == ("False", "InvalidSpec")
    assert "no-such-level" in message(cluster, key, "Ready")
    assert cluster.status(key)["readyReplicas"] == 2
    cluster.exit_engine(cluster.pod_names()[0])
    await cluster.advance(2)
    status = cluster.status(key)
    assert (status["readyReplicas"], status["pendingReplicas"], status["gpus"]) == (1, 1, 1)
    assert sorted(group["stage"] for group in status["placement"]["groups"]) == ["Failed", "Ready"]


# --- a container that does not start ---------------------------------------------------------------------------------


def waiting(reason: str, text: str) -> Callable[[Json], None]:
    def change(pod: Json) -> None:
        state = {"waiting": {"reason": reason, "message": text}}
        pod["status"]["containerStatuses"] = [{"name": "engine", "state": state}]

    return change


async def bound(cluster: World) -> str:
    """Place and bind the one pod; its node does nothing by itself."""
    cluster.dead_nodes.add("n1")
    await cluster.run()
    cluster.schedule()
    (name,) = cluster.pod_names()
    return name


async def test_a_secret_that_is_not_there_is_the_reason_of_warm_and_ready() -> None:
    cluster = world("n1")
    key = cluster.add_model()
    cluster.edit_pod(await bound(cluster), waiting("CreateContainerConfigError", 'secret "hub-token" not found'))
    await cluster.advance(2)
    for kind in ("Warm", "Ready"):
        assert cluster.reason(key, kind) == ("False", "ContainerNotStarted")
        assert 'secret "hub-token" not found' in message(cluster, key, kind)
    assert message(cluster, key, "Ready").count("0 of 1 replicas ready") == 1


async def test_a_container_that_never_starts_gives_its_gpus_back_after_the_load_deadline() -> None:
    cluster = world("n1")
    key = cluster.add_model(warmup={"loadDeadlineSeconds": 60})
    pod = await bound(cluster)
    cluster.edit_pod(pod, waiting("CreateContainerConfigError", "no such key"))
    await cluster.advance(58)
    assert cluster.reason(key, "Warm") == ("False", "ContainerNotStarted")
    await cluster.advance(4)
    assert cluster.reason(key, "Warm") == ("False", "WarmupFailed")
    assert "did not start within 60 s: CreateContainerConfigError: no such key" in message(cluster, key, "Warm")
    await cluster.advance(30)
    assert pod not in [p["metadata"]["name"] for p in cluster.pods() if not p["metadata"].get("deletionTimestamp")]


# --- a group that the scheduler does not bind -------------------------------------------------------------------------


def unschedulable(text: str) -> Callable[[Json], None]:
    def change(pod: Json) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
        pod["status"]["conditions"] = [condition]

    return change


async def pass_unbound(cluster: World, seconds: int) -> None:
    """Let time pass with a scheduler that binds nothing and says why."""
    for _ in range(seconds // 5):
        await cluster.advance(5, run=False)
        for pod in cluster.pods():
            if not pod["spec"].get("schedulingGates"):
                cluster.edit_pod(pod, unschedulable('persistentvolumeclaim "weights" not found'))
        for pod in cluster.pods():
            if pod["metadata"].get("deletionTimestamp"):
                cluster.api.remove(PODS, Key(pod["metadata"]["namespace"], pod["metadata"]["name"]))


def creates(cluster: World) -> int:
    return sum((verb, plural) == ("create", "pods") for verb, plural, _ in cluster.writes())


async def test_a_group_that_is_never_bound_is_tried_again_in_growing_pauses_that_hold_no_gpu() -> None:
    cluster = world("n1")
    key = cluster.add_model()
    await pass_unbound(cluster, 130)
    assert creates(cluster) == 2  # the first time at once: the world may just have moved on
    await pass_unbound(cluster, 3600)
    assert creates(cluster) <= 16
    while cluster.pods():
        await pass_unbound(cluster, 5)
    assert cluster.reason(key, "Placed") == ("False", "Unschedulable")
    assert 'persistentvolumeclaim "weights" not found' in message(cluster, key, "Placed")
    await cluster.advance(301)
    assert cluster.status(key)["readyReplicas"] == 1


async def test_another_spec_need_not_wait_for_the_pause() -> None:
    cluster = world("n1")
    key = cluster.add_model()
    await pass_unbound(cluster, 600)
    while cluster.pods():
        await pass_unbound(cluster, 5)
    cluster.edit_spec(key, template={"priorityClassName": "high"})
    await cluster.advance(1)
    assert cluster.status(key)["readyReplicas"] == 1


async def test_a_deleted_model_leaves_no_count_of_its_failures() -> None:
    cluster = world("n1")
    key = cluster.add_model()
    await pass_unbound(cluster, 130)
    assert cluster.operator.reconciler._tools.unconfirmed
    cluster.api.remove(INFERENCE_MODELS, key)
    await cluster.settle()
    assert cluster.operator.reconciler._tools.unconfirmed == {}
