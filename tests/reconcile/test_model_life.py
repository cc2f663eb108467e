import pytest

from bayplan.api import names
from bayplan.cluster.resources import CONTROLLER_REVISIONS, INFERENCE_MODELS, PDBS, PODS, SERVICES, Key
from bayplan.reconcile.inferencemodel.statuswriter import PROGRESS_SECONDS
from tests.reconcile.world import World, pinned_node

COUNTS = ("desiredReplicas", "replicas", "pendingReplicas", "warmingReplicas", "readyReplicas", "drainingReplicas")


def world(*, nodes: int = 2, gpus: int = 2) -> World:
    found = World()
    for number in range(1, nodes + 1):
        found.add_node(f"n{number}", gpus=gpus, zone=f"zone-{number % 2}")
    return found


def counts(cluster: World, key: Key) -> tuple[int, ...]:
    status = cluster.status(key)
    return tuple(status[name] for name in COUNTS)


def stages(cluster: World, key: Key) -> list[str]:
    return [group["stage"] for group in cluster.status(key)["placement"]["groups"]]


# --- from creation to ready -------------------------------------------------------------------------------------------


async def test_the_first_pass_reserves_and_releases_and_ends_with_a_status() -> None:
    cluster = world()
    key = cluster.add_model(replicas=2)
    cluster.operator.deliver()
    await cluster.operator.reconcile(key)
    pods = cluster.pods()
    assert [pod["spec"]["schedulingGates"] for pod in pods] == [[], []]
    assert sorted(str(pinned_node(pod)) for pod in pods) == ["n1", "n2"]
    await cluster.clock.advance(PROGRESS_SECONDS)
    await cluster.operator.reconcile(key)
    assert counts(cluster, key) == (2, 2, 0, 2, 0, 0)
    assert stages(cluster, key) == ["Binding", "Binding"]
    assert cluster.reason(key, "Placed") == ("False", "Reserving")
    assert cluster.reason(key, "Ready") == ("False", "Reserving")
    assert cluster.reason(key, "Reconciling") == ("True", "Reserving")


async def test_rank_0_carries_the_reservation_before_anything_is_released() -> None:
    cluster = world()
    cluster.add_model()
    await cluster.settle()
    created = [entry for entry in cluster.writes() if entry[1] == "pods"]
    assert [verb for verb, *_ in created] == ["create", "patch"]
    (pod,) = cluster.pods()
    assert names.ANNOTATION_ASSIGNMENT in pod["metadata"]["annotations"]
    assert names.ANNOTATION_UNGATED in pod["metadata"]["annotations"]


async def test_a_bound_replica_warms_by_a_real_generation_and_only_then_counts_as_ready() -> None:
    cluster = world()
    key = cluster.add_model(warmup={"prompt": "Count to three.", "maxTokens": 3})
    await cluster.settle()
    cluster.schedule()
    cluster.kubelets()
    cluster.engine.at[cluster.address(cluster.pod_names()[0])].generation_error = "no kernel"
    await cluster.advance(1)  # mere progress is written within a second
    assert counts(cluster, key) == (1, 1, 0, 1, 0, 0)
    assert cluster.reason(key, "Placed") == ("True", "Placed")
    assert cluster.reason(key, "Warm") == ("False", "WarmupRunning")
    (group,) = cluster.status(key)["placement"]["groups"]
    assert (group["stage"], group["warmupStage"], group["nodes"]) == ("Warming", "Generating", ["n1"])
    cluster.engine.at[cluster.address(cluster.pod_names()[0])].generation_error = ""
    await cluster.advance(5)
    assert "Count to three." in cluster.engine.prompts
    assert counts(cluster, key) == (1, 1, 0, 0, 1, 0)
    assert cluster.reason(key, "Warm") == ("True", "Warm")
    (pod,) = cluster.pods()
    warm = next(c for c in pod["status"]["conditions"] if c["type"] == names.CONDITION_WARM)
    assert warm["message"] == pod["status"]["containerStatuses"][0]["containerID"]


