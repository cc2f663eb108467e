"""What a client and a kubelet see when an engine is told to end."""

import asyncio
import signal
from typing import Any

import aiohttp

from e2e.conformance.checks.answers import USAGE
from e2e.conformance.checks.counting import WAITING
from e2e.conformance.engines import Engine, NotSeenError
from e2e.conformance.records import Json, Record, collapse, shape, stream_phases
from e2e.conformance.requests import CHAT, COMPLETIONS, OpenStream, Streamed, chat, completion, stream, token_ids

LONG, QUEUED = 1800, 5
"""Tokens of the requests that are cut or drained, and of a stream that waits for them."""
LONG_FLAGS = ("--max-model-len", "2048")
FILLERS = 20
"""Requests of LONG tokens that wait, too. The core of a fast engine runs ahead of what its server has sent: without
them it would be done before anybody could see it drain."""
DRAIN_FLAGS = (*LONG_FLAGS, "--shutdown-timeout", "120", "--max-num-seqs", "2")
"""Room for two sequences, so that a third waits."""
PROBE_SECONDS = 0.25
"""A draining engine refuses at once; one that is not yet draining puts a request into its queue."""


def _end(streamed: Streamed, *, whole: int) -> dict[str, Json]:
    usage = streamed.usage or {}
    produced = usage.get("completion_tokens")
    return {
        "status": streamed.status,
        "framed": streamed.events.framed,
        "ends with [DONE]": streamed.events.done,
        "closed cleanly": streamed.closed_cleanly,
        "finish reasons": list(streamed.finish_reasons),
        "last chunks": collapse(shape(chunk) for chunk in streamed.events.chunks()[-2:]),
        "tokens": "none" if produced is None else "all" if produced == whole else "fewer",
    }


def describe_cut(streamed: Streamed) -> dict[str, Json]:
    """How a stream ended that was cut.

    The real engine has two ways, and which one comes is a race between its core and its HTTP server: a last chunk with
    finish reason `abort`, or an event with an `error` in place of a chunk. Both look like a normal end from outside.
    """
    aborted = streamed.finish_reasons == ["abort"]
    failed = not streamed.finish_reasons and any("error" in chunk for chunk in streamed.events.chunks())
    return {
        "status": streamed.status,
        "framed": streamed.events.framed,
        "ends with [DONE]": streamed.events.done,
        "closed cleanly": streamed.closed_cleanly,
        "abort or error, never a finish": aborted or failed,
    }


def left_silent(streamed: Streamed) -> bool:
    """Whether a stream neither ended nor broke: nothing more came until the client gave up."""
    return not streamed.closed_cleanly and not streamed.finish_reasons and not streamed.events.done


async def _ask(engine: Engine, path: str, body: dict[str, object] | None = None) -> dict[str, Json]:
    try:
        answer = await engine.call("GET" if body is None else "POST", path, json=body)
    except aiohttp.ClientConnectorError:
        return {"status": "refused"}
    except aiohttp.ClientError:
        return {"status": "broken"}
    seen: dict[str, Json] = {"status": answer.status}
    content = answer.json()
    if isinstance(content, dict) and "error" in content:
        return {**seen, "error": sorted(content["error"]), "type": content["error"].get("type")}
    if isinstance(content, dict) and "choices" in content:
        return {
            **seen,
            "finish reasons": [choice.get("finish_reason") for choice in content["choices"]],
            "usage": {key: content["usage"][key] for key in ("prompt_tokens", "completion_tokens")},
        }
    return {**seen, "bytes": "none" if not answer.body else "some"}


async def _ask_stream(engine: Engine, path: str, body: dict[str, Any]) -> dict[str, Json]:
    try:
        streamed = await stream(engine, path, body)
    except aiohttp.ClientConnectorError:
        return {"status": "refused"}
    except aiohttp.ClientError:
        return {"status": "broken"}
    return {
        **_end(streamed, whole=1),
        "phases": stream_phases(streamed.events),
        "usage": streamed.usage,
    }


