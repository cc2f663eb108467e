"""A candidate's way: through the stages with the same pods, or back by the name of its gate; restarts in between."""

import json
from typing import Any

import pytest

from bayplan.api import names
from bayplan.cluster.errors import ApiError
from bayplan.cluster.resources import INFERENCE_MODELS, PODS, RESOURCE_QUOTAS, ROLLOUTS, Key
from tests.reconcile.staging import NEW_ENGINE, STAGES, THIRD_ENGINE, Staging, delete_rollout, staged

pytestmark = pytest.mark.slow

OLD, NEW = "v0.32.0", "v0.33.0"


def phase(cluster: Staging, key: Key) -> str:
    return str(cluster.rollout(key).get("phase", ""))


def at_phase(cluster: Staging, key: Key, *wanted: str) -> Any:
    return lambda: phase(cluster, key) in wanted


async def begun(phase_name: str, **rollout: Any) -> tuple[Staging, Key, Key]:
    """A candidate that has just come to a phase."""
    cluster, model, key = await staged(**rollout)
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(200, until=at_phase(cluster, key, phase_name)), cluster.rollout(key)
    return cluster, model, key


# --- the good candidate -----------------------------------------------------------------------------------------------


async def test_the_first_revision_serves_as_not_proven() -> None:
    cluster, model, key = await staged()
    status = cluster.rollout(key)
    target = cluster.status(model)["revisions"]["target"]
    assert status["plan"] == {
        "epoch": 1,
        "serving": target,
        "weight": 0,
        "shadowShare": 0,
        "cohortSalt": "",
        "stableMin": 0,
        "candidateReplicas": 0,
        "baseline": [],
    }
    assert cluster.rollout_message(key, "Ready") == f"{target} serves, not proven"
    assert cluster.status(model)["revisions"]["serving"] == [target]


async def test_a_good_candidate_goes_through_all_stages_and_its_pods_stay() -> None:
    cluster, model, key = await begun("Canary")
    old, candidates = cluster.uids(OLD), cluster.uids(NEW)
    assert (len(old), len(candidates)) == (3, 2)
    assert cluster.reason(model, "Current") == ("False", "RolloutInProgress")
    assert cluster.status(model)["revisions"]["candidate"] == cluster.status(model)["revisions"]["target"]

    least = 99
    for _ in range(60):
        await cluster.flow(5)
        least = min(least, len(cluster.ready()))
        if phase(cluster, key) == "Steady":
            break
    assert phase(cluster, key) == "Steady"
    assert candidates < cluster.uids(NEW)
    assert (len(cluster.uids(NEW)), cluster.uids(OLD)) == (3, set())
    assert least >= 3, "the floor held while the rest was replaced"
    target = cluster.status(model)["revisions"]["target"]
    assert cluster.rollout(key)["proven"] == [target]
    assert cluster.status(model)["revisions"] == {
        "target": target,
        "serving": [target],
        "proven": [target],
        "rejected": [],
    }
    assert cluster.reason(model, "Current") == ("True", "Current")
    assert cluster.rollout_condition(key, "Ready") == ("True", "Current")
    assert [entry["to"] for entry in cluster.rollout(key)["history"]] == [
        "Paper",
        "warm",
        "shadow",
        "canary-20",
        "promote",
        "Steady",
    ]


async def test_a_candidate_gets_no_request_before_it_is_warm_and_none_above_its_weight() -> None:
    cluster, _, key = await staged()
    cluster.edit_spec(Key("team", "llama"), engine=NEW_ENGINE)
    assert await cluster.flow(200, until=at_phase(cluster, key, "Canary"))
    assert set(cluster.weights[:-1]) == {0}
    assert await cluster.flow(200, until=at_phase(cluster, key, "Steady"))
    assert cluster.weights == [0, 20, 0]


async def test_the_replaced_revision_is_kept_without_traffic_as_long_as_asked() -> None:
    cluster, model, key = await begun("Retained", retainSeconds=120, maxSurge=2)
    kept = cluster.uids(OLD)
    assert len(kept) == 2
    assert len(cluster.uids(NEW)) == 3
    assert cluster.rollout(key)["plan"].get("previous") is None
    assert cluster.status(model)["revisions"]["serving"] == [cluster.status(model)["revisions"]["target"]]
    await cluster.flow(100)
    assert cluster.uids(OLD) == kept
    await cluster.flow(40)
    assert cluster.uids(OLD) == set()
    assert phase(cluster, key) == "Steady"


async def test_at_rest_nothing_is_measured_and_nothing_written() -> None:
    cluster, _, key = await begun("Steady")
    await cluster.flow(20)
    reads, writes = cluster.counts.reads, cluster.api.write_count()
    await cluster.advance(120)
    assert phase(cluster, key) == "Steady"
    assert (cluster.counts.reads, cluster.api.write_count()) == (reads, writes)


# --- bad candidates ---------------------------------------------------------------------------------------------------


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


# --- people -----------------------------------------------------------------------------------------------------------


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
    cluster.edit_spec(model, engine={"image": f"vllm/vllm-openai:{OLD}", "maxModelLen": 8192})
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
    assert (len(cluster.uids("v0.34.0")), cluster.uids(OLD), cluster.uids(NEW)) == (3, set(), set())


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


