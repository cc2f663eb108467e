"""HTTP to whatever runs in somebody's pod: addresses come from pod status alone, redirects are refused, answers are
bounded and never decompressed.
"""

import ipaddress
import json
from collections.abc import Mapping

import aiohttp

MAX_ANSWER_BYTES = 4 * 1024 * 1024


class PodError(Exception):
    """The process in the pod did not do what was asked; the message is for the on-call."""


class PodNotListeningError(PodError):
    """The address refuses connections: no process listens there."""


class PodUnreachableError(PodError):
    """No HTTP answer came, so nothing is known about the process."""


class PodClient:
    """One session for all pods; close it at the end. Every request raises PodError, nothing else."""

    def __init__(self, *, connect_timeout_seconds: float = 2.0) -> None:
        self._connect_timeout_seconds = connect_timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(self, method: str, url: str, path: str, *, timeout_seconds: float, body: object = None) -> bytes:
        """Return the body of a 200; `url` is that of `pod_url`, `path` is for messages."""
        session = self._open()
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, connect=self._connect_timeout_seconds)
        try:
            async with session.request(method, url, json=body, timeout=timeout, allow_redirects=False) as response:
                answer = bytearray()
                while not response.content.at_eof() and len(answer) <= MAX_ANSWER_BYTES:
                    answer += await response.content.read(MAX_ANSWER_BYTES + 1 - len(answer))
        except aiohttp.ClientConnectorError as error:
            # Only a refusal says that nothing listens; no route or no free socket says nothing about the process.
            refused = isinstance(error.os_error, ConnectionRefusedError)
            kind = PodNotListeningError if refused else PodUnreachableError
            raise kind(f"{error.host}: {error.os_error.strerror or error}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = f"{path}: {type(error).__name__} after at most {timeout_seconds:g} s"
            raise PodUnreachableError(text) from None
        raw = bytes(answer)
        if len(raw) > MAX_ANSWER_BYTES:
            raise PodError(f"{path} answered with more than {MAX_ANSWER_BYTES} bytes")
        if response.status != 200:
            raise PodError(f"{path} answered {response.status}: {raw[:200].decode(errors='replace')}")
        return raw

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=0, force_close=True),
                # A compressed answer could be far larger than what is read of it.
                auto_decompress=False,
                headers={"Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


def pod_url(address: str, port: int, path: str) -> str:
    """Return the URL of a path at a pod's address. Raises PodError for anything but an IP address."""
    try:
        host = ipaddress.ip_address(address)
    except ValueError:
        raise PodError(f"pod address {address!r:.80} is not an IP address") from None
    if isinstance(host, ipaddress.IPv6Address):
        if host.scope_id is not None:
            raise PodError(f"pod address {address!r:.80} is valid on one interface only")
        return f"http://[{host}]:{port}{path}"
    return f"http://{host}:{port}{path}"


def json_object(raw: bytes, path: str) -> Mapping[str, object]:
    """Read an answer that must be a JSON object; raises PodError."""
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        raise PodError(f"{path} did not answer with JSON") from None
    if not isinstance(answer, dict):
        raise PodError(f"{path} did not answer with a JSON object")
    return answer
