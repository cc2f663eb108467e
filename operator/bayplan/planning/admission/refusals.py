"""The checks before anything is reserved, each a refusal with its numbers or nothing."""

from bayplan.planning.admission.forecast import Prediction
from bayplan.planning.admission.hints import UNKNOWN_RETRY_MS, RetryHints
from bayplan.planning.admission.ledger import Ledger
from bayplan.planning.admission.records import (
    NANOSECONDS,
    AdmissionPolicy,
    AdmissionRequest,
    Footprint,
    TenantPolicy,
)
from bayplan.planning.admission.sheds import Shed, ShedCode, build_shed


def refuse_own_bound(
    request: AdmissionRequest, footprint: Footprint, *, policy: AdmissionPolicy, tenant: TenantPolicy, ledger: Ledger
) -> Shed | None:
    """Refuse what exceeds the pool's or the tenant's bound, or every single replica: no sum over replicas runs it."""
    tokens = request.prompt_tokens + request.max_output_tokens
    bound = policy.max_tokens_per_request
    if tenant.max_tokens_per_request is not None:
        bound = min(bound, tenant.max_tokens_per_request)
    if tokens > bound:
        return build_shed(
            ShedCode.REQUEST_TOO_LARGE,
            f"{request.prompt_tokens} prompt and at most {request.max_output_tokens} output tokens are {tokens}, "
            f"more than the {bound} allowed",
        )
    if ledger.exceeds_all(footprint):
        largest = ledger.largest
        return build_shed(
            ShedCode.REQUEST_TOO_LARGE,
            f"needs {footprint.kv_blocks} KV blocks and {footprint.sequences} sequences on one replica; "
            f"the largest has {largest.kv_blocks} and {largest.sequences}",
        )
    return None


def refuse_quota(
    footprint: Footprint, *, tenant: TenantPolicy, live_tokens: int, hints: RetryHints, policy: AdmissionPolicy
) -> Shed | None:
    """Refuse what would take the tenant above its quota; without a hint where it would exceed it alone."""
    quota = tenant.max_live_tokens
    if quota is None or (excess := live_tokens + footprint.tokens - quota) <= 0:
        return None
    message = f"the tenant holds {live_tokens} tokens of at most {quota}; this request needs {footprint.tokens} more"
    hint = None
    if footprint.tokens <= quota:
        hint = hints.for_quota(excess, live_tokens=live_tokens, policy=policy)
    return build_shed(ShedCode.TENANT_QUOTA, message, retry_after_ms=hint)


def refuse_not_ready(footprint: Footprint, *, ledger: Ledger, policy: AdmissionPolicy) -> Shed | None:
    """Refuse while no replica is ready, or none has a budget that could hold the request."""
    if ledger.could_hold(footprint):
        return None
    message = "no ready replica could hold the request" if ledger.has_routable else "no replica is ready to serve"
    return build_shed(ShedCode.NO_READY_REPLICA, message, retry_after_ms=policy.not_ready_retry_after_seconds * 1000)


def latest_start_ns(
    request: AdmissionRequest,
    prediction: Prediction,
    *,
    policy: AdmissionPolicy,
    tenant: TenantPolicy,
    now_ns: int,
) -> int:
    """The last moment at which a start still meets every deadline and the longest allowed wait."""
    wait = policy.max_wait_seconds
    if tenant.max_wait_seconds is not None:
        wait = min(wait, tenant.max_wait_seconds)
    latest = now_ns + wait * NANOSECONDS
    if request.first_token_by_ns is not None:
        latest = min(latest, request.first_token_by_ns - (prediction.first_token_ns or 0))
    if request.complete_by_ns is not None:
        latest = min(latest, request.complete_by_ns - (prediction.completion_ns or 0))
    return latest


def refuse_deadline(*, wait_ns: int, start_by_ns: int, now_ns: int, retry_after_ms: int) -> Shed:
    """Refuse what would start after its latest start; without a hint where no wait at all would be short enough."""
    wait = f"a wait of {wait_ns / NANOSECONDS:.2f} s is predicted"
    if start_by_ns < now_ns:
        return build_shed(
            ShedCode.DEADLINE_UNMEETABLE, f"{wait}, and the deadline leaves no time for the request itself"
        )
    latest = (start_by_ns - now_ns) / NANOSECONDS
    return build_shed(
        ShedCode.DEADLINE_UNMEETABLE, f"{wait}; it must start within {latest:.2f} s", retry_after_ms=retry_after_ms
    )


def refuse_queue_full(waiting: int, *, retry_after_ms: int) -> Shed:
    """Refuse what neither fits nor may wait."""
    message = f"no room on any replica, and {waiting} requests wait already"
    return build_shed(ShedCode.QUEUE_FULL, message, retry_after_ms=retry_after_ms)


def refuse_timeout(waited_ns: int, *, retry_after_ms: int) -> Shed:
    """Refuse what waited until its latest start."""
    message = f"no room came free within {waited_ns / NANOSECONDS:.2f} s"
    return build_shed(ShedCode.QUEUE_TIMEOUT, message, retry_after_ms=retry_after_ms)


def refuse_move(footprint: Footprint, *, ledger: Ledger, policy: AdmissionPolicy, retry_after_ms: int) -> Shed:
    """Refuse what had a place and finds no other."""
    unready = refuse_not_ready(footprint, ledger=ledger, policy=policy)
    if unready is not None:
        return unready
    message = "the replica that had the request cannot serve it, and no other has room for it now"
    return build_shed(ShedCode.NO_READY_REPLICA, message, retry_after_ms=retry_after_ms)


def refuse_draining() -> Shed:
    """Refuse because this gateway is going."""
    message = "this gateway is shutting down; another one answers"
    return build_shed(ShedCode.DRAINING, message, retry_after_ms=UNKNOWN_RETRY_MS)
