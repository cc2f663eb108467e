"""What the API server does with InferenceModels: defaults, immutability, merging, scale, columns, cost of the rules."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from bayplan.api import names
from bayplan.api.conditions import ConditionType, Reason, merge_conditions
from bayplan.api.crd import INFERENCEMODEL, custom_resource_definition
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.api.structural import defaulted, structural_schema
from bayplan.api.validation import parse_spec
from e2e.localcluster import ApiError, Cluster, KubeApi
from e2e.localcluster.kubeconfig import read_kubeconfig
from e2e.specwalk.boundaries import Json, put
from tests.api.server import COLLECTION, refusal
from tests.api.specs import FULL_SPEC, FULL_STATUS, MINIMAL_SPEC, model

APPLY = "application/apply-patch+yaml"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def test_defaults_apply_where_their_parents_are_absent(api: KubeApi, namespace: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    spec = stored["spec"]
    assert spec["warmup"] == {
        "prompt": "Reply with the word ready.",
        "maxTokens": 8,
        "loadDeadlineSeconds": 1800,
        "deadlineSeconds": 120,
    }
    assert spec["placement"] == {"spread": {"level": "zone"}}
    assert spec["drain"] == {"deadlineSeconds": 300}
    assert spec["engine"]["gpuMemoryUtilization"] == 0.9
    assert spec["model"]["architecture"]["weightBits"] == 16
    assert spec == defaulted(structural_schema(InferenceModelSpec, with_defaults=True), MINIMAL_SPEC)


async def test_replicas_have_no_default_so_that_git_may_leave_them_out(api: KubeApi, namespace: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    assert "replicas" not in stored["spec"]


async def test_stored_spec_parses_to_the_same_as_the_written_one(api: KubeApi, namespace: str) -> None:
    for name, spec in (("minimal", MINIMAL_SPEC), ("full", FULL_SPEC)):
        stored = await api.create(COLLECTION.format(namespace), model(spec, name))
        assert parse_spec(stored["spec"]) == parse_spec(spec)


async def test_served_name_cannot_change(api: KubeApi, namespace: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    path = f"{COLLECTION.format(namespace)}/llama"
    message = await refusal(api, "PUT", path, {**stored, "spec": put(stored["spec"], ("model", "name"), "other")})
    assert message is not None
    assert "name is immutable" in message
    same_name = put(stored["spec"], ("model", "revision"), "other")
    assert await refusal(api, "PUT", path, {**stored, "spec": same_name}) is None


async def test_immutability_cannot_be_walked_around_by_removing_the_model(api: KubeApi, namespace: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    path = f"{COLLECTION.format(namespace)}/llama"
    for location in (("model",), ("model", "name")):
        spec = deepcopy(stored["spec"])
        parent = spec if len(location) == 1 else spec["model"]
        del parent[location[-1]]
        message = await refusal(api, "PUT", path, {**stored, "spec": spec})
        assert message is not None
        assert "Required value" in message


async def test_spec_write_does_not_touch_status_and_the_reverse(api: KubeApi, namespace: str) -> None:
    stored = await api.create(COLLECTION.format(namespace), {**model(MINIMAL_SPEC), "status": {"replicas": 7}})
    assert "status" not in stored
    path = f"{COLLECTION.format(namespace)}/llama"
    changed = await api.patch(f"{path}/status", {"spec": {"replicas": 5}, "status": {"replicas": 2}})
    assert "replicas" not in changed["spec"]
    assert changed["status"] == {"replicas": 2}


async def test_status_applied_from_our_own_wire_form_comes_back_equal(api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    status = InferenceModelStatus.model_validate(FULL_STATUS)
    stored = await apply_status(api, namespace, status)
    assert stored["status"] == FULL_STATUS == status.to_wire()
    assert InferenceModelStatus.read(stored["status"]) == status


async def test_equal_status_applied_again_changes_nothing(api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    status = InferenceModelStatus.model_validate(FULL_STATUS)
    first = await apply_status(api, namespace, status)
    second = await apply_status(api, namespace, status)
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_empty_status_is_stored_without_invented_members(api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    stored = await apply_status(api, namespace, InferenceModelStatus())
    assert stored["status"] == InferenceModelStatus().to_wire()


async def test_conditions_of_two_managers_merge_by_type(api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    for manager, kind in (("one", ConditionType.PLACED), ("two", ConditionType.WARM)):
        conditions = merge_conditions((), [(kind, "Unknown", Reason.BLOCKED, "")], generation=1, now=moment)
        body = {"status": {"conditions": [condition.to_wire() for condition in conditions]}}
        stored = await apply(api, namespace, body, manager)
    assert [entry["type"] for entry in stored["status"]["conditions"]] == ["Placed", "Warm"]


async def test_unknown_field_is_refused_by_server_side_apply(api: KubeApi, namespace: str) -> None:
    body = model(MINIMAL_SPEC)
    body["spec"]["surprise"] = 1
    with pytest.raises(ApiError, match="field not declared in schema"):
        await api.patch(
            f"{COLLECTION.format(namespace)}/llama", body, content_type=APPLY, fieldManager="test", force="true"
        )


async def test_environment_of_two_appliers_merges_by_name(api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    for manager, name in (("one", "A"), ("two", "B")):
        body: Json = {"apiVersion": names.API_VERSION, "kind": names.INFERENCEMODEL_KIND}
        body |= {"spec": {"engine": {"env": [{"name": name, "value": "1"}]}}}
        stored = await api.patch(
            f"{COLLECTION.format(namespace)}/llama", body, content_type=APPLY, fieldManager=manager, force="true"
        )
    assert [entry["name"] for entry in stored["spec"]["engine"]["env"]] == ["A", "B"]


async def test_scale_writes_replicas_where_they_are_set(api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC | {"replicas": 2}))
    await apply_status(api, namespace, InferenceModelStatus(replicas=2, selector="bayplan.dev/model=llama"))
    path = f"{COLLECTION.format(namespace)}/llama"
    scale = await api.get(f"{path}/scale")
    assert scale["spec"]["replicas"] == 2
    assert scale["status"] == {"replicas": 2, "selector": "bayplan.dev/model=llama"}
    await api.patch(f"{path}/scale", {"spec": {"replicas": 5}})
    assert (await api.get(path))["spec"]["replicas"] == 5


@pytest.mark.parametrize("written", [{"replicas": 2}, {}])
async def test_kubectl_scales_whether_replicas_are_written_or_not(
    cluster: Cluster, api: KubeApi, namespace: str, written: Json
) -> None:
    await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC | written))
    await kubectl(cluster, "scale", "imodel/llama", "--replicas=3", f"--namespace={namespace}")
    assert (await api.get(f"{COLLECTION.format(namespace)}/llama"))["spec"]["replicas"] == 3


async def test_scale_obeys_the_bounds_of_replicas(api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC | {"replicas": 2}))
    path = f"{COLLECTION.format(namespace)}/llama"
    for replicas in (-1, 10_001):
        with pytest.raises(ApiError):
            await api.patch(f"{path}/scale", {"spec": {"replicas": replicas}})
    await api.patch(f"{path}/scale", {"spec": {"replicas": 0}})
    assert (await api.get(path))["spec"]["replicas"] == 0


async def test_autoscaling_is_filled_up_and_takes_replicas_out_of_everybodys_hands(
    api: KubeApi, namespace: str
) -> None:
    written = {"maxReplicas": 4, "serviceTokensPerSecond": 2500}
    stored = await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC | {"autoscaling": written}))
    assert stored["spec"]["autoscaling"] == written | {
        "policy": "Seed",
        "minReplicas": 1,
        "targetUtilization": 0.8,
        "queueDrainSeconds": 60,
        "scaleUpCooldownSeconds": 15,
        "scaleDownStabilizationSeconds": 300,
        "sampleSeconds": 15,
    }
    assert "replicas" not in stored["spec"]
    with pytest.raises(ApiError, match="replicas must be absent where autoscaling decides"):
        await api.patch(f"{COLLECTION.format(namespace)}/llama/scale", {"spec": {"replicas": 2}})


async def test_columns_show_what_the_on_call_looks_for(cluster: Cluster, api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    await apply_status(api, namespace, InferenceModelStatus.model_validate(FULL_STATUS))
    table = await get_table(cluster, namespace)
    narrow = {column["name"]: cell for column, cell in table if column["priority"] == 0}
    wide = {column["name"]: cell for column, cell in table if column["priority"] == 1}
    assert narrow.pop("Name") == "llama"
    assert narrow.pop("AGE")
    assert narrow == {
        "READY": "False",
        "REASON": "NotReady",
        "DESIRED": 3,
        "WARMING": 1,
        "READY-REPLICAS": 1,
        "GPUS": 8,
    }
    assert wide == {
        "MESSAGE": "1 of 3 replicas serve",
        "MODEL": "llama",
        "PRODUCT": "NVIDIA-L4",
    }


async def test_columns_are_empty_before_the_first_status(cluster: Cluster, api: KubeApi, namespace: str) -> None:
    await api.create(COLLECTION.format(namespace), model(MINIMAL_SPEC))
    cells = {column["name"]: cell for column, cell in await get_table(cluster, namespace)}
    assert cells["READY"] is None
    assert cells["MODEL"] == "llama"


async def test_short_name_and_category_are_served(api: KubeApi) -> None:
    found = await api.get(f"/apis/{names.API_VERSION}")
    (resource,) = (entry for entry in found["resources"] if entry["name"] == names.INFERENCEMODEL_PLURAL)
    assert resource["shortNames"] == ["imodel"]
    assert resource["categories"] == ["bayplan"]


async def test_definition_has_no_warning_condition(api: KubeApi) -> None:
    found = await api.get(f"{DEFINITIONS}/{INFERENCEMODEL.crd_name}")
    conditions = {entry["type"]: entry["status"] for entry in found["status"]["conditions"]}
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert conditions["NamesAccepted"] == conditions["Established"] == "True"


async def test_rules_leave_half_of_their_cost_budget(api: KubeApi) -> None:
    definition = custom_resource_definition(INFERENCEMODEL)
    version = definition["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"] = double_sizes(version["schema"]["openAPIV3Schema"])
    definition["spec"]["group"] = "cost.bayplan.dev"
    definition["metadata"]["name"] = f"{names.INFERENCEMODEL_PLURAL}.cost.bayplan.dev"
    assert await refusal(api, "POST", DEFINITIONS, definition) is None


async def test_cost_check_can_fail(api: KubeApi) -> None:
    definition = custom_resource_definition(INFERENCEMODEL)
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["template"]["properties"]["volumes"]["maxItems"]
    definition["spec"]["group"] = "cost.bayplan.dev"
    definition["metadata"]["name"] = f"{names.INFERENCEMODEL_PLURAL}.cost.bayplan.dev"
    message = await refusal(api, "POST", DEFINITIONS, definition)
    assert message is not None
    assert "budget" in message


def double_sizes(schema: Json) -> Json:
    """Return the schema with every list, map and string allowed to be twice as large."""
    grown = {}
    for key, value in schema.items():
        if key in ("maxItems", "maxLength", "maxProperties"):
            grown[key] = value * 2
        elif isinstance(value, dict):
            grown[key] = double_sizes(value)
        else:
            grown[key] = value
    return grown


async def apply(api: KubeApi, namespace: str, body: Json, manager: str) -> Json:
    head = {"apiVersion": names.API_VERSION, "kind": names.INFERENCEMODEL_KIND, "metadata": {"name": "llama"}}
    path = f"{COLLECTION.format(namespace)}/llama/status"
    stored: Json = await api.patch(path, head | body, content_type=APPLY, fieldManager=manager, force="true")
    return stored


async def apply_status(api: KubeApi, namespace: str, status: InferenceModelStatus) -> Json:
    return await apply(api, namespace, {"status": status.to_wire()}, names.MANAGER_STATUS)


async def kubectl(cluster: Cluster, *arguments: str) -> str:
    program = Path(sys.executable).with_name("kubectl")
    process = await asyncio.create_subprocess_exec(
        program, f"--kubeconfig={cluster.kubeconfig_path}", *arguments, stdout=PIPE, stderr=STDOUT
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    return output


async def get_table(cluster: Cluster, namespace: str) -> list[tuple[Json, object]]:
    """Return the column definitions and cells that `kubectl get` prints for the one model."""
    access = read_kubeconfig(cluster.kubeconfig_path)
    headers = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
    path = f"{access.server}{COLLECTION.format(namespace)}/llama"
    async with aiohttp.ClientSession() as session, session.get(path, headers=headers, ssl=access.tls or True) as answer:
        table = await answer.json()
    return list(zip(table["columnDefinitions"], table["rows"][0]["cells"], strict=True))
