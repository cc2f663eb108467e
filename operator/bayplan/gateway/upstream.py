"""Bytes to and from engines, behind an interface as narrow as the relay needs.

Only the transport is here: no routing, no retry. An engine is addressed by the IP address of a watched pod, on the one
engine port; redirects are not followed, nothing is decompressed, no proxy of the environment is used.
"""

from collections.abc import Mapping
from typing import Protocol

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from bayplan.api.names import ENGINE_PORT

KEEP_ALIVE_SECONDS = 3.0
"""vLLM's server closes a quiet connection after 5 s; a request on it just then would be lost."""
MOST_IDLE_URLS = 4096
_JSON = "application/json"
_NO_AUTOMATIC_HEADERS = ("User-Agent", "Accept-Encoding", "Accept")


class EngineError(Exception):
    """The engine gave no complete answer. The message names the kind of failure, never what was sent."""


class EngineUnreachableError(EngineError):
    """No connection came about: the engine has seen nothing of the request."""


class EngineBrokeOffError(EngineError):
    """The connection ended before the answer did."""


class Answer(Protocol):
    """An engine's answer, once its head has come."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def content_type(self) -> str:
        """Content type as the engine stated it."""

    async def read(self) -> bytes:
        """Return the next bytes of the body, empty at its end. Raises EngineBrokeOffError."""

    def close(self) -> None:
        """Cut the connection unless the body has ended: the engine learns at once that nobody listens."""


class Upstream(Protocol):
    """Sends one request to one engine."""

    async def send(self, address: str, path: str, payload: bytes, request_id: str) -> Answer:
        """Return the answer. `address` is a URL's host. Raises EngineError; cancelling it cuts the connection."""


class HttpAnswer:
    """See `Answer`."""

    __slots__ = ("_response",)

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        """See `Answer`."""
        return self._response.status

    @property
    def content_type(self) -> str:
        """See `Answer`."""
        return self._response.headers.get("Content-Type", _JSON)

    async def read(self) -> bytes:
        """See `Answer`."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineBrokeOffError(type(error).__name__) from None

    def close(self) -> None:
        """See `Answer`."""
        self._response.close()


class HttpUpstream:
    """`Upstream` over a pool of kept connections. Close it at the end."""

    def __init__(self, *, connect_seconds: float, port: int = ENGINE_PORT) -> None:
        self._port = port
        self._urls: dict[tuple[str, str], URL] = {}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, ttl_dns_cache=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            skip_auto_headers=_NO_AUTOMATIC_HEADERS,
            timeout=self._timeout,
        )

    async def send(self, address: str, path: str, payload: bytes, request_id: str) -> Answer:
        """See `Upstream`."""
        headers: Mapping[str, str] = CIMultiDict({"Content-Type": _JSON, "X-Request-Id": request_id})
        try:
            response = await self.session.post(
                self._url(address, path), data=payload, headers=headers, allow_redirects=False
            )
        except aiohttp.ClientConnectorError as error:
            raise EngineUnreachableError(type(error.os_error).__name__) from None
        except aiohttp.ConnectionTimeoutError:
            raise EngineUnreachableError("connecting took too long") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineBrokeOffError(type(error).__name__) from None
        return HttpAnswer(response)

    async def close(self) -> None:
        """Close all connections."""
        await self.session.close()

    def _url(self, address: str, path: str) -> URL:
        url = self._urls.get((address, path))
        if url is None:
            if len(self._urls) >= MOST_IDLE_URLS:
                self._urls.clear()
            url = self._urls[address, path] = URL(f"http://{address}:{self._port}{path}")
        return url
