"""What this gateway tells the operator: that it lives, which Pod it is, which draining pods it has left alone, and by
which plans it routes.

All of it stands on one Lease of its own. A draining pod is acknowledged once nothing new can go to it and nothing is
under way that its engine does not show yet; so an engine that is idle twice after that stays idle. A plan's epoch is
acknowledged once every request goes by it. Without a Lease nobody waits for this gateway: so it must then send nothing
to candidates (`lapsed`), and stops before the Lease runs out.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bayplan.api import names
from bayplan.api.acknowledgements import write_epochs, write_uids
from bayplan.cluster.clock import Clock, SystemClock, within
from bayplan.cluster.errors import ApiError, NotFound
from bayplan.cluster.port import Port
from bayplan.cluster.resources import LEASES

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
LAPSES_AFTER = 2 / 3
"""Part of the Lease's duration after which it counts as lapsed here: well before anybody else may think so."""
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


@dataclass(frozen=True, slots=True)
class _Said:
    """What the annotations say: uids of draining pods, and epochs by Rollout uid."""

    draining: frozenset[str] = frozenset()
    epochs: tuple[tuple[str, int], ...] = ()


class Announcement:
    """Keeps the Lease. Run `run()` as a task; `withdraw()` at the end."""

    def __init__(
        self,
        api: Port,
        pod: GatewayPod,
        *,
        draining: Callable[[], Mapping[str, bool]],
        lease_seconds: float,
        epochs: Callable[[], Mapping[str, int]] = dict,
        clock: Clock | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`draining` returns uid → whether requests may still be under way to that pod unseen; `epochs` those of the
        plans that are routed by, by Rollout uid.
        """
        self._api = api
        self._pod = pod
        self._draining = draining
        self._epochs = epochs
        self._lease_seconds = lease_seconds
        self._duration_seconds = max(1, round(lease_seconds))
        self._clock = clock or SystemClock()
        self._now = now
        self._news = asyncio.Event()
        self._acquired = self._stamp()
        self._said = _Said()  # as far as the server has confirmed it
        self._renewed_at: float | None = None
        self.announced = asyncio.Event()
        """Set once the Lease exists."""
        self.failures = 0
        """Writes in a row that failed."""

    @property
    def acknowledged(self) -> frozenset[str]:
        """Uids of draining pods that the Lease names, as far as the server has confirmed it."""
        return self._said.draining

    @property
    def lapsed(self) -> bool:
        """Whether the Lease was never written, or not for so long that the operator may soon believe it is gone."""
        if self._renewed_at is None:
            return True
        return self._clock.time() - self._renewed_at >= self._duration_seconds * LAPSES_AFTER

    def changed(self) -> None:
        """Something about draining pods or plans may be different."""
        self._news.set()

    async def run(self) -> None:
        """Write the Lease in time, and at once when there is something to acknowledge; for ever."""
        while True:
            pending = self._pending()
            wanted = _Said(
                frozenset(uid for uid, busy in pending.items() if not busy), tuple(sorted(self._epochs().items()))
            )
            renewed_at = self._renewed_at
            due = renewed_at is None or self._clock.time() - renewed_at >= self._lease_seconds / RENEWALS_PER_LEASE
            if (due or wanted != self._said) and not await self._write(wanted):
                await self._wait(RETRY_SECONDS)
                continue
            unfinished = any(pending.values())
            left = (self._renewed_at or 0.0) + self._lease_seconds / RENEWALS_PER_LEASE - self._clock.time()
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

    async def _write(self, said: _Said) -> bool:
        started = self._clock.time()
        try:
            work = self._api.apply(
                LEASES, self._pod.namespace, self._pod.name, self._body(said), manager=names.MANAGER_GATEWAY
            )
            await within(self._clock, self._lease_seconds, work)
        except (ApiError, TimeoutError) as error:
            self.failures += 1
            level = logging.WARNING if self.failures == 1 else logging.DEBUG
            logger.log(level, "the gateway's lease could not be written: %s", error)
            return False
        self.failures = 0
        self._said = said
        self._renewed_at = started
        self.announced.set()
        return True

    def _body(self, said: _Said) -> dict[str, Any]:
        pod = self._pod
        metadata: dict[str, Any] = {
            "namespace": pod.namespace,
            "labels": {
                names.LABEL_GATEWAY: pod.uid,
                names.APP_NAME: "bayplan",
                names.APP_COMPONENT: "gateway",
                names.APP_MANAGED_BY: names.MANAGED_BY,
            },
            "annotations": {
                names.ANNOTATION_DRAINING_PODS: write_uids(said.draining),
                names.ANNOTATION_PLAN_EPOCHS: write_epochs(dict(said.epochs)),
            },
        }
        if pod.bound:
            # The Pod's end is the Lease's: a gateway that was killed leaves nothing behind.
            metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}]
        spec = {
            "holderIdentity": pod.name,
            "leaseDurationSeconds": self._duration_seconds,
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
