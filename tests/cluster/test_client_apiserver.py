import asyncio
import logging
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from bayplan.cluster.client import ApiClient
from bayplan.cluster.credentials import Access, Credentials, load_kubeconfig
from bayplan.cluster.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
)
from bayplan.cluster.events import SERIES_SECONDS, EventRecorder, Subject
from bayplan.cluster.resources import (
    EVENTS,
    INFERENCE_MODELS,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    Key,
    Resource,
)
from e2e.localcluster import Cluster, KubeApi
from tests.cluster.conftest import make_model, make_pod
from tests.fakes.clock import FakeClock

SECRETS = Resource("", "v1", "secrets", "Secret")


async def test_two_managers_own_their_conditions_and_drop_what_they_no_longer_name(
    client: ApiClient, namespace: str
) -> None:
    await client.create(INFERENCE_MODELS, namespace, make_model("m"))
    when = {"lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Valid", "status": "True", "message": ""}

    async def apply(manager: str, *types: str) -> list[str]:
        body = {"status": {"conditions": [{"type": type_, **when} for type_ in types]}}
        done = await client.apply(INFERENCE_MODELS, namespace, "m", body, manager=manager, subresource="status")
        return [condition["type"] for condition in done["status"].get("conditions", [])]

    assert await apply("bayplan-status", "Accepted", "Ready") == ["Accepted", "Ready"]
    assert sorted(await apply("other", "Placed")) == ["Accepted", "Placed", "Ready"]
    assert sorted(await apply("bayplan-status", "Ready")) == ["Placed", "Ready"]


async def test_an_apply_that_changes_nothing_leaves_the_version_alone(client: ApiClient, namespace: str) -> None:
    await client.create(INFERENCE_MODELS, namespace, make_model("m"))
    body = {"status": {"observedGeneration": 1}}
    versions = [
        (await client.apply(INFERENCE_MODELS, namespace, "m", body, manager="s", subresource="status"))["metadata"][
            "resourceVersion"
        ]
        for _ in range(2)
    ]
    assert versions[0] == versions[1]


async def test_an_apply_does_not_create_what_was_deleted_when_it_names_the_uid(
    client: ApiClient, namespace: str
) -> None:
    body = {"metadata": {"uid": "11111111-2222-3333-4444-555555555555"}, "status": {"observedGeneration": 1}}
    with pytest.raises((NotFound, Conflict)):
        await client.apply(INFERENCE_MODELS, namespace, "gone", body, manager="s", subresource="status")


async def test_fractions_stay_what_the_user_wrote(client: ApiClient, namespace: str) -> None:
    model = make_model("m")
    model["spec"]["engine"]["gpuMemoryUtilization"] = Decimal("0.1")
    created = await client.create(INFERENCE_MODELS, namespace, model)
    assert created["spec"]["engine"]["gpuMemoryUtilization"] == Decimal("0.1")


