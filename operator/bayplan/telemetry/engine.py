"""The engine's public surface, read from outside: is it listening, does it list the model, can it generate, is it idle.

Addresses come from pod status alone; redirects are refused and answers are bounded, because what answers there is
whatever runs in somebody's pod.
"""

import ipaddress
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bayplan.api.names import ENGINE_PORT

MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_NAME = 256
"""Longest model name that is believed; the API's own bound is lower."""
RUNNING_METRICS = ("vllm:num_requests_running",)
WAITING_METRICS = ("vllm:num_requests_waiting",)


class EngineError(Exception):
    """The engine did not do what was asked; the message is for the on-call."""


class EngineNotListeningError(EngineError):
    """The address refuses connections: no engine process listens there."""


class EngineUnreachableError(EngineError):
    """No HTTP answer came, so nothing is known about the engine."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests in the engine at one scrape."""

    running: int
    waiting: int

    @property
    def idle(self) -> bool:
        """Nothing running and nothing waiting."""
        return self.running == 0 and self.waiting == 0


class EnginePort(Protocol):
    """What reconcilers ask of an engine. Every method raises EngineError, nothing else."""

    async def served_models(self, address: str) -> Sequence[str]:
        """Names that `/v1/models` lists; raises EngineNotListeningError while nothing listens."""

    async def generate(self, address: str, *, model: str, prompt: str, max_tokens: int, timeout_seconds: float) -> int:
        """Run one real completion at temperature 0; return the number of tokens that came back, at least 1."""

    async def load(self, address: str) -> EngineLoad:
        """Scrape running and waiting requests."""


class HttpEngine:
    """`EnginePort` over HTTP. One session for all engines; close it at the end."""

    def __init__(self, *, connect_timeout_seconds: float = 2.0, read_timeout_seconds: float = 5.0) -> None:
        self._read_timeout_seconds = read_timeout_seconds
        self._connect_timeout_seconds = connect_timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def served_models(self, address: str) -> Sequence[str]:
        """See `EnginePort`."""
        answer = await self._json("GET", address, "/v1/models", self._read_timeout_seconds)
        entries = answer.get("data")
        if not isinstance(entries, list):
            raise EngineError("/v1/models answered without a list of models")
        ids = [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
        return [name for name in ids if len(name) <= MAX_NAME and name.isprintable()]

    async def generate(self, address: str, *, model: str, prompt: str, max_tokens: int, timeout_seconds: float) -> int:
        """See `EnginePort`."""
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        answer = await self._json("POST", address, "/v1/completions", timeout_seconds, body)
        choices, usage = answer.get("choices"), answer.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if not isinstance(choices, list) or not choices or type(tokens) is not int or tokens < 1:
            raise EngineError("the warm-up answer contains no generated token")
        reason = choices[0].get("finish_reason") if isinstance(choices[0], dict) else None
        if reason not in ("stop", "length"):
            raise EngineError(f"the warm-up generation ended with finish_reason {reason!r:.80}")
        return tokens

    async def load(self, address: str) -> EngineLoad:
        """See `EnginePort`."""
        text = await self._request("GET", address, "/metrics", self._read_timeout_seconds)
        try:
            sums = _sums(text.decode(errors="replace"), (*RUNNING_METRICS, *WAITING_METRICS))
        except (ValueError, LookupError, TypeError) as error:  # the parser's ways to meet nonsense
            raise EngineError(f"/metrics is not readable: {error!s:.200}") from None
        return EngineLoad(running=_first(sums, RUNNING_METRICS), waiting=_first(sums, WAITING_METRICS))

    async def _json(
        self, method: str, address: str, path: str, timeout_seconds: float, body: object = None
    ) -> Mapping[str, object]:
        raw = await self._request(method, address, path, timeout_seconds, body)
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            raise EngineError(f"{path} did not answer with JSON") from None
        if not isinstance(answer, dict):
            raise EngineError(f"{path} did not answer with a JSON object")
        return answer

    async def _request(
        self, method: str, address: str, path: str, timeout_seconds: float, body: object = None
    ) -> bytes:
        session = self._open()
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, connect=self._connect_timeout_seconds)
        try:
            async with session.request(
                method, _url(address, path), json=body, timeout=timeout, allow_redirects=False
            ) as response:
                answer = bytearray()
                while not response.content.at_eof() and len(answer) <= MAX_ANSWER_BYTES:
                    answer += await response.content.read(MAX_ANSWER_BYTES + 1 - len(answer))
        except aiohttp.ClientConnectorError as error:
            # Only a refusal says that nothing listens; no route or no free socket says nothing about the engine.
            refused = isinstance(error.os_error, ConnectionRefusedError)
            kind = EngineNotListeningError if refused else EngineUnreachableError
            raise kind(f"{address}: {error.os_error.strerror or error}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = f"{path}: {type(error).__name__} after at most {timeout_seconds:g} s"
            raise EngineUnreachableError(text) from None
        raw = bytes(answer)
        if len(raw) > MAX_ANSWER_BYTES:
            raise EngineError(f"{path} answered with more than {MAX_ANSWER_BYTES} bytes")
        if response.status != 200:
            raise EngineError(f"{path} answered {response.status}: {raw[:200].decode(errors='replace')}")
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


def _url(address: str, path: str) -> str:
    try:
        host = ipaddress.ip_address(address)
    except ValueError:
        raise EngineError(f"pod address {address!r:.80} is not an IP address") from None
    if isinstance(host, ipaddress.IPv6Address):
        if host.scope_id is not None:
            raise EngineError(f"pod address {address!r:.80} is valid on one interface only")
        return f"http://[{host}]:{ENGINE_PORT}{path}"
    return f"http://{host}:{ENGINE_PORT}{path}"


def _sums(text: str, wanted: Sequence[str]) -> dict[str, float]:
    """Sum the samples of each wanted metric over its labels (one engine may report several internal ranks).

    Only their own lines are parsed: an engine publishes hundreds of series, and this runs in the event loop.
    """
    lines = [line for line in text.split("\n") if line.startswith(tuple(wanted))]
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            if sample.name in wanted:
                if not math.isfinite(sample.value) or sample.value < 0:
                    raise ValueError(f"{sample.name} is {sample.value}")
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def _first(sums: Mapping[str, float], names: Sequence[str]) -> int:
    for name in names:
        if name in sums:
            return math.ceil(sums[name])
    raise EngineError(f"/metrics has none of {', '.join(names)}")
