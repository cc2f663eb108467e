"""The engine from outside: is it listening, does it list the model, can it generate, is it idle."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bayplan.api.names import ENGINE_PORT
from bayplan.telemetry.aliases import VLLM, Aliases, Signal
from bayplan.telemetry.exposition import PARSER_ERRORS, read_samples
from bayplan.telemetry.http import (
    MAX_ANSWER_BYTES,
    PodClient,
    PodError,
    PodNotListeningError,
    PodUnreachableError,
    json_object,
    pod_url,
)

__all__ = [
    "MAX_ANSWER_BYTES",
    "EngineError",
    "EngineLoad",
    "EngineNotListeningError",
    "EnginePort",
    "EngineUnreachableError",
    "HttpEngine",
]

CACHE_METRIC = "vllm:cache_config_info"
"""What the engine really got stands in its labels."""
MAX_NAME = 256
"""Longest model name that is believed; the API's own bound is lower."""

EngineError = PodError
"""The engine did not do what was asked; the message is for the on-call."""
EngineNotListeningError = PodNotListeningError
"""The address refuses connections: no engine process listens there."""
EngineUnreachableError = PodUnreachableError
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

    async def cache_blocks(self, address: str) -> int | None:
        """Scrape the KV cache blocks of the rank with the fewest; None where the engine does not say."""


class HttpEngine:
    """`EnginePort` over HTTP. One session for all engines; close it at the end."""

    def __init__(
        self,
        *,
        aliases: Aliases = VLLM,
        connect_timeout_seconds: float = 2.0,
        read_timeout_seconds: float = 5.0,
    ) -> None:
        self._running = aliases.by_signal[Signal.RUNNING]
        self._waiting = aliases.by_signal[Signal.WAITING]
        self._read_timeout_seconds = read_timeout_seconds
        self._client = PodClient(connect_timeout_seconds=connect_timeout_seconds)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

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
            sums = _sums(text.decode(errors="replace"), (*self._running, *self._waiting))
        except PARSER_ERRORS as error:
            raise EngineError(f"/metrics is not readable: {error!s:.200}") from None
        return EngineLoad(running=_first(sums, self._running), waiting=_first(sums, self._waiting))

    async def cache_blocks(self, address: str) -> int | None:
        """See `EnginePort`."""
        text = await self._request("GET", address, "/metrics", self._read_timeout_seconds)
        try:
            samples = read_samples(text.decode(errors="replace"), (CACHE_METRIC,))
        except PARSER_ERRORS as error:
            raise EngineError(f"/metrics is not readable: {error!s:.200}") from None
        found = [sample.labels.get("num_gpu_blocks", "") for sample in samples]
        blocks = [int(number) for number in found if re.fullmatch(r"[1-9][0-9]{0,12}", number)]
        return min(blocks) if blocks and len(blocks) == len(found) else None

    async def _json(
        self, method: str, address: str, path: str, timeout_seconds: float, body: object = None
    ) -> Mapping[str, object]:
        return json_object(await self._request(method, address, path, timeout_seconds, body), path)

    async def _request(
        self, method: str, address: str, path: str, timeout_seconds: float, body: object = None
    ) -> bytes:
        url = _url(address, path)
        return await self._client.request(method, url, path, timeout_seconds=timeout_seconds, body=body)


def _url(address: str, path: str) -> str:
    return pod_url(address, ENGINE_PORT, path)


def _sums(text: str, wanted: Sequence[str]) -> dict[str, float]:
    """Sum the samples of each wanted metric over its labels (one engine may report several internal ranks)."""
    sums: dict[str, float] = {}
    for sample in read_samples(text, wanted):
        if not math.isfinite(sample.value) or sample.value < 0:
            raise ValueError(f"{sample.name} is {sample.value}")
        sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def _first(sums: Mapping[str, float], names: Sequence[str]) -> int:
    for name in names:
        if name in sums:
            return math.ceil(sums[name])
    raise EngineError(f"/metrics has none of {', '.join(names)}")
