"""A bad candidate: back by the name of its gate, or held by the name of its trouble; serving never notices."""

import json

import pytest

from tests.reconcile.staging import NEW, NEW_ENGINE, OLD, STAGES, at_phase, begun, phase, staged

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("trouble", "gate"), [("ttft", "ttft"), ("tpot", "tpot"), ("errors", "error-rate")])
async def test_a_bad_candidate_loses_its_traffic_by_the_name_of_its_gate_and_that_is_proven(
    trouble: str, gate: str
) -> None:
    cluster, model, key = await staged()
    serving = cluster.uids(OLD)
    cluster.bad_images[NEW_ENGINE["image"]] = trouble
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(300, until=at_phase(cluster, key, "RollingBack"))
    status = cluster.rollout(key)
    assert (status["plan"]["weight"], status["plan"]["shadowShare"]) == (0, 0)
    assert status["cause"]["reason"] == "GateFailed"
    assert status["cause"]["message"].startswith(gate)
    assert [g["name"] for g in status["gates"] if g["outcome"] == "Failed"] == [gate]

    assert await cluster.flow(120, until=at_phase(cluster, key, "RolledBack"))
    await cluster.flow(20)
    proof = cluster.rollout(key)["proof"]
    assert set(proof) >= {"sinceTime", "acknowledgedTime", "drainedTime", "restoredTime", "answeredTime"}
    assert cluster.rollout_condition(key, "RollbackProven") == ("True", "Proven")
    assert cluster.rollout_condition(key, "Stalled") == ("True", "RevisionRejected")
    assert gate in cluster.rollout_message(key, "Ready")
    assert cluster.uids(OLD) == serving
    assert cluster.uids(NEW) == set()
    assert cluster.reason(model, "Current") == ("False", "RevisionRejected")
    assert cluster.reason(model, "Stalled") == ("True", "RevisionRejected")
    assert cluster.reason(model, "Ready") == ("True", "Ready")
    (rejected,) = cluster.status(model)["revisions"]["rejected"]
    assert rejected["reason"] == "GateFailed"

    version = cluster.api.write_count()
    await cluster.advance(200)
    assert cluster.api.write_count() == version, "the rejected spec stays in Git, and nothing fights it"


async def test_a_candidate_whose_answers_are_worse_is_rolled_back_by_quality() -> None:
    asked = [{"name": name, "prompt": f"{name}?", "check": {"exact": "yes"}} for name in ("a", "b")]
    gates = [{"name": "quality-drop", "limit": 0.1}]
    cluster, model, key = await staged(promptSet={"name": "prompts"}, gates=gates)
    cluster.add_config_map("prompts", prompts=json.dumps(asked))
    cluster.prompts.right = {pod["status"]["podIP"] for pod in cluster.by_image(OLD)}
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(200, until=at_phase(cluster, key, "RollingBack", "RolledBack")), cluster.rollout(key)
    assert cluster.rollout(key)["cause"]["message"].startswith("quality-drop")
    assert {one["passed"] for one in cluster.rollout(key)["quality"]} == {0, 2}


async def test_answers_of_a_trial_that_waits_are_asked_for_again_before_they_are_too_old() -> None:
    asked = [{"name": name, "prompt": f"{name}?", "check": {"exact": "yes"}} for name in ("a", "b")]
    gates = [{"name": "quality-drop", "limit": 0.1}]
    stages = [STAGES[0], STAGES[2], STAGES[3] | {"approval": True}]
    cluster, model, key = await staged(
        promptSet={"name": "prompts"}, gates=gates, stages=stages, maxQualityAgeSeconds=60
    )
    cluster.add_config_map("prompts", prompts=json.dumps(asked))
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(
        200, until=lambda: cluster.rollout_condition(key, "Progressing") == ("False", "AwaitingApproval")
    )
    for _ in range(30):
        await cluster.flow(5)
        assert cluster.rollout_condition(key, "Progressing") == ("False", "AwaitingApproval")
        assert cluster.rollout_condition(key, "GatesPassed") == ("True", "AllPassed")

    cluster.prompts.right = {pod["status"]["podIP"] for pod in cluster.by_image(OLD)}
    assert await cluster.flow(60, until=at_phase(cluster, key, "RollingBack", "RolledBack"))


