"""The chart's roles on the real API server: what each identity may do, and what it may not."""

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from bayplan.api import names
from e2e.localcluster import ApiError, Cluster, KubeApi

CHART = Path(__file__).parents[2] / "charts/bayplan"
OPERATOR_ONLY = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@dataclass(frozen=True, kw_only=True)
class Release:
    """An installed release: its namespace and the identity that it gives the operator."""

    name: str
    namespace: str
    operator: Path
    manifests: list[dict[str, Any]]


@pytest.fixture
async def release(cluster: Cluster, api: KubeApi, namespace: str) -> AsyncIterator[Release]:
    """Install what concerns rights, into the test's own namespace; cluster-wide objects go again."""
    name = f"bayplan-{secrets.token_hex(3)}"
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render({"crds": {"enabled": False}}, name=name, namespace=namespace)
    every = [
        entry for path, text in files.items() if path.endswith(".yaml") for entry in yaml.safe_load_all(text) if entry
    ]
    await api.apply([entry for entry in every if entry["kind"] in OPERATOR_ONLY])
    operator = await cluster.service_account_kubeconfig(namespace, name)
    yield Release(name=name, namespace=namespace, operator=operator, manifests=every)
    for entry in every:
        if entry["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            await api.delete(await api.path_of(entry))


async def may(api: KubeApi, verb: str, resource: str, *, namespace: str = "", name: str = "") -> bool:
    """Ask the API server as `kubectl auth can-i VERB RESOURCE` does; the resource is `group/plural[/subresource]`."""
    group, plural, *subresource = resource.split("/")
    attributes = {"verb": verb, "group": group, "resource": plural, "namespace": namespace, "name": name}
    attributes["subresource"] = "/".join(subresource)
    review = await api.create(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        },
    )
    return bool(review["status"]["allowed"])


def allowed_to_the_operator() -> Iterator[tuple[str, str]]:
    """Yield verb and resource of everything that the operator does, as the design lists it."""
    read = ("get", "list", "watch")
    manage = (*read, "create", "patch", "delete")
    models = f"{names.GROUP}/{names.INFERENCEMODEL_PLURAL}"
    plans = f"{names.GROUP}/{names.CAPACITYPLAN_PLURAL}"
    rollouts = f"{names.GROUP}/{names.ROLLOUT_PLURAL}"
    for verbs, resource in (
        (read, models),
        (read, plans),
        (read, rollouts),
        (("patch", "update"), f"{rollouts}/status"),
        (("get",), "/configmaps"),
        (("patch", "update"), f"{plans}/status"),
        (("patch", "update"), f"{models}/status"),
        (("update",), f"{models}/finalizers"),
        (manage, "/pods"),
        (("patch",), "/pods/status"),
        (read, "/nodes"),
        (manage, "/services"),
        (manage, "policy/poddisruptionbudgets"),
        (manage, "apps/controllerrevisions"),
        (read, "/resourcequotas"),
        (("list", "watch"), "coordination.k8s.io/leases"),
        (("create", "patch"), "/events"),
        (("create", "patch"), "events.k8s.io/events"),
    ):
        for verb in verbs:
            yield verb, resource


FORBIDDEN = [
    *((verb, f"{names.GROUP}/{names.INFERENCEMODEL_PLURAL}") for verb in ("create", "update", "patch", "delete")),
    *((verb, f"{names.GROUP}/{names.CAPACITYPLAN_PLURAL}") for verb in ("create", "update", "patch", "delete")),
    *((verb, "/secrets") for verb in ("get", "list", "watch", "create")),
    *((verb, f"{names.GROUP}/{names.ROLLOUT_PLURAL}") for verb in ("create", "update", "patch", "delete")),
    *((verb, "/configmaps") for verb in ("list", "watch", "create", "update", "patch", "delete")),
    ("create", "/pods/exec"),
    ("create", "/pods/eviction"),
    ("create", "/pods/binding"),
    ("get", "/pods/log"),
    ("update", "/pods"),
    ("deletecollection", "/pods"),
    ("update", "/pods/status"),
    ("patch", "/nodes"),
    ("patch", "/nodes/status"),
    ("create", "/resourcequotas"),
    ("create", "/namespaces"),
    ("create", "/serviceaccounts/token"),
    ("create", "rbac.authorization.k8s.io/clusterroles"),
    ("bind", "rbac.authorization.k8s.io/clusterroles"),
    ("impersonate", "/users"),
    ("create", "apps/deployments"),
    ("get", "apiextensions.k8s.io/customresourcedefinitions"),
    ("create", "coordination.k8s.io/leases"),
    ("get", "coordination.k8s.io/leases"),
]
"""Verbs and resources that the operator does without, in any namespace but its own."""


