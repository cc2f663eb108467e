"""One reading of the gateways for all models: each gateway answers for every model at once.

Samplers of many models ask within the same seconds. The first one reads; the others wait for it, or take what it has
brought while that is fresh enough for them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from bayplan.telemetry.sources import GatewayAnswer, GatewaySource, MetricsPort


class SharedGateways:
    """Answers of the gateways, read through a port and kept for a while."""

    def __init__(self, port: MetricsPort, *, clock: Callable[[], float]) -> None:
        self._port = port
        self._clock = clock
        self._reading = asyncio.Lock()
        self._at = 0.0
        self._answers: Mapping[str, GatewayAnswer] = {}

    async def read(self, sources: Sequence[GatewaySource], *, max_age_seconds: float) -> Mapping[str, GatewayAnswer]:
        """Return an answer for each gateway by uid, asked for at most `max_age_seconds` before now."""
        async with self._reading:
            fresh = self._clock() - self._at <= max_age_seconds
            if not fresh or any(source.uid not in self._answers for source in sources):
                asked_at = self._clock()
                self._answers = await self._port.read_gateways(sources)
                self._at = asked_at
            return {source.uid: self._answers[source.uid] for source in sources}
