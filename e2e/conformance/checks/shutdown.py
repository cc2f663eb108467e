"""What a client and a kubelet see when an engine is told to end."""

import signal
from typing import Any

import aiohttp

from e2e.conformance.checks.answers import USAGE
from e2e.conformance.checks.counting import WAITING
from e2e.conformance.engines import Engine
from e2e.conformance.records import Json, Record, collapse, shape, stream_phases
from e2e.conformance.requests import CHAT, COMPLETIONS, OpenStream, Streamed, chat, completion, stream, token_ids

LONG, SHORT, QUEUED = 900, 150, 5
"""Tokens of streams: the first outlasts every question that is asked meanwhile."""


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
    return {
        **_end(streamed := await stream(engine, path, body), whole=1),
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
    ends = {name: describe_cut(await opened.result()) for name, opened in open_streams.items()}
    code = await engine.wait_exit()
    return {
        "streams": ends,
        "exit code": code,
        "afterwards": await _ask(engine, "/health"),
    }


async def observe_drain(engine: Engine) -> Record:
    """SIGTERM with `--shutdown-timeout`: what runs or waits ends whole, what comes later does not start."""
    opened = OpenStream(engine, COMPLETIONS, completion(token_ids(20), max_tokens=LONG, stream=True, **USAGE))
    beside = OpenStream(engine, CHAT, chat(max_tokens=SHORT, stream=True, **USAGE))
    for started in (opened, beside):
        await started.first.wait()
    queued = OpenStream(engine, COMPLETIONS, completion(token_ids(20), max_tokens=QUEUED, stream=True, **USAGE))
    await engine.scrape_when(lambda scrape: scrape.total(WAITING) == 1, what="a waiting request")
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
    still_running = not opened.finished
    end = _end(await opened.result(), whole=LONG)
    return {
        "running stream": end,
        "running chat": _end(await beside.result(), whole=SHORT),
        "waiting stream": _end(await queued.result(), whole=QUEUED),
        "while draining": {**late, "asked while the stream ran": still_running},
        "exit code": await engine.wait_exit(),
        "afterwards": await _ask(engine, "/health"),
    }


async def _wait_until_draining(engine: Engine) -> None:
    """Ask until a new request is not served: the signal takes effect some milliseconds after it was sent."""
    while True:
        seen = await _ask(engine, COMPLETIONS, completion(token_ids(5), max_tokens=1))
        if seen["status"] != 200 or seen.get("finish reasons") != ["length"]:
            return
