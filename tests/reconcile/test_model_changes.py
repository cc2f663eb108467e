"""Scale, suspend, drain and replacement of a model that serves."""

from typing import Any

import pytest

from bayplan.api import names
from bayplan.cluster.resources import CONTROLLER_REVISIONS, PDBS, Key
from tests.reconcile.world import World


async def serving(replicas: int = 2, *, nodes: int = 4, **changes: Any) -> tuple[World, Key]:
    cluster = World()
    for number in range(1, nodes + 1):
        cluster.add_node(f"n{number}", zone=f"zone-{number % 2}")
    key = cluster.add_model(replicas=replicas, **{"drain": {"deadlineSeconds": 60}, **changes})
    await cluster.run()
    assert cluster.status(key)["readyReplicas"] == replicas
    return cluster, key


def ready_pods(cluster: World) -> set[str]:
    """Heads that a Service would route to."""
    found = set()
    for pod in cluster.pods():
        conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", ())}
        if conditions.get("Ready") == conditions.get(names.CONDITION_WARM) == "True":
            found.add(pod["metadata"]["name"])
    return found


def draining(cluster: World) -> list[str]:
    return [p["metadata"]["name"] for p in cluster.pods() if names.ANNOTATION_DRAINING in p["metadata"]["annotations"]]


def set_load(cluster: World, pod: str, running: int) -> None:
    cluster.engine.at[cluster.address(pod)].running = running


# --- scale ------------------------------------------------------------------------------------------------------------


async def test_scaling_up_adds_replicas_beside_those_that_serve() -> None:
    cluster, key = await serving(1)
    first = cluster.pod_names()
    cluster.edit_spec(key, replicas=3)
    await cluster.run()
    assert cluster.status(key)["readyReplicas"] == 3
    assert set(first) < set(cluster.pod_names())


async def test_scaling_down_drains_a_busy_replica_until_two_scrapes_show_it_idle() -> None:
    cluster, key = await serving(2)
    for pod in cluster.pod_names():
        set_load(cluster, pod, 3)
    cluster.edit_spec(key, replicas=1)
    await cluster.settle()
    (leaving,) = draining(cluster)
    assert leaving not in ready_pods(cluster)
    assert cluster.status(key)["drainingReplicas"] == 1
    assert cluster.status(key)["readyReplicas"] == 1
    assert cluster.reason(key, "Ready") == ("True", "Ready")
    assert cluster.reason(key, "Reconciling") == ("True", "Draining")
    await cluster.advance(20)
    assert leaving in cluster.pod_names()
    set_load(cluster, leaving, 0)
    await cluster.advance(1)
    assert leaving in cluster.pod_names(), "one idle scrape is no proof"
    await cluster.advance(1)
    assert leaving not in cluster.pod_names()
    assert (cluster.status(key)["drainingReplicas"], cluster.reason(key, "Reconciling")) == (0, ("", ""))


async def test_a_replica_that_never_gets_idle_leaves_at_the_deadline() -> None:
    cluster, key = await serving(1)
    (pod,) = cluster.pod_names()
    set_load(cluster, pod, 1)
    cluster.edit_spec(key, replicas=0)
    await cluster.advance(58)
    assert cluster.pod_names() == [pod]
    await cluster.advance(3)
    assert cluster.pod_names() == []


async def test_unknown_load_is_not_idle() -> None:
    cluster, key = await serving(1)
    (pod,) = cluster.pod_names()
    cluster.engine.at[cluster.address(pod)].load_error = "/metrics answered 500"
    cluster.edit_spec(key, replicas=0)
    await cluster.advance(50)
    assert cluster.pod_names() == [pod]
    await cluster.advance(12)
    assert cluster.pod_names() == []


async def test_an_operator_restart_keeps_the_drains_deadline_and_counts_idle_scrapes_anew() -> None:
    cluster, key = await serving(1)
    (pod,) = cluster.pod_names()
    set_load(cluster, pod, 1)
    cluster.edit_spec(key, replicas=0)
    await cluster.advance(40)
    since = cluster.pod(pod)["metadata"]["annotations"][names.ANNOTATION_DRAINING]
    await cluster.restart()
    await cluster.advance(15)
    assert cluster.pod(pod)["metadata"]["annotations"][names.ANNOTATION_DRAINING] == since
    await cluster.advance(8)
    assert cluster.pod_names() == []


