"""The proof of a rollback: what it waits for, and what stands in no way back."""

import json

import pytest

from bayplan.cluster.errors import ApiError
from tests.reconcile.staging import NEW, NEW_ENGINE, OLD, THIRD_ENGINE, at_phase, begun, phase, staged

pytestmark = pytest.mark.slow


async def test_without_clients_an_answer_of_our_own_proves_that_serving_answers() -> None:
    cluster, model, key = await begun("Canary")
    cluster.requests_per_pod = 0
    cluster.edit_rollout(key, abort=cluster.status(model)["revisions"]["target"])
    assert await cluster.flow(120, until=at_phase(cluster, key, "RolledBack"))
    assert cluster.rollout(key)["proof"]["answeredTime"]


async def test_a_serving_replica_that_does_not_answer_leaves_the_proof_open_and_a_fix_may_begin() -> None:
    cluster, model, key = await begun("Canary")
    cluster.requests_per_pod = 0
    for pod in cluster.by_image(OLD):
        cluster.engine.at[pod["status"]["podIP"]].generation_error = "no answer"
    cluster.edit_rollout(key, abort=cluster.status(model)["revisions"]["target"])
    await cluster.flow(60)
    assert phase(cluster, key) == "RollingBack"
    assert cluster.rollout(key)["proof"]["missing"] == ["serving has answered no request since"]
    assert cluster.rollout_condition(key, "RollbackProven") == ("False", "ProvingRollback")
    cluster.edit_spec(model, engine=THIRD_ENGINE)
    assert await cluster.flow(60, until=at_phase(cluster, key, "Warm"))


@pytest.mark.parametrize("shown", ["gateway", "engine", "nothing"])
async def test_the_candidates_pods_stay_while_a_request_may_be_under_way_there(shown: str) -> None:
    cluster, model, key = await begun("Canary")
    candidates = cluster.by_image(NEW)
    uid, address = candidates[0]["metadata"]["uid"], candidates[0]["status"]["podIP"]
    if shown == "gateway":
        cluster.counts.running[uid] = 1
    elif shown == "engine":
        cluster.engine.at[address].running = 1
    else:
        cluster.engine.at[address].load_error = "/metrics answered 500"
    cluster.edit_rollout(key, abort=cluster.status(model)["revisions"]["target"])
    await cluster.flow(60)
    assert phase(cluster, key) == "RollingBack"
    assert cluster.uids(NEW) == {pod["metadata"]["uid"] for pod in candidates}
    assert "drainedTime" not in cluster.rollout(key)["proof"]
    cluster.counts.running.clear()
    cluster.engine.at[address].running = 0
    cluster.engine.at[address].load_error = ""
    assert await cluster.flow(120, until=at_phase(cluster, key, "RolledBack"))
    await cluster.flow(20)
    assert cluster.uids(NEW) == set()


async def test_a_prompt_set_that_cannot_be_read_stands_in_no_way_back() -> None:
    gates = [{"name": "quality-floor", "limit": 0.5}]
    cluster, model, key = await staged(gates=gates, promptSet={"name": "prompts"})
    asked = [{"name": name, "prompt": name, "check": {"exact": "yes"}} for name in ("a", "b")]
    cluster.add_config_map("prompts", prompts=json.dumps(asked))
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(200, until=at_phase(cluster, key, "Canary"))
    for _ in range(20):
        cluster.api.fail_next("get", "configmaps", ApiError("the server is away"))
    await cluster.restart()
    cluster.edit_rollout(key, abort=cluster.status(model)["revisions"]["target"])
    assert await cluster.flow(60, until=at_phase(cluster, key, "RollingBack", "RolledBack"))
