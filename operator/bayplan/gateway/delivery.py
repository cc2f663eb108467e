"""From a place to the end of the body: one engine after the other until one serves, and exact accounts of each.

A request goes elsewhere only while its client has seen nothing, and only when the engine cannot have served it: it was
not reached, it lost the connection, it is leaving and refuses new work, or it cut the generation before its first
token. An error of an engine that stays is the answer. Elsewhere is always the pool: a candidate gets no request that is
not its own, and none a second time.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from bayplan.gateway.accounts import Job, account
from bayplan.gateway.directory import Directory
from bayplan.gateway.endpoints import HeadView
from bayplan.gateway.evidence import Cause, Evidence, RowKey
from bayplan.gateway.outcomes import Outcomes, RequestOutcome
from bayplan.gateway.places import Place
from bayplan.gateway.pools import Pool
from bayplan.gateway.refusals import RefusalCode, Refused, shed_response
from bayplan.gateway.relay import CutError, NotServedError, Relayed, StreamRelay, read_whole
from bayplan.gateway.settings import GatewaySettings
from bayplan.gateway.upstream import Answer, EngineBrokeOffError, EngineUnreachableError, Upstream
from bayplan.planning.admission.records import End
from bayplan.planning.gates.counts import Arm

MOST_ATTEMPTS = 3
LEAVING_SECONDS = 0.2
"""An engine that gets its stop signal refuses before its pod's deletion may have been seen here."""
_LOOK_SECONDS = 0.02
_TURNED_AWAY = (429, 503)
"""An engine's own queue limits: said before any work was done."""
_OUTCOMES = {
    Cause.CUT: RequestOutcome.CUT,
    Cause.CANCELLED: RequestOutcome.CANCELLED,
    Cause.REFUSED: RequestOutcome.REFUSED,
}


@dataclass(frozen=True, slots=True)
class Services:
    """What deliveries share."""

    directory: Directory
    upstream: Upstream
    evidence: Evidence
    outcomes: Outcomes
    settings: GatewaySettings
    now_ns: Callable[[], int] = time.monotonic_ns


