"""What the API server, other writers and bad input do to a model."""

from collections.abc import Callable
from typing import Any

import pytest

from bayplan.api import names
from bayplan.cluster.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from bayplan.cluster.resources import PODS, RESOURCE_QUOTAS, SERVICES, Key, Resource
from bayplan.reconcile.inferencemodel.reserve import MOST_NAMES_TRIED, QUOTA_RETRY_SECONDS
from bayplan.reconcile.inferencemodel.statuswriter import PROGRESS_SECONDS
from tests.reconcile.world import NAMESPACE, TWO_NODES, World

Json = dict[str, Any]


def world(*, nodes: int = 2) -> World:
    found = World()
    for number in range(1, nodes + 1):
        found.add_node(f"n{number}")
    return found


def message(cluster: World, key: Key, kind: str) -> str:
    found = cluster.condition(key, kind)
    return found["message"] if found else ""


def refuse_rank(rank: int, error: ApiError) -> Callable[[str, Resource, Json], ApiError | None]:
    def refuse(verb: str, resource: Resource, obj: Json) -> ApiError | None:
        wanted = verb == "create" and resource is PODS and obj["metadata"]["labels"][names.LABEL_RANK] == str(rank)
        return error if wanted else None

    return refuse


QUOTA = Forbidden('pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1')


# --- admission --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
async def test_quota_on_any_rank_takes_the_whole_group_and_says_so(rank: int) -> None:
    cluster = world()
    key = cluster.add_model(**TWO_NODES)
    cluster.api.refuse = refuse_rank(rank, QUOTA)
    await cluster.run()
    assert cluster.pods() == []
    assert cluster.reason(key, "Placed") == ("False", "QuotaExceeded")
    assert "exceeded quota: team" in message(cluster, key, "Placed")
    tries = len([entry for entry in cluster.writes() if entry[0] == "create" and entry[1] == "pods"])
    await cluster.advance(29)
    assert len([entry for entry in cluster.writes() if entry[0] == "create" and entry[1] == "pods"]) == tries
    cluster.api.refuse = None
    await cluster.advance(2)
    assert cluster.status(key)["readyReplicas"] == 1


async def test_another_refusal_is_told_in_the_servers_words() -> None:
    cluster = world()
    key = cluster.add_model()
    cluster.api.refuse = refuse_rank(0, Forbidden('pods "x" is forbidden: violates PodSecurity "restricted"'))
    await cluster.run()
    assert cluster.reason(key, "Placed") == ("False", "AdmissionDenied")
    assert 'violates PodSecurity "restricted"' in message(cluster, key, "Placed")
    cluster.api.refuse = refuse_rank(0, Invalid("spec.containers[0].image: Required value"))
    await cluster.advance(31)
    assert "Required value" in message(cluster, key, "Placed")


def quota(pods: int, *, used: int = 0) -> Json:
    status = {"hard": {"pods": str(pods)}, "used": {"pods": str(used)}}
    return {
        "metadata": {"namespace": NAMESPACE, "name": "team"},
        "spec": {"hard": {"pods": str(pods)}},
        "status": status,
    }


def only_engine_account(verb: str, resource: Resource, body: Json) -> ApiError | None:
    """Admission that knows one ServiceAccount."""
    if resource is PODS and verb == "create" and body["spec"].get("serviceAccountName") != "engine":
        return Forbidden("error looking up service account")
    return None


async def test_pods_that_were_refused_are_not_asked_for_again_at_once() -> None:
    cluster = world()
    key = cluster.add_model(template={"serviceAccountName": "nobody"})
    cluster.api.refuse = only_engine_account
    await cluster.run()
    tries = len([entry for entry in cluster.writes() if entry[:2] == ("create", "pods")])
    cluster.edit_spec(key, replicas=2)  # the same pods, only more of them
    await cluster.advance(QUOTA_RETRY_SECONDS - 1)
    assert len([entry for entry in cluster.writes() if entry[:2] == ("create", "pods")]) == tries
    assert cluster.reason(key, "Placed") == ("False", "AdmissionDenied")
    await cluster.advance(2)
    assert len([entry for entry in cluster.writes() if entry[:2] == ("create", "pods")]) > tries


