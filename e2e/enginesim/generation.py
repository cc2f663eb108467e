"""One HTTP request's sequences: what they will say, when their client may have it, and what it has not yet taken."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bayplan.simulation.kv_blocks import chain_block_hashes
from bayplan.simulation.requests import EngineRequest, FinishedRequest, FinishReason
from e2e.enginesim.driver import EngineDriver
from e2e.enginesim.metrics import EngineMetrics
from e2e.enginesim.text import PlannedOutput, tokenize


@dataclass(frozen=True, slots=True)
class Pace:
    """How late tokens reach the client: factors on the time to the first token and on the times between tokens."""

    first_token_factor: float = 1
    token_gap_factor: float = 1


class ReleaseSchedule:
    """When a client gets the tokens of a sequence that arrived at `arrival`; all times on one clock, in seconds."""

    def __init__(self, pace: Pace, *, arrival: float) -> None:
        self._pace = pace
        self._arrival = arrival
        self._first_made: float | None = None
        self._first_due = 0.0

    def due(self, made: float) -> float:
        """Release time of the next token, made at `made`; a late first token shifts all that follow."""
        if self._first_made is None:
            self._first_made = made
            self._first_due = self._arrival + self._pace.first_token_factor * (made - self._arrival)
            return self._first_due
        return self._first_due + self._pace.token_gap_factor * (made - self._first_made)


@dataclass(frozen=True, slots=True)
class Delta:
    """What a sequence has new for its client; `finish_reason` with the last one."""

    index: int
    text: str
    tokens: int
    finish_reason: str | None
    stop_reason: str | None


class Mailbox:
    """Wakes a request's handler when one of its sequences has news; `only_ends` leaves out all but the last."""

    def __init__(self, *, only_ends: bool) -> None:
        self._only_ends = only_ends
        self._news: dict[int, SequenceStream] = {}
        self._waiter: asyncio.Future[None] | None = None

    def notify(self, stream: "SequenceStream", *, ended: bool) -> None:
        """Note that this sequence has news."""
        if self._only_ends and not ended:
            return
        self._news[stream.index] = stream
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> list[Delta]:
        """Everything new since the last call, by sequence; waits for something."""
        if not self._news:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        news, self._news = self._news, {}
        return [stream.take() for stream in news.values()]


class SequenceStream:
    """Between the engine's steps and one choice of the answer; releases tokens at the request's pace."""

    def __init__(
        self,
        *,
        index: int,
        output: PlannedOutput,
        holdback: int,
        cut_stop: bool,
        pace: Pace,
        mailbox: Mailbox,
        driver: EngineDriver,
        metrics: EngineMetrics,
        request_id: str,
        limit: int,
    ) -> None:
        self.index = index
        self.limit = limit
        self.request_id = request_id
        self.driver = driver
        self.finished: FinishedRequest | None = None
        self.tokens = 0
        self._output = output
        self._holdback = holdback
        self._cut_stop = cut_stop
        self._mailbox = mailbox
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._arrival = self._loop.time()
        self._schedule = ReleaseSchedule(pace, arrival=self._arrival)
        self._last_released: float | None = None
        self._late = 0
        self._abandoned = False
        self._record: FinishedRequest | None = None
        self._taken_tokens = 0
        self._taken_characters = 0

    # -- from the engine

    def on_token(self, at_seconds: float) -> None:
        """Release a token, now or as late as the pace says."""
        due = self._schedule.due(at_seconds)
        if due <= at_seconds:
            self._release(at_seconds)
        else:
            self._late += 1
            self._loop.call_at(due, self._release_late, due)

    def on_finish(self, finished: FinishedRequest) -> None:
        """Release the end, with the last token."""
        self._record = finished
        if not self._late:
            self._finish(finished)

    def abort(self) -> None:
        """End it now and free its blocks; what was not released is lost. No effect on a sequence that ended."""
        record = self.driver.abort(self.request_id) or self._record
        if self.finished is None and record is not None:
            self._finish(replace(record, reason=FinishReason.ABORT, output_tokens=self.tokens))

    def abandon(self) -> None:
        """Free its blocks because nobody waits for it any more. vLLM counts such a sequence in no metric of ends."""
        if self.finished is None:
            self.driver.abort(self.request_id)
            self._abandoned = True

    # -- for the handler

    def take(self) -> Delta:
        """What is new since the last call."""
        characters = min(self.tokens, len(self._output.text))
        reason = self.finished.reason if self.finished is not None else None
        stopped = reason is FinishReason.STOP and self._output.stop is not None
        if reason is None:
            characters = max(self._taken_characters, characters - self._holdback)
        elif stopped and self._cut_stop and self._output.stop is not None:
            characters = max(self._taken_characters, characters - len(self._output.stop))
        text = self._output.text[self._taken_characters : characters]
        tokens = self.tokens - self._taken_tokens
        self._taken_characters = characters
        self._taken_tokens = self.tokens
        return Delta(self.index, text, tokens, reason, self._output.stop if stopped else None)

    def _release_late(self, at_seconds: float) -> None:
        if self.finished is not None or self._abandoned:
            return
        self._late -= 1
        self._release(at_seconds)
        if not self._late and self._record is not None:
            self._finish(self._record)

    def _release(self, at_seconds: float) -> None:
        self.tokens += 1
        if self._last_released is None:
            self._metrics.observe_first_token(self.driver.rank, at_seconds - self._arrival)
        else:
            self._metrics.observe_token_gap(self.driver.rank, at_seconds - self._last_released)
        self._last_released = at_seconds
        self._mailbox.notify(self, ended=False)

    def _finish(self, finished: FinishedRequest) -> None:
        self.finished = finished
        self._metrics.observe_sequence(self.driver.rank, finished, last_token_seconds=self._last_released)
        self._mailbox.notify(self, ended=True)


def engine_request(
    request_id: str,
    prompt: Sequence[int],
    output: PlannedOutput,
    *,
    limit: int,
    block_size: int,
    cache_salt: str | None,
    with_hashes: bool,
) -> EngineRequest:
    """What the engine needs to know of one sequence."""
    hashes: Sequence[bytes] = ()
    if with_hashes:
        hashes = chain_block_hashes([*prompt, *tokenize(output.text)], block_size=block_size, cache_salt=cache_salt)
    return EngineRequest(request_id, len(prompt), limit, output.tokens, hashes)
