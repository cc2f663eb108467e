"""Who wrote in which namespace, and when last: one reader of the audit log for all walkers."""

import asyncio
import time
from collections import Counter, defaultdict

from e2e.localcluster.auditlog import AuditTail
from e2e.scenarios.audit import is_operator_write

POLL_SECONDS = 0.1


class WriteLog:
    """Follows the operator's requests by namespace, but those about resources in `without`. Run `run()` as a task."""

    def __init__(self, tail: AuditTail, *, without: frozenset[str] = frozenset()) -> None:
        self._tail = tail
        self._without = without
        self._last: dict[str, float] = {}
        self._writes: defaultdict[str, Counter[str]] = defaultdict(Counter)

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            self.pull()
            await asyncio.sleep(POLL_SECONDS)

    def pull(self) -> None:
        """Take in what is there."""
        for request in self._tail.read():
            if is_operator_write(request) and request.resource.partition("/")[0] not in self._without:
                self._writes[request.namespace][f"{request.verb} {request.resource}"] += 1
                self._last[request.namespace] = time.monotonic()

    def quiet_seconds(self, namespace: str) -> float:
        """Return for how long the operator has written nothing in a namespace; Leases and Events do not count."""
        return time.monotonic() - self._last.get(namespace, 0.0)

    def take(self, namespace: str) -> Counter[str]:
        """Return the writes since the last call, by verb and resource."""
        return self._writes.pop(namespace, Counter())
