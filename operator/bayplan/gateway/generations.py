"""One generation request, from its first byte to its last: whose, how large, let in or not, and delivered."""

import hashlib
import secrets
from collections.abc import Mapping
from functools import partial
from itertools import count

from aiohttp import web

from bayplan.gateway.accounts import Job
from bayplan.gateway.bodies import Buffers, read_body
from bayplan.gateway.copies import Copies
from bayplan.gateway.delivery import Delivery, Services
from bayplan.gateway.outcomes import RequestOutcome
from bayplan.gateway.places import Place
from bayplan.gateway.pools import Pool
from bayplan.gateway.promptsize import BYTE_BOUND, PromptSize, TextCounter, measure
from bayplan.gateway.refusals import RefusalCode, Refused, shed_response
from bayplan.gateway.replays import Key as ReplayKey
from bayplan.gateway.replays import Replays
from bayplan.gateway.requests import Api, GenerationRequest, parse_generation
from bayplan.gateway.salts import Salts
from bayplan.gateway.tenants import Tenant, Tenants
from bayplan.planning.admission.records import LONGEST_KEY, AdmissionRequest, End
from bayplan.planning.admission.sheds import Shed, ShedCode
from bayplan.planning.rollout.cohort import cohort_key

NANOSECONDS = 1_000_000_000
SESSION_HEADER = "X-Session-Id"
"""Names a session, so that all of it goes to the same arm of a rollout."""
COPIES_DOMAIN = "copy of "
"""Before the trust domain of a copy: no tenant's name has a blank, so its cached prefixes are nobody's else."""


class Generations:
    """Serves generation requests. `tenants` may be replaced while it runs."""

    def __init__(
        self,
        services: Services,
        *,
        tenants: Tenants,
        salts: Salts,
        counters: Mapping[str, TextCounter],
    ) -> None:
        settings = services.settings
        self.tenants = tenants
        self._services = services
        self._salts = salts
        self._counters = counters
        self._buffers = Buffers(settings.max_buffered_bytes)
        self._replays = Replays(
            most_bytes=settings.max_replay_bytes,
            remember_seconds=settings.remember_seconds,
            now_ns=services.now_ns,
        )
        self.copies = Copies(services, self._buffers)
        self._request_prefix = f"bayplan-{secrets.token_hex(6)}-"
        self._request_numbers = count(1)

    async def serve(self, request: web.Request, api: Api, pool: Pool | None = None) -> web.StreamResponse:
        """Answer one request. `pool` is the model that the path names. Raises Refused."""
        arrived_ns = self._services.now_ns()
        tenant = self.tenants.identify(request.headers.get("Authorization"))
        key = _idempotency_key(request)
        with self._buffers.lease() as lease:
            settings = self._services.settings
            raw = await read_body(request, lease, most_bytes=settings.max_body_bytes, seconds=settings.body_seconds)
            parsed = parse_generation(api, raw)
            if pool is None:
                pool = self._services.directory.named(parsed.model)
            else:
                self._services.directory.check_name(pool, parsed.model)
            digest = hashlib.sha256(api.value.encode() + raw).hexdigest() if key is not None else ""
            del raw
            asked = await self._weigh(parsed, pool, tenant, arrived_ns, key=key, digest=digest)
            job = self._job(parsed, asked, tenant, arrived_ns)
            place = await self._enter(
                pool, asked, _cohort_key(request, parsed, tenant, job.request_id) if pool.splits else ""
            )
            if isinstance(place, Shed):
                return self._refuse(pool, asked, place)
            try:
                delivery = Delivery(
                    self._services,
                    request,
                    pool,
                    place,
                    job,
                    payload=self._payload(parsed, pool, place, asked, tenant.trust_domain),
                    on_started=lease.give_back,
                )
                copy = None
                if pool.splits:
                    copied = partial(self._payload, parsed, pool, place, asked, COPIES_DOMAIN + tenant.trust_domain)
                    copy = self.copies.begin(pool, place, asked, job, copied)
                    del copied
            except BaseException:
                place.release(End.FAILED)
                raise
            del parsed
            try:
                response = await delivery.run()
            finally:
                if copy is not None and delivery.cancelled:
                    copy.cancel()
        if key is not None and delivery.completed and (kept := delivery.relayed.kept) is not None:
            self._replays.keep(_replay_key(pool, asked), delivery.relayed.content_type, kept)
        return response

    @property
    def buffered_bytes(self) -> int:
        """Bytes of bodies in memory."""
        return self._buffers.taken

    # -- before admission

    async def _weigh(
        self, parsed: GenerationRequest, pool: Pool, tenant: Tenant, arrived_ns: int, *, key: str | None, digest: str
    ) -> AdmissionRequest:
        counter = self._counters.get(str(pool.model.key), BYTE_BOUND)
        size = await measure(parsed.texts, counter)
        settings = self._services.settings
        prompt, output = footprint(
            size, parsed.max_output_tokens, default=settings.default_max_tokens, longest=pool.max_model_len
        )
        deadlines = settings.classes[tenant.workload_class]
        return AdmissionRequest(
            tenant=tenant.name,
            prompt_tokens=prompt,
            max_output_tokens=output,
            sequences=parsed.sequences,
            first_token_by_ns=_after(arrived_ns, deadlines.first_token_seconds),
            complete_by_ns=_after(arrived_ns, deadlines.complete_seconds),
            idempotency_key=key,
            payload_digest=digest,
        )

    def _payload(
        self, parsed: GenerationRequest, pool: Pool, place: Place, asked: AdmissionRequest, trust_domain: str
    ) -> bytes:
        return parsed.payload(
            model=pool.model.served_name,
            cache_salt=self._salts.of(pool.runs(place), trust_domain),
            max_output_tokens=asked.max_output_tokens,
        )

    async def _enter(self, pool: Pool, asked: AdmissionRequest, cohort_key: str) -> Place | Shed:
        entered = False
        try:
            outcome = await pool.enter(asked, cohort_key)
            entered = True
        finally:
            if not entered:
                self._count(pool, RequestOutcome.CANCELLED)
        return outcome

    def _refuse(self, pool: Pool, asked: AdmissionRequest, shed: Shed) -> web.Response:
        if shed.code is ShedCode.IDEMPOTENCY_COMPLETED:
            kept = self._replays.find(_replay_key(pool, asked))
            if kept is not None:
                self._count(pool, RequestOutcome.REPLAYED)
                headers = {"Content-Type": kept.content_type, "Idempotent-Replayed": "true"}
                return web.Response(body=kept.body, headers=headers)
        self._count(pool, RequestOutcome.SHED)
        return shed_response(shed)

    def _job(self, parsed: GenerationRequest, asked: AdmissionRequest, tenant: Tenant, arrived_ns: int) -> Job:
        return Job(
            path=parsed.api.value,
            stream=parsed.stream,
            sequences=parsed.sequences,
            prompt_tokens=asked.prompt_tokens,
            workload_class=tenant.workload_class,
            arrived_ns=arrived_ns,
            request_id=f"{self._request_prefix}{next(self._request_numbers)}",
            keep_bytes=self._replays.longest_bytes if asked.idempotency_key is not None else 0,
        )

    def _count(self, pool: Pool, outcome: RequestOutcome) -> None:
        model = pool.model.key
        self._services.outcomes.requests[model.namespace, model.name, outcome] += 1


