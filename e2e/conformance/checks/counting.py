"""Counters, cache hits, queues: what an engine's metrics say after traffic that is the same for both."""

import asyncio

from e2e.conformance.engines import BLOCK_SIZE, MAX_NUM_SEQS, POLL_SECONDS, Engine, NotSeenError
from e2e.conformance.metrics import Scrape, counts_between
from e2e.conformance.records import Json, Record
from e2e.conformance.requests import COMPLETIONS, OpenStream, completion, token_ids

SUCCESS = "vllm:request_success_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
STEPS = "iteration_tokens_total_count"
TIGHT_KV_BLOCKS = 40
"""Room for 39 blocks (one is the engine's own): three sequences of 28 blocks cannot stay together."""


async def _complete(engine: Engine, before: Scrape, prompt: list[int], **fields: object) -> Scrape:
    """One completion of one token, and the metrics once they show it."""
    answer = await engine.call("POST", COMPLETIONS, json=completion(prompt, max_tokens=1, **fields))
    if answer.status != 200:
        raise AssertionError(f"{engine.kind.name}: {answer.status} {answer.body[:300]!r}")
    expected = before.total(SUCCESS) + 1
    return await engine.scrape_when(lambda scrape: scrape.total(SUCCESS) >= expected, what="the finished request")


async def observe_salts(engine: Engine) -> Record:
    """Prefix cache hits in tokens, request by request: full blocks count, a salt opens a cache of its own."""
    long, half = token_ids(109, seed=1), token_ids(64, seed=1)
    asked: tuple[tuple[str, list[int], dict[str, object]], ...] = (
        ("salt a, first", long, {"cache_salt": "a"}),
        ("salt a, again", long, {"cache_salt": "a"}),
        ("salt b", long, {"cache_salt": "b"}),
        ("no salt", long, {}),
        ("no salt, again", long, {}),
        ("salt a, a third time", long, {"cache_salt": "a"}),
        ("two blocks in common", half + token_ids(45, seed=2), {}),
        ("exactly two blocks, all in common", half, {}),
        ("one token over two blocks", [*half, 41], {}),
        ("under one block, twice: first", token_ids(BLOCK_SIZE - 1, seed=3), {}),
        ("under one block, twice: second", token_ids(BLOCK_SIZE - 1, seed=3), {}),
        ("second block alone in common", token_ids(BLOCK_SIZE, seed=4) + long[BLOCK_SIZE:], {}),
    )
    seen: dict[str, Json] = {}
    scrape = await engine.scrape()
    for name, prompt, fields in asked:
        after = await _complete(engine, scrape, prompt, **fields)
        seen[name] = {
            key: int(after.total(f"vllm:{metric}") - scrape.total(f"vllm:{metric}"))
            for key, metric in (
                ("queried", "prefix_cache_queries_total"),
                ("hits", "prefix_cache_hits_total"),
                ("cached", "prompt_tokens_cached_total"),
            )
        }
        scrape = after
    return seen


async def observe_counters(engine: Engine) -> Record:
    """Growth of every counter over a fixed series of requests, one after the other."""
    one_by_one: tuple[dict[str, object], ...] = (
        completion(token_ids(10, seed=20), max_tokens=5),
        completion(token_ids(33, seed=21), max_tokens=7),
        completion(token_ids(109, seed=22), max_tokens=1),
        completion(token_ids(109, seed=22), max_tokens=2),
        completion(token_ids(9, seed=26), max_tokens=6, stream=True),
        # A refused request must not count as one.
        completion(token_ids(3), max_tokens=-1),
    )
    together: tuple[dict[str, object], ...] = (
        completion(token_ids(20, seed=23), max_tokens=3, n=2, temperature=0.8, seed=7),
        completion([token_ids(11, seed=24), token_ids(12, seed=25)], max_tokens=4),
    )
    seen = {
        "one by one": await _counted(engine, one_by_one, sequences=5),
        "together": await _counted(engine, together, sequences=4),
    }
    # Whether sequences of one request share their first step depends on when the engine's core hears of each.
    del seen["together"][STEPS]
    return seen


async def _counted(engine: Engine, bodies: tuple[dict[str, object], ...], *, sequences: int) -> dict[str, Json]:
    before = await engine.scrape()
    for body in bodies:
        await engine.call("POST", COMPLETIONS, json=body)
    expected = before.total(SUCCESS) + sequences
    after = await engine.scrape_when(lambda scrape: scrape.total(SUCCESS) >= expected, what=f"{sequences} sequences")
    return counts_between(before, after)