async def test_a_drain_is_taken_back_when_the_wish_is() -> None:
    cluster, key = await serving(1)
    (pod,) = cluster.pod_names()
    set_load(cluster, pod, 1)
    cluster.edit_spec(key, replicas=0)
    await cluster.settle()
    assert draining(cluster) == [pod]
    generations = len(cluster.engine.prompts)
    cluster.edit_spec(key, replicas=1)
    await cluster.run()
    assert (draining(cluster), ready_pods(cluster), cluster.pod_names()) == ([], {pod}, [pod])
    assert len(cluster.engine.prompts) == generations, "the container that generated is the one that runs"
    assert [budget["metadata"]["name"] for budget in cluster.objects(PDBS)] == [pod.removesuffix("-0")]

    cluster.edit_spec(key, replicas=0)
    await cluster.advance(5)
    assert draining(cluster) == [pod], "what was seen in the first drain is no verdict on the second"
    set_load(cluster, pod, 0)
    await cluster.advance(5)
    assert cluster.pod_names() == []


async def test_a_drain_that_a_restarted_operator_takes_back_is_warmed_anew() -> None:
    cluster, key = await serving(1)
    (pod,) = cluster.pod_names()
    set_load(cluster, pod, 1)
    cluster.edit_spec(key, replicas=0)
    await cluster.settle()
    generations = len(cluster.engine.prompts)
    cluster.edit_spec(key, replicas=1)
    await cluster.restart()
    await cluster.run()
    assert (draining(cluster), ready_pods(cluster)) == ([], {pod})
    assert len(cluster.engine.prompts) == generations + 1


async def test_suspend_drains_to_zero_and_keeps_object_and_status() -> None:
    cluster, key = await serving(2)
    cluster.edit_spec(key, suspend=True)
    await cluster.advance(10)
    assert cluster.pods() == []
    assert cluster.reason(key, "Ready") == ("True", "Suspended")
    assert cluster.status(key)["memory"]
    cluster.edit_spec(key, suspend=False)
    await cluster.run()
    assert cluster.status(key)["readyReplicas"] == 2


async def test_zero_replicas_are_a_state_of_their_own() -> None:
    cluster, key = await serving(1)
    cluster.edit_spec(key, replicas=0)
    await cluster.advance(10)
    assert cluster.reason(key, "Ready") == ("True", "ScaledToZero")
    assert cluster.reason(key, "Placed") == ("True", "NothingToPlace")
    assert cluster.status(key)["gpus"] == 0


# --- disruption budgets -----------------------------------------------------------------------------------------------


async def test_a_groups_budget_lives_from_warm_until_drained() -> None:
    cluster, key = await serving(1)
    (budget,) = cluster.objects(PDBS)
    (pod,) = cluster.pods()
    assert budget["spec"]["selector"]["matchLabels"] == {
        names.LABEL_GROUP: pod["metadata"]["labels"][names.LABEL_GROUP]
    }
    set_load(cluster, pod["metadata"]["name"], 1)
    cluster.edit_spec(key, replicas=0)
    await cluster.advance(5)
    assert len(cluster.objects(PDBS)) == 1, "running requests are still protected"
    set_load(cluster, pod["metadata"]["name"], 0)
    await cluster.advance(3)
    assert cluster.objects(PDBS) == []


async def test_a_failed_groups_budget_goes_and_its_successor_gets_its_own() -> None:
    cluster, _ = await serving(1)
    cluster.exit_engine(cluster.pod_names()[0])
    await cluster.settle()
    assert cluster.objects(PDBS) == []
    await cluster.advance(15)
    assert [b["metadata"]["name"] for b in cluster.objects(PDBS)] == [cluster.pod_names()[0].rsplit("-", 1)[0]]


# --- replacement ------------------------------------------------------------------------------------------------------

NEW_ENGINE: dict[str, Any] = {"image": "vllm/vllm-openai:v0.33.0", "maxModelLen": 8192}


def by_image(cluster: World) -> dict[str, set[str]]:
    images: dict[str, set[str]] = {}
    for pod in cluster.pods():
        images.setdefault(pod["spec"]["containers"][0]["image"][-7:], set()).add(pod["metadata"]["name"])
    return images


