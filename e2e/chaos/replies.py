"""Answers that the API server, or a box before it, might have given."""

import json
from typing import Any

from aiohttp import web

from e2e.chaos.faults import FaultClass

PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>\n"
RETRY_AFTER_SECONDS = 1


def status_object(code: int, reason: str, message: str) -> dict[str, Any]:
    """Return a Status as the API server writes it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def refusal(fault: FaultClass) -> web.Response:
    """Return the answer of a fault that replaces the request's own."""
    code, reason, headers = {
        FaultClass.CONFLICT: (409, "Conflict", {}),
        FaultClass.INVALID: (422, "Invalid", {}),
        FaultClass.THROTTLED: (429, "TooManyRequests", {"Retry-After": str(RETRY_AFTER_SECONDS)}),
        FaultClass.ERROR_AFTER_SUCCESS: (500, "InternalError", {}),
    }[fault]
    return web.json_response(status_object(code, reason, f"injected: {fault}"), status=code, headers=headers)


def not_found(resource: str, name: str) -> web.Response:
    """Return what the API server says of an object that it does not have."""
    return web.json_response(status_object(404, "NotFound", f'{resource} "{name}" not found'), status=404)


def page(*, status: int) -> web.Response:
    """Return HTML."""
    return web.Response(body=PAGE, status=status, content_type="text/html")


def error_event(code: int, reason: str) -> bytes:
    """Return an ERROR line of a watch."""
    body = {"type": "ERROR", "object": status_object(code, reason, "injected")}
    return json.dumps(body).encode() + b"\n"
