"""Rollout, model or operator that go and come back in the middle of a trial."""

from typing import Any

import pytest

from bayplan.cluster.resources import INFERENCE_MODELS
from tests.reconcile.staging import NEW, NEW_ENGINE, OLD, THIRD, THIRD_ENGINE, at_phase, begun, delete_rollout, staged

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stage", ["Warm", "Shadow", "Canary"])
async def test_deleting_the_rollout_mid_way_abandons_the_candidate_for_good(stage: str) -> None:
    cluster, model, key = await begun(stage)
    serving = cluster.uids(OLD)
    delete_rollout(cluster, key)
    await cluster.flow(60)
    assert (cluster.uids(OLD), cluster.uids(NEW)) == (serving, set())
    (rejected,) = cluster.status(model)["revisions"]["rejected"]
    assert rejected["reason"] == "RolloutDeleted"
    assert cluster.reason(model, "Current") == ("False", "RevisionRejected")
    cluster.edit_spec(model, update="Replace")
    await cluster.flow(30)
    assert (cluster.uids(OLD), cluster.uids(NEW)) == (serving, set()), "never plainly replaced to"
    cluster.edit_spec(model, engine=THIRD_ENGINE)
    await cluster.flow(120)
    assert len(cluster.uids(THIRD)) == 3


async def test_a_new_rollout_knows_what_an_earlier_one_left_behind() -> None:
    cluster, model, key = await begun("Canary")
    delete_rollout(cluster, key)
    again = cluster.add_rollout("second")
    await cluster.flow(60)
    (rejected,) = cluster.rollout(again)["rejected"]
    assert (rejected["revision"], rejected["reason"]) == (
        cluster.status(model)["revisions"]["target"],
        "RolloutDeleted",
    )
    assert cluster.uids(NEW) == set()


@pytest.mark.parametrize("stage", ["Paper", "Warm", "Shadow", "Canary", "Replacing", "Retained", "RollingBack"])
async def test_a_restarted_operator_goes_on_where_the_status_says(stage: str) -> None:
    changes: dict[str, Any] = {"retainSeconds": 60} if stage == "Retained" else {}
    cluster, model, key = await staged(**changes)
    if stage == "RollingBack":
        cluster.bad_images[NEW_ENGINE["image"]] = "errors"
    cluster.edit_spec(model, engine=NEW_ENGINE)
    if stage == "Paper":
        cluster.edit_rollout(key, paused=True)
    if stage == "Paper":
        await cluster.flow(10)
        cluster.edit_rollout(key, paused=False)
        await cluster.settle()
    else:
        assert await cluster.flow(400, until=at_phase(cluster, key, stage))
    before = cluster.rollout(key)
    await cluster.restart()
    await cluster.settle()
    after = cluster.rollout(key)
    assert after["plan"]["serving"] == before["plan"]["serving"]
    assert after["attempt"] == before["attempt"]
    end = "RolledBack" if stage == "RollingBack" else "Steady"
    assert await cluster.flow(400, until=at_phase(cluster, key, end)), cluster.rollout(key)
    await cluster.flow(20)
    assert len(cluster.uids(OLD if stage == "RollingBack" else NEW)) == 3


async def test_a_model_that_is_made_anew_begins_anew() -> None:
    cluster, model, key = await begun("Canary")
    cluster.acknowledging = False  # what the Lease says stays as it was
    known = cluster.rollout(key)["plan"]["epoch"]
    cluster.api.remove(INFERENCE_MODELS, model)
    cluster.api.collect_garbage()
    await cluster.flow(10)
    assert cluster.rollout_condition(key, "Ready") == ("False", "ModelNotFound")
    assert "plan" not in cluster.rollout(key)
    cluster.add_model(replicas=1, update="Rollout")
    await cluster.flow(15)
    assert cluster.rollout_condition(key, "Ready") == ("True", "Current")
    assert cluster.rollout(key)["plan"]["epoch"] > known, "no gateway can have acknowledged it"
