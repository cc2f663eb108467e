"""Reading a stream beside its relay: the same whatever the boundaries of the chunks are."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.gateway.sse import LONGEST_EVENT_BYTES, EventReader, Progress


def line(**event: Any) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def chat(content: str | None, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    return line(choices=[{"index": 0, "delta": {**delta, **more}, "finish_reason": finish}])


STREAM = (
    chat("", role="assistant")
    + chat("Hé")
    + chat("llo")
    + chat('"finish_reason":"abort","usage":{"completion_tokens":99}')
    + chat(None, reasoning_content="hm")
    + chat("", finish="stop")
    + line(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 5})
    + b": a comment\n\ndata: [DONE]\n\n"
)


def read(chunks: list[bytes]) -> Progress:
    reader = EventReader()
    for chunk in chunks:
        reader.feed(chunk)
    return reader.progress


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_boundaries_of_chunks_change_nothing(cuts: list[int]) -> None:
    points = [0, *sorted(cuts), len(STREAM)]
    progress = read([STREAM[a:b] for a, b in pairwise(points)])
    assert (progress.prompt_tokens, progress.output_tokens) == (7, 5)
    assert progress.output_events == 4
    assert (progress.produced, progress.done, progress.aborted, progress.choices_ended) == (True, True, False, 1)


def test_role_alone_is_no_output() -> None:
    assert not read([chat("", role="assistant")]).produced


@pytest.mark.parametrize(
    "part", [{"content": "a"}, {"reasoning_content": "a"}, {"tool_calls": [{"index": 0}]}, {"refusal": "no"}]
)
def test_every_kind_of_output_counts(part: dict[str, Any]) -> None:
    assert read([line(choices=[{"index": 0, "delta": part, "finish_reason": None}])]).produced


def test_abort_of_one_choice_is_an_abort() -> None:
    progress = read([chat("a"), line(choices=[{"index": 0, "text": "b", "finish_reason": "abort"}])])
    assert progress.aborted
    assert progress.output_events == 2


def test_error_in_place_of_a_chunk_is_a_cut() -> None:
    progress = read([chat("a"), line(error={"message": "engine dead"}), b"data: [DONE]\n\n"])
    assert (progress.aborted, progress.done) == (True, True)


def test_usage_in_every_event_is_the_last_one() -> None:
    events = [
        line(choices=[{"text": "a", "finish_reason": None}], usage={"completion_tokens": n, "prompt_tokens": 3})
        for n in (1, 2, 3)
    ]
    progress = read(events)
    assert (progress.output_tokens, progress.prompt_tokens) == (3, 3)


@pytest.mark.parametrize(
    "raw",
    [
        b"data: {\n\n",
        b"data: 5\n\n",
        b'data: {"choices":5}\n\n',
        b'data: {"choices":[5]}\n\n',
        b'data: {"choices":[{"delta":5}]}\n\n',
        b'data: {"usage":{"completion_tokens":true}}\n\n',
        b'data: {"usage":{"completion_tokens":-1}}\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        b"event: x\nid: 1\n\n",
        b"\xff\xfe\n\n",
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_nonsense_is_passed_over(raw: bytes) -> None:
    progress = read([raw, chat("a")])
    assert progress.produced
    assert progress.reported_tokens is None
    assert progress.output_tokens == 1


def test_event_beyond_the_bound_is_skipped_and_the_next_is_read() -> None:
    reader = EventReader()
    for _ in range(LONGEST_EVENT_BYTES // 65_536 + 2):
        reader.feed(b"x" * 65_536)
    reader.feed(b"\n\n" + chat("a"))
    assert reader.progress.output_tokens == 1


def test_crlf_lines_are_read() -> None:
    progress = read([chat("a").replace(b"\n", b"\r\n"), b"data: [DONE]\r\n\r\n"])
    assert progress.produced
    assert progress.done
