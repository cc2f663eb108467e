"""`MetricsPort` by our own scrapes: `/metrics` of engines and `/evidence` of gateways, a bounded number at a time."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from bayplan.api.names import ENGINE_PORT, GATEWAY_PORT
from bayplan.telemetry import evidence
from bayplan.telemetry.aliases import VLLM, Aliases
from bayplan.telemetry.exposition import PARSER_ERRORS, metric_names, read_samples, sums_of
from bayplan.telemetry.http import (
    PodClient,
    PodError,
    PodNotListeningError,
    PodUnreachableError,
    json_object,
    pod_url,
)
from bayplan.telemetry.readings import engine_answer
from bayplan.telemetry.sources import (
    EngineAnswer,
    EngineSource,
    GatewayAnswer,
    GatewaySource,
    Trouble,
    TroubleKind,
)

METRICS = "/metrics"
_NO_ANSWER = (PodNotListeningError, PodUnreachableError)


class ScrapeSource:
    """Asks each pod itself. `clock` gives the monotonic seconds that samples are stamped with."""

    def __init__(
        self,
        *,
        aliases: Aliases = VLLM,
        clock: Callable[[], float] = time.monotonic,
        most_at_once: int = 32,
        connect_timeout_seconds: float = 2.0,
        timeout_seconds: float = 5.0,
        engine_port: int = ENGINE_PORT,
        gateway_port: int = GATEWAY_PORT,
    ) -> None:
        self._aliases = aliases
        self._clock = clock
        self._turns = asyncio.Semaphore(most_at_once)
        self._timeout_seconds = timeout_seconds
        self._engine_port = engine_port
        self._gateway_port = gateway_port
        self._client = PodClient(connect_timeout_seconds=connect_timeout_seconds)

    async def close(self) -> None:
        """See `MetricsPort`."""
        await self._client.close()

    async def read_engines(self, sources: Sequence[EngineSource]) -> Mapping[str, EngineAnswer]:
        """See `MetricsPort`."""
        answers = await asyncio.gather(*(self._engine(source) for source in sources))
        return {source.uid: answer for source, answer in zip(sources, answers, strict=True)}

    async def read_gateways(self, sources: Sequence[GatewaySource]) -> Mapping[str, GatewayAnswer]:
        """See `MetricsPort`."""
        answers = await asyncio.gather(*(self._gateway(source) for source in sources))
        return {source.uid: answer for source, answer in zip(sources, answers, strict=True)}

    async def _engine(self, source: EngineSource) -> EngineAnswer:
        try:
            raw, at = await self._get(source.address, self._engine_port, METRICS)
        except PodError as error:
            return EngineAnswer(None, _trouble(f"pod {source.pod}", error))
        text = raw.decode(errors="replace")
        try:
            values = sums_of((sample.name, sample.value) for sample in read_samples(text, self._aliases.names))
        except PARSER_ERRORS as error:
            return EngineAnswer(
                None, Trouble(TroubleKind.INVALID, f"pod {source.pod}: {METRICS} is not readable: {error!s:.200}")
            )
        return engine_answer(source, values, aliases=self._aliases, at_seconds=at, present=lambda: metric_names(text))

    async def _gateway(self, source: GatewaySource) -> GatewayAnswer:
        try:
            raw, at = await self._get(source.address, self._gateway_port, evidence.PATH)
            body = json_object(raw, evidence.PATH)
        except PodError as error:
            return GatewayAnswer(trouble=_trouble(f"gateway {source.pod}", error))
        return evidence.gateway_answer(source, body, at_seconds=at)

    async def _get(self, address: str, port: int, path: str) -> tuple[bytes, float]:
        url = pod_url(address, port, path)
        async with self._turns:
            raw = await self._client.request("GET", url, path, timeout_seconds=self._timeout_seconds)
            return raw, self._clock()


def _trouble(who: str, error: PodError) -> Trouble:
    kind = TroubleKind.UNREACHABLE if isinstance(error, _NO_ANSWER) else TroubleKind.INVALID
    return Trouble(kind, f"{who}: {error}")
