"""Measuring, beside the reconcile workers: one task per autoscaled model, at the model's own pace.

The port bounds how many requests are open at once; gateways are read once for all models. A task that fails measures
nothing and goes on: what is not measured is Unknown.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from bayplan.cluster.resources import Key
from bayplan.planning.measurements import moment
from bayplan.planning.scaling.seed import ScalingPolicy
from bayplan.reconcile.background import TaskTable
from bayplan.reconcile.scaling.history import Answers, DemandHistory
from bayplan.telemetry.shared import SharedGateways
from bayplan.telemetry.sources import EngineSource, GatewaySource, MetricsPort

logger = logging.getLogger(__name__)

FRESH_SHARE = 0.5
"""Part of a model's pace for which a reading of the gateways, made for another model, will do."""


@dataclass(frozen=True, slots=True)
class Round:
    """How one model is measured: by whom it is served now, and by what policy it is decided on."""

    engines: Sequence[EngineSource]
    gateways: Sequence[GatewaySource]
    ready_seconds: Mapping[str, float]
    """How long each engine has been ready, by uid."""
    policy: ScalingPolicy


class DemandSampler:
    """Keeps the history of each model that it was told of."""

    def __init__(
        self,
        metrics: MetricsPort,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._metrics = metrics
        self._shared = SharedGateways(metrics, clock=clock)
        self._clock = clock
        self._sleep = sleep
        self._tasks = TaskTable()
        self._histories: dict[Key, tuple[str, DemandHistory]] = {}

    def ensure(
        self,
        key: Key,
        uid: str,
        *,
        sample_seconds: int,
        look: Callable[[], Round | None],
        sampled: Callable[[], None],
    ) -> DemandHistory:
        """Have a model measured from now on, and return what was measured of it; idempotent.

        `look` says whom to ask, None: not now. `sampled` is called after each measurement.
        """
        known = self._histories.get(key)
        if known is None or known[0] != uid:
            known = self._histories[key] = (uid, DemandHistory(str(key)))
        subject = (uid, sample_seconds)
        self._tasks.retain(key, [subject])
        if not self._tasks.running(key, subject):
            work = self._run(known[1], sample_seconds, look, sampled)
            self._tasks.start(key, subject, work, name=f"measure {key}")
        return known[1]

    def history(self, key: Key) -> DemandHistory | None:
        """Return what was measured of a model, None when nobody asked for it."""
        known = self._histories.get(key)
        return None if known is None else known[1]

    def forget(self, key: Key) -> None:
        """Measure a model no more."""
        self._histories.pop(key, None)
        self._tasks.retain(key, ())

    async def close(self) -> None:
        """Cancel everything and wait for it."""
        await self._tasks.close()

    async def _run(
        self,
        history: DemandHistory,
        sample_seconds: int,
        look: Callable[[], Round | None],
        sampled: Callable[[], None],
    ) -> None:
        while True:
            try:
                await self._measure(history, sample_seconds, look())
                sampled()
            except Exception:
                logger.exception("a measurement failed; the next one is due in %d s", sample_seconds)
            await self._sleep(sample_seconds)

    async def _measure(self, history: DemandHistory, sample_seconds: int, round_: Round | None) -> None:
        if round_ is None:
            return
        engines, gateways = await asyncio.gather(
            self._metrics.read_engines(round_.engines),
            self._shared.read(round_.gateways, max_age_seconds=FRESH_SHARE * sample_seconds),
        )
        answers = Answers(engines, gateways, round_.ready_seconds)
        history.take(answers, round_.policy, now_seconds=moment(self._clock()))
