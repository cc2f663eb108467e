"""What this gateway tells the operator: that it lives, which Pod it is, and which draining pods it has left alone.

All of it stands on one Lease of its own. A draining pod is acknowledged once nothing new can go to it and nothing is
under way that its engine does not show yet; so an engine that is idle twice after that stays idle.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bayplan.api import names
from bayplan.cluster.clock import Clock, SystemClock, within
from bayplan.cluster.errors import ApiError, NotFound
from bayplan.cluster.port import Port
from bayplan.cluster.resources import LEASES

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
RETRY_SECONDS = 0.5
LOOK_SECONDS = 0.1
"""How often it is looked whether a draining pod can be acknowledged by now."""


@dataclass(frozen=True, slots=True)
class GatewayPod:
    """The Pod that this process runs in."""

    namespace: str
    name: str
    uid: str
    bound: bool = True
    """Whether the Pod exists under this uid, so that the Lease may end with it."""


class Announcement:
    """Keeps the Lease. Run `run()` as a task; `withdraw()` at the end."""

    def __init__(
        self,
        api: Port,
        pod: GatewayPod,
        *,
        draining: Callable[[], Mapping[str, bool]],
        lease_seconds: float,
        clock: Clock | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`draining` returns uid → whether requests may still be under way to that pod unseen."""
        self._api = api
        self._pod = pod
        self._draining = draining
        self._lease_seconds = lease_seconds
        self._clock = clock or SystemClock()
        self._now = now
        self._news = asyncio.Event()
        self._acquired = self._stamp()
        self.acknowledged: frozenset[str] = frozenset()
        """uids that the Lease names, as far as the server has confirmed it."""
        self.announced = asyncio.Event()
        """Set once the Lease exists."""
        self.failures = 0
        """Writes in a row that failed."""

    def changed(self) -> None:
        """Something about draining pods may be different."""
        self._news.set()

    async def run(self) -> None:
        """Write the Lease in time, and at once when there is something to acknowledge; for ever."""
        written_at: float | None = None
        while True:
            pending = self._pending()
            wanted = frozenset(uid for uid, busy in pending.items() if not busy)
            due = written_at is None or self._clock.time() - written_at >= self._lease_seconds / RENEWALS_PER_LEASE
            if due or wanted != self.acknowledged:
                started = self._clock.time()
                if await self._write(wanted):
                    written_at = started
                else:
                    await self._wait(RETRY_SECONDS)
                    continue
            unfinished = any(pending.values())
            left = (written_at or 0.0) + self._lease_seconds / RENEWALS_PER_LEASE - self._clock.time()
            await self._wait(min(LOOK_SECONDS, left) if unfinished else left)

    async def withdraw(self) -> None:
        """Delete the Lease: nobody need wait for this gateway any more. A failure only makes that take longer."""
        try:
            await within(
                self._clock, self._lease_seconds, self._api.delete(LEASES, self._pod.namespace, self._pod.name)
            )
        except NotFound:
            pass
        except (ApiError, TimeoutError) as error:
            logger.warning("the gateway's lease was not deleted: %s", error)

    # -- inside

    def _pending(self) -> dict[str, bool]:
        # An acknowledged pod stays acknowledged while it drains: nothing goes there any more.
        self._news.clear()
        return {uid: busy and uid not in self.acknowledged for uid, busy in self._draining().items()}

    async def _write(self, acknowledged: frozenset[str]) -> bool:
        try:
            work = self._api.apply(
                LEASES, self._pod.namespace, self._pod.name, self._body(acknowledged), manager=names.MANAGER_GATEWAY
            )
            await within(self._clock, self._lease_seconds, work)
        except (ApiError, TimeoutError) as error:
            self.failures += 1
            level = logging.WARNING if self.failures == 1 else logging.DEBUG
            logger.log(level, "the gateway's lease could not be written: %s", error)
            return False
        self.failures = 0
        self.acknowledged = acknowledged
        self.announced.set()
        return True

    def _body(self, acknowledged: frozenset[str]) -> dict[str, Any]:
        pod = self._pod
        metadata: dict[str, Any] = {
            "namespace": pod.namespace,
            "labels": {
                names.LABEL_GATEWAY: pod.uid,
                names.APP_NAME: "bayplan",
                names.APP_COMPONENT: "gateway",
                names.APP_MANAGED_BY: names.MANAGED_BY,
            },
            "annotations": {names.ANNOTATION_DRAINING_PODS: json.dumps(sorted(acknowledged), separators=(",", ":"))},
        }
        if pod.bound:
            # The Pod's end is the Lease's: a gateway that was killed leaves nothing behind.
            metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}]
        spec = {
            "holderIdentity": pod.name,
            "leaseDurationSeconds": max(1, round(self._lease_seconds)),
            "acquireTime": self._acquired,
            "renewTime": self._stamp(),
        }
        return {"metadata": metadata, "spec": spec}

    async def _wait(self, seconds: float) -> None:
        try:
            await within(self._clock, max(0.0, seconds), self._news.wait())
        except TimeoutError:
            return

    def _stamp(self) -> str:
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