async def observe_cut(engine: Engine) -> Record:
    """SIGTERM without a grace: running streams are cut, and how the cut looks."""
    open_streams = {
        "completion": OpenStream(engine, COMPLETIONS, completion(token_ids(20), max_tokens=LONG, stream=True, **USAGE)),
        "chat": OpenStream(engine, CHAT, chat(max_tokens=LONG, stream=True, **USAGE)),
        "chat without usage": OpenStream(engine, CHAT, chat(max_tokens=LONG, stream=True)),
    }
    for opened in open_streams.values():
        await opened.first.wait()
    engine.main_process().send_signal(signal.SIGTERM)
    ended = {name: await opened.result() for name, opened in open_streams.items()}
    silent = [name for name, streamed in ended.items() if left_silent(streamed)]
    if silent:
        raise NotSeenError(f"{engine.kind.name}: left open and silent at SIGTERM: {', '.join(silent)}")
    whole = [name for name, streamed in ended.items() if streamed.finish_reasons == ["length"]]
    if whole:
        raise NotSeenError(f"{engine.kind.name}: at their end before SIGTERM: {', '.join(whole)}")
    code = await engine.wait_exit()
    return {
        "streams": {name: describe_cut(streamed) for name, streamed in ended.items()},
        "exit code": code,
        "afterwards": await _ask(engine, "/health"),
    }


async def observe_drain(engine: Engine) -> Record:
    """SIGTERM with `--shutdown-timeout`: what runs or waits ends whole, what comes later does not start."""
    opened = OpenStream(engine, COMPLETIONS, completion(token_ids(20), max_tokens=LONG, stream=True, **USAGE))
    beside = OpenStream(engine, CHAT, chat(max_tokens=LONG, stream=True, **USAGE))
    for started in (opened, beside):
        await started.first.wait()
    fillers = [
        asyncio.create_task(_ask(engine, COMPLETIONS, completion(token_ids(20, seed=seed), max_tokens=LONG)))
        for seed in range(1, FILLERS + 1)
    ]
    queued = OpenStream(engine, COMPLETIONS, completion(token_ids(20), max_tokens=QUEUED, stream=True, **USAGE))
    await engine.scrape_when(lambda scrape: scrape.total(WAITING) == FILLERS + 1, what="the waiting requests")
    engine.main_process().send_signal(signal.SIGTERM)
    await _wait_until_draining(engine)
    late = {
        "completion": await _ask(engine, COMPLETIONS, completion(token_ids(5), max_tokens=1)),
        "chat": await _ask(engine, CHAT, chat(max_tokens=1)),
        "streamed completion": await _ask_stream(engine, COMPLETIONS, completion(token_ids(5), max_tokens=1)),
        "streamed completion with usage": await _ask_stream(
            engine, COMPLETIONS, completion(token_ids(5), max_tokens=1, **USAGE)
        ),
        "streamed chat": await _ask_stream(engine, CHAT, chat(max_tokens=1)),
        "streamed chat with usage": await _ask_stream(engine, CHAT, chat(max_tokens=1, **USAGE)),
        "/health": await _ask(engine, "/health"),
        "/v1/models": await _ask(engine, "/v1/models"),
    }
    if queued.finished or any(seen["status"] in ("refused", "broken") for seen in late.values()):
        raise NotSeenError(f"{engine.kind.name}: drained before everything was asked")
    return {
        "running stream": _end(await opened.result(), whole=LONG),
        "running chat": _end(await beside.result(), whole=LONG),
        "waiting stream": _end(await queued.result(), whole=QUEUED),
        "waiting requests": list(await asyncio.gather(*fillers)),
        "while draining": late,
        "exit code": await engine.wait_exit(),
        "afterwards": await _ask(engine, "/health"),
    }


async def _wait_until_draining(engine: Engine) -> None:
    """Ask until a new request is refused: the signal takes effect some milliseconds after it was sent."""
    while True:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                seen = await _ask(engine, COMPLETIONS, completion(token_ids(5), max_tokens=1))
        except TimeoutError:
            continue
        if seen["status"] != 200 or seen.get("finish reasons") != ["length"]:
            return
