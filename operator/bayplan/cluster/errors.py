"""Named errors of the API server and of the way to it.

`outcome_unknown` is the property that decides what a writer may do next: true means that the write may have happened,
so the only safe step is to read again.
"""

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """A request that did not succeed. `status` is 0 when no answer came."""

    outcome_unknown = False

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        """Seconds that the server asked to wait, or None."""

    def __str__(self) -> str:
        head = " ".join(str(part) for part in (self.status or "", self.reason) if part)
        return f"{head}: {self.message}" if head else self.message


class BadRequest(ApiError):  # noqa: N818 - the names are the API server's reasons
    """400: the server could not read the request."""


class Unauthorized(ApiError):  # noqa: N818
    """401: the credentials were refused, also after reloading them."""


class Forbidden(ApiError):  # noqa: N818
    """403: refused by RBAC or by an admission step."""

    @property
    def quota_exceeded(self) -> bool:
        """Whether a ResourceQuota refused the object. The server tells it in the message only."""
        return "exceeded quota" in self.message


class NotFound(ApiError):  # noqa: N818
    """404."""


class Conflict(ApiError):  # noqa: N818
    """409: a precondition (resourceVersion, uid) did not hold, or a field belongs to another manager."""


class AlreadyExists(Conflict):
    """409 on create: the name is taken."""


class Gone(ApiError):  # noqa: N818
    """410: the resourceVersion or the continue token is too old; list again."""


class Invalid(ApiError):  # noqa: N818
    """422: the object was refused by validation, or the `test` of a JSON patch did not hold."""


class TooManyRequests(ApiError):  # noqa: N818
    """429: the server sheds load (or a disruption budget blocks an eviction); nothing was done."""


class ServerError(ApiError):
    """5xx. The write may have happened."""

    outcome_unknown = True


class Unreachable(ApiError):  # noqa: N818
    """No usable answer: refused, cut, timed out, or bytes that are not the API's. A write may have happened."""

    outcome_unknown = True


class LeaseLost(Exception):  # noqa: N818
    """This process is not the leader (any more): it must write nothing and end."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def error_from_status(
    body: Mapping[str, Any] | None, *, status: int, retry_after: float | None = None, text: str = ""
) -> ApiError:
    """Build the named error for a response or an in-stream ERROR from its `Status` object.

    `body` may be None when a middle box answered; `text` is then quoted, cut to 200 characters.
    """
    reason = str((body or {}).get("reason") or "")
    message = str((body or {}).get("message") or text[:200] or f"HTTP {status}")
    details = (body or {}).get("details")
    if retry_after is None and isinstance(details, Mapping) and details.get("retryAfterSeconds"):
        retry_after = float(details["retryAfterSeconds"])
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    if reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(message, status=status, reason=reason, retry_after=retry_after)