async def test_a_json_patch_whose_test_fails_is_invalid_and_changes_nothing(client: ApiClient, namespace: str) -> None:
    pod = await client.create(PODS, namespace, make_pod("p"))
    with pytest.raises(Invalid) as caught:
        await client.patch_json(
            PODS,
            namespace,
            "p",
            [
                {"op": "test", "path": "/metadata/uid", "value": "another"},
                {"op": "remove", "path": "/spec/schedulingGates"},
            ],
        )
    assert caught.value.status == 422
    assert not caught.value.outcome_unknown
    assert (await client.get(PODS, namespace, "p"))["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
    done = await client.patch_json(
        PODS,
        namespace,
        "p",
        [
            {"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]},
            {"op": "test", "path": "/spec/schedulingGates/0/name", "value": "bayplan.dev/placement"},
            {"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}},
        ],
    )
    assert done["metadata"]["annotations"] == {"a": "b"}


async def test_delete_preconditions_hold(client: ApiClient, namespace: str) -> None:
    pod = await client.create(PODS, namespace, make_pod("p"))
    with pytest.raises(Conflict):
        await client.delete(PODS, namespace, "p", uid="11111111-2222-3333-4444-555555555555")
    with pytest.raises(Conflict):
        await client.delete(PODS, namespace, "p", resource_version="1")
    await client.delete(PODS, namespace, "p", uid=pod["metadata"]["uid"], grace_seconds=0)
    with pytest.raises(NotFound):
        await client.delete(PODS, namespace, "p")


async def test_names_are_taken_once(client: ApiClient, namespace: str) -> None:
    await client.create(PODS, namespace, make_pod("p"))
    with pytest.raises(AlreadyExists):
        await client.create(PODS, namespace, make_pod("p"))


async def test_a_field_that_the_server_does_not_know_is_an_error(client: ApiClient, namespace: str) -> None:
    """Dropped silently, a misspelt scheduling gate would mean a pod that runs without a reservation."""
    pod = make_pod("p")
    pod["spec"]["schedulingGate"] = pod["spec"].pop("schedulingGates")
    with pytest.raises(BadRequest, match="schedulingGate"):
        await client.create(PODS, namespace, pod)


async def test_a_merge_patch_with_a_stale_version_conflicts(client: ApiClient, namespace: str) -> None:
    pod = await client.create(PODS, namespace, make_pod("p"))
    version = pod["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version, "labels": {"a": "b"}}}
    assert (await client.patch_merge(PODS, namespace, "p", patch))["metadata"]["labels"] == {"a": "b"}
    patch["metadata"]["labels"] = {"a": "c"}
    with pytest.raises(Conflict):
        await client.patch_merge(PODS, namespace, "p", patch)


async def test_a_strategic_patch_merges_conditions_by_type(client: ApiClient, namespace: str) -> None:
    await client.create(PODS, namespace, make_pod("p"))
    for kind in ("bayplan.dev/warm", "Other"):
        body = {"status": {"conditions": [{"type": kind, "status": "True"}]}}
        done = await client.patch_strategic(PODS, namespace, "p", body, subresource="status")
    assert {"bayplan.dev/warm", "Other"} <= {condition["type"] for condition in done["status"]["conditions"]}


async def test_an_exceeded_quota_is_recognised(client: ApiClient, namespace: str, api: KubeApi) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
    await client.create(RESOURCE_QUOTAS, namespace, quota)

    async def counted() -> bool:
        status = (await client.get(RESOURCE_QUOTAS, namespace, "q")).get("status") or {}
        return bool(status.get("hard"))

    await api.wait_until(counted, what="the quota to be counted")
    await client.create(PODS, namespace, make_pod("first"))
    with pytest.raises(Forbidden) as caught:
        await client.create(PODS, namespace, make_pod("second"))
    assert caught.value.quota_exceeded


async def test_a_user_without_rights_is_forbidden_not_over_quota(cluster: Cluster, namespace: str) -> None:
    path = str(cluster.kubeconfig_for("nobody-in-particular"))
    async with ApiClient(Credentials(lambda: load_kubeconfig(path))) as nobody:
        with pytest.raises(Forbidden) as caught:
            await nobody.create(PODS, namespace, make_pod("p"))
    assert not caught.value.quota_exceeded


async def test_pages_have_one_version_and_all_objects(client: ApiClient, namespace: str) -> None:
    await asyncio.gather(*(client.create(PODS, namespace, make_pod(f"p{number}")) for number in range(7)))
    pages = [(len(items), version) async for items, version in client.list_pages(PODS, namespace, limit=3)]
    assert [count for count, _ in pages] == [3, 3, 1]
    assert len({version for _, version in pages}) == 1


async def test_a_watch_sees_additions_changes_deletions_in_order_and_ends_by_itself(
    client: ApiClient, namespace: str
) -> None:
    version = [version async for _, version in client.list_pages(PODS, namespace)][-1]
    await client.create(PODS, namespace, make_pod("p"))
    await client.patch_merge(PODS, namespace, "p", {"metadata": {"labels": {"a": "b"}}})
    await client.delete(PODS, namespace, "p", grace_seconds=0)
    events = [event async for event in client.watch(PODS, namespace, resource_version=version, timeout_seconds=2)]
    changes = [event for event in events if event.type != "BOOKMARK"]
    assert [changes[0].type, changes[1].type, changes[-1].type] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event.object["metadata"]["resourceVersion"]) for event in changes]
    assert versions == sorted(set(versions)), "a deletion has a version of its own, too"


async def test_an_event_is_accepted_and_its_series_counted(
    client: ApiClient, namespace: str, api: KubeApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = await client.create(INFERENCE_MODELS, namespace, make_model("m"))
    clock = FakeClock()
    recorder = EventRecorder(client, controller="bayplan-operator", instance="test-1", clock=clock)
    writing = asyncio.create_task(recorder.run())
    subject = Subject(INFERENCE_MODELS, Key(namespace, "m"), model["metadata"]["uid"])

    async def found() -> list[tuple[str, int | None]]:
        items = [item async for items, _ in client.list_pages(EVENTS, namespace) for item in items]
        return [(item["reason"], (item.get("series") or {}).get("count")) for item in items]

    async def becomes(expected: list[tuple[str, int | None]]) -> None:
        async def there() -> bool:
            return await found() == expected

        await api.wait_until(there, what=f"the events {expected}")

    recorder.record(subject, "Warning", "InsufficientMemory", "14 GiB short")
    await becomes([("InsufficientMemory", None)])
    recorder.record(subject, "Warning", "InsufficientMemory", "14 GiB short")
    await clock.advance(SERIES_SECONDS + 1)
    await becomes([("InsufficientMemory", 2)])
    recorder.record(Subject(NODES, Key("", "n1"), "u"), "Normal", "Drained", "x")
    await recorder.flush()
    assert recorder.dropped == 0, caplog.text
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_a_rotated_token_is_used_without_a_failed_request(
    client: ApiClient, cluster: Cluster, namespace: str, api: KubeApi, tmp_path: Path
) -> None:
    """Two tokens of one account, each bound to a Secret: deleting the Secret revokes its token."""

    async def token(number: int) -> str:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"bound-{number}"}}
        created = await client.create(SECRETS, namespace, secret)
        reference = {
            "kind": "Secret",
            "apiVersion": "v1",
            "name": f"bound-{number}",
            "uid": created["metadata"]["uid"],
        }
        request = {"spec": {"expirationSeconds": 3600, "boundObjectRef": reference}}
        answer = await api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token", request)
        return str(answer["status"]["token"])

    admin = load_kubeconfig(str(cluster.kubeconfig_path))
    await api.create(
        "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/rolebindings",
        {
            "metadata": {"name": "view"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
        },
    )
    config = yaml.safe_load(Path(cluster.kubeconfig_path).read_text())
    context = next(c for c in config["contexts"] if c["name"] == config["current-context"])["context"]
    for user in config["users"]:
        if user["name"] == context["user"]:
            user["user"] = {"tokenFile": "token"}
    (tmp_path / "config").write_text(yaml.safe_dump(config))

    def rotate(text: str) -> None:
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(tmp_path / "token")

    first = await token(1)
    rotate(first)
    # The file is not looked at again within the test: only the refusal can bring the new token.
    credentials = Credentials(lambda: load_kubeconfig(str(tmp_path / "config")), check_seconds=3600)
    async with ApiClient(credentials) as rotating:
        assert [items async for items, _ in rotating.list_pages(PODS, namespace)] == [[]]
        rotate(await token(2))
        await client.delete(SECRETS, namespace, "bound-1")
        old = Access(server=admin.server, authorization=f"Bearer {first}", tls=(await credentials.access()).tls)
        async with ApiClient(Credentials(lambda: old)) as refused:

            async def revoked() -> bool:
                try:
                    _ = [items async for items, _ in refused.list_pages(PODS, namespace)]
                except Unauthorized:
                    return True
                return False

            await api.wait_until(revoked, what="the first token to be refused")
        assert [items async for items, _ in rotating.list_pages(PODS, namespace)] == [[]]
        assert rotating.requests["list", "pods", 401] == 1
