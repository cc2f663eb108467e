"""A cut stream is recognised in both ways in which the real engine cuts, and a whole one is not taken for cut.

An engine that goes without a word, or is done too early, is no cut to compare: it gets another start.
"""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from e2e.conformance import run
from e2e.conformance.checks import Check, Session
from e2e.conformance.checks.shutdown import describe_cut, left_silent
from e2e.conformance.engines import SIMULATOR, NotSeenError
from e2e.conformance.records import parse_events
from e2e.conformance.requests import Streamed

TEXT = {"choices": [{"text": "a", "finish_reason": None}]}
ERROR = {"error": {"message": "the engine is gone", "type": "InternalServerError", "param": None, "code": 500}}


def ended(finish):
    return {"choices": [{"text": "", "finish_reason": finish}]}


def streamed(*chunks):
    body = "".join(f"data: {item}\n\n" for item in [*map(json.dumps, chunks), "[DONE]"])
    return Streamed(
        status=200, content_type="text/event-stream", events=parse_events(body.encode()), closed_cleanly=True
    )


@pytest.mark.parametrize(
    ("chunks", "is_cut"),
    [
        ([TEXT, ended("abort")], True),
        ([TEXT, ERROR], True),
        ([TEXT, ended("length")], False),
        ([TEXT, ended("stop")], False),
        ([TEXT], False),
        ([TEXT, ended("length"), ERROR], False),
    ],
)
def test_abort_and_error_are_cuts_and_nothing_else_is(chunks, is_cut):
    described = describe_cut(streamed(*chunks))
    assert described["abort or error, never a finish"] is is_cut
    assert described["ends with [DONE]"]


@pytest.mark.parametrize(
    ("chunks", "closed", "silent"),
    [
        ([TEXT], False, True),
        ([], False, True),
        ([TEXT, ended("abort")], True, False),
        ([TEXT, ended("abort")], False, False),
        ([TEXT, ERROR], True, False),
    ],
)
def test_a_stream_is_silent_that_neither_ended_nor_said_why(chunks, closed, silent):
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    events = parse_events((body + ("data: [DONE]\n\n" if closed else "")).encode())
    assert left_silent(replace(streamed(), events=events, closed_cleanly=closed)) is silent


class Started:
    """Stands for engines: counts the starts."""

    start_seconds = 1.0

    def __init__(self, monkeypatch, *, silent):
        self.starts, self._silent = 0, silent
        monkeypatch.setattr(run, "running", self.running)
        monkeypatch.setattr(run, "SESSIONS", [Session(checks=(Check("sigterm", self.look),))])

    @asynccontextmanager
    async def running(self, kind, **_):
        self.starts += 1
        yield self

    def resident_gb(self):
        return 0.5

    async def look(self, engine):
        if self.starts <= self._silent:
            raise NotSeenError("left open and silent")
        return {"streams": "cut"}


@pytest.mark.parametrize("silent", range(run.STARTS))
def test_a_session_that_saw_nothing_gets_another_start(monkeypatch, silent):
    started = Started(monkeypatch, silent=silent)
    told: list[str] = []
    seen = asyncio.run(run.observe(SIMULATOR, wanted=["sigterm"], say=told.append))
    assert seen.records == {"sigterm": {"streams": "cut"}}
    assert started.starts == silent + 1
    assert sum("once more" in line for line in told) == silent


def test_a_session_that_never_sees_it_is_an_error(monkeypatch):
    started = Started(monkeypatch, silent=run.STARTS)
    with pytest.raises(NotSeenError):
        asyncio.run(run.observe(SIMULATOR, wanted=["sigterm"], say=lambda _: None))
    assert started.starts == run.STARTS