# --- deletion, restart ------------------------------------------------------------------------------------------------


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
    assert len(cluster.uids("v0.34.0")) == 3


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


async def test_no_user_owned_field_is_changed_over_a_full_life() -> None:
    cluster, model, key = await staged()

    def owned() -> list[Any]:
        found = []
        for resource in (INFERENCE_MODELS, ROLLOUTS):
            for obj in cluster.api.objects(resource):
                meta = {name: obj["metadata"].get(name) for name in ("annotations", "labels", "finalizers")}
                found.append((obj["spec"], meta))
        return found

    cluster.edit_spec(model, engine=NEW_ENGINE)
    before = owned()
    assert await cluster.flow(400, until=at_phase(cluster, key, "Steady"))
    assert owned() == before


# --- bad input --------------------------------------------------------------------------------------------------------


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


async def test_pods_of_a_revision_that_the_plan_does_not_name_leave() -> None:
    cluster, _, key = await begun("Canary")
    names_seen = {pod["metadata"]["labels"][names.LABEL_REVISION] for pod in cluster.pods()}
    plan = cluster.rollout(key)["plan"]
    assert names_seen == {plan["serving"], plan["candidate"]}
    assert {obj["metadata"]["namespace"] for obj in cluster.api.objects(PODS)} == {"team", "system"}


# --- what others read -------------------------------------------------------------------------------------------------


def kstatus(status: dict[str, Any], *, generation: int) -> str:
    """What kstatus and Argo CD make of a status."""
    conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
    if conditions.get("Stalled") == "True":
        return "Failed"
    behind = status.get("observedGeneration") != generation
    if behind or conditions.get("Reconciling") == "True" or conditions.get("Ready") == "False":
        return "InProgress"
    return "Current" if conditions.get("Ready") == "True" else "InProgress"


async def test_a_trial_is_in_progress_for_gitops_tools_until_it_is_over() -> None:
    cluster, model, key = await staged()
    cluster.edit_spec(model, engine=NEW_ENGINE)
    seen: list[tuple[str, str]] = []
    for _ in range(60):
        await cluster.flow(5)
        now = kstatus(cluster.status(model), generation=2), kstatus(cluster.rollout(key), generation=1)
        if seen[-1:] != [now]:
            seen.append(now)
        if phase(cluster, key) == "Steady":
            break
    await cluster.flow(5)
    assert seen[0] == ("InProgress", "InProgress")
    assert (kstatus(cluster.status(model), generation=2), kstatus(cluster.rollout(key), generation=1)) == (
        "Current",
        "Current",
    )
    assert all("Failed" not in pair for pair in seen)


async def test_a_rejected_revision_is_failed_for_gitops_tools_until_the_spec_changes() -> None:
    cluster, model, key = await staged()
    cluster.bad_images[NEW_ENGINE["image"]] = "errors"
    cluster.edit_spec(model, engine=NEW_ENGINE)
    assert await cluster.flow(300, until=at_phase(cluster, key, "RolledBack"))
    await cluster.flow(5)
    assert (kstatus(cluster.status(model), generation=2), kstatus(cluster.rollout(key), generation=1)) == (
        "Failed",
        "Failed",
    )
    cluster.edit_spec(model, engine={"image": f"vllm/vllm-openai:{OLD}", "maxModelLen": 8192})
    await cluster.flow(10)
    assert (kstatus(cluster.status(model), generation=3), kstatus(cluster.rollout(key), generation=1)) == (
        "Current",
        "Current",
    )


async def test_each_change_of_stage_is_one_event() -> None:
    cluster, _, key = await begun("Steady")
    events = [e for e in cluster.operator.events.emitted if e.reason == "Advanced"]
    assert [event.message.split(": ")[1] for event in events] == [
        entry["to"] for entry in cluster.rollout(key)["history"]
    ]
    assert not any(event.warning for event in events)


# --- capacity ---------------------------------------------------------------------------------------------------------


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


async def test_a_promoted_revision_that_gets_worse_is_called_back_by_its_gate() -> None:
    cluster, model, key = await begun("Retained", retainSeconds=300)
    cluster.bad_images[NEW_ENGINE["image"]] = "errors"
    assert await cluster.flow(200, until=at_phase(cluster, key, "RolledBack")), cluster.rollout(key)
    assert cluster.rollout(key)["cause"]["message"].startswith("error-rate")
    await cluster.flow(60)
    assert (len(cluster.uids(OLD)), cluster.uids(NEW)) == (3, set())
    assert len(cluster.ready()) == 3
    assert cluster.reason(model, "Current") == ("False", "RevisionRejected")


async def test_a_lost_serving_replica_is_made_again_from_the_snapshot_during_a_trial() -> None:
    cluster, _, key = await begun("Canary", stages=[*STAGES[:2], STAGES[2] | {"bakeSeconds": 100}, STAGES[3]])
    cluster.exit_engine(cluster.by_image(OLD)[0]["metadata"]["name"])
    await cluster.flow(15)
    assert phase(cluster, key) == "Canary"
    old = [pod for pod in cluster.by_image(OLD) if pod["status"]["phase"] == "Running"]
    assert len(old) == 3
    assert {pod["spec"]["containers"][0]["image"][-7:] for pod in old} == {OLD}


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


# --- proof of a rollback ----------------------------------------------------------------------------------------------


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