def footprint(size: PromptSize | None, limit: int | None, *, default: int, longest: int) -> tuple[int, int]:
    """Return prompt and output tokens to reserve per sequence.

    The engine lets no sequence grow beyond `longest`, so a prompt that is only bounded counts at most what the output
    leaves of it. An exact count stands: what is too long is refused by admission. Without a limit of the caller's the
    output is `default`, or less where the prompt leaves less.
    """
    if size is None:
        output = min(default, max(1, longest - 1)) if limit is None else limit
        return max(1, longest - output), output
    output = min(default, max(1, longest - size.tokens)) if limit is None else limit
    prompt = size.tokens if size.exact else min(size.tokens, max(1, longest - output))
    return prompt, output


def _cohort_key(request: web.Request, parsed: GenerationRequest, tenant: Tenant, request_id: str) -> str:
    """What keeps a conversation where it is; two tenants' never meet."""
    session = request.headers.get(SESSION_HEADER)
    if session:
        return cohort_key(session=f"{tenant.name} {session}", conversation=None, request_id=request_id)
    opening = parsed.opening()
    digest = None if opening is None else f"{tenant.name} {hashlib.sha256(opening).hexdigest()}"
    return cohort_key(session=None, conversation=digest, request_id=request_id)


def _idempotency_key(request: web.Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not (key.isprintable() and len(key.strip()) > 0 and len(key) <= LONGEST_KEY):
        raise Refused(RefusalCode.INVALID_REQUEST, f"Idempotency-Key: must be 1 to {LONGEST_KEY} printable characters")
    return key


def _after(arrived_ns: int, seconds: float | None) -> int | None:
    return None if seconds is None else arrived_ns + round(seconds * NANOSECONDS)


def _replay_key(pool: Pool, asked: AdmissionRequest) -> ReplayKey:
    return (pool.model.uid, asked.tenant, asked.idempotency_key or "", asked.payload_digest)