async def test_a_corrected_spec_does_not_wait_for_what_the_refused_one_has_to() -> None:
    cluster = world()
    key = cluster.add_model(template={"serviceAccountName": "nobody"})
    cluster.api.refuse = only_engine_account
    await cluster.run()
    assert cluster.reason(key, "Placed") == ("False", "AdmissionDenied")
    cluster.edit_spec(key, template={"serviceAccountName": "engine"})
    await cluster.run()
    assert cluster.reason(key, "Placed") == ("True", "Placed")


async def test_a_quota_without_room_for_the_whole_group_stops_it_before_the_first_pod() -> None:
    cluster = world()
    cluster.api.seed(RESOURCE_QUOTAS, quota(1))
    key = cluster.add_model(**TWO_NODES)
    await cluster.run()
    assert not [entry for entry in cluster.writes() if entry[1] == "pods"]
    assert cluster.reason(key, "Placed") == ("False", "QuotaExceeded")
    assert "pods needs 2 more, 1 of 1 left" in message(cluster, key, "Placed")
    cluster.api.edit(RESOURCE_QUOTAS, Key(NAMESPACE, "team"), lambda q: q["status"]["hard"].update(pods="2"))
    await cluster.advance(1)
    assert cluster.status(key)["readyReplicas"] == 1, "a raised quota is seen at once"


async def test_another_namespaces_quota_does_not_matter() -> None:
    cluster = world()
    cluster.api.seed(RESOURCE_QUOTAS, {**quota(0), "metadata": {"namespace": "other", "name": "team"}})
    key = cluster.add_model()
    await cluster.run()
    assert cluster.status(key)["readyReplicas"] == 1


# --- requests that go wrong -------------------------------------------------------------------------------------------

LOST = Unreachable("the answer was cut")


@pytest.mark.parametrize("after_success", [True, False], ids=["written", "not written"])
@pytest.mark.parametrize(
    ("verb", "plural"),
    [
        ("create", "pods"),
        ("create", "services"),
        ("create", "controllerrevisions"),
        ("create", "poddisruptionbudgets"),
        ("patch", "pods"),
        ("patch", "pods/status"),
        ("apply", "inferencemodels/status"),
    ],
)
async def test_a_lost_answer_leads_to_the_same_end(verb: str, plural: str, after_success: bool) -> None:
    cluster = world()
    key = cluster.add_model(**TWO_NODES)
    cluster.api.fail_next(verb, plural, LOST, after_success=after_success)
    await cluster.advance(5)
    assert cluster.status(key)["readyReplicas"] == 1
    assert [name[-6:] for name in cluster.pod_names()] == ["-0-0-0", "-0-0-1"]


async def test_a_create_that_was_written_although_its_answer_was_lost_is_taken_for_done() -> None:
    cluster = world()
    cluster.add_model()
    cluster.api.fail_next("create", "pods", LOST, after_success=True)
    await cluster.settle()
    assert cluster.operator.errors == []
    assert [verb for verb, plural, _ in cluster.writes() if plural == "pods"] == ["create", "patch"]


async def test_a_create_nobody_knows_the_end_of_does_not_hold_gpus_for_ever() -> None:
    cluster = world(nodes=1)
    key = cluster.add_model(parallelism={"tensor": 2})
    cluster.api.fail_next("create", "pods", LOST)
    cluster.api.fail_next("get", "pods", LOST)
    await cluster.settle()
    assert cluster.pods() == []
    await cluster.advance(2)
    assert cluster.status(key)["readyReplicas"] == 1


