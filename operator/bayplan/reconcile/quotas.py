"""ResourceQuotas as the cache keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.cluster.cache import version_number
from bayplan.cluster.resources import Key
from bayplan.planning.placement.quota import Quota


@dataclass(frozen=True, slots=True)
class QuotaView:
    """One quota with its identity."""

    key: Key
    uid: str
    resource_version: int
    quota: Quota


def view_quota(raw: Mapping[str, Any]) -> QuotaView:
    """Project one ResourceQuota of the API server."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    return QuotaView(
        key=Key(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        resource_version=version_number(meta["resourceVersion"]),
        quota=Quota(
            name=meta["name"],
            hard=dict(status.get("hard") or spec.get("hard") or {}),
            used=dict(status.get("used") or {}),
            scoped=bool(spec.get("scopes") or spec.get("scopeSelector")),
        ),
    )
