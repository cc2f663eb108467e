"""Overload on a clock of its own: one engine, clients that time out and retry, with and without admission.

The engine is `simulation.engine` at its default speed (12 ms a step, 0.06 ms per sequence, 14,000 prompt tokens a
second, 120,000 tokens of KV cache), the decisions are `planning.admission`'s. Prompts and outputs are log-normal around
600 and 250 tokens, and clients ask for twice the output that they get. A request is good when its first token came
within 2 s and its further ones within 60 ms each; its client gives up after 30 s and tries at most twice more.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from bayplan.planning.admission.core import AdmissionCore
from bayplan.planning.admission.records import (
    AdmissionPolicy,
    AdmissionRequest,
    Admitted,
    End,
    Queued,
    Resources,
    Settled,
)
from bayplan.planning.admission.sheds import Shed
from bayplan.simulation.engine import Engine
from bayplan.simulation.requests import EngineConfig, EngineRequest, FinishReason

PEAK_PER_SECOND = 10.0
"""Offered load at which the engine's good throughput peaks."""
TTFT_SECONDS = 2.0
TPOT_SECONDS = 0.060
PATIENCE_SECONDS = 30.0
RETRIES = 2
FIRST_BACKOFF_SECONDS = 0.5
KV_TOKENS = 120_000
BLOCK_SIZE = 16
MAX_NUM_SEQS = 128
MAX_MODEL_LEN = 8192
REPLICA = "engine"
NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Work:
    """What one client wants."""

    prompt_tokens: int
    output_tokens: int

    @property
    def max_tokens(self) -> int:
        """What it asks for, to be safe."""
        return 2 * self.output_tokens


@dataclass
class Attempt:
    """One try of one client."""

    work: Work
    number: int
    started: float
    request_id: str
    ticket: int | None = None
    first_token: float | None = None
    over: bool = False


@dataclass
class Tally:
    """What came of it, counted while the measurement lasted."""

    good_tokens: int = 0
    good_requests: int = 0
    offered: int = 0
    attempts: int = 0
    sheds: int = 0
    timeouts: int = 0
    preemptions: int = 0
    late_tokens: int = 0
    """Of requests that were answered, but not within the objectives."""