async def test_a_crash_loop_holds_by_its_own_name_and_never_touches_serving() -> None:
    cluster, model, key = await staged(onDeadline="Rollback")
    serving = cluster.uids(OLD)
    cluster.crashing_images.add(NEW_ENGINE["image"])
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(60, until=at_phase(cluster, key, "Warm"))
    await cluster.flow(30)
    assert cluster.rollout_condition(key, "CandidateWarm") == ("False", "CandidateTrouble")
    assert "code 3" in cluster.rollout_message(key, "CandidateWarm")
    cluster.crashing_images.clear()
    cluster.dead_nodes |= {"n1", "n2", "n3", "n4"}  # the next attempt stands there and does not start
    await cluster.flow(60)
    assert cluster.rollout_condition(key, "CandidateWarm") == ("False", "CandidateTrouble")
    assert "is tried again: " in cluster.rollout_message(key, "CandidateWarm")
    cluster.dead_nodes.clear()
    cluster.crashing_images.add(NEW_ENGINE["image"])
    assert cluster.reason(model, "Ready") == ("True", "Ready")
    assert cluster.reason(model, "Warm") == ("True", "Warm")
    assert await cluster.flow(400, until=at_phase(cluster, key, "RolledBack"))
    assert cluster.rollout(key)["cause"]["reason"] == "DeadlineExceeded"
    assert cluster.uids(OLD) == serving
    await cluster.flow(30)
    assert cluster.by_image(NEW) == []


async def test_a_stage_that_outlasts_its_deadline_pauses_until_a_retry() -> None:
    cluster, _, key = await begun("Shadow")
    cluster.requests_per_pod = 0
    await cluster.flow(340)
    assert cluster.rollout_condition(key, "Progressing") == ("False", "DeadlineExceeded")
    assert cluster.rollout_condition(key, "Stalled") == ("True", "DeadlineExceeded")
    cluster.requests_per_pod = 20
    cluster.edit_rollout(key, retry="1")
    assert await cluster.flow(300, until=at_phase(cluster, key, "Steady"))


async def test_a_promoted_revision_that_gets_worse_is_called_back_by_its_gate() -> None:
    cluster, model, key = await begun("Retained", retainSeconds=300)
    cluster.bad_images[NEW_ENGINE["image"]] = "errors"
    assert await cluster.flow(200, until=at_phase(cluster, key, "RolledBack")), cluster.rollout(key)
    assert cluster.rollout(key)["cause"]["message"].startswith("error-rate")
    await cluster.flow(60)
    assert (len(cluster.uids(OLD)), cluster.uids(NEW)) == (3, set())
    assert len(cluster.ready()) == 3
    assert cluster.reason(model, "Current") == ("False", "RevisionRejected")


async def test_evidence_in_doubt_holds_and_says_why() -> None:
    cluster, _, key = await begun("Canary")
    cluster.counts.silent.add("g0")
    await cluster.flow(60)
    assert phase(cluster, key) == "Canary"
    assert cluster.rollout_condition(key, "EvidenceComparable") == ("False", "EvidenceInDoubt")
    cluster.counts.silent.clear()
    assert await cluster.flow(200, until=at_phase(cluster, key, "Steady"))


async def test_nothing_goes_on_while_a_gateway_does_not_acknowledge() -> None:
    cluster, _, key = await begun("Warm")
    cluster.acknowledging = False
    await cluster.flow(60)
    assert phase(cluster, key) == "Shadow"
    held = [hold["reason"] for hold in cluster.rollout(key)["holds"]]
    assert "PlanNotAcknowledged" in held
