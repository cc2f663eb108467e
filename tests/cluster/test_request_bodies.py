"""Request bodies have the bytes that the API server would write: what it keeps as bytes must not change by a patch."""

import json
from decimal import Decimal
from typing import Any

import pytest

from bayplan.api import names
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.validation import parse_spec
from bayplan.cluster.client import ApiClient
from bayplan.cluster.codec import dumps
from bayplan.cluster.resources import CONTROLLER_REVISIONS, INFERENCE_MODELS
from bayplan.planning.layout.records import RecordedLayout
from bayplan.planning.layout.split import Split
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity, controller_revision
from e2e.localcluster import ApiError, KubeApi
from tests.api.specs import FULL_SPEC, model

ODD_TEXT = "a <b> & 'c' \"d\" \\ / ä 漢 \u2028 \t\n \x7f \x1f 1.0 5e-05"
NUMBERS = [0, 1, -1, 0.5, 16.0, -16.0, 1e-4, 5e-5, -5e-5, 1.5e-6, 1e-6, 9.9e-7, 1e-7, 1e-10, 1e16, 1e20, 1e21, 1.5e300]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00005, "0.00005"),
        (0.000001, "0.000001"),
        (0.0000009, "9e-7"),
        (1.5e-10, "1.5e-10"),
        (16.0, "16"),
        (-0.5, "-0.5"),
        (1e16, "10000000000000000"),
        (1e21, "1e+21"),
        (Decimal("16.0"), "16"),
        (Decimal("0.1"), "0.1"),
        (10.05, "10.05"),
        ("1.0", '"1.0"'),
        ("a:5e-05,", '"a:5e-05,"'),
        ('a":16.0,"', '"a\\":16.0,\\""'),
        ("<ä&>", '"\\u003cä\\u0026\\u003e"'),
    ],
)
def test_a_value_is_written_as_the_server_writes_it(value: object, text: str) -> None:
    assert dumps({"a": value, "b": [value]}).decode() == f'{{"a":{text},"b":[{text}]}}'


def test_keys_are_sorted_and_nothing_is_padded() -> None:
    assert dumps({"b": {"d": 1, "c": [1, 2]}, "a": None}) == b'{"a":null,"b":{"c":[1,2],"d":1}}'


def test_a_number_that_json_does_not_have_is_refused() -> None:
    for value in (float("nan"), Decimal("Infinity")):
        with pytest.raises(ValueError, match="JSON"):
            dumps({"a": value})


async def test_bytes_that_the_server_keeps_survive_a_strategic_patch(
    client: ApiClient, api: KubeApi, namespace: str
) -> None:
    body = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": "odd", "namespace": namespace},
        "revision": 1,
        "data": {"z": NUMBERS, "a": {"text": ODD_TEXT, ODD_TEXT: [{"b": True, "a": None}]}},
    }
    await client.create(CONTROLLER_REVISIONS, namespace, body)
    path = f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions/odd"
    patched = await api.patch(
        path, {"metadata": {"labels": {"a": "b"}}}, content_type="application/strategic-merge-patch+json"
    )
    assert patched["metadata"]["labels"] == {"a": "b"}
    assert patched["data"]["a"]["text"] == ODD_TEXT


async def test_unsorted_bytes_would_not_survive(api: KubeApi, namespace: str) -> None:
    """The fault that the form above avoids is still the server's."""
    path = f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions"
    body = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": "odd"},
        "revision": 1,
        "data": {"b": 1, "a": 1},
    }
    await api.create(path, body)
    patch = {"metadata": {"labels": {"a": "b"}}}
    with pytest.raises(ApiError, match="immutable"):
        await api.patch(f"{path}/odd", patch, content_type="application/strategic-merge-patch+json")


async def test_orphan_deletion_of_a_model_leaves_its_revisions(client: ApiClient, api: KubeApi, namespace: str) -> None:
    raw: dict[str, Any] = json.loads(json.dumps(FULL_SPEC))
    raw["engine"]["env"] = [{"name": "ODD", "value": ODD_TEXT}]
    raw["engine"]["gpuMemoryUtilization"] = 0.00005
    spec = parse_spec(raw)
    assert isinstance(spec, InferenceModelSpec)
    models = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.INFERENCEMODEL_PLURAL}"
    stored = await client.create(INFERENCE_MODELS, namespace, model(raw, "orphans"))
    identity = ModelIdentity(namespace, "orphans", stored["metadata"]["uid"])
    revision = controller_revision(
        identity, spec, revision="0123456789", number=1, records={"NVIDIA-L4": RecordedLayout(Split(2))}
    )
    await client.create(CONTROLLER_REVISIONS, namespace, revision)
    await api.delete(f"{models}/orphans", propagationPolicy="Orphan")

    async def is_gone() -> bool:
        try:
            await api.get(f"{models}/orphans")
        except ApiError as error:
            return error.status == 404
        return False

    await api.wait_until(is_gone, what="the model's orphan deletion", timeout_seconds=90)
    kept = await api.get(f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions/orphans-0123456789")
    assert not kept["metadata"].get("ownerReferences")
