"""Leader election by a Lease, after the rules of the Go client: 15 s lease, 10 s to renew, a try every 2 s.

Times of other machines are never compared. A holder counts as alive for the lease duration after *we* last saw its
record change, by our own monotonic clock; we ourselves count as leader for the renew deadline after the *start* of
the last renewal that the server accepted. Since that deadline is shorter than the duration, a leader that was paused
knows on waking that it may have been replaced, before it writes anything.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bayplan.cluster.clock import Clock, SystemClock, sleep, within
from bayplan.cluster.errors import ApiError, Conflict, LeaseLost, NotFound
from bayplan.cluster.port import Json, Port
from bayplan.cluster.resources import LEASES

logger = logging.getLogger(__name__)

REMIND_SECONDS = 30.0
"""A problem that lasts is said again this often."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. `duration` > `renew_deadline` > `retry`; `observe` is how often a standby looks."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0
    observe: float = 1.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > self.retry > 0 or self.observe <= 0:
            raise ValueError(f"lease times need duration > renew_deadline > retry > 0 and observe > 0, got {self}")


class Elector:
    """One candidate for one Lease. `acquire`, then run `hold`, which raises LeaseLost; `release` on a clean stop."""

    def __init__(
        self,
        api: Port,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        clock: Clock | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.identity = identity
        self._api = api
        self._namespace = namespace
        self._name = name
        self._times = times or LeaseTimes()
        self._clock = clock or SystemClock()
        self._now = now
        self._seen: Json | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None
        self._version = ""
        self._spec: Json = {}
        self._problem = ""
        self._warned_at = 0.0

    def __str__(self) -> str:
        return f"{self._namespace}/{self._name}"

    def is_held(self) -> bool:
        """Whether this process may write now. Reads the clock: ask before every batch of writes."""
        return self._renewed_at is not None and self._clock.time() < self._renewed_at + self._times.renew_deadline

    @property
    def problem(self) -> str | None:
        """Why the Lease has never been seen yet; None once it has, whoever holds it."""
        return None if self._seen is not None else self._problem or "not read yet"

    @property
    def holder(self) -> str:
        """Return the identity that the Lease was last seen to name; empty when it is free or unknown."""
        return str((self._seen or {}).get("holderIdentity") or "")

    async def acquire(self) -> None:
        """Return once this process is the leader, however long that takes."""
        while not await self._try(self._take):
            await sleep(self._clock, self._patience())

    async def hold(self) -> None:
        """Keep renewing; raises LeaseLost when somebody else holds the Lease or no renewal succeeds in time."""
        while True:
            await sleep(self._clock, self._times.retry)
            while not await self._try(self._renew):
                if not self.is_held():
                    self._renewed_at = None
                    raise LeaseLost(
                        f"lease {self._namespace}/{self._name} not renewed in {self._times.renew_deadline} s"
                    )
                await sleep(self._clock, self._times.retry / 4)

    async def release(self) -> None:
        """Give the Lease up so that another candidate takes over at once; failures only make that take longer."""
        if not self.is_held():
            self._renewed_at = None
            return
        self._renewed_at = None
        try:
            await self._write(
                {**self._spec, "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()}
            )
        except ApiError as error:
            logger.warning("the lease was not released: %s", error)

    # --- inside --------------------------------------------------------------------------------------------------

    async def _try(self, step: Callable[[], Awaitable[bool]]) -> bool:
        """Run one step within the retry period; any failure but a lost Lease is a `False`."""
        try:
            return await within(self._clock, self._times.renew_deadline / 2, step())
        except (ApiError, TimeoutError) as error:
            self._warn(self._explain(error))
            return False

    def _explain(self, error: ApiError | TimeoutError) -> str:
        if isinstance(error, NotFound) and f'namespaces "{self._namespace}" not found' in str(error):
            return (
                f"namespace {self._namespace} does not exist, so nothing can be done: create it (kubectl create "
                f"namespace {self._namespace}), or name the namespace of the Lease with --namespace"
            )
        return str(error) or type(error).__name__

    def _warn(self, problem: str) -> None:
        """Say a problem when it is new, and again while it lasts: whoever looks at the log later must see it too."""
        now = self._clock.time()
        due = problem != self._problem or now - self._warned_at >= REMIND_SECONDS
        logger.log(logging.WARNING if due else logging.DEBUG, "lease %s: %s", self, problem)
        self._problem = problem
        if due:
            self._warned_at = now

    async def _take(self) -> bool:
        started = self._clock.time()
        try:
            lease = await self._api.get(LEASES, self._namespace, self._name)
        except NotFound:
            spec = self._claim({})
            body = {"metadata": {"name": self._name}, "spec": spec}
            created = await self._api.create(
                LEASES, self._namespace, {"apiVersion": LEASES.api_version, "kind": LEASES.kind, **body}
            )
            return self._won(created, started)
        self._observe(lease)
        if self.holder and self.holder != self.identity and not self._expired():
            return False
        self._spec = self._claim(lease.get("spec") or {})
        try:
            return self._won(await self._write(self._spec), started)
        except Conflict:
            return False  # another candidate was faster

    async def _renew(self) -> bool:
        started = self._clock.time()
        try:
            return self._won(await self._write({**self._spec, "renewTime": self._stamp()}), started)
        except (Conflict, NotFound):
            return await self._reclaim(started)

    async def _reclaim(self, started: float) -> bool:
        """The Lease was changed or deleted by somebody: it is still ours only if it still names us."""
        try:
            lease = await self._api.get(LEASES, self._namespace, self._name)
        except NotFound:
            lease = {}
        self._observe(lease)
        if self.holder != self.identity:
            self._renewed_at = None
            raise LeaseLost(f"lease {self} is held by {self.holder or 'nobody'}")
        return self._won(await self._write({**self._spec, "renewTime": self._stamp()}), started)

    def _claim(self, previous: Mapping[str, Any]) -> Json:
        stamp = self._stamp()
        before = previous.get("holderIdentity") or ""
        transitions = int(previous.get("leaseTransitions") or 0)
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": round(self._times.duration),
            "acquireTime": stamp if before != self.identity else previous.get("acquireTime") or stamp,
            "renewTime": stamp,
            "leaseTransitions": transitions + (before != self.identity),
        }

    async def _write(self, spec: Json) -> Json:
        body = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        return await self._api.patch_merge(LEASES, self._namespace, self._name, body)

    def _won(self, lease: Json, started: float) -> bool:
        self._observe(lease)
        self._spec = dict(lease["spec"])
        self._renewed_at = started
        self._problem = ""
        return True

    def _observe(self, lease: Json) -> None:
        spec = lease.get("spec") or {}
        self._version = (lease.get("metadata") or {}).get("resourceVersion") or ""
        if spec != self._seen:
            self._seen = spec
            self._seen_at = self._clock.time()

    def _expires_at(self) -> float:
        duration = (self._seen or {}).get("leaseDurationSeconds") or 0
        return self._seen_at + max(self._times.duration, float(duration))

    def _expired(self) -> bool:
        return self._clock.time() >= self._expires_at()

    def _patience(self) -> float:
        """Wait no longer than to the moment at which the holder would count as dead."""
        until = self._expires_at() - self._clock.time()
        return min(self._times.observe, until) if self._seen is not None and until > 0 else self._times.observe

    def _stamp(self) -> str:
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
