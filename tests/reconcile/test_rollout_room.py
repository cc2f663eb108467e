"""Room for a candidate: before anything starts, by draining, within quotas; and what serves while it is on trial."""

import pytest

from bayplan.cluster.resources import RESOURCE_QUOTAS
from tests.reconcile.staging import NEW, NEW_ENGINE, OLD, STAGES, at_phase, begun, phase, staged

pytestmark = pytest.mark.slow


async def test_a_candidate_that_does_not_fit_starts_nothing_and_says_what_is_missing() -> None:
    cluster, model, key = await staged(replicas=3, nodes=2, capacity="Surge")
    before = cluster.pod_names()
    cluster.edit_spec(model, engine=NEW_ENGINE)
    await cluster.flow(30)
    assert phase(cluster, key) == "Paper"
    assert cluster.rollout_condition(key, "SurgeFits") == ("False", "SurgeDoesNotFit")
    message = cluster.rollout_message(key, "SurgeFits")
    assert "2 candidate replicas needed at the peak, 1 placeable, 1 missing" in message
    assert "choices: free or add room for 1 group" in message
    assert cluster.pod_names() == before
    cluster.add_node("n9")
    assert await cluster.flow(60, until=at_phase(cluster, key, "Warm"))


async def test_a_quota_that_leaves_too_little_for_the_candidate_is_named() -> None:
    cluster, model, key = await staged(replicas=2, capacity="Surge")
    hard = {"requests.nvidia.com/gpu": "3"}
    meta = {"namespace": "team", "name": "gpus"}
    used = {"requests.nvidia.com/gpu": "2"}
    cluster.api.seed(
        RESOURCE_QUOTAS, {"metadata": meta, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}}
    )
    cluster.edit_spec(model, engine=NEW_ENGINE)
    await cluster.flow(15)
    assert cluster.rollout_condition(key, "SurgeFits") == ("False", "SurgeDoesNotFit")
    assert "quota gpus: requests.nvidia.com/gpu" in cluster.rollout_message(key, "SurgeFits")


async def test_drain_first_makes_room_down_to_the_floor_and_never_below() -> None:
    cluster, model, key = await staged(replicas=4, nodes=2, capacity="DrainFirst", minReady=2)
    cluster.edit_spec(model, engine=NEW_ENGINE)
    least = 99
    for _ in range(80):
        await cluster.flow(5)
        least = min(least, len(cluster.ready()))
        if phase(cluster, key) == "Steady":
            break
    assert phase(cluster, key) == "Steady", cluster.rollout(key)
    assert 2 <= least < 4, "serving replicas made room, and not more than they may"
    assert (len(cluster.uids(NEW)), cluster.uids(OLD)) == (4, set())


async def test_a_floor_of_zero_lets_the_candidate_answer_alone_and_is_named_as_downtime() -> None:
    stages = [STAGES[0], STAGES[2], STAGES[3]]
    waived = ["SingleReplica", "NoBaseline"]
    cluster, model, key = await staged(
        replicas=1, nodes=1, gpus=1, capacity="DrainFirst", minReady=0, waivers=waived, stages=stages, maxSurge=1
    )
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(60, until=at_phase(cluster, key, "Warm"))
    assert cluster.rollout_condition(key, "SurgeFits") == ("True", "DrainsFirst")
    assert "downtime until the candidate is warm" in cluster.rollout_message(key, "SurgeFits")
    assert await cluster.flow(300, until=at_phase(cluster, key, "Steady")), cluster.rollout(key)
    assert (len(cluster.uids(NEW)), cluster.uids(OLD)) == (1, set())


async def test_a_lost_serving_replica_is_made_again_from_the_snapshot_during_a_trial() -> None:
    cluster, _, key = await begun("Canary", stages=[*STAGES[:2], STAGES[2] | {"bakeSeconds": 100}, STAGES[3]])
    cluster.exit_engine(cluster.by_image(OLD)[0]["metadata"]["name"])
    await cluster.flow(15)
    assert phase(cluster, key) == "Canary"
    old = [pod for pod in cluster.by_image(OLD) if pod["status"]["phase"] == "Running"]
    assert len(old) == 3
    assert {pod["spec"]["containers"][0]["image"][-7:] for pod in old} == {OLD}


async def test_serving_does_not_shrink_while_a_candidate_is_held_and_grows_with_demand() -> None:
    stages = [*STAGES[:2], STAGES[2] | {"bakeSeconds": 100}, STAGES[3]]
    cluster, model, key = await begun("Canary", stages=stages)
    cluster.edit_spec(model, replicas=1)
    await cluster.flow(20)
    assert phase(cluster, key) == "Canary"
    assert (len(cluster.uids(OLD)), len(cluster.uids(NEW))) == (3, 2)
    assert cluster.status(model)["desiredReplicas"] == 1
    cluster.edit_spec(model, replicas=4)
    await cluster.flow(20)
    assert (len(cluster.uids(OLD)), len(cluster.uids(NEW))) == (4, 2)
    cluster.edit_spec(model, replicas=1)
    assert await cluster.flow(300, until=at_phase(cluster, key, "Steady"))
    await cluster.flow(20)
    assert (cluster.uids(OLD), len(cluster.uids(NEW))) == (set(), 1)