async def test_a_ready_model_says_so_in_every_condition_with_numbers() -> None:
    cluster = world()
    key = cluster.add_model(replicas=2)
    await cluster.run()
    assert counts(cluster, key) == (2, 2, 0, 0, 2, 0)
    kinds = {c["type"]: (c["status"], c["reason"]) for c in cluster.status(key)["conditions"]}
    assert kinds == {
        "Accepted": ("True", "Valid"),
        "MemoryFit": ("True", "Fits"),
        "Placed": ("True", "Placed"),
        "Warm": ("True", "Warm"),
        "Current": ("True", "Current"),
        "Ready": ("True", "Ready"),
    }
    ready = cluster.condition(key, "Ready")
    assert ready is not None
    assert ready["message"] == "2 of 2 replicas ready"
    status = cluster.status(key)
    assert status["gpus"] == 2
    assert status["revisions"]["serving"] == [status["revisions"]["target"]]
    uid = cluster.pods()[0]["metadata"]["ownerReferences"][0]["uid"]
    assert status["selector"] == f"bayplan.dev/model=llama,bayplan.dev/model-uid={uid},bayplan.dev/rank=0"


async def test_groups_are_spread_over_zones() -> None:
    cluster = world(nodes=4)
    key = cluster.add_model(replicas=4)
    await cluster.run()
    nodes = [group["nodes"][0] for group in cluster.status(key)["placement"]["groups"]]
    assert sorted(int(name[1:]) % 2 for name in nodes) == [0, 0, 1, 1]


async def test_the_children_of_a_serving_model() -> None:
    cluster = world()
    cluster.add_model()
    await cluster.settle()
    assert cluster.objects(PDBS) == []
    await cluster.run()
    (group,) = [name.rsplit("-", 1)[0] for name in cluster.pod_names()]
    assert [(b["metadata"]["name"], b["spec"]["minAvailable"]) for b in cluster.objects(PDBS)] == [(group, 1)]
    assert [service["metadata"]["name"] for service in cluster.objects(SERVICES)] == ["llama"]
    (revision,) = cluster.objects(CONTROLLER_REVISIONS)
    assert (
        revision["metadata"]["labels"][names.LABEL_REVISION]
        == cluster.pods()[0]["metadata"]["labels"][names.LABEL_REVISION]
    )


@pytest.mark.parametrize("spec", [{"replicas": 2}, {"replicas": 0}, {"suspend": True}, {"replicas": 9}])
async def test_nothing_is_written_once_all_is_as_it_can_be(spec: dict[str, object]) -> None:
    cluster = world()
    key = cluster.add_model(**spec)
    await cluster.run()
    await cluster.advance(5)
    settled = cluster.api.write_count()
    for _ in range(3):
        cluster.operator.enqueue(key)
        await cluster.run()
    await cluster.advance(600)
    assert cluster.api.write_count() == settled, cluster.writes()[settled:]


async def test_events_tell_changes_of_reason_once() -> None:
    cluster = world()
    cluster.add_model()
    await cluster.run()
    reasons = cluster.operator.events.reasons()
    assert reasons.count("Ready") == 1
    assert reasons.count("Warm") == 1
    count = len(reasons)
    await cluster.advance(300)
    assert len(cluster.operator.events.reasons()) == count
    assert not any(event.warning for event in cluster.operator.events.emitted)


# --- room -------------------------------------------------------------------------------------------------------------


async def test_replicas_without_a_place_are_a_count_with_a_reason_and_no_pods() -> None:
    cluster = world(nodes=1)
    key = cluster.add_model(replicas=3)
    await cluster.run()
    assert len(cluster.pods()) == 2
    assert counts(cluster, key) == (3, 2, 1, 0, 2, 0)
    assert cluster.reason(key, "Placed") == ("False", "InsufficientGPU")
    placed = cluster.condition(key, "Placed")
    assert placed is not None
    assert placed["message"].startswith("1 of 3 replicas pending: ")
    assert "0 free on 1 matching node, 1 more needed" in placed["message"]
    assert cluster.status(key)["placement"]["pendingReason"] in placed["message"]


