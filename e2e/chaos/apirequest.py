"""What a request to the API server asks for, read from its method, path, query and content type."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WRITES = frozenset({"create", "update", "patch", "apply", "delete", "deletecollection"})
UNCOUNTED = frozenset({"leases", "events"})
"""Written at rest too: the Lease by design, Events in the background and counted apart."""
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request. `resource` is empty for paths that name none (discovery, health)."""

    verb: str
    """get, list, watch, create, update, patch, apply, delete or deletecollection."""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    """Of a create, the name that its body asks for."""

    @property
    def target(self) -> str:
        """Return resource[/subresource]."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    @property
    def kind_of_write(self) -> str:
        """Return what writes are told apart by: verb and target."""
        return f"{self.verb} {self.target}"

    @property
    def is_write(self) -> bool:
        """Whether it changes a resource."""
        return bool(self.resource) and self.verb in WRITES

    @property
    def is_counted(self) -> bool:
        """Whether it is a write that must not happen at rest."""
        return self.is_write and self.resource not in UNCOUNTED

    def __str__(self) -> str:
        return f"{self.kind_of_write} {self.namespace}/{self.name}" if self.resource else self.verb


def parse_request(
    method: str, path: str, *, query: Mapping[str, str], content_type: str = "", body: bytes = b""
) -> ApiRequest:
    """Read a request; an unknown path gives one without a resource."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else []
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if not rest:
        return ApiRequest(method.lower())
    resource, name, subresource = (*rest, "", "")[:3]
    verb = _verb(method, named=bool(name), watch="watch" in query, content_type=content_type)
    if verb == "create" and not name:
        name = _name_in(body)
    return ApiRequest(verb, resource, subresource, namespace, name)


def _verb(method: str, *, named: bool, watch: bool, content_type: str) -> str:
    if method == "GET":
        return "watch" if watch else "get" if named else "list"
    if method == "DELETE":
        return "delete" if named else "deletecollection"
    if method == "PATCH" and content_type.startswith(APPLY_PATCH):
        return "apply"
    return _VERBS.get(method, method.lower())


def _name_in(body: bytes) -> str:
    try:
        found: Any = json.loads(body)["metadata"]["name"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(found)