@pytest.mark.parametrize("error", [ServerError("webhook failed", status=500), TooManyRequests("slow", status=429)])
async def test_a_server_that_keeps_failing_is_told_in_status(error: ApiError) -> None:
    cluster = world()
    key = cluster.add_model()
    cluster.api.refuse = refuse_rank(0, error)
    await cluster.settle()
    assert cluster.reason(key, "Placed") == ("False", "Reserving")
    assert error.message in message(cluster, key, "Placed")
    assert cluster.operator.errors == [error], "the controller backs off"
    cluster.api.refuse = None
    await cluster.advance(2)
    assert cluster.status(key)["readyReplicas"] == 1


async def test_a_failed_test_of_the_release_patch_means_reading_again() -> None:
    cluster = world()
    key = cluster.add_model()
    cluster.api.fail_next("patch", "pods", Invalid("the test did not hold", status=422))
    cluster.operator.deliver()
    await cluster.operator.reconcile(key)
    (pod,) = cluster.pods()
    assert pod["spec"]["schedulingGates"]
    assert cluster.operator.requeue_after[key] == 0.5
    await cluster.run()
    assert cluster.status(key)["readyReplicas"] == 1
    assert cluster.operator.errors == []


async def test_a_status_that_cannot_be_written_is_written_the_next_time() -> None:
    cluster = world()
    key = cluster.add_model()
    await cluster.run()
    cluster.api.fail_next("apply", "inferencemodels/status", Conflict("uid mismatch", status=409))
    cluster.exit_engine(cluster.pod_names()[0])
    await cluster.advance(30)
    assert cluster.status(key)["readyReplicas"] == 1


# --- names that are taken ---------------------------------------------------------------------------------------------


def stranger(name: str, **metadata: Any) -> Json:
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": {}, **metadata},
        "spec": {"containers": [{"name": "work"}]},
        "status": {"phase": "Running"},
    }


async def test_a_pod_name_that_somebody_else_has_is_left_alone_and_the_next_one_taken() -> None:
    cluster = world()
    key = cluster.add_model()
    name = cluster.head_name(key)
    before = cluster.api.seed(PODS, stranger(name))
    await cluster.run()
    assert before in cluster.api.objects(PODS)
    assert cluster.status(key)["readyReplicas"] == 1
    (group,) = cluster.status(key)["placement"]["groups"]
    assert group["name"] == cluster.head_name(key, attempt=1).removesuffix("-0")
    assert [verb for verb, plural, at in cluster.writes() if plural == "pods" and at.name == name] == []


async def test_names_that_are_all_taken_are_said_and_tried_again_seldom() -> None:
    cluster = world()
    key = cluster.add_model()
    for attempt in range(MOST_NAMES_TRIED):
        cluster.api.seed(PODS, stranger(cluster.head_name(key, attempt=attempt)))
    await cluster.run()
    assert cluster.reason(key, "Placed") == ("False", "AdmissionDenied")
    assert f"{cluster.head_name(key)} exists and is not owned by this model" in message(cluster, key, "Placed")
    cluster.api.remove(PODS, Key(NAMESPACE, cluster.head_name(key, attempt=3)))
    await cluster.advance(31)
    assert cluster.status(key)["readyReplicas"] == 1


async def test_a_service_name_that_somebody_else_has_is_said_and_tried_again() -> None:
    cluster = world()
    cluster.api.seed(SERVICES, {"metadata": {"namespace": NAMESPACE, "name": "llama"}, "spec": {}})
    key = cluster.add_model()
    await cluster.run()
    assert cluster.reason(key, "Placed") == ("False", "AdmissionDenied")
    assert f"services {NAMESPACE}/llama exists and is not owned by this model" in message(cluster, key, "Placed")
    assert cluster.pods() == []
    cluster.api.remove(SERVICES, Key(NAMESPACE, "llama"))
    await cluster.advance(31)
    assert cluster.status(key)["readyReplicas"] == 1


