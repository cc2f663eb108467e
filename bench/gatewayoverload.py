"""Overload of a live gateway over HTTP: the clients of `bench.overload` as streams, on a stretched clock.

Times of the engine simulator, objectives, patience and arrivals are all longer by the same factor, so that two cores
carry engine, gateway and clients. Every client allows 500 tokens, about twice what the simulator's answers have.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass

import aiohttp

from bench.gatewayhost import Host, Replica
from bench.overload import (
    BLOCK_SIZE,
    FIRST_BACKOFF_SECONDS,
    KV_TOKENS,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    PATIENCE_SECONDS,
    PEAK_PER_SECOND,
    RETRIES,
    TPOT_SECONDS,
    TTFT_SECONDS,
    draw_work,
)

STRETCH = 2.0
MAX_TOKENS = 500
MEDIAN_TOKENS = 200


def replica() -> Replica:
    """The engine simulator at the model's pace, stretched."""
    return Replica(
        command=[
            *("-m", "e2e.enginesim", "serve", "{model}", "--max-num-seqs", str(MAX_NUM_SEQS)),
            *("--block-size", str(BLOCK_SIZE), "--max-model-len", str(MAX_MODEL_LEN), "--host"),
        ],
        environment={
            "ENGINESIM_KV_TOKENS": str(KV_TOKENS),
            "ENGINESIM_STEP_SECONDS": str(0.012 * STRETCH),
            "ENGINESIM_SEQUENCE_SECONDS": str(0.000_06 * STRETCH),
            "ENGINESIM_PREFILL_TOKENS_PER_SECOND": str(14_000 / STRETCH),
            "ENGINESIM_OUTPUT_TOKENS_MEDIAN": str(MEDIAN_TOKENS),
        },
        kv_blocks=KV_TOKENS // BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=MAX_MODEL_LEN,
    )


def section() -> dict[str, object]:
    """The gateway's deadlines: those of its clients."""
    deadlines = {"firstTokenSeconds": TTFT_SECONDS * STRETCH, "completeSeconds": PATIENCE_SECONDS * STRETCH}
    return {"classes": {"default": deadlines}, "tokenizers": {}}


@dataclass
class LiveTally:
    """What clients saw while the measurement lasted."""

    good_tokens: int = 0
    late_tokens: int = 0
    sheds: int = 0
    timeouts: int = 0
    attempts: int = 0
    tokens_per_second: float = 0.0


class LiveOverload:
    """One run against one URL: the gateway's, or an engine's own."""

    def __init__(self, url: str, model: str, *, load: float, seconds: float, warm_up: float, seed: int) -> None:
        self.tally = LiveTally()
        self._url = url
        self._model = model
        self._dice = random.Random(seed)
        self._per_second = load * PEAK_PER_SECOND / STRETCH
        self._from = warm_up
        self._until = warm_up + seconds
        self._seconds = seconds

    async def run(self) -> LiveTally:
        """Play it; what still runs at the end is given up."""
        self._started = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            while self._now < self._until:
                task = asyncio.create_task(self._client(session))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                await asyncio.sleep(self._dice.expovariate(self._per_second))
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # Tokens of the model's clock, not of this one.
        self.tally.tokens_per_second = round(self.tally.good_tokens / self._seconds * STRETCH, 1)
        return self.tally

    @property
    def _now(self) -> float:
        return time.monotonic() - self._started

    @property
    def _counts(self) -> bool:
        return self._from <= self._now < self._until

    async def _client(self, session: aiohttp.ClientSession) -> None:
        work = draw_work(self._dice)
        tokens = [self._dice.randrange(1000, 30_000) for _ in range(work.prompt_tokens)]
        body = {"model": self._model, "prompt": tokens, "max_tokens": MAX_TOKENS, "stream": True}
        for attempt in range(RETRIES + 1):
            self.tally.attempts += self._counts
            delay = FIRST_BACKOFF_SECONDS * STRETCH * 2**attempt
            try:
                async with asyncio.timeout(PATIENCE_SECONDS * STRETCH):
                    hint = await self._try(session, body)
                if hint is None:
                    return
                delay = max(delay, hint)
            except (TimeoutError, aiohttp.ClientError):
                self.tally.timeouts += self._counts
            await asyncio.sleep(delay)

    async def _try(self, session: aiohttp.ClientSession, body: dict[str, object]) -> float | None:
        """One attempt; the hint of a refusal, None when it was served."""
        started = time.monotonic()
        async with session.post(f"{self._url}/completions", json=body) as response:
            if response.status != 200:
                self.tally.sheds += self._counts
                return float(json.loads(await response.read())["error"].get("retry_after", 0))
            count, first = 0, 0.0
            async for line in response.content:
                if line.startswith(b"data: {") and b'"text":""' not in line:
                    first = first or time.monotonic()
                    count += 1
        if self._counts and count:
            tpot = (time.monotonic() - first) / max(1, count - 1)
            good = first - started <= TTFT_SECONDS * STRETCH and tpot <= TPOT_SECONDS * STRETCH
            self.tally.good_tokens += count if good else 0
            self.tally.late_tokens += 0 if good else count
        return None


async def live_overload(host: Host, *, load: float, seconds: float, warm_up: float, seed: int) -> dict[str, LiveTally]:
    """Through the gateway, and then without it."""
    found = {}
    for name, url in (("admission", host.url), ("none", f"http://{host.engines[0]}:8000/v1")):
        model = host.model if name == "admission" else host.model.partition("/")[2]
        run = LiveOverload(url, model, load=load, seconds=seconds, warm_up=warm_up, seed=seed)
        found[name] = await run.run()
        await host.until_idle()
    return found