async def test_a_pending_replica_is_placed_by_itself_when_room_appears() -> None:
    cluster = world(nodes=1)
    first, second = cluster.add_model("llama", replicas=2), cluster.add_model("qwen", replicas=1)
    await cluster.run()
    assert counts(cluster, second)[2] == 1
    cluster.edit_spec(first, replicas=1)
    await cluster.advance(10)
    assert counts(cluster, second) == (1, 1, 0, 0, 1, 0)
    cluster.edit_spec(first, replicas=2)
    await cluster.run()
    cluster.add_node("n9")
    await cluster.advance(5)
    assert counts(cluster, first) == (2, 2, 0, 0, 2, 0)


async def test_a_model_that_cannot_fit_is_refused_with_numbers_and_gets_no_pod() -> None:
    cluster = world()
    key = cluster.add_model(engine={"maxModelLen": 8192}, concurrency=1000)
    await cluster.run()
    assert cluster.pods() == []
    assert cluster.reason(key, "MemoryFit") == ("False", "InsufficientMemory")
    assert cluster.reason(key, "Stalled") == ("True", "InsufficientMemory")
    assert cluster.reason(key, "Placed") == ("False", "InsufficientMemory")
    fit = cluster.condition(key, "MemoryFit")
    assert fit is not None
    assert "short by" in fit["message"]
    assert "concurrency ≤" in fit["message"]


async def test_without_a_gpu_node_the_model_waits_and_starts_when_one_comes() -> None:
    cluster = World()
    key = cluster.add_model()
    await cluster.run()
    assert cluster.reason(key, "MemoryFit") == ("Unknown", "NoMatchingGPU")
    assert counts(cluster, key) == (1, 0, 1, 0, 0, 0)
    cluster.add_node("n1")
    await cluster.advance(1)
    assert counts(cluster, key) == (1, 1, 0, 0, 1, 0)


# --- deletion ---------------------------------------------------------------------------------------------------------


async def test_deleting_the_model_forgets_it_and_leaves_the_rest_to_the_garbage_collector() -> None:
    cluster = world()
    key = cluster.add_model(replicas=2)
    await cluster.run()
    writes = cluster.api.write_count()
    cluster.api.remove(INFERENCE_MODELS, key)
    await cluster.advance(60)
    assert cluster.api.write_count() == writes
    cluster.api.collect_garbage()
    await cluster.advance(60)
    assert [o for kind in (PODS, PDBS, SERVICES, CONTROLLER_REVISIONS) for o in cluster.objects(kind)] == []
    assert cluster.api.write_count() == writes


async def test_a_model_being_deleted_gets_nothing_more() -> None:
    cluster = world()
    key = cluster.add_model()
    cluster.api.edit(INFERENCE_MODELS, key, lambda m: m["metadata"].update(deletionTimestamp="2026-03-04T05:06:07Z"))
    await cluster.run()
    assert cluster.writes() == []


async def test_a_model_of_the_same_name_does_not_take_over_its_predecessors_pods() -> None:
    cluster = world()
    key = cluster.add_model()
    await cluster.run()
    before = cluster.pods()[0]["metadata"]["uid"]
    cluster.api.remove(INFERENCE_MODELS, key)
    cluster.add_model()
    await cluster.settle()
    assert cluster.reason(key, "Placed") == ("False", "Reserving")
    message = cluster.condition(key, "Placed")
    assert message is not None
    assert "belongs to a deleted model of this name and is not gone yet" in message["message"]
    cluster.api.collect_garbage()
    await cluster.advance(5)
    assert counts(cluster, key) == (1, 1, 0, 0, 1, 0)
    assert cluster.pods()[0]["metadata"]["uid"] != before
