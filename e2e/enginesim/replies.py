"""JSON answers and errors in the forms that vLLM's HTTP server gives them."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web


def json_reply(value: Any, *, status: int = 200) -> web.Response:
    """Compact JSON with a content type that names no charset."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return web.Response(body=body, status=status, headers={"Content-Type": "application/json"})


class ApiError(Exception):
    """An answer with vLLM's error body: `{"error": {"message", "type", "param", "code"}}`.

    Two types look alike: what a request's meaning forbids is a `BadRequestError`, what its form forbids is a
    `Bad Request`, whose param is the whole path of the field from `body` on.
    """

    def __init__(
        self, message: str, *, status: int = 400, error_type: str = "BadRequestError", param: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": error_type, "param": param, "code": status}}

    def response(self) -> web.Response:
        """The HTTP answer."""
        return json_reply(self.body, status=self.status)


def malformed(message: str, param: str | None = None) -> ApiError:
    """The error for a body of a wrong form."""
    return ApiError(message, error_type="Bad Request", param=param)


class UnparsableError(Exception):
    """A body whose bytes cannot even be looked at."""


redirect_slashes = web.normalize_path_middleware(
    append_slash=False, remove_slash=True, merge_slashes=False, redirect_class=web.HTTPTemporaryRedirect
)
"""A path with a slash too many is answered by a redirect that keeps method and body."""


@web.middleware
async def errors_as_vllm(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Errors of the API in its own form; those of the HTTP layer below it as `{"detail": …}`."""
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except UnparsableError as error:
        return json_reply({"detail": str(error)}, status=400)
    except ConnectionResetError:
        raise  # the client left; there is nobody to answer
    except web.HTTPRedirection:
        raise
    except web.HTTPException as error:
        return json_reply({"detail": error.reason}, status=error.status)
