"""Environment and arguments of containers."""

import base64
from typing import Any

import pytest

from e2e.nodeagent.environment import ConfigError, Sources, expand, expand_all, references, resolve

POD = {
    "metadata": {
        "name": "engine-0",
        "namespace": "models",
        "uid": "u-1",
        "labels": {"bayplan.dev/rank": "1"},
        "annotations": {"a/b": "c"},
    },
    "spec": {"nodeName": "node-1", "serviceAccountName": "runner"},
}


def sources(**kwargs: Any) -> Sources:
    return Sources(pod=POD, pod_ip="127.20.1.0", host_ip="127.20.255.254", **kwargs)


def secret(**values: str) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}}


def field(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
    ],
)
def test_variable_references_expand_as_in_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


def test_arguments_expand_and_absent_ones_are_none() -> None:
    assert expand_all(["--a=$(A)", "b"], {"A": "1"}) == ["--a=1", "b"]
    assert expand_all(None, {}) == []


def test_value_sees_only_variables_defined_before_it() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "C", "value": "3"}]
    assert resolve({"env": env}, sources()) == {"A": "1", "B": "1$(C)", "C": "3"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "engine-0"),
        ("metadata.namespace", "models"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['bayplan.dev/rank']", "1"),
        ("metadata.annotations['a/b']", "c"),
        ("metadata.labels['none']", ""),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "runner"),
        ("status.podIP", "127.20.1.0"),
        ("status.hostIP", "127.20.255.254"),
    ],
)
def test_downward_fields(path: str, expected: str) -> None:
    assert resolve({"env": [field(path)]}, sources()) == {"X": expected}


def test_unknown_field_path_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match=r"'spec\.shoeSize'"):
        resolve({"env": [field("spec.shoeSize")]}, sources())


def test_secret_and_config_map_keys_are_read() -> None:
    env = [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
        {"name": "BOTH", "value": "$(TOKEN)/$(LEVEL)"},
    ]
    found = resolve(
        {"env": env},
        sources(secrets={"hub": secret(token="s3")}, config_maps={"settings": {"data": {"level": "info"}}}),
    )
    assert found == {"TOKEN": "s3", "LEVEL": "info", "BOTH": "s3/info"}


def test_whole_secret_and_config_map_with_prefix_come_before_single_values() -> None:
    container = {
        "envFrom": [{"secretRef": {"name": "hub"}, "prefix": "HF_"}, {"configMapRef": {"name": "settings"}}],
        "env": [{"name": "level", "value": "debug"}],
    }
    found = resolve(
        container, sources(secrets={"hub": secret(TOKEN="s3")}, config_maps={"settings": {"data": {"level": "info"}}})
    )
    assert found == {"HF_TOKEN": "s3", "level": "debug"}


@pytest.mark.parametrize(
    ("container", "message"),
    [
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "k"}}}]},
            'secret "hub" not found',
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]},
            'configmap "c" not found',
        ),
        ({"envFrom": [{"secretRef": {"name": "hub"}}]}, 'secret "hub" not found'),
        ({"envFrom": [{"configMapRef": {"name": "c"}}]}, 'configmap "c" not found'),
    ],
)
def test_missing_object_is_refused_unless_optional(container: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(container, sources())
    for source in container.get("envFrom", []):
        next(iter(source.values()))["optional"] = True
    for variable in container.get("env", []):
        next(iter(variable["valueFrom"].values()))["optional"] = True
    assert resolve(container, sources()) == {}


def test_missing_key_is_refused_with_object_and_key() -> None:
    container = {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "k"}}}]}
    with pytest.raises(ConfigError, match="couldn't find key k in secret models/hub"):
        resolve(container, sources(secrets={"hub": secret(other="x")}))


def test_resource_field_is_refused_as_unsupported() -> None:
    container = {"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}
    with pytest.raises(ConfigError, match="does not support env from resourceFieldRef"):
        resolve(container, sources())


def test_references_name_every_object_that_is_read() -> None:
    container = {
        "envFrom": [{"secretRef": {"name": "s1"}}, {"configMapRef": {"name": "c1"}}],
        "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c2", "key": "k"}}},
            {"name": "C", "value": "v"},
        ],
    }
    found = references(container)
    assert (found.secrets, found.config_maps) == ({"s1", "s2"}, {"c1", "c2"})
