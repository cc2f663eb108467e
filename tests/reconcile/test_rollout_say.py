"""Which Rollout has the say over a model, and what is refused or waited for before a GPU is touched."""

import pytest

from tests.reconcile.staging import NEW, NEW_ENGINE, OLD, Staging, delete_rollout, phase, staged

pytestmark = pytest.mark.slow


async def test_of_two_rollouts_on_one_model_the_older_wins_and_the_newer_says_so() -> None:
    cluster, model, key = await staged()
    await cluster.advance(2)
    second = cluster.add_rollout("second")
    await cluster.flow(10)
    assert cluster.rollout_condition(second, "Accepted") == ("False", "AnotherRollout")
    assert "plan" not in cluster.rollout(second)
    assert cluster.rollout_condition(key, "Ready") == ("True", "Current")
    delete_rollout(cluster, key)
    await cluster.flow(10)
    assert cluster.rollout_condition(second, "Ready") == ("True", "Current")
    assert cluster.rollout(second)["plan"]["serving"] == cluster.status(model)["revisions"]["target"]


async def test_a_rollout_waits_for_its_model() -> None:
    cluster = Staging()
    key = cluster.add_rollout()
    await cluster.flow(5)
    assert cluster.rollout_condition(key, "Ready") == ("False", "ModelNotFound")
    assert cluster.rollout_condition(key, "Reconciling") == ("True", "ModelNotFound")
    cluster.add_model(replicas=1, update="Rollout")
    await cluster.flow(10)
    assert cluster.rollout_condition(key, "Ready") == ("True", "Current")


async def test_a_rollout_has_no_say_over_a_model_that_replaces_plainly() -> None:
    cluster = Staging()
    model, key = cluster.add_model(replicas=1), cluster.add_rollout()
    await cluster.flow(10)
    assert cluster.rollout_condition(key, "Ready") == ("False", "ModelReplacesPlainly")
    cluster.edit_spec(model, engine=NEW_ENGINE)
    await cluster.flow(60)
    assert len(cluster.uids(NEW)) == 1


async def test_a_model_with_rollouts_asked_for_and_none_there_holds_what_serves() -> None:
    cluster = Staging()
    model = cluster.add_model(replicas=2, update="Rollout")
    await cluster.flow(10)
    serving = cluster.uids(OLD)
    cluster.edit_spec(model, engine=NEW_ENGINE)
    await cluster.flow(30)
    assert cluster.uids(OLD) == serving
    assert cluster.reason(model, "Current") == ("False", "WaitingForRollout")
    assert cluster.reason(model, "Reconciling") == ("True", "WaitingForRollout")
    # A pod of the revision that serves is replaced by one of the same.
    victim = cluster.by_image(OLD)[0]["metadata"]["name"]
    cluster.exit_engine(victim)
    await cluster.flow(30)
    assert len(cluster.by_image(OLD)) == 2


async def test_gates_that_nothing_can_judge_are_named_before_a_gpu_is_touched() -> None:
    cluster, model, key = await staged(gates=[{"name": "ttft", "limit": 0.7}])
    cluster.edit_spec(model, engine=NEW_ENGINE)
    await cluster.flow(20)
    assert phase(cluster, key) == "Paper"
    assert cluster.rollout_condition(key, "Progressing") == ("False", "GateInvalid")
    assert "0.7 s is no edge of the gateways' histogram; the nearest are 0.5 and 1" in cluster.rollout_message(
        key, "Progressing"
    )
    assert cluster.uids(NEW) == set()


async def test_a_prompt_set_that_does_not_exist_is_named() -> None:
    gates = [{"name": "quality-floor", "limit": 0.5}]
    cluster, model, key = await staged(gates=gates, promptSet={"name": "nowhere"})
    cluster.edit_spec(model, engine=NEW_ENGINE)
    await cluster.flow(20)
    assert "ConfigMap nowhere does not exist" in cluster.rollout_message(key, "Progressing")


async def test_a_candidate_of_other_weights_brings_measurements_or_touches_no_gpu() -> None:
    cluster, model, key = await staged(measurements={"name": "measured"})
    cluster.edit_spec(model, engine={**NEW_ENGINE, "kvCacheDtype": "fp8"})
    await cluster.flow(20)
    assert cluster.rollout_condition(key, "Progressing") == ("True", "PaperMissing")
    assert "ConfigMap measured does not exist" in cluster.rollout_message(key, "Progressing")
    assert cluster.uids(NEW) == set()