async def test_operator_may_do_what_it_does_in_every_namespace(cluster: Cluster, release: Release) -> None:
    async with cluster.api(release.operator) as api:
        refused = [
            (verb, resource)
            for verb, resource in allowed_to_the_operator()
            if not await may(api, verb, resource, namespace="" if resource == "/nodes" else "default")
        ]
    assert not refused


async def test_operator_may_do_nothing_else(cluster: Cluster, release: Release) -> None:
    async with cluster.api(release.operator) as api:
        granted = [
            (verb, resource) for verb, resource in FORBIDDEN if await may(api, verb, resource, namespace="default")
        ]
    assert not granted


async def test_design_and_role_file_list_the_same_rights() -> None:
    rules = yaml.safe_load((CHART / "files/operator-rules.yaml").read_text())
    granted = {
        (verb, f"{group}/{resource}")
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == set(allowed_to_the_operator())


async def test_operator_holds_its_own_lease_and_only_watches_others(cluster: Cluster, release: Release) -> None:
    async with cluster.api(release.operator) as api:
        leases = "coordination.k8s.io/leases"
        own = {"namespace": release.namespace}
        assert await may(api, "create", leases, **own)
        for verb in ("get", "update", "patch"):
            assert await may(api, verb, leases, name=names.OPERATOR_LEASE, **own)
            assert not await may(api, verb, leases, name="other", **own)
        assert not await may(api, "delete", leases, name=names.OPERATOR_LEASE, **own)
        assert await may(api, "watch", leases, namespace="default")
        assert not await may(api, "patch", leases, namespace="default")


@pytest.mark.parametrize(("role", "may_write"), [("view", False), ("edit", True), ("admin", True)])
async def test_roles_of_people_cover_the_kinds(
    cluster: Cluster, api: KubeApi, release: Release, role: str, may_write: bool
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": role, "namespace": release.namespace}}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": release.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": release.namespace}],
    }
    await api.apply([account, binding])
    models = f"{names.GROUP}/{names.INFERENCEMODEL_PLURAL}"
    plans = f"{names.GROUP}/{names.CAPACITYPLAN_PLURAL}"
    async with cluster.api(await cluster.service_account_kubeconfig(release.namespace, role)) as person:

        async def aggregated() -> bool:
            return await may(person, "get", models, namespace=release.namespace)

        # The controller-manager copies the rules of the labelled roles into the three.
        await api.wait_until(aggregated, what=f"the aggregation into {role}")
        for verb in ("get", "list", "watch"):
            assert await may(person, verb, models, namespace=release.namespace)
            assert await may(person, "get", f"{models}/status", namespace=release.namespace)
            assert await may(person, verb, plans, namespace=release.namespace)
        for verb in ("create", "update", "patch", "delete", "deletecollection"):
            assert await may(person, verb, models, namespace=release.namespace) == may_write
            assert await may(person, verb, plans, namespace=release.namespace) == may_write
        assert not await may(person, "patch", f"{plans}/status", namespace=release.namespace)
        assert await may(person, "patch", f"{models}/scale", namespace=release.namespace) == may_write
        assert not await may(person, "patch", f"{models}/status", namespace=release.namespace)
        assert not await may(person, "get", models, namespace="default")


async def test_every_manifest_is_one_that_the_api_server_takes(api: KubeApi, release: Release) -> None:
    for manifest in release.manifests:
        path = await api.path_of(manifest, namespace=release.namespace)
        await api.patch(
            path,
            manifest,
            content_type="application/apply-patch+yaml",
            fieldManager="chart-test",
            force="true",
            dryRun="All",
            fieldValidation="Strict",
        )


@pytest.mark.parametrize("name", ["", "-gateway"])
async def test_pods_pass_the_restricted_standard(api: KubeApi, release: Release, name: str) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    await api.patch(f"/api/v1/namespaces/{release.namespace}", {"metadata": {"labels": level}})
    (deployment,) = (
        entry
        for entry in release.manifests
        if entry["kind"] == "Deployment" and entry["metadata"]["name"] == f"{release.name}{name}"
    )
    template = deployment["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": template["spec"]}
    pods = f"/api/v1/namespaces/{release.namespace}/pods"
    await api.request("POST", pods, pod, query={"dryRun": "All"})
    del pod["spec"]["securityContext"]["runAsNonRoot"]
    with pytest.raises(ApiError, match="PodSecurity"):
        await api.request("POST", pods, pod, query={"dryRun": "All"})
