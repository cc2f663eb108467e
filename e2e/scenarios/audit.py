"""What the audit log says about who wrote what."""

import asyncio

from e2e.localcluster import Cluster
from e2e.localcluster.auditlog import AuditTail, Request
from e2e.scenarios.stack import ACCOUNT, NAMESPACE

OPERATOR = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
UNCOUNTED = frozenset({"leases", "events"})
"""At rest the operator renews its Lease; Events are counted apart."""


def audit_tail(cluster: Cluster) -> AuditTail:
    """Return a reader from now on; raises ValueError where the provider has no audit log."""
    if cluster.audit_log_path is None:
        raise ValueError(f"the {cluster.provider} provider has no audit log")
    return AuditTail(cluster.audit_log_path)


def is_operator_write(request: Request, *, user: str = OPERATOR) -> bool:
    """Whether the operator asked for a change, Leases and Events left out."""
    return request.writes and request.user == user and request.resource.partition("/")[0] not in UNCOUNTED


async def quiet_writes(cluster: Cluster, seconds: float) -> list[str]:
    """Return what the operator writes during `seconds` of rest; an empty list is what is promised."""
    tail = audit_tail(cluster)
    await asyncio.sleep(seconds)
    return [str(request) for request in tail.read() if is_operator_write(request)]