async def observe_waiting(engine: Engine) -> Record:
    """More requests than `--max-num-seqs`: the rest waits, none is refused, and the queue empties."""
    excess = 5
    tokens = 300
    bodies = [
        completion(token_ids(20, seed=40 + number), max_tokens=tokens, stream=True)
        for number in range(MAX_NUM_SEQS + excess)
    ]
    streams = [OpenStream(engine, COMPLETIONS, body) for body in bodies]
    peak: dict[str, float] = {}
    while not all(opened.finished for opened in streams):
        scrape = await engine.scrape()
        for name, value in (
            ("running", scrape.total(RUNNING)),
            ("waiting", scrape.total(WAITING)),
            ("waiting for capacity", scrape.total(f"{WAITING}_by_reason", reason="capacity")),
            ("deferred", scrape.total(f"{WAITING}_by_reason", reason="deferred")),
        ):
            peak[name] = max(peak.get(name, 0.0), value)
        await asyncio.sleep(POLL_SECONDS)
    ends = [await opened.result() for opened in streams]
    idle = await engine.scrape_when(
        lambda scrape: scrape.total(RUNNING) + scrape.total(WAITING) == 0, what="an idle engine"
    )
    return {
        "peak": {name: int(value) for name, value in peak.items()},
        "statuses": sorted({end.status for end in ends}),
        "finish reasons": sorted({reason for end in ends for reason in end.finish_reasons}),
        "ended with [DONE]": sum(end.events.done for end in ends),
        "KV cache in use when idle": idle.total("vllm:kv_cache_usage_perc"),
    }


async def observe_disconnect(engine: Engine) -> Record:
    """A client that goes away: its sequences end as aborted, long before their limit."""
    tokens = 1800
    before = await engine.scrape()
    streams = [
        OpenStream(engine, COMPLETIONS, completion(token_ids(20, seed=60 + number), max_tokens=tokens, stream=True))
        for number in range(3)
    ]
    for opened in streams:
        await opened.first.wait()
    for opened in streams:
        await opened.disconnect()
    after = await engine.scrape_when(
        lambda scrape: scrape.total(RUNNING) == 0 and scrape.total("vllm:kv_cache_usage_perc") == 0,
        what="no running request after the clients went away",
    )
    generated = after.total("vllm:generation_tokens_total") - before.total("vllm:generation_tokens_total")
    finished = {
        reason: int(after.total(SUCCESS, finished_reason=reason) - before.total(SUCCESS, finished_reason=reason))
        for reason in ("stop", "length", "abort", "error")
    }
    if finished["length"]:
        raise NotSeenError(f"{engine.kind.name}: {finished['length']} sequences were done before their clients left")
    return {"finished": finished, "generated fewer than asked": 0 < generated < len(streams) * tokens}


async def observe_preemption(engine: Engine) -> Record:
    """Sequences that outgrow the KV cache together: some are preempted and all end whole."""
    tokens = 800
    before = await engine.scrape()
    streams = [
        OpenStream(
            engine,
            COMPLETIONS,
            completion(token_ids(96, seed=80 + number), max_tokens=tokens, stream=True),
        )
        for number in range(3)
    ]
    ends = [await opened.result() for opened in streams]
    expected = before.total(SUCCESS) + len(streams)
    after = await engine.scrape_when(lambda scrape: scrape.total(SUCCESS) >= expected, what="the finished requests")
    counts = counts_between(before, after)
    return {
        "statuses": sorted({end.status for end in ends}),
        "finish reasons": sorted({reason for end in ends for reason in end.finish_reasons}),
        "preempted": after.total("vllm:num_preemptions_total") > before.total("vllm:num_preemptions_total"),
        "counted once": {
            name: counts.get(name)
            for name in (
                "prompt_tokens_total",
                "generation_tokens_total",
                "request_success_total{finished_reason=length}",
                "request_prompt_tokens_sum",
                "request_generation_tokens_sum",
                "time_to_first_token_seconds_count",
            )
        },
        "preemptions of requests agree": counts.get("request_num_preemptions_sum")
        == counts.get("num_preemptions_total"),
    }
