"""What the audit log says about who wrote what."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.localcluster import Cluster
from e2e.scenarios.stack import ACCOUNT, NAMESPACE

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
OPERATOR = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
UNCOUNTED = frozenset({"leases", "events"})
"""At rest the operator renews its Lease; Events are counted apart."""


def entries(path: Path, *, after: int = 0) -> Iterator[dict[str, Any]]:
    """Yield complete entries from byte `after` on; the last line may still be in the writing."""
    with path.open("rb") as log:
        log.seek(after)
        for line in log:
            if line.endswith(b"\n"):
                yield json.loads(line)


def operator_writes(path: Path, *, after: int = 0) -> list[str]:
    """Return `verb resource name` of each write of the operator, Leases and Events left out."""
    found = []
    for entry in entries(path, after=after):
        reference = entry.get("objectRef") or {}
        if (
            entry.get("stage") == "ResponseComplete"
            and entry["verb"] in WRITES
            and entry["user"]["username"] == OPERATOR
            and reference.get("resource") not in UNCOUNTED
        ):
            resource = "/".join(filter(None, (reference.get("resource"), reference.get("subresource"))))
            found.append(f"{entry['verb']} {resource} {reference.get('namespace')}/{reference.get('name')}")
    return found


async def quiet_writes(cluster: Cluster, seconds: float) -> list[str]:
    """Return what the operator writes during `seconds` of rest; an empty list is what is promised."""
    if cluster.audit_log_path is None:
        raise ValueError(f"the {cluster.provider} provider has no audit log")
    after = cluster.audit_log_path.stat().st_size
    await asyncio.sleep(seconds)
    return operator_writes(cluster.audit_log_path, after=after)