async def test_a_new_revision_replaces_groups_one_by_one_and_never_goes_below_the_floor() -> None:
    cluster, key = await serving(3, nodes=4)
    cluster.edit_spec(key, engine=NEW_ENGINE)
    seen: list[tuple[int, int]] = []
    said: set[str] = set()
    for _ in range(60):
        await cluster.settle()
        cluster.schedule()
        cluster.kubelets()
        status = cluster.status(key)
        seen.append((status["replicas"], len(ready_pods(cluster))))
        if status["conditions"] and cluster.reason(key, "Current") == ("False", "Replacing"):
            current = cluster.condition(key, "Current")
            assert current is not None
            assert "are to be replaced by revision" in current["message"]
        placed = cluster.condition(key, "Placed")
        said.add(placed["message"] if placed is not None and placed["status"] == "True" else "")
        await cluster.clock.advance(1)
    assert set(by_image(cluster)) == {"v0.33.0"}
    assert cluster.status(key)["readyReplicas"] == 3
    whole = "3 of 3 replicas have their whole GPU group"
    assert said == {"", whole, f"{whole}, and 1 more beside them"}
    assert max(total for total, _ in seen) == 4
    assert min(ready for _, ready in seen) == 3
    assert cluster.reason(key, "Current") == ("True", "Current")
    assert len(cluster.objects(CONTROLLER_REVISIONS)) == 2


async def test_a_replacement_without_room_for_one_more_says_what_it_waits_for() -> None:
    cluster, key = await serving(2, nodes=1)
    before = cluster.pod_names()
    cluster.edit_spec(key, engine=NEW_ENGINE)
    await cluster.advance(30)
    assert cluster.pod_names() == before
    assert cluster.reason(key, "Ready") == ("True", "Ready")
    assert cluster.reason(key, "Current") == ("False", "Replacing")
    current = cluster.condition(key, "Current")
    assert current is not None
    assert current["message"].startswith("2 of 2 replicas are to be replaced by revision ")
    assert "which waits: needs 1 node with 1 free" in current["message"]
    cluster.add_node("n9")
    await cluster.advance(30)
    assert set(by_image(cluster)) == {"v0.33.0"}


async def test_both_revisions_are_listed_while_both_serve() -> None:
    cluster, key = await serving(2)
    for pod in cluster.pod_names():
        set_load(cluster, pod, 1)
    cluster.edit_spec(key, engine=NEW_ENGINE)
    await cluster.run()
    revisions = cluster.status(key)["revisions"]
    assert len(revisions["serving"]) == 2
    assert revisions["target"] in revisions["serving"]


async def test_a_crash_looping_revision_never_costs_the_old_replicas() -> None:
    cluster, key = await serving(2)
    old = ready_pods(cluster)
    cluster.crashing_images.add(NEW_ENGINE["image"])
    cluster.edit_spec(key, engine=NEW_ENGINE)
    attempts = set()
    for _ in range(28):
        await cluster.advance(5)
        assert ready_pods(cluster) == old
        attempts |= by_image(cluster)["v0.33.0"]
    assert len(attempts) == 4, "at 0, 10, 30 and 70 of 140 seconds"
    assert cluster.reason(key, "Warm") == ("False", "EngineFailed")
    warm = cluster.condition(key, "Warm")
    assert warm is not None
    assert "code 3" in warm["message"]
    cluster.edit_spec(key, engine={"image": "vllm/vllm-openai:v0.32.0", "maxModelLen": 8192})
    await cluster.advance(10)
    assert ready_pods(cluster) == old
    assert set(by_image(cluster)) == {"v0.32.0"}
    assert cluster.reason(key, "Ready") == ("True", "Ready")


async def test_a_change_of_the_pod_template_replaces_groups_of_the_same_revision() -> None:
    cluster, key = await serving(2)
    before, revision = set(cluster.pod_names()), cluster.status(key)["revisions"]["target"]
    cluster.edit_spec(key, template={"sharedMemory": "4Gi"})
    await cluster.advance(20)
    assert not before & set(cluster.pod_names())
    assert cluster.status(key)["revisions"] == {
        "target": revision,
        "serving": [revision],
        "proven": [],
        "rejected": [],
    }
    assert len(cluster.objects(CONTROLLER_REVISIONS)) == 1


async def test_a_field_without_effect_on_pods_replaces_nothing() -> None:
    cluster, key = await serving(2)
    before = cluster.pod_names()
    cluster.edit_spec(key, warmup={"prompt": "Hello"}, placement={"spread": {"level": "host"}})
    await cluster.advance(20)
    assert cluster.pod_names() == before
    assert cluster.status(key)["observedGeneration"] == 2


