"""The objects that are created, and the patches of pods that live already."""

import copy
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import jsonpatch
import pytest

from bayplan.api import names
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.planning.admission.bounds import AdmissionBounds
from bayplan.planning.groups.assignment import Assignment
from bayplan.planning.layout.records import RecordedLayout
from bayplan.planning.layout.split import Split
from bayplan.reconcile.inferencemodel import manifests, podpatches
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity
from bayplan.reconcile.pods import view_pod
from tests.api.specs import FULL_SPEC
from tests.planning.replicagroups import assignment
from tests.reconcile.world import model_spec

Json = dict[str, Any]
MODEL = ModelIdentity(namespace="team", name="llama", uid="model-uid")
NOW = datetime(2026, 3, 4, 5, 6, 7, 890_000, tzinfo=UTC)
BOUNDS = AdmissionBounds(kv_blocks=900, block_size=16, max_num_seqs=64, max_model_len=8192)
ONE, PAIR = assignment(gpus=2), assignment(nodes=("n1", "n2"), gpus=2)


def spec(**changes: Any) -> InferenceModelSpec:
    return InferenceModelSpec.model_validate(model_spec(**changes))


def pod(plan: Assignment = ONE, rank: int = 0, wish: InferenceModelSpec | None = None) -> Json:
    return manifests.pod(MODEL, wish or spec(), plan, rank, BOUNDS)


def container(body: Json) -> Json:
    found: Json = body["spec"]["containers"][0]
    return found


# --- pods -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("plan", "rank"), [(ONE, 0), (PAIR, 0), (PAIR, 1)])
def test_every_pod_is_gated_owned_and_never_placed_by_us(plan: Assignment, rank: int) -> None:
    body = pod(plan, rank)
    assert body["spec"]["schedulingGates"] == [{"name": names.SCHEDULING_GATE}]
    assert body["spec"]["readinessGates"] == [{"conditionType": names.CONDITION_WARM}]
    assert body["spec"]["restartPolicy"] == "Never"
    assert "nodeName" not in body["spec"]
    assert "affinity" not in body["spec"]
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("InferenceModel", "model-uid", True)
    labels = body["metadata"]["labels"]
    assert labels[names.LABEL_RANK] == str(rank)
    assert labels[names.LABEL_GROUP] == plan.group
    assert body["metadata"]["annotations"][names.ANNOTATION_PLAN_ID] == plan.plan_id


def test_rank_0_alone_carries_the_whole_reservation() -> None:
    head, worker = pod(PAIR, 0), pod(PAIR, 1)
    text = head["metadata"]["annotations"][names.ANNOTATION_ASSIGNMENT]
    assert Assignment.from_json(text) == PAIR
    assert names.ANNOTATION_ASSIGNMENT not in worker["metadata"]["annotations"]


def test_rank_0_alone_is_probed_and_exposed() -> None:
    head, worker = container(pod(PAIR, 0)), container(pod(PAIR, 1))
    probes = {"startupProbe", "readinessProbe", "livenessProbe", "ports"}
    assert probes <= set(head)
    assert not probes & set(worker)
    assert head["startupProbe"]["httpGet"]["path"] == "/v1/models"


@pytest.mark.parametrize("deadline", [5, 1800, 86_400])
def test_the_startup_probe_never_ends_loading_before_the_warm_up_does(deadline: int) -> None:
    """A pod keeps its probe, while the user may raise the deadline under it: the probe must not depend on it."""
    probe = container(pod(wish=spec(warmup={"loadDeadlineSeconds": deadline})))["startupProbe"]
    assert probe == container(pod())["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= deadline


def test_gpus_are_requested_and_limited_beside_what_the_user_asks() -> None:
    resources = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "8"}}
    found = container(pod(wish=spec(template={"resources": resources})))["resources"]
    assert found["requests"] == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}
    assert found["limits"] == {"cpu": "8", "nvidia.com/gpu": "2"}


def test_the_pod_outlives_the_drain_and_the_engine_is_told_how_long_it_has() -> None:
    body = pod(wish=spec(drain={"deadlineSeconds": 90}))
    assert "--shutdown-timeout=90" in container(body)["args"]
    before = container(body)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert before > 0
    assert body["spec"]["terminationGracePeriodSeconds"] > before + 90


def test_every_rank_of_a_deleted_group_serves_on_for_as_long_as_the_head() -> None:
    head, worker = pod(PAIR, 0), pod(PAIR, 1)
    assert container(head)["lifecycle"] == container(worker)["lifecycle"]
    assert head["spec"]["terminationGracePeriodSeconds"] == worker["spec"]["terminationGracePeriodSeconds"]