def draw_work(dice: random.Random) -> Work:
    """Log-normal lengths with a sigma of 0.8 around these means."""
    sigma = 0.8

    def length(mean: float, most: int) -> int:
        return max(1, min(most, round(dice.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))

    return Work(length(600, 4000), length(250, 1500))


class Overload:
    """One run."""

    def __init__(self, *, per_second: float, seed: int, seconds: float, warm_up: float, admission: bool) -> None:
        self.tally = Tally()
        self._dice = random.Random(seed)
        self._per_second = per_second
        self._from, self._until = warm_up, warm_up + seconds
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = 0.0
        blocks = KV_TOKENS // BLOCK_SIZE
        self._engine = Engine(
            EngineConfig(
                num_blocks=blocks, block_size=BLOCK_SIZE, max_model_len=MAX_MODEL_LEN, max_num_seqs=MAX_NUM_SEQS
            )
        )
        self._stepping = False
        self._running: dict[str, Attempt] = {}
        self._waiting: dict[int, Attempt] = {}
        self._core: AdmissionCore | None = None
        if admission:
            self._core = AdmissionCore(
                AdmissionPolicy(block_size=BLOCK_SIZE, max_tokens_per_request=MAX_MODEL_LEN, max_queued_requests=256)
            )
            self._core.set_replica(REPLICA, capacity=Resources(blocks, MAX_NUM_SEQS), now_ns=0)

    def run(self) -> Tally:
        """Play it to the end of the measurement."""
        self._at(0.0, self._arrive)
        while self._events and self._events[0][0] < self._until:
            self._now, _, event = heapq.heappop(self._events)
            event()
        self.tally.preemptions = self._engine.preemptions_total
        return self.tally

    # -- time

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    @property
    def _counts(self) -> bool:
        return self._now >= self._from

    def _ns(self, seconds: float | None = None) -> int:
        return round((self._now if seconds is None else seconds) * NANOSECONDS)

    # -- clients

    def _arrive(self) -> None:
        self._at(self._now + self._dice.expovariate(self._per_second), self._arrive)
        self.tally.offered += self._counts
        self._try(draw_work(self._dice), 0)

    def _try(self, work: Work, number: int) -> None:
        self.tally.attempts += self._counts
        attempt = Attempt(work, number, self._now, f"r{next(self._order)}")
        self._at(self._now + PATIENCE_SECONDS, lambda: self._give_up(attempt))
        if self._core is None:
            self._start(attempt)
            return
        request = AdmissionRequest(
            tenant="a",
            prompt_tokens=work.prompt_tokens,
            max_output_tokens=work.max_tokens,
            first_token_by_ns=self._ns(self._now + TTFT_SECONDS),
            complete_by_ns=self._ns(self._now + PATIENCE_SECONDS),
        )
        decided = self._core.decide(request, self._ns())
        match decided.decision:
            case Admitted() as admitted:
                attempt.ticket = admitted.ticket
                self._start(attempt)
            case Queued() as queued:
                attempt.ticket = queued.ticket
                self._waiting[queued.ticket] = attempt
            case Shed() as shed:
                self._shed(attempt, shed)
        self._settle(decided.settled)

    def _shed(self, attempt: Attempt, shed: Shed) -> None:
        attempt.over = True
        self.tally.sheds += self._counts
        if shed.retry_after_ms is not None:
            self._again(attempt, shed.retry_after_ms / 1000)

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.over:
            return
        attempt.over = True
        self.tally.timeouts += self._counts
        self._engine.abort(attempt.request_id, now=self._now)
        self._running.pop(attempt.request_id, None)
        self._release(attempt, End.CANCELLED, None)
        self._again(attempt, FIRST_BACKOFF_SECONDS * 2**attempt.number)

    def _again(self, attempt: Attempt, delay: float) -> None:
        if attempt.number < RETRIES:
            self._at(self._now + delay, lambda: self._try(attempt.work, attempt.number + 1))

    # -- admission

    def _release(self, attempt: Attempt, end: End, output_tokens: int | None) -> None:
        if self._core is not None and attempt.ticket is not None:
            self._waiting.pop(attempt.ticket, None)
            self._settle(self._core.release(attempt.ticket, self._ns(), end=end, output_tokens=output_tokens).settled)

    def _settle(self, settled: tuple[Settled, ...]) -> None:
        for one in settled:
            attempt = self._waiting.pop(one.ticket)
            if isinstance(one.decision, Shed):
                self._shed(attempt, one.decision)
            else:
                self._start(attempt)
        if self._core is not None and (due := self._core.next_expiry_ns) is not None:
            self._at(max(self._now, due / NANOSECONDS), self._expire)

    def _expire(self) -> None:
        if self._core is not None and (due := self._core.next_expiry_ns) is not None and due <= self._ns():
            self._settle(self._core.expire(self._ns()).settled)

    # -- the engine

    def _start(self, attempt: Attempt) -> None:
        work = attempt.work
        self._running[attempt.request_id] = attempt
        request = EngineRequest(attempt.request_id, work.prompt_tokens, work.max_tokens, work.output_tokens)
        self._engine.add(request, now=self._now)
        if not self._stepping:
            self._step()

    def _step(self) -> None:
        self._stepping = self._engine.has_work
        if not self._stepping:
            return
        result = self._engine.step(self._now, with_emitted=False)
        end = self._now + result.duration_seconds

        def ended() -> None:
            for first in result.first_tokens:
                attempt = self._running.get(first.request_id)
                if attempt is not None and attempt.first_token is None:
                    attempt.first_token = self._now
                    if self._core is not None and attempt.ticket is not None:
                        self._core.first_token(attempt.ticket, self._ns())
            for finished in result.finished:
                attempt = self._running.pop(finished.request_id, None)
                if attempt is not None and finished.reason is not FinishReason.ABORT:
                    self._finish(attempt, finished.output_tokens)
            self._step()

        self._at(end, ended)

    def _finish(self, attempt: Attempt, tokens: int) -> None:
        attempt.over = True
        self._release(attempt, End.COMPLETED, tokens)
        if not self._counts:
            return
        first = attempt.first_token if attempt.first_token is not None else self._now
        tpot = (self._now - first) / max(1, tokens - 1)
        if first - attempt.started <= TTFT_SECONDS and tpot <= TPOT_SECONDS:
            self.tally.good_tokens += tokens
            self.tally.good_requests += 1
        else:
            self.tally.late_tokens += tokens


def goodput(
    load: float, *, seeds: list[int], seconds: float, warm_up: float, admission: bool
) -> tuple[float, list[Tally]]:
    """Mean tokens per second within the objectives, at `load` × the peak, over the seeds."""
    tallies = [
        Overload(
            per_second=load * PEAK_PER_SECOND, seed=seed, seconds=seconds, warm_up=warm_up, admission=admission
        ).run()
        for seed in seeds
    ]
    return sum(tally.good_tokens for tally in tallies) / seconds / len(tallies), tallies
