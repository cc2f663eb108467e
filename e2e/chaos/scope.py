"""One world of several on one API server: what a client sees of it, by rewriting what it asks for.

A client that watches the whole cluster is shown one namespace and the nodes with one label, and its Lease lies where
the world keeps it. So several operators, each with a world of its own, run on one control plane side by side.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlencode

from e2e.chaos.apirequest import ApiRequest

_COLLECTION = re.compile(r"^(/api/v1|/apis/[^/]+/[^/]+)/([^/]+)$")
CLUSTER_SCOPED = frozenset({"nodes", "namespaces"})


@dataclass(frozen=True, slots=True)
class Scope:
    """What one client sees: the objects of `namespace`, nodes that `node_selector` selects, its own Lease."""

    namespace: str
    node_selector: str
    lease_namespace: str = ""
    """Where requests for Leases of one namespace go; empty: where they ask for."""

    def rewrite(self, request: ApiRequest, path: str, query: dict[str, str]) -> str:
        """Return path and query of the request to make instead."""
        if request.resource == "leases" and request.namespace and self.lease_namespace:
            path = re.sub(r"/namespaces/[^/]+/", f"/namespaces/{self.lease_namespace}/", path)
        elif request.verb in ("list", "watch") and request.resource == "nodes":
            selectors = [query.get("labelSelector", ""), self.node_selector]
            query = query | {"labelSelector": ",".join(filter(None, selectors))}
        elif request.verb in ("list", "watch") and not request.namespace and request.resource not in CLUSTER_SCOPED:
            path = _COLLECTION.sub(rf"\1/namespaces/{self.namespace}/\2", path)
        return f"{path}?{urlencode(query)}" if query else path