async def test_rank_0_of_another_plan_is_never_adopted() -> None:
    """A second operator planned the same group elsewhere and was first."""
    cluster = world()
    key = cluster.add_model()
    late = cluster.new_operator()
    cluster.operator.deliver()
    await cluster.operator.reconcile(key)
    name = cluster.head_name(key)
    cluster.edit_pod(name, lambda pod: pod["metadata"]["annotations"].update({names.ANNOTATION_PLAN_ID: "another"}))
    before = cluster.pod(name)
    await late.reconcile(key)
    assert "is taken by another pod or plan" in message(cluster, key, "Placed")
    assert cluster.pod(name) == before
    await late.close()


async def test_rank_0_of_the_same_plan_is_one_reservation_whoever_made_it() -> None:
    cluster = world()
    key = cluster.add_model()
    late = cluster.new_operator()
    cluster.operator.deliver()
    await cluster.operator.reconcile(key)
    await late.reconcile(key)
    assert cluster.pod_names() == [cluster.head_name(key)]
    assert late.errors == []
    await cluster.clock.advance(PROGRESS_SECONDS)
    await late.reconcile(key)
    assert cluster.status(key)["warmingReplicas"] == 1
    await late.close()


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"replicas": -1}, "spec.replicas"),
        ({"replicas": True}, "spec.replicas"),
        ({"engine": {"image": "x:1", "maxModelLen": 0}}, "spec.engine.maxModelLen"),
        ({"nonsense": 1}, "spec.nonsense"),
        ({"placement": {"spread": {"level": "galaxy"}}}, "spec.placement.spread.level"),
        ({"placement": {"topology": [{"level": "galaxy"}]}}, "spec.placement.topology[0].level"),
    ],
)
async def test_an_invalid_spec_is_refused_with_its_field_and_keeps_what_runs(change: Json, path: str) -> None:
    cluster = world()
    key, other = cluster.add_model(replicas=2), cluster.add_model("qwen")
    await cluster.run()
    before = cluster.pod_names()
    cluster.edit_spec(key, **change)
    cluster.edit_spec(other, replicas=2)
    await cluster.run()
    assert cluster.reason(key, "Accepted") == ("False", "InvalidSpec")
    assert path in message(cluster, key, "Accepted")
    assert cluster.reason(key, "Stalled") == ("True", "InvalidSpec")
    assert cluster.pod_names() == before
    assert cluster.status(other)["readyReplicas"] == 2
    writes = cluster.api.write_count()
    await cluster.advance(300)
    assert cluster.api.write_count() == writes


async def test_what_a_refused_spec_interrupts_goes_on_once_it_is_corrected() -> None:
    cluster = world()
    key = cluster.add_model(replicas=2)
    await cluster.run()
    cluster.exit_engine(cluster.pod_names()[0])
    await cluster.advance(1)
    before = cluster.pod_names()
    cluster.edit_spec(key, placement={"spread": {"level": "galaxy"}})
    await cluster.advance(600)
    assert cluster.pod_names() == before
    status = cluster.status(key)
    assert (status["readyReplicas"], status["pendingReplicas"]) == (1, 1)
    cluster.edit_spec(key, placement={"spread": {"level": "zone"}})
    await cluster.advance(30)
    assert cluster.reason(key, "Ready") == ("True", "Ready")
    assert cluster.pod_names() != before


async def test_a_name_too_long_for_pods_is_refused() -> None:
    cluster = world()
    key = cluster.add_model("a" * 41)
    await cluster.run()
    assert cluster.reason(key, "Accepted") == ("False", "InvalidSpec")
    assert "metadata.name" in message(cluster, key, "Accepted")
    assert cluster.api.objects(PODS) == []


async def test_a_corrected_spec_goes_on() -> None:
    cluster = world()
    key = cluster.add_model(replicas=-1)
    await cluster.run()
    cluster.edit_spec(key, replicas=1)
    await cluster.run()
    assert cluster.reason(key, "Ready") == ("True", "Ready")
    assert cluster.reason(key, "Stalled") == ("", "")
