"""A cut stream is recognised in both ways in which the real engine cuts, and a whole one is not taken for cut."""

import json

import pytest

from e2e.conformance.checks.shutdown import describe_cut
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
