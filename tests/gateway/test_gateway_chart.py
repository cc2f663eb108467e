"""The gateway's part of the chart, rendered by Helm's own library."""

import json
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from bayplan.api import names
from bayplan.cli.configuration import load_configuration

pytestmark = pytest.mark.slow

CHART = Path(__file__).parents[2] / "charts/bayplan"
Values = dict[str, Any]


def render(values: Values | None = None) -> dict[tuple[str, str], Values]:
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name="bayplan", namespace="bayplan-system")
    return {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for path, text in files.items()
        if path.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
        if manifest
    }


def pod(values: Values | None = None) -> Values:
    spec: Values = render(values)["Deployment", "bayplan-gateway"]["spec"]["template"]["spec"]
    return spec


def test_gateway_can_be_left_out() -> None:
    assert not [key for key in render({"gateway": {"enabled": False}}) if "gateway" in key[1]]


def test_pod_runs_the_gateway_with_the_shared_file_and_knows_itself(tmp_path: Path) -> None:
    (container,) = pod()["containers"]
    assert container["args"] == ["gateway", "--config", "/etc/bayplan/bayplan.yaml"]
    paths = {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container["env"]}
    assert paths == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_UID": "metadata.uid"}
    file = tmp_path / "bayplan.yaml"
    file.write_text(render()["ConfigMap", "bayplan-configuration"]["data"]["bayplan.yaml"])
    listen = load_configuration(file).gateway.listen
    ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
    assert ports == {"clients": listen.port, "cluster": listen.admin_port}
    assert ports == {"clients": names.GATEWAY_CLIENT_PORT, "cluster": names.GATEWAY_PORT}


def test_ports_of_the_configuration_are_those_of_the_pod() -> None:
    values = {"configuration": {"gateway": {"listen": {"port": 9000, "adminPort": 9001}}}}
    ports = {entry["name"]: entry["containerPort"] for entry in pod(values)["containers"][0]["ports"]}
    assert ports == {"clients": 9000, "cluster": 9001}


@pytest.mark.parametrize(("drain", "grace"), [(None, 330), (0, 30), (60, 90)])
def test_grace_period_covers_the_drain(drain: int | None, grace: int) -> None:
    values = {} if drain is None else {"configuration": {"gateway": {"times": {"drainSeconds": drain}}}}
    assert pod(values)["terminationGracePeriodSeconds"] == grace


def test_services_choose_the_gateway_and_keep_clients_from_the_cluster_port() -> None:
    rendered = render()
    labels = rendered["Deployment", "bayplan-gateway"]["spec"]["template"]["metadata"]["labels"]
    for name, target in (("bayplan-gateway", "clients"), ("bayplan-gateway-metrics", "cluster")):
        spec = rendered["Service", name]["spec"]
        assert spec["selector"].items() <= labels.items()
        assert [port["targetPort"] for port in spec["ports"]] == [target]
    operator = rendered["Service", "bayplan-metrics"]["spec"]["selector"]
    assert not operator.items() <= labels.items()


def test_bindings_name_the_account_of_the_gateway() -> None:
    rendered = render()
    for kind, name in (("ClusterRoleBinding", "bayplan-gateway"), ("RoleBinding", "bayplan-gateway-lease")):
        assert rendered[kind, name]["subjects"] == [
            {"kind": "ServiceAccount", "name": pod()["serviceAccountName"], "namespace": "bayplan-system"}
        ]


def test_secrets_are_mounted_where_the_environment_says() -> None:
    values = {"gateway": {"tenantsSecret": "keys", "saltSecret": "salt"}}
    (container,) = pod(values)["containers"]
    files = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    mounts = {entry["name"]: entry["mountPath"] for entry in container["volumeMounts"]}
    secrets = {entry["name"]: entry["secret"]["secretName"] for entry in pod(values)["volumes"] if "secret" in entry}
    assert secrets == {"tenants": "keys", "salt": "salt"}
    assert files == {
        "BAYPLAN_GATEWAY__TENANTS_FILE": f"{mounts['tenants']}/tenants.yaml",
        "BAYPLAN_GATEWAY__SECRET_FILE": f"{mounts['salt']}/secret",
    }
    assert not {"tenants", "salt"} & {entry["name"] for entry in pod()["volumes"]}


def test_extra_volumes_reach_the_pod() -> None:
    values = {
        "gateway": {
            "extraVolumes": [{"name": "tokenizers", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "tokenizers", "mountPath": "/tokenizers"}],
        }
    }
    spec = pod(values)
    assert {"name": "tokenizers", "emptyDir": {}} in spec["volumes"]
    assert {"name": "tokenizers", "mountPath": "/tokenizers"} in spec["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    "values",
    [
        {"gateway": {"surprise": 1}},
        {"gateway": {"enabled": "yes"}},
        {"gateway": {"servicePort": 0}},
        {"gateway": {"replicas": 2}},
        {"configuration": {"gateway": {"listen": {"port": 80}}}},
    ],
    ids=json.dumps,
)
def test_value_that_means_nothing_is_refused(values: Values) -> None:
    with helm_python.Chart.load(CHART) as chart, pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema(values)
