"""Drives one stepping engine in real time and hands its tokens to whoever waits for them.

Asleep while there is no work: nothing ticks. While there is, one timer per step.
"""

import asyncio
from typing import Protocol

from bayplan.simulation.engine import Engine
from bayplan.simulation.requests import EngineRequest, FinishedRequest
from e2e.enginesim.metrics import EngineMetrics

_RESYNC_SECONDS = 0.1
"""A step that is late by more (a suspended process, a starved machine) is not caught up."""


class TokenSink(Protocol):
    """Receives one sequence's tokens at the end of the step that made them."""

    def on_token(self, at_seconds: float) -> None:
        """One more token exists."""

    def on_finish(self, finished: FinishedRequest) -> None:
        """The sequence ended; its last token was announced before."""


class EngineDriver:
    """Steps an engine by the event loop's clock and keeps its metrics."""

    def __init__(self, engine: Engine, metrics: EngineMetrics, *, rank: int) -> None:
        self.engine = engine
        self.rank = rank
        self._metrics = metrics
        self._sinks: dict[str, TokenSink] = {}
        self._work = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._reported = (0, 0)

    @property
    def load(self) -> int:
        """What a new request would wait for: running sequences, and waiting ones four times (vLLM's balance)."""
        return self.engine.num_running + 4 * self.engine.num_waiting

    def submit(self, request: EngineRequest, sink: TokenSink) -> None:
        """Queue a sequence; `sink` hears of its tokens until it ends or is aborted."""
        self.engine.add(request, now=self._clock())
        self._sinks[request.request_id] = sink
        self._work.set()

    def abort(self, request_id: str) -> FinishedRequest | None:
        """Free a sequence's blocks at once; None if it had ended. Its sink hears nothing more."""
        self._sinks.pop(request_id, None)
        finished = self.engine.abort(request_id, now=self._clock())
        if finished is not None:
            self._report_load()
        return finished

    async def run(self) -> None:
        """Step for ever; cancel to stop."""
        start = self._clock()
        while True:
            if not self.engine.has_work:
                self._work.clear()
                await self._work.wait()
                start = self._clock()
            result = self.engine.step(start)
            start += result.duration_seconds
            await asyncio.sleep(max(0.0, start - self._clock()))
            for first in result.first_tokens:
                self._metrics.count_prompt(
                    self.rank, prompt_tokens=first.prompt_tokens, cached_tokens=first.cached_tokens
                )
            self._metrics.count_step(
                self.rank,
                prompt_tokens=result.prefill_tokens,
                generated=result.generated_tokens,
                preemptions=len(result.preempted),
            )
            self._report_load()
            now = self._clock()
            sinks = self._sinks
            for request_id in result.emitted:
                sink = sinks.get(request_id)
                if sink is not None:
                    sink.on_token(now)
            for finished in result.finished:
                sink = sinks.pop(finished.request_id, None)
                if sink is not None:
                    sink.on_finish(finished)
            if now - start > _RESYNC_SECONDS:
                start = now

    def _report_load(self) -> None:
        engine = self.engine
        self._metrics.set_load(
            self.rank, running=engine.num_running, waiting=engine.num_waiting, kv_usage=engine.kv_usage
        )
        queried, hit = engine.prefix_cache_queried_tokens_total, engine.prefix_cache_hit_tokens_total
        self._metrics.count_prefix_lookup(
            self.rank, queried_tokens=queried - self._reported[0], hit_tokens=hit - self._reported[1]
        )
        self._reported = (queried, hit)