def test_the_head_says_what_requests_may_reserve() -> None:
    annotations = pod(PAIR, 0)["metadata"]["annotations"]
    assert json.loads(annotations[names.ANNOTATION_ADMISSION]) == {
        "kvBlocks": 900,
        "blockSize": 16,
        "maxNumSeqs": 64,
        "maxModelLen": 8192,
    }
    assert names.ANNOTATION_ADMISSION not in pod(PAIR, 1)["metadata"]["annotations"]


def test_a_one_node_group_needs_no_names_and_no_group_flags() -> None:
    body = pod()
    assert not {"hostname", "subdomain"} & set(body["spec"])
    assert not any(arg.startswith(("--nnodes", "--node-rank", "--master")) for arg in container(body)["args"])
    assert "--headless" not in container(body)["args"]


def test_the_users_own_arguments_come_last() -> None:
    args = container(pod(wish=spec(engine={"args": ["--enable-prefix-caching"], "maxNumSeqs": 7})))["args"]
    assert args[-1] == "--enable-prefix-caching"
    assert "--max-num-seqs=7" in args


@pytest.mark.parametrize(
    ("uri", "location", "has_revision"),
    [
        ("hf://org/llama", "org/llama", True),
        ("file:///models/llama", "/models/llama", False),
        ("pvc://weights", "/mnt/model", False),
        ("pvc://weights/llama/8b", "/mnt/model/llama/8b", False),
        ("s3://bucket/llama", "s3://bucket/llama", False),
    ],
)
def test_the_engine_is_told_where_the_model_is(uri: str, location: str, has_revision: bool) -> None:
    model = {**model_spec()["model"], "uri": uri}
    body = pod(wish=spec(model=model))
    args = container(body)["args"]
    assert args[0] == location
    assert any(arg.startswith("--revision=") for arg in args) is has_revision
    claims = [v["persistentVolumeClaim"]["claimName"] for v in body["spec"]["volumes"] if "persistentVolumeClaim" in v]
    assert claims == (["weights"] if uri.startswith("pvc") else [])


