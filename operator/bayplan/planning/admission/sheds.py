"""Every refusal of a request, from one builder: a stable code, a status, and whether and when a retry can help.

400, 422 and 409 say that this request will not do, 429 that the pool has capacity but others hold it, 503 that it has
none now. The hint stands in the headers and in the body, because proxies lose headers. OpenAI's SDKs obey
`x-should-retry`, then `retry-after-ms`, then `retry-after`, up to 120 seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_RETRY_AFTER_MS = 120_000
"""OpenAI's SDKs ignore a longer hint."""


class ShedCode(StrEnum):
    """Closed set of refusals; the value is `error.code` in the body and the label in metrics."""

    REQUEST_TOO_LARGE = "request_too_large"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    IDEMPOTENCY_IN_FLIGHT = "idempotency_in_flight"
    IDEMPOTENCY_COMPLETED = "idempotency_completed"
    TENANT_QUOTA = "tenant_quota"
    DEADLINE_UNMEETABLE = "deadline_unmeetable"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    NO_READY_REPLICA = "no_ready_replica"
    DRAINING = "draining"


_STATUS = {
    ShedCode.REQUEST_TOO_LARGE: 400,
    ShedCode.IDEMPOTENCY_CONFLICT: 422,
    ShedCode.IDEMPOTENCY_IN_FLIGHT: 409,
    ShedCode.IDEMPOTENCY_COMPLETED: 409,
    ShedCode.TENANT_QUOTA: 429,
    ShedCode.DEADLINE_UNMEETABLE: 429,
    ShedCode.QUEUE_FULL: 429,
    ShedCode.QUEUE_TIMEOUT: 429,
    ShedCode.NO_READY_REPLICA: 503,
    ShedCode.DRAINING: 503,
}
_TYPE = {
    400: "invalid_request_error",
    409: "conflict_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_NEVER = frozenset({ShedCode.REQUEST_TOO_LARGE, ShedCode.IDEMPOTENCY_CONFLICT, ShedCode.IDEMPOTENCY_COMPLETED})
"""Codes that no waiting can cure."""


@dataclass(frozen=True, slots=True)
class Shed:
    """One refusal. Nothing is held for it. `retry_after_ms` is None when waiting can never help.

    `replay` marks an answer repeated to an idempotency key that came back before its hint had passed.
    """

    code: ShedCode
    status: int
    message: str
    retry_after_ms: int | None
    replay: bool = False

    @property
    def retry_after_seconds(self) -> int | None:
        """The hint in whole seconds, rounded up."""
        return None if self.retry_after_ms is None else -(-self.retry_after_ms // 1000)

    def headers(self) -> Mapping[str, str]:
        """Response headers: `x-should-retry`, and the hint in both units when there is one."""
        if self.retry_after_ms is None:
            return {"x-should-retry": "false"}
        return {
            "retry-after": str(self.retry_after_seconds),
            "retry-after-ms": str(self.retry_after_ms),
            "x-should-retry": "true",
        }

    def body(self) -> Mapping[str, Any]:
        """Response body in OpenAI's form, with `retry_after` in seconds beside the code when there is a hint."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": _TYPE[self.status],
            "param": None,
            "code": self.code.value,
        }
        if self.retry_after_ms is not None:
            error["retry_after"] = self.retry_after_seconds
        return {"error": error}


def build_shed(code: ShedCode, message: str, *, retry_after_ms: int | None = None, replay: bool = False) -> Shed:
    """Build the one answer for `code`.

    The hint is at least 1 ms and at most 120 s; codes that no waiting can cure never carry one.
    """
    hint = None if retry_after_ms is None or code in _NEVER else min(MAX_RETRY_AFTER_MS, max(1, retry_after_ms))
    return Shed(code, _STATUS[code], message, hint, replay)