async def test_a_spec_that_stops_fitting_keeps_what_serves() -> None:
    cluster, key = await serving(2)
    before = cluster.pod_names()
    cluster.edit_spec(key, engine={**NEW_ENGINE, "maxModelLen": 10_000_000})
    await cluster.advance(20)
    assert cluster.pod_names() == before
    assert cluster.reason(key, "MemoryFit") == ("False", "InsufficientMemory")
    assert cluster.status(key)["readyReplicas"] == 2


async def test_old_snapshots_are_dropped_beyond_a_bound() -> None:
    cluster, key = await serving(1)
    for number in range(14):
        cluster.edit_spec(key, engine={**NEW_ENGINE, "maxModelLen": 4096 + number})
        await cluster.advance(12)
    assert 11 <= len(cluster.objects(CONTROLLER_REVISIONS)) <= 12
    kept = {r["metadata"]["labels"][names.LABEL_REVISION] for r in cluster.objects(CONTROLLER_REVISIONS)}
    assert cluster.status(key)["revisions"]["target"] in kept


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_a_failed_engine_is_shown_through_its_pause_and_replaced_with_growing_ones() -> None:
    cluster, key = await serving(1)
    pauses = []
    for _ in range(3):
        (pod,) = cluster.pod_names()
        cluster.exit_engine(pod, code=137)
        await cluster.run()
        assert cluster.pod_names() == [pod]
        assert cluster.reason(key, "Warm") == ("False", "EngineFailed")
        warm = cluster.condition(key, "Warm")
        assert warm is not None
        assert warm["message"].endswith(f"exited with code 137 (Error); its log: kubectl logs -n team {pod}")
        assert cluster.reason(key, "Placed") == ("False", "Blocked")
        assert cluster.reason(key, "Ready") == ("False", "EngineFailed")
        start = cluster.clock.time()
        while cluster.pod_names() == [pod]:
            await cluster.advance(1)
        pauses.append(round(cluster.clock.time() - start))
        await cluster.run()
        assert cluster.status(key)["readyReplicas"] == 1
    assert pauses == [10, 20, 40]
    assert cluster.pod_names()[0].endswith("-0-3-0")


async def test_a_replica_that_served_long_enough_starts_its_pauses_over() -> None:
    cluster, key = await serving(1)
    for pause in (10, 20):
        cluster.exit_engine(cluster.pod_names()[0])
        await cluster.advance(pause + 2)
    await cluster.advance(600)
    cluster.exit_engine(cluster.pod_names()[0])
    await cluster.advance(12)
    assert cluster.status(key)["readyReplicas"] == 1


async def test_a_warm_up_past_its_deadline_fails_the_group_with_the_engines_words() -> None:
    cluster = World()
    cluster.add_node("n1")
    key = cluster.add_model(warmup={"loadDeadlineSeconds": 30, "deadlineSeconds": 5})
    await cluster.settle()
    cluster.schedule()
    cluster.kubelets()
    engine = cluster.engine.at[cluster.address(cluster.pod_names()[0])]
    engine.models = ("another",)
    await cluster.advance(29, run=False)
    assert cluster.reason(key, "Warm") == ("False", "WarmupRunning")
    await cluster.advance(3, run=False)
    assert cluster.reason(key, "Warm") == ("False", "WarmupFailed")
    warm = cluster.condition(key, "Warm")
    assert warm is not None
    assert "did not list llama within 30 s: it lists another" in warm["message"]
    await cluster.restart()
    await cluster.settle()
    assert cluster.reason(key, "Warm") == ("False", "WarmupFailed")
    await cluster.advance(12)
    assert cluster.status(key)["readyReplicas"] == 1
    assert cluster.pod_names()[0].endswith("-0-1-0")


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
async def test_an_image_that_cannot_be_pulled_is_said_so(reason: str) -> None:
    cluster = World()
    cluster.add_node("n1")
    key = cluster.add_model()
    await cluster.settle()
    cluster.schedule()

    def wait(pod: Any) -> None:
        waiting = {"waiting": {"reason": reason, "message": "manifest unknown"}}
        pod["status"]["containerStatuses"] = [{"name": "engine", "state": waiting}]

    cluster.edit_pod(cluster.pod_names()[0], wait)
    await cluster.settle()
    assert cluster.reason(key, "Warm") == ("False", "ImagePullError")
    warm = cluster.condition(key, "Warm")
    assert warm is not None
    assert f"{reason}: manifest unknown" in warm["message"]
