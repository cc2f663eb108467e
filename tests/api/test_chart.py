"""The Helm chart, rendered by Helm's own library: what it installs, and which values it refuses."""

import json
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from bayplan.api import names
from bayplan.api.crd import INFERENCEMODEL, KINDS, Kind, custom_resource_definition
from bayplan.cli.configuration import load_configuration

pytestmark = pytest.mark.slow

CHART = Path(__file__).parents[2] / "charts/bayplan"
Values = dict[str, Any]


def render(values: Values | None = None, *, name: str = "bayplan") -> dict[tuple[str, str], Values]:
    """Return the manifests by kind and name."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name=name, namespace="bayplan-system")
    found = {}
    for path, text in files.items():
        for manifest in yaml.safe_load_all(text) if path.endswith(".yaml") else ():
            if manifest:
                found[manifest["kind"], manifest["metadata"]["name"]] = manifest
    return found


def deployment(values: Values | None = None) -> Values:
    return render(values)["Deployment", "bayplan"]


def pod(values: Values | None = None) -> Values:
    spec: Values = deployment(values)["spec"]["template"]["spec"]
    return spec


def test_lint_finds_nothing_but_the_missing_icon() -> None:
    report = helm_python.lint(CHART, strict=True)
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]
    assert report["errors"] == []


GATEWAY = {
    ("ServiceAccount", "bayplan-gateway"),
    ("ClusterRole", "bayplan-gateway"),
    ("ClusterRoleBinding", "bayplan-gateway"),
    ("Role", "bayplan-gateway-lease"),
    ("RoleBinding", "bayplan-gateway-lease"),
    ("Deployment", "bayplan-gateway"),
    ("Service", "bayplan-gateway"),
    ("Service", "bayplan-gateway-metrics"),
}


DEFINITIONS = {("CustomResourceDefinition", kind.crd_name) for kind in KINDS}


def test_default_release_installs_operator_gateway_roles_definitions_and_metrics() -> None:
    assert set(render()) == GATEWAY | {
        ("ServiceAccount", "bayplan"),
        ("ClusterRole", "bayplan-operator"),
        ("ClusterRoleBinding", "bayplan-operator"),
        ("Role", "bayplan-lease"),
        ("RoleBinding", "bayplan-lease"),
        ("ClusterRole", "bayplan-view"),
        ("ClusterRole", "bayplan-edit"),
        ("ConfigMap", "bayplan-configuration"),
        ("Service", "bayplan-metrics"),
        ("Deployment", "bayplan"),
        *DEFINITIONS,
    }


def test_two_releases_share_no_object_but_the_definitions() -> None:
    assert set(render(name="one")) & set(render(name="two")) == DEFINITIONS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_definition_is_the_generated_one_and_is_kept(kind: Kind) -> None:
    rendered = render()["CustomResourceDefinition", kind.crd_name]
    assert rendered["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert rendered == custom_resource_definition(kind)


def test_definition_goes_with_the_release_when_it_is_not_kept() -> None:
    rendered = render({"crds": {"keep": False}})["CustomResourceDefinition", INFERENCEMODEL.crd_name]
    assert "annotations" not in rendered["metadata"]


def test_definitions_can_be_left_to_somebody_else() -> None:
    assert not [kind for kind, _ in render({"crds": {"enabled": False}}) if kind == "CustomResourceDefinition"]


def test_roles_are_those_of_the_shared_files() -> None:
    rendered = render()
    for kind, name, file in (
        ("ClusterRole", "bayplan-operator", "operator-rules.yaml"),
        ("Role", "bayplan-lease", "operator-lease-rules.yaml"),
        ("ClusterRole", "bayplan-gateway", "gateway-rules.yaml"),
        ("Role", "bayplan-gateway-lease", "gateway-lease-rules.yaml"),
    ):
        assert rendered[kind, name]["rules"] == yaml.safe_load((CHART / "files" / file).read_text())


def test_roles_have_no_wildcard_no_secret_and_no_way_to_more_rights() -> None:
    rendered = render()
    for (kind, name), manifest in rendered.items():
        for rule in manifest["rules"] if kind in ("ClusterRole", "Role") else ():
            assert "*" not in json.dumps(rule), name
            assert not {"secrets", "roles", "clusterroles", "serviceaccounts/token"} & set(rule["resources"]), name
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"]), name


def test_role_for_the_lease_names_the_lease_that_the_operator_holds() -> None:
    rules = render()["Role", "bayplan-lease"]["rules"]
    assert [rule.get("resourceNames") for rule in rules] == [None, [names.OPERATOR_LEASE]]
    assert rules[0]["verbs"] == ["create"]


def test_bindings_name_the_account_of_the_pods() -> None:
    for values in ({}, {"serviceAccount": {"name": "mine"}}, {"serviceAccount": {"create": False, "name": "theirs"}}):
        rendered = render(values)
        account = rendered["Deployment", "bayplan"]["spec"]["template"]["spec"]["serviceAccountName"]
        for kind, name in (("ClusterRoleBinding", "bayplan-operator"), ("RoleBinding", "bayplan-lease")):
            assert rendered[kind, name]["subjects"] == [
                {"kind": "ServiceAccount", "name": account, "namespace": "bayplan-system"}
            ]
        assert (("ServiceAccount", account) in rendered) == values.get("serviceAccount", {}).get("create", True)


def test_account_takes_annotations() -> None:
    values = {"serviceAccount": {"annotations": {"example.com/role": "a"}}}
    assert render(values)["ServiceAccount", "bayplan"]["metadata"]["annotations"] == {"example.com/role": "a"}


def test_image_is_named_by_digest_before_tag_before_release() -> None:
    digest = f"sha256:{'0' * 64}"
    for image, expected in (
        ({}, "bayplan/bayplan:0.1.0"),
        ({"tag": "v2"}, "bayplan/bayplan:v2"),
        ({"tag": "v2", "digest": digest, "repository": "mirror/bayplan"}, f"mirror/bayplan@{digest}"),
    ):
        assert pod({"image": image})["containers"][0]["image"] == expected


def test_pod_runs_without_privileges() -> None:
    spec = pod()
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_selector_and_service_choose_the_pods() -> None:
    rendered = render()
    labels = rendered["Deployment", "bayplan"]["spec"]["template"]["metadata"]["labels"]
    selectors = (
        rendered["Deployment", "bayplan"]["spec"]["selector"]["matchLabels"],
        rendered["Service", "bayplan-metrics"]["spec"]["selector"],
    )
    for selector in selectors:
        assert selector.items() <= labels.items()


def test_configuration_reaches_the_operator_and_restarts_it(tmp_path: Path) -> None:
    values = {"configuration": {"limits": {"confirmSeconds": 90}, "listen": {"port": 9090}}}
    text = render(values)["ConfigMap", "bayplan-configuration"]["data"]["bayplan.yaml"]
    file = tmp_path / "bayplan.yaml"
    file.write_text(text)
    assert load_configuration(file).limits.confirm_seconds == 90
    assert pod(values)["containers"][0]["ports"] == [{"name": "http", "containerPort": 9090}]
    mount = pod()["containers"][0]["volumeMounts"][0]
    assert pod()["containers"][0]["args"] == ["operator", "--config", f"{mount['mountPath']}/bayplan.yaml"]
    checksums = [
        deployment(given)["spec"]["template"]["metadata"]["annotations"]["checksum/configuration"]
        for given in (None, values)
    ]
    assert checksums[0] != checksums[1]


def test_default_configuration_is_one_that_the_operator_takes(tmp_path: Path) -> None:
    file = tmp_path / "bayplan.yaml"
    file.write_text(render()["ConfigMap", "bayplan-configuration"]["data"]["bayplan.yaml"])
    (port,) = pod()["containers"][0]["ports"]
    assert load_configuration(file).listen.port == port["containerPort"]


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        ({"replicas": 3}, "replicas", 3),
        ({"replicas": 0}, "replicas", 0),
    ],
)
def test_number_of_operators(values: Values, field: str, expected: int) -> None:
    assert deployment(values)["spec"][field] == expected


@pytest.mark.parametrize(
    ("values", "member", "expected"),
    [
        ({"nodeSelector": {"pool": "system"}}, "nodeSelector", {"pool": "system"}),
        ({"tolerations": [{"operator": "Exists"}]}, "tolerations", [{"operator": "Exists"}]),
        ({"affinity": {"podAntiAffinity": {}}}, "affinity", {"podAntiAffinity": {}}),
        ({"priorityClassName": "system"}, "priorityClassName", "system"),
        ({"imagePullSecrets": ["pull"]}, "imagePullSecrets", [{"name": "pull"}]),
    ],
)
def test_pod_placement_values_reach_the_pod_and_are_absent_otherwise(
    values: Values, member: str, expected: object
) -> None:
    assert pod(values)[member] == expected
    assert member not in pod()


def test_resources_and_pull_policy_reach_the_container() -> None:
    (container,) = pod({"resources": {"limits": {"memory": "2Gi"}}, "image": {"pullPolicy": "Always"}})["containers"]
    assert container["resources"]["limits"]["memory"] == "2Gi"
    assert container["imagePullPolicy"] == "Always"


def test_user_roles_can_be_left_out() -> None:
    assert ("ClusterRole", "bayplan-view") not in render({"aggregateRoles": False})


@pytest.mark.parametrize(
    "values",
    [
        {"surprise": 1},
        {"image": {"surprise": 1}},
        {"image": {"repository": ""}},
        {"image": {"tag": "not a tag"}},
        {"image": {"digest": "sha256:1"}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"replicas": -1},
        {"replicas": 6},
        {"replicas": "2"},
        {"crds": {"surprise": True}},
        {"crds": {"keep": "yes"}},
        {"serviceAccount": {"create": False}},
        {"serviceAccount": {"surprise": 1}},
        {"imagePullSecrets": [{"name": "a"}]},
        {"configuration": {"listen": {"port": 80}}},
        {"nodeSelector": {"a": 1}},
    ],
    ids=json.dumps,
)
def test_value_that_means_nothing_is_refused(values: Values) -> None:
    with helm_python.Chart.load(CHART) as chart, pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema(values)