def test_everything_of_the_template_reaches_the_pod() -> None:
    body = pod(wish=InferenceModelSpec.model_validate(FULL_SPEC))
    details = body["spec"]
    assert details["serviceAccountName"] == "engine"
    assert details["automountServiceAccountToken"] is True
    assert (details["priorityClassName"], details["runtimeClassName"]) == ("serving", "nvidia")
    assert details["imagePullSecrets"] == [{"name": "pull"}]
    assert details["tolerations"][0]["tolerationSeconds"] == 60
    volumes = {volume["name"]: volume for volume in details["volumes"]}
    assert volumes["bayplan-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert volumes["settings"]["configMap"] == {"name": "settings"}
    assert volumes["certificates"]["secret"] == {"secretName": "certificates"}
    assert volumes["weights"]["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    mounts = {mount["name"]: mount["mountPath"] for mount in container(body)["volumeMounts"]}
    assert set(mounts) == set(volumes)
    env = {entry["name"]: entry for entry in container(body)["env"]}
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "hub"
    assert env["VLLM_LOGGING_LEVEL"]["value"] == "DEBUG"


def test_without_a_service_account_no_token_is_mounted() -> None:
    assert pod()["spec"]["automountServiceAccountToken"] is False


def test_the_longest_name_still_makes_a_dns_label() -> None:
    plan = assignment(ordinal=9999, attempt=99_999)
    group = manifests.pod_name(plan.group.replace("llama", "m" * 40), 63)
    assert len(group) <= 63


# --- the release ------------------------------------------------------------------------------------------------------

IN = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
ARCH = {"key": "arch", "operator": "In", "values": ["amd64"]}


def stored(gates: list[str], affinity: Json | None) -> Json:
    body = pod()
    body["metadata"] |= {"uid": "pod-uid", "resourceVersion": "5", "creationTimestamp": "2026-03-04T05:06:07Z"}
    body["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    if affinity is not None:
        body["spec"]["affinity"] = affinity
    return body


def required(*terms: Json) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def released(body: Json) -> Json:
    member = view_pod(body).member
    assert member is not None
    patch = podpatches.ungate_patch(member, "n1", now=NOW)
    result: Json = jsonpatch.apply_patch(copy.deepcopy(body), patch)
    return result


@pytest.mark.parametrize(
    ("affinity", "terms"),
    [
        (None, [{"matchFields": [IN]}]),
        ({"podAntiAffinity": {}}, [{"matchFields": [IN]}]),
        ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, [{"matchFields": [IN]}]),
        (required({"matchExpressions": [ZONE]}), [{"matchExpressions": [ZONE], "matchFields": [IN]}]),
        (
            required({"matchExpressions": [ZONE]}, {"matchExpressions": [ARCH]}),
            [{"matchExpressions": [ZONE], "matchFields": [IN]}, {"matchExpressions": [ARCH], "matchFields": [IN]}],
        ),
    ],
    ids=["none", "affinity", "nodeAffinity", "one term", "two terms"],
)
def test_the_pod_is_pinned_in_every_required_term_and_nothing_else_is_touched(
    affinity: Json | None, terms: list[Json]
) -> None:
    after = released(stored([names.SCHEDULING_GATE], affinity))
    node_affinity: Mapping[str, Any] = after["spec"]["affinity"]["nodeAffinity"]
    assert node_affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == terms
    for key, value in (affinity or {}).items():
        if key != "nodeAffinity":
            assert after["spec"]["affinity"][key] == value
    assert after["metadata"]["annotations"][names.ANNOTATION_UNGATED] == "2026-03-04T05:06:07Z"
    assert "nodeName" not in after["spec"]
    member = view_pod(after).member
    assert member is not None
    assert (member.gated, member.pinned_node) == (False, "n1")


@pytest.mark.parametrize(
    ("gates", "left"),
    [
        ([names.SCHEDULING_GATE], []),
        (["kueue.x-k8s.io/topology", names.SCHEDULING_GATE], ["kueue.x-k8s.io/topology"]),
        ([names.SCHEDULING_GATE, "example.com/hold"], ["example.com/hold"]),
        (["a.io/x", names.SCHEDULING_GATE, "b.io/y"], ["a.io/x", "b.io/y"]),
    ],
)
def test_only_our_own_gate_falls(gates: list[str], left: list[str]) -> None:
    assert [gate["name"] for gate in released(stored(gates, None))["spec"]["schedulingGates"]] == left


def _other_uid(body: Json) -> None:
    body["metadata"]["uid"] = "another"


def _other_plan(body: Json) -> None:
    body["metadata"]["annotations"][names.ANNOTATION_PLAN_ID] = "another"


def _other_gate_first(body: Json) -> None:
    body["spec"]["schedulingGates"].insert(0, {"name": "example.com/hold"})


def _no_gate(body: Json) -> None:
    body["spec"]["schedulingGates"] = []


@pytest.mark.parametrize("change", [_other_uid, _other_plan, _other_gate_first, _no_gate])
def test_a_pod_that_is_not_what_was_decided_on_is_not_released(change: Any) -> None:
    body = stored([names.SCHEDULING_GATE], None)
    member = view_pod(body).member
    assert member is not None
    patch = podpatches.ungate_patch(member, "n1", now=NOW)
    change(body)
    with pytest.raises((jsonpatch.JsonPatchException, jsonpatch.JsonPointerException)):
        jsonpatch.apply_patch(body, patch)


@pytest.mark.parametrize(
    ("terms", "pinned"),
    [
        ([], None),
        ([{"matchExpressions": [ZONE]}], None),
        ([{"matchFields": [IN]}, {"matchExpressions": [ZONE]}], None),
        ([{"matchFields": [IN]}, {"matchFields": [{**IN, "values": ["n2"]}]}], None),
        ([{"matchFields": [{**IN, "values": ["n1", "n2"]}]}], None),
        ([{"matchFields": [{**IN, "operator": "NotIn"}]}], None),
        ([{"matchFields": [IN]}, {"matchFields": [IN], "matchExpressions": [ZONE]}], "n1"),
    ],
)
def test_a_pod_is_pinned_only_where_every_alternative_names_the_same_node(
    terms: list[Json], pinned: str | None
) -> None:
    member = view_pod(stored([], required(*terms))).member
    assert member is not None
    assert member.pinned_node == pinned


def test_the_warm_condition_names_the_container_or_says_why_not() -> None:
    warm = podpatches.warm_condition(container_id="containerd://1", now=NOW, reason="GenerationSucceeded")
    assert (warm["status"], warm["message"]) == ("True", "containerd://1")
    cold = podpatches.warm_condition(container_id=None, now=NOW, reason="WarmupFailed", message="x" * 2000)
    assert (cold["status"], len(cold["message"])) == ("False", 1024)


# --- other children ---------------------------------------------------------------------------------------------------


def test_a_groups_budget_counts_its_pods_and_lets_unhealthy_ones_go() -> None:
    budget = manifests.disruption_budget(MODEL, group=PAIR.group, pods=2)["spec"]
    assert budget == {
        "minAvailable": 2,
        "selector": {"matchLabels": {names.LABEL_GROUP: PAIR.group}},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }


def test_a_snapshot_holds_what_the_revision_covers() -> None:
    body = manifests.controller_revision(
        MODEL, spec(), revision="0123456789", number=4, records={"L4": RecordedLayout(Split(2))}
    )
    assert body["metadata"]["name"] == "llama-0123456789"
    assert (body["revision"], set(body["data"])) == (4, {"model", "engine", "parallelism"})
