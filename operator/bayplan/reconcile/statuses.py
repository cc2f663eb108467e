"""How a status of ours is written: by server-side apply with one field manager for every kind."""

from collections.abc import Mapping
from typing import Any

from bayplan.api import names
from bayplan.api.meta import StatusSchema
from bayplan.cluster.errors import NotFound
from bayplan.cluster.port import Port
from bayplan.cluster.resources import Resource
from bayplan.reconcile.ports import Named


async def apply_status(port: Port, resource: Resource, view: Named, status: StatusSchema) -> Mapping[str, Any] | None:
    """Write the status of exactly this object and return it as it then stands; None where it is gone.

    The uid keeps it off a later bearer of the name. Any other refusal is raised.
    """
    try:
        return await port.apply(
            resource,
            view.key.namespace,
            view.key.name,
            {"metadata": {"uid": view.uid}, "status": status.to_wire()},
            manager=names.MANAGER_STATUS,
            subresource="status",
        )
    except NotFound:
        return None
