"""The in-memory API server against the real one: what unit tests rely on must be true of both."""

import asyncio
from typing import Any

import pytest

from bayplan.cluster.client import ApiClient
from bayplan.cluster.errors import AlreadyExists, Conflict, Invalid, NotFound
from bayplan.cluster.port import Port
from bayplan.cluster.resources import INFERENCE_MODELS, PODS
from tests.cluster.conftest import make_model, make_pod
from tests.fakes.api import FakeApi
from tests.fakes.clock import until


def version(obj: dict[str, Any]) -> int:
    return int(obj["metadata"]["resourceVersion"])


class Behaviour:
    """What is asked of both; `both` gives a port and a namespace on it."""

    async def test_a_created_object_has_an_identity_and_is_taken(self, both: tuple[Port, str]) -> None:
        port, namespace = both
        model = await port.create(INFERENCE_MODELS, namespace, make_model("m"))
        metadata = model["metadata"]
        assert metadata["namespace"] == namespace
        assert metadata["generation"] == 1
        assert {"uid", "resourceVersion", "creationTimestamp"} <= set(metadata)
        with pytest.raises(AlreadyExists):
            await port.create(INFERENCE_MODELS, namespace, make_model("m"))
        with pytest.raises(NotFound):
            await port.get(INFERENCE_MODELS, namespace, "other")

    async def test_spec_and_status_are_written_apart_and_only_the_spec_counts_generations(
        self, both: tuple[Port, str]
    ) -> None:
        port, namespace = both
        first = await port.create(INFERENCE_MODELS, namespace, make_model("m") | {"status": {"replicas": 7}})
        assert "status" not in first or "replicas" not in first["status"]
        status = {"status": {"observedGeneration": 1}, "spec": {"replicas": 5}}
        second = await port.patch_merge(INFERENCE_MODELS, namespace, "m", status, subresource="status")
        assert (second["status"]["observedGeneration"], second["spec"]["replicas"]) == (1, 0)
        assert second["metadata"]["generation"] == 1
        spec = {"status": {"observedGeneration": 9}, "spec": {"replicas": 5}}
        third = await port.patch_merge(INFERENCE_MODELS, namespace, "m", spec)
        assert (third["status"]["observedGeneration"], third["spec"]["replicas"]) == (1, 5)
        assert third["metadata"]["generation"] == 2
        assert version(first) < version(second) < version(third)

    async def test_a_write_that_changes_nothing_keeps_the_version(self, both: tuple[Port, str]) -> None:
        port, namespace = both
        await port.create(INFERENCE_MODELS, namespace, make_model("m"))
        for _ in range(2):
            body = {"status": {"observedGeneration": 1}}
            done = await port.apply(INFERENCE_MODELS, namespace, "m", body, manager="s", subresource="status")
            again = await port.patch_merge(INFERENCE_MODELS, namespace, "m", {"spec": {"replicas": 0}})
            assert version(done) == version(again)

    async def test_an_apply_takes_back_what_its_manager_no_longer_names(self, both: tuple[Port, str]) -> None:
        port, namespace = both
        await port.create(INFERENCE_MODELS, namespace, make_model("m"))
        when = {"lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Valid", "status": "True", "message": ""}

        async def apply(manager: str, *types: str, **fields: Any) -> dict[str, Any]:
            status = {"conditions": [{"type": type_, **when} for type_ in types], **fields}
            return await port.apply(
                INFERENCE_MODELS, namespace, "m", {"status": status}, manager=manager, subresource="status"
            )

        await apply("one", "Accepted", "Ready", observedGeneration=1, replicas=2)
        await apply("two", "Placed")
        done = await apply("one", "Ready", replicas=3)
        assert sorted(condition["type"] for condition in done["status"]["conditions"]) == ["Placed", "Ready"]
        assert done["status"]["replicas"] == 3
        assert "observedGeneration" not in done["status"]

    async def test_a_json_patch_tests_before_it_changes(self, both: tuple[Port, str]) -> None:
        port, namespace = both
        pod = await port.create(PODS, namespace, make_pod("p"))
        with pytest.raises(Invalid):
            await port.patch_json(
                PODS,
                namespace,
                "p",
                [
                    {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
                    {"op": "test", "path": "/metadata/uid", "value": "another"},
                ],
            )
        assert not (await port.get(PODS, namespace, "p"))["metadata"].get("labels")
        done = await port.patch_json(
            PODS,
            namespace,
            "p",
            [
                {"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]},
                {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
            ],
        )
        assert done["metadata"]["labels"] == {"a": "b"}

    async def test_preconditions_guard_patches_and_deletions(self, both: tuple[Port, str]) -> None:
        port, namespace = both
        pod = await port.create(PODS, namespace, make_pod("p"))
        stale = {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}
        with pytest.raises(Conflict):
            await port.patch_merge(PODS, namespace, "p", stale)
        with pytest.raises(Conflict):
            await port.delete(PODS, namespace, "p", uid="11111111-2222-3333-4444-555555555555")
        with pytest.raises(Conflict):
            await port.delete(PODS, namespace, "p", resource_version="1")
        await port.delete(PODS, namespace, "p", uid=pod["metadata"]["uid"])
        with pytest.raises(NotFound):
            await port.get(PODS, namespace, "p")  # no node has it: it goes at once, whatever its grace period
        with pytest.raises(NotFound):
            await port.delete(PODS, namespace, "p")

    async def test_a_strategic_patch_merges_conditions_by_type(self, both: tuple[Port, str]) -> None:
        port, namespace = both
        await port.create(PODS, namespace, make_pod("p"))
        for status in ("False", "True"):
            for kind in ("bayplan.dev/warm", "Other"):
                body = {"status": {"conditions": [{"type": kind, "status": status}]}}
                done = await port.patch_strategic(PODS, namespace, "p", body, subresource="status")
        found = {condition["type"]: condition["status"] for condition in done["status"]["conditions"]}
        assert found.items() >= {"bayplan.dev/warm": "True", "Other": "True"}.items()

    @pytest.mark.parametrize(
        ("labels", "fields", "expected"),
        [
            ("app=a", None, ["a1", "a2"]),
            ("app!=a", None, ["b", "none"]),
            ("app in (a,b),tier=x", None, ["a1"]),
            ("app notin (a)", None, ["b", "none"]),
            ("!app", None, ["none"]),
            ("tier", None, ["a1"]),
            (None, "metadata.name=b", ["b"]),
            (None, "spec.nodeName!=", []),
            (None, "spec.nodeName=", ["a1", "a2", "b", "none"]),
            ("app=a", "metadata.name!=a1", ["a2"]),
        ],
    )
    async def test_selectors_choose_the_same_objects(
        self, both: tuple[Port, str], labels: str | None, fields: str | None, expected: list[str]
    ) -> None:
        port, namespace = both
        for name, found in {"a1": {"app": "a", "tier": "x"}, "a2": {"app": "a"}, "b": {"app": "b"}, "none": {}}.items():
            await port.create(PODS, namespace, make_pod(name, labels=found))
        pages = port.list_pages(PODS, namespace, label_selector=labels, field_selector=fields, limit=3)
        assert [item["metadata"]["name"] async for items, _ in pages for item in items] == expected

    async def test_a_watch_with_a_selector_tells_of_coming_and_leaving(self, both: tuple[Port, str]) -> None:
        port, namespace = both
        since = [version async for _, version in port.list_pages(PODS, namespace)][-1]
        told: list[tuple[str, str]] = []

        async def watch() -> None:
            async for event in port.watch(PODS, namespace, resource_version=since, label_selector="app=a"):
                if event.type != "BOOKMARK" and (not told or told[-1][0] != event.type):
                    told.append((event.type, event.object["metadata"]["name"]))

        watching = asyncio.create_task(watch())
        await port.create(PODS, namespace, make_pod("p", labels={"app": "b"}))
        for app in ("a", "b", "a"):
            await port.patch_merge(PODS, namespace, "p", {"metadata": {"labels": {"app": app}}})
        await port.delete(PODS, namespace, "p", grace_seconds=0)
        await until(lambda: [kind for kind, _ in told].count("DELETED") == 2)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert [kind for kind, _ in told if kind != "MODIFIED"] == ["ADDED", "DELETED", "ADDED", "DELETED"]


class TestFakeServer(Behaviour):
    @pytest.fixture
    def both(self) -> tuple[Port, str]:
        return FakeApi(), "ns"

    async def test_an_owner_that_goes_takes_its_children_along(self) -> None:
        port, namespace = FakeApi(), "ns"
        model = await port.create(INFERENCE_MODELS, namespace, make_model("m"))
        pod = make_pod("p")
        pod["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "bayplan.dev/v1alpha1",
                "kind": "InferenceModel",
                "name": "m",
                "uid": model["metadata"]["uid"],
                "controller": True,
            }
        ]
        await port.create(PODS, namespace, pod)
        await port.delete(INFERENCE_MODELS, namespace, "m")
        assert port.collect_garbage() == 1
        assert port.objects(PODS) == []


class TestRealServer(Behaviour):
    @pytest.fixture
    def both(self, client: ApiClient, namespace: str) -> tuple[Port, str]:
        return client, namespace
