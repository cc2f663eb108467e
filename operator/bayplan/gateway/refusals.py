"""Every answer that the gateway gives of its own: what the request lacks, and what the engines could not do.

Refusals of admission come from `planning.admission.sheds`; both kinds have the same form, OpenAI's `error` object, a
stable code, and headers by which its clients know whether to come back.
"""

from collections.abc import Mapping
from enum import StrEnum

import orjson
from aiohttp import web

from bayplan.planning.admission.sheds import Shed


class RefusalCode(StrEnum):
    """Closed set; the value is `error.code` and the label in metrics."""

    INVALID_REQUEST = "invalid_request"
    INVALID_API_KEY = "invalid_api_key"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_AMBIGUOUS = "model_ambiguous"
    PATH_NOT_FOUND = "path_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TOO_SLOW = "body_too_slow"
    GATEWAY_BUSY = "gateway_busy"
    DRAINING = "draining"
    ENGINE_UNREACHABLE = "engine_unreachable"
    ENGINE_FAILED = "engine_failed"
    ENGINE_TIMEOUT = "engine_timeout"
    INTERNAL = "internal_error"


_STATUS = {
    RefusalCode.INVALID_REQUEST: 400,
    RefusalCode.INVALID_API_KEY: 401,
    RefusalCode.MODEL_NOT_FOUND: 404,
    RefusalCode.MODEL_AMBIGUOUS: 404,
    RefusalCode.PATH_NOT_FOUND: 404,
    RefusalCode.METHOD_NOT_ALLOWED: 405,
    RefusalCode.BODY_TOO_LARGE: 413,
    RefusalCode.BODY_TOO_SLOW: 408,
    RefusalCode.GATEWAY_BUSY: 503,
    RefusalCode.DRAINING: 503,
    RefusalCode.ENGINE_UNREACHABLE: 503,
    RefusalCode.ENGINE_FAILED: 502,
    RefusalCode.ENGINE_TIMEOUT: 504,
    RefusalCode.INTERNAL: 500,
}
_TYPE = {401: "authentication_error", 404: "not_found_error"}
_RETRY_AFTER_MS = {RefusalCode.GATEWAY_BUSY: 1000, RefusalCode.DRAINING: 1000, RefusalCode.ENGINE_UNREACHABLE: 1000}
"""Refusals after which a retry helps. A timed-out or failed generation may have cost the engine its whole work."""
_UNREAD_BODY = frozenset({RefusalCode.BODY_TOO_LARGE, RefusalCode.BODY_TOO_SLOW})


class Refused(Exception):  # noqa: N818 - a refusal is an answer, not a defect
    """The request gets this answer. `param` names the field of the body that is wrong."""

    def __init__(self, code: RefusalCode, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    @property
    def status(self) -> int:
        """HTTP status."""
        return _STATUS[self.code]

    def response(self, headers: Mapping[str, str] | None = None) -> web.Response:
        """Build the answer. A connection whose body was not read to its end cannot be used again."""
        retry_after_ms = _RETRY_AFTER_MS.get(self.code)
        kind = _TYPE.get(self.status, "invalid_request_error" if self.status < 500 else "service_unavailable_error")
        error: dict[str, object] = {"message": self.message, "type": kind, "param": self.param, "code": self.code.value}
        sent = {"x-should-retry": "false", **(headers or {})}
        if retry_after_ms is not None:
            error["retry_after"] = -(-retry_after_ms // 1000)
            sent |= {
                "x-should-retry": "true",
                "retry-after": str(-(-retry_after_ms // 1000)),
                "retry-after-ms": str(retry_after_ms),
            }
        if self.code is RefusalCode.INVALID_API_KEY:
            sent["www-authenticate"] = "Bearer"
        answer = _json_response(self.status, {"error": error}, sent)
        if self.code in _UNREAD_BODY:
            answer.force_close()
        return answer


def raw_answer(refused: Refused) -> bytes:
    """Return the whole answer as it goes over the wire, for a connection that nobody reads a request from."""
    response = refused.response()
    body = response.body
    assert isinstance(body, bytes)
    lines = [f"HTTP/1.1 {response.status} {response.reason}", "Connection: close", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items() if name.lower() != "content-length"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def shed_response(shed: Shed, headers: Mapping[str, str] | None = None) -> web.Response:
    """Build the answer to a request that admission refused."""
    return _json_response(shed.status, shed.body(), {**shed.headers(), **(headers or {})})


def _json_response(status: int, body: object, headers: Mapping[str, str]) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), headers=headers, content_type="application/json")
