"""One reading of the gateways for all models: each gateway answers for every model at once.

Samplers of many models ask within the same seconds. The first one reads; the others wait for it, or take what it has
brought while that is fresh enough for them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from bayplan.telemetry.sources import GatewayAnswer, GatewaySource, MetricsPort

KEPT_SECONDS = 600.0
"""Answers of gateways that nobody asks for any more are dropped after this time."""


class SharedGateways:
    """Answers of the gateways, read through a port and kept for a while."""

    def __init__(self, port: MetricsPort, *, clock: Callable[[], float]) -> None:
        self._port = port
        self._clock = clock
        self._reading = asyncio.Lock()
        self._kept: dict[str, tuple[float, GatewayAnswer]] = {}

    async def read(self, sources: Sequence[GatewaySource], *, max_age_seconds: float) -> Mapping[str, GatewayAnswer]:
        """Return an answer for each gateway by uid, asked for at most `max_age_seconds` before now."""
        async with self._reading:
            asked_at = self._clock()
            due = [one for one in sources if not self._is_fresh(one.uid, asked_at - max_age_seconds)]
            if due:
                answers = await self._port.read_gateways(due)
                self._forget_old(asked_at)
                self._kept |= {uid: (asked_at, answer) for uid, answer in answers.items()}
            return {source.uid: self._kept[source.uid][1] for source in sources}

    def _is_fresh(self, uid: str, since: float) -> bool:
        return uid in self._kept and self._kept[uid][0] >= since

    def _forget_old(self, now: float) -> None:
        for uid in [uid for uid, (at, _) in self._kept.items() if now - at > KEPT_SECONDS]:
            del self._kept[uid]
