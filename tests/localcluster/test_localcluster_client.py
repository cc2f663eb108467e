"""The small client: manifests, server-side apply, waiting."""

from pathlib import Path

import pytest

from e2e.localcluster import ApiError, Cluster, KubeApi
from e2e.localcluster.client import read_manifests

CONFIG_MAP = "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {a: b}}"
WIDGET_DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.localcluster.example}
spec:
  group: localcluster.example
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {size: {type: integer, minimum: 1}}}
"""
WIDGET = "{apiVersion: localcluster.example/v1, kind: Widget, metadata: {name: small}, spec: {size: 1}}"


def test_manifests_come_from_objects_text_files_folders_and_mixtures(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text(f"{CONFIG_MAP}\n---\n\n---\n{CONFIG_MAP}\n")
    (tmp_path / "a.yaml").write_text(WIDGET)
    (tmp_path / "ignored.txt").write_text("not yaml: [")
    one = read_manifests(CONFIG_MAP)
    assert read_manifests(one[0]) == one
    assert [entry["kind"] for entry in read_manifests(tmp_path)] == ["Widget", "ConfigMap", "ConfigMap"]
    assert len(read_manifests([tmp_path / "b.yml", CONFIG_MAP, one[0]])) == 4


def test_a_part_that_is_no_object_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("kind: ConfigMap\n")
    with pytest.raises(ValueError, match=r"wrong\.yaml: not a Kubernetes object"):
        read_manifests(tmp_path)


async def test_a_definition_and_its_object_can_be_applied_in_one_set_in_any_order(
    api: KubeApi, cluster: Cluster, namespace: str
) -> None:
    applied = await cluster.apply([WIDGET, WIDGET_DEFINITION], namespace=namespace)
    try:
        assert [entry["kind"] for entry in applied] == ["CustomResourceDefinition", "Widget"]
        assert applied[1]["metadata"]["namespace"] == namespace
        again = await cluster.apply(WIDGET, namespace=namespace)
        assert again[0]["metadata"]["resourceVersion"] == applied[1]["metadata"]["resourceVersion"]
    finally:
        await api.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.localcluster.example")


async def test_a_refusal_carries_status_reason_and_message(api: KubeApi, namespace: str) -> None:
    with pytest.raises(ApiError) as refusal:
        await api.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: UPPER}}", namespace=namespace)
    assert (refusal.value.status, refusal.value.reason) == (422, "Invalid")
    assert "metadata.name" in refusal.value.message


async def test_an_unknown_kind_is_named(api: KubeApi, namespace: str) -> None:
    with pytest.raises(ApiError, match="no kind Nonsense"):
        await api.apply("{apiVersion: v1, kind: Nonsense, metadata: {name: x}}", namespace=namespace)


async def test_a_dry_run_stores_nothing(api: KubeApi, namespace: str) -> None:
    await api.apply(CONFIG_MAP, namespace=namespace, dry_run=True)
    with pytest.raises(ApiError) as missing:
        await api.get(f"/api/v1/namespaces/{namespace}/configmaps/one")
    assert missing.value.status == 404


async def test_a_wait_that_fails_says_what_for(api: KubeApi) -> None:
    async def never() -> bool:
        return False

    with pytest.raises(TimeoutError, match=r"waited 0\.1 s for rain"):
        await api.wait_until(never, what="rain", timeout_seconds=0.1)
