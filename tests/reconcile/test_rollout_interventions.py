"""What people do in the middle of a trial: abort, revert, go on to a third revision, approve, retry, suspend."""

import pytest

from tests.reconcile.staging import (
    NEW,
    NEW_ENGINE,
    OLD,
    OLD_ENGINE,
    STAGES,
    THIRD,
    THIRD_ENGINE,
    at_phase,
    begun,
    staged,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stage", ["Warm", "Shadow", "Canary"])
async def test_an_abort_takes_the_traffic_away_in_every_stage(stage: str) -> None:
    cluster, model, key = await begun(stage)
    cluster.edit_rollout(key, abort=cluster.status(model)["revisions"]["target"])
    await cluster.flow(5)
    assert cluster.rollout(key)["plan"]["weight"] == 0
    assert await cluster.flow(120, until=at_phase(cluster, key, "RolledBack"))
    assert cluster.rollout(key)["cause"]["reason"] == "Aborted"


@pytest.mark.parametrize("stage", ["Warm", "Shadow", "Canary"])
async def test_going_back_to_what_serves_ends_the_trial_at_once(stage: str) -> None:
    cluster, model, key = await begun(stage)
    serving = cluster.uids(OLD)
    cluster.edit_spec(model, engine=OLD_ENGINE)
    assert await cluster.flow(120, until=at_phase(cluster, key, "Steady"))
    await cluster.flow(20)
    assert (cluster.uids(OLD), cluster.uids(NEW)) == (serving, set())
    assert cluster.rollout(key)["rejected"] == []


@pytest.mark.parametrize("stage", ["Warm", "Canary"])
async def test_a_third_revision_drops_the_candidate_and_keeps_what_serves(stage: str) -> None:
    cluster, model, key = await begun(stage)
    serving = cluster.uids(OLD)
    cluster.edit_spec(model, engine=THIRD_ENGINE)
    await cluster.flow(10)
    assert cluster.uids(OLD) == serving
    assert await cluster.flow(400, until=at_phase(cluster, key, "Steady"))
    await cluster.flow(20)
    assert (len(cluster.uids(THIRD)), cluster.uids(OLD), cluster.uids(NEW)) == (3, set(), set())


async def test_an_approval_is_waited_for_and_taken() -> None:
    stages = [*STAGES[:-1], STAGES[-1] | {"approval": True}]
    cluster, model, key = await begun("Canary", stages=stages)
    await cluster.flow(60)
    assert cluster.rollout_condition(key, "Progressing") == ("False", "AwaitingApproval")
    target = cluster.status(model)["revisions"]["target"]
    cluster.edit_rollout(key, approvals=[{"revision": target, "stage": "promote"}])
    assert await cluster.flow(200, until=at_phase(cluster, key, "Steady"))


async def test_a_retry_tries_a_rejected_revision_again() -> None:
    cluster, model, key = await staged()
    cluster.bad_images[NEW_ENGINE["image"]] = "errors"
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(300, until=at_phase(cluster, key, "RolledBack"))
    cluster.bad_images.clear()
    cluster.edit_rollout(key, retry="again")
    assert await cluster.flow(400, until=at_phase(cluster, key, "Steady"))
    assert cluster.rollout_condition(key, "Ready") == ("True", "Current")
    assert cluster.reason(model, "Current") == ("True", "Current")


async def test_a_suspended_model_runs_nothing_on_trial_either_and_goes_on_afterwards() -> None:
    cluster, model, key = await begun("Canary")
    cluster.edit_spec(model, suspend=True)
    await cluster.flow(20)
    assert cluster.pods() == []
    assert cluster.rollout(key)["plan"]["weight"] == 0
    cluster.edit_spec(model, suspend=False)
    assert await cluster.flow(300, until=at_phase(cluster, key, "Steady")), cluster.rollout(key)
    await cluster.flow(20)
    assert len(cluster.uids(NEW)) == 3
