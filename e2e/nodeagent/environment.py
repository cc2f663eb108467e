"""Container environment and arguments: literal values, secrets, config maps, the downward API, `$(VAR)` references."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_REFERENCE = re.compile(r"\$(?:\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")
_MAP_FIELD = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


class ConfigError(Exception):
    """The container cannot be configured; the message is what its waiting state will say."""


@dataclass(frozen=True)
class References:
    """Names of the objects of a namespace that a container's environment needs."""

    secrets: frozenset[str]
    config_maps: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What an environment is made from. Objects that do not exist are absent from the maps."""

    pod: Mapping[str, Any]
    pod_ip: str
    host_ip: str
    secrets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    config_maps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def references(container: Mapping[str, Any]) -> References:
    """Return the secrets and config maps that a container names."""
    secrets, config_maps = set(), set()
    for source in container.get("envFrom") or ():
        if "secretRef" in source:
            secrets.add(source["secretRef"]["name"])
        if "configMapRef" in source:
            config_maps.add(source["configMapRef"]["name"])
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        if "secretKeyRef" in source:
            secrets.add(source["secretKeyRef"]["name"])
        if "configMapKeyRef" in source:
            config_maps.add(source["configMapKeyRef"]["name"])
    return References(frozenset(secrets), frozenset(config_maps))


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand `$(VAR)` as Kubernetes does: unknown references stay as they are, `$$` is a literal `$`."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else variables.get(name, match.group(0))

    return _REFERENCE.sub(value, text)


def expand_all(texts: Sequence[str] | None, variables: Mapping[str, str]) -> list[str]:
    """Expand each of a list of arguments."""
    return [expand(text, variables) for text in texts or ()]


def resolve(container: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """Return a container's environment. Raises ConfigError for what is missing and not optional."""
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        for key, value in _whole(source, sources).items():
            found[source.get("prefix", "") + key] = value
    for variable in container.get("env") or ():
        if "valueFrom" in variable:
            single = _single(variable["valueFrom"], sources)
            if single is not None:
                found[variable["name"]] = single
        else:
            found[variable["name"]] = expand(variable.get("value") or "", found)
    return found


def _content(kind: str, name: str, sources: Sources) -> dict[str, str] | None:
    if kind == "secret":
        secret = sources.secrets.get(name)
        if secret is None:
            return None
        return {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
    config_map = sources.config_maps.get(name)
    return None if config_map is None else dict(config_map.get("data") or {})


def _whole(source: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    for kind, key in (("secret", "secretRef"), ("configmap", "configMapRef")):
        if (reference := source.get(key)) is not None:
            content = _content(kind, reference["name"], sources)
            if content is None and not reference.get("optional"):
                raise ConfigError(f'{kind} "{reference["name"]}" not found')
            return content or {}
    return {}


def _single(source: Mapping[str, Any], sources: Sources) -> str | None:
    for kind, key in (("secret", "secretKeyRef"), ("configmap", "configMapKeyRef")):
        if (reference := source.get(key)) is not None:
            content = _content(kind, reference["name"], sources)
            if content is not None and reference["key"] in content:
                return content[reference["key"]]
            if reference.get("optional"):
                return None
            if content is None:
                raise ConfigError(f'{kind} "{reference["name"]}" not found')
            namespace = sources.pod["metadata"]["namespace"]
            raise ConfigError(f"couldn't find key {reference['key']} in {kind} {namespace}/{reference['name']}")
    if (reference := source.get("fieldRef")) is not None:
        return _downward(reference["fieldPath"], sources)
    raise ConfigError(f"this node does not support env from {', '.join(sorted(source))}")


def _downward(path: str, sources: Sources) -> str:
    metadata, spec = sources.pod["metadata"], sources.pod["spec"]
    if match := _MAP_FIELD.match(path):
        return str((metadata.get(match.group(1)) or {}).get(match.group(2), ""))
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": sources.pod_ip,
        "status.podIPs": sources.pod_ip,
        "status.hostIP": sources.host_ip,
        "status.hostIPs": sources.host_ip,
    }
    if path not in fields:
        raise ConfigError(f"this node does not support the field path {path!r}")
    return str(fields[path])