class Delivery:
    """Delivers one job. `relayed` tells afterwards what went through."""

    def __init__(
        self,
        services: Services,
        request: web.Request,
        pool: Pool,
        place: Place,
        job: Job,
        *,
        payload: bytes,
        on_started: Callable[[], None],
    ) -> None:
        """`on_started` is called when a stream has begun: it cannot be sent again, so the payload is let go."""
        self.relayed = Relayed(keep_most_bytes=job.keep_bytes)
        self.completed = False
        self._services = services
        self._request = request
        self._pool = pool
        self._place = place
        self._job = job
        self._payload = payload
        self._on_started = on_started
        self._relay: StreamRelay | None = None
        self._tried: list[str] = []
        self._arm: Arm | None = None
        self._cause: Cause | None = Cause.FAILED  # until something else is known

    async def run(self) -> web.StreamResponse:
        """Deliver and give the place back. Raises Refused when no engine serves and the client has seen nothing."""
        end = End.FAILED
        try:
            response = await self._try_engines()
            end = End.COMPLETED if self.completed else End.FAILED
        except asyncio.CancelledError:
            end = End.CANCELLED
            self._cause = Cause.CANCELLED
            raise
        finally:
            tokens = self.relayed.progress.output_tokens if self.relayed.progress.produced else None
            self._place.release(end, tokens)
            model = self._pool.model.key
            outcome = RequestOutcome.COMPLETED if self.completed else self._outcome()
            self._services.outcomes.requests[model.namespace, model.name, outcome] += 1
        return response

    def _outcome(self) -> RequestOutcome:
        return RequestOutcome.FAILED if self._cause is None else _OUTCOMES.get(self._cause, RequestOutcome.FAILED)

    async def _try_engines(self) -> web.StreamResponse:
        attempts = 0
        while True:
            head = self._head()
            while head is None:
                # It began to leave, went, or is nobody's to use any more, between admission and now.
                self._tried.append(self._place.replica)
                shed = self._place.move(*self._tried)
                if shed is not None:
                    self._cause = Cause.UNREACHABLE
                    return shed_response(shed)
                head = self._head()
            attempts += 1
            self._tried.append(head.uid)
            try:
                return await self._attempt(head)
            except NotServedError as error:
                self._cause = Cause.FAILED if error.cause is Cause.CUT else error.cause  # nobody saw a part of it
                if error.cause is Cause.TIMEOUT:
                    raise Refused(RefusalCode.ENGINE_TIMEOUT, "the engine did not answer in time") from None
                if attempts == MOST_ATTEMPTS:
                    raise Refused(RefusalCode.ENGINE_UNREACHABLE, "no engine served the request") from None
                self._services.outcomes.rerouted += 1
                self.relayed = Relayed(keep_most_bytes=self._job.keep_bytes)
                refusal = self._go_on(head)
                if refusal is not None:
                    return refusal

    def _head(self) -> HeadView | None:
        """Where to send it: the watched pod that the place names, while it is there and may be sent it."""
        self._arm = None if self._place.lost else self._pool.arm(self._place)
        if self._arm is None:
            return None
        head = self._services.directory.head(self._place.replica)
        return head if head is not None and head.address is not None and not head.draining else None

    def _go_on(self, head: HeadView) -> web.Response | None:
        """Move on to another replica; without one the same engine gets a second chance while it stays."""
        alone = self._pool.is_pooled(self._place) and not self._pool.has_other(self._place)
        if alone and self._tried.count(head.uid) == 1 and self._head() is not None:
            return None
        shed = self._place.move(*self._tried)
        return None if shed is None else shed_response(shed)

    @property
    def cancelled(self) -> bool:
        """Whether the client has left."""
        return self._cause is Cause.CANCELLED

    # -- one engine

    async def _attempt(self, head: HeadView) -> web.StreamResponse:
        now_ns = self._services.now_ns
        key, arm = self._pool.model.key, self._arm or Arm.SERVING
        row = self._services.evidence.row(
            RowKey(key.namespace, key.name, head.uid, head.revision, arm, self._job.workload_class)
        )
        self._pool.sent(arm)
        row.begin(now_ns())
        cause: Cause | None = Cause.FAILED
        try:
            response = await self._exchange(head)
            cause = self._cause
        except asyncio.CancelledError:
            cause = Cause.CANCELLED
            raise
        except NotServedError as error:
            cause = error.cause
            raise
        except CutError as error:
            self._cause = cause = error.cause
            return self._cut_off()
        except Refused:
            cause = self._cause
            raise
        except ConnectionError:
            # The client is gone; a write found out before the handler was told.
            self._cause = cause = Cause.CANCELLED
            return self._cut_off()
        finally:
            if account(row, self._job, self.relayed, cause, now_ns=now_ns()):
                self._services.outcomes.undercounted_prompts += 1
        return response

    async def _exchange(self, head: HeadView) -> web.StreamResponse:
        """Send the request and carry the answer, within one limit of time that a stream renews with each chunk."""
        settings, place = self._services.settings, self._place
        limit = settings.silence_seconds if self._job.stream else settings.whole_answer_seconds
        answer: Answer | None = None
        whole = False
        self._relay = None
        try:
            async with asyncio.timeout(limit) as patience:
                # A pod that vanishes takes no connection down with it: its end is the end of patience.
                place.on_lost = lambda: patience.reschedule(0)
                answer = await self._send(head)
                place.answered()
                response = await self._carry(answer, head, patience)
                whole = True
        except TimeoutError:
            raise self._out_of_time() from None
        finally:
            place.on_lost = None
            if answer is not None and not whole:
                answer.close()
        return response

    def _out_of_time(self) -> Exception:
        if self._relay is None:
            lost = self._place.lost
            return NotServedError(Cause.UNREACHABLE if lost else Cause.TIMEOUT, "the engine did not answer")
        if self._place.lost:
            return self._relay.failed(Cause.CUT, "the pod is gone")
        return self._relay.failed(Cause.CANCELLED if self._relay.at_client else Cause.TIMEOUT)

    async def _send(self, head: HeadView) -> Answer:
        job = self._job
        try:
            return await self._services.upstream.send(head.address or "", job.path, self._payload, job.request_id)
        except EngineUnreachableError as error:
            raise NotServedError(Cause.UNREACHABLE, str(error)) from None
        except EngineBrokeOffError as error:
            raise NotServedError(Cause.FAILED, str(error)) from None

    async def _carry(self, answer: Answer, head: HeadView, patience: asyncio.Timeout) -> web.StreamResponse:
        job = self._job
        if answer.status == 200 and job.stream:
            self._relay = StreamRelay(
                self._request,
                silence_seconds=self._services.settings.silence_seconds,
                headers={"X-Request-Id": job.request_id, "Cache-Control": "no-cache"},
                on_first_token=self._started,
                now_ns=self._services.now_ns,
            )
            response = await self._relay.carry(answer, self.relayed, patience)
            self._conclude()
            return response
        if answer.status in _TURNED_AWAY:
            raise NotServedError(Cause.FAILED, f"the engine answered {answer.status}")
        if answer.status >= 500 and await self._leaves(head.uid):
            raise NotServedError(Cause.FAILED, "the engine is leaving")
        body = await read_whole(answer, self.relayed)
        if answer.status == 200:
            self._conclude()
            self.relayed.keep(body)
        elif 400 <= answer.status < 500:
            self._cause = Cause.REFUSED
        else:
            self._cause = Cause.FAILED
            if answer.status < 400:
                raise Refused(RefusalCode.ENGINE_FAILED, f"the engine answered {answer.status}")
        headers = {"X-Request-Id": job.request_id, "Content-Type": answer.content_type}
        return web.Response(status=answer.status, body=body, headers=headers)

    def _started(self) -> None:
        self._place.first_token()
        self._payload = b""
        self._on_started()

    def _conclude(self) -> None:
        """The body has ended. A stream that the engine cut ends as any other does: only its reason tells."""
        progress = self.relayed.progress
        whole = not progress.aborted and (progress.done or not self._job.stream)
        self.completed = whole
        self._cause = None if whole else Cause.CUT

    async def _leaves(self, uid: str) -> bool:
        """Whether the pod turns out to be leaving, now or in a moment."""
        deadline = asyncio.get_running_loop().time() + LEAVING_SECONDS
        while (head := self._services.directory.head(uid)) is not None and head.routable:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    def _cut_off(self) -> web.StreamResponse:
        """End the client's connection so that the answer cannot pass for a whole one."""
        transport = self._request.transport
        if transport is not None:
            transport.abort()
        return web.Response(status=502)
