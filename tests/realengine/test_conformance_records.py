"""Answers without what may differ by chance: shapes, event streams, metric families."""

import json
import math

import pytest

from e2e.conformance.metrics import counts_between, describe_families, other_families, parse
from e2e.conformance.records import collapse, flatten, parse_events, shape, stream_phases


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "boolean"),
        (1, "integer"),
        (1.0, "number"),
        ("1", "string"),
        ([], []),
        ([1, 2, "a"], ["integer", "string"]),
        ({"b": [{"c": 1}, {"c": 2}], "a": {}}, {"a": {}, "b": [{"c": "integer"}]}),
    ],
)
def test_a_shape_has_types_for_values(value, expected):
    assert shape(value) == expected


def test_what_is_not_json_has_no_shape():
    with pytest.raises(TypeError, match="set"):
        shape({1})


def events(*items):
    return "".join(f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n" for item in items).encode()


def test_events_are_split_and_their_end_is_seen():
    stream = parse_events(events({"a": 1}, "[DONE]"))
    assert stream.data == ('{"a": 1}', "[DONE]")
    assert stream.framed
    assert stream.done
    assert stream.chunks() == [{"a": 1}]


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"a": 1}\n\ndata: [DONE]\n',
        b'data: {"a": 1}\ndata: [DONE]\n\n',
        b': comment\n\ndata: {"a": 1}\n\n',
        b'data:{"a": 1}\n\n',
        b'data: {"a": 1}\r\n\r\n',
        b"\n\n",
    ],
)
def test_other_framing_than_one_data_line_and_a_blank_is_noticed(body):
    assert not parse_events(body).framed


def test_a_stream_cut_before_its_end_mark_is_not_done():
    assert not parse_events(events({"a": 1})).done
    assert not parse_events(b"").done


def chunk(text, *, finish=None, **fields):
    return {"object": "text_completion", "choices": [{"text": text, "finish_reason": finish}], **fields}


def test_phases_forget_how_many_chunks_carried_the_text():
    short = stream_phases(parse_events(events(chunk("abc"), chunk("", finish="length"), "[DONE]")))
    long = stream_phases(parse_events(events(*map(chunk, "abc"), chunk("d", finish="length"), "[DONE]")))
    assert short == long
    assert len(short) == 2


def test_phases_keep_what_marks_them():
    role = {"object": "chat.completion.chunk", "choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]}
    stopped = stream_phases(parse_events(events(role, chunk("a", finish="stop"))))
    aborted = stream_phases(parse_events(events(role, chunk("a", finish="abort"))))
    assert stopped != aborted
    assert stopped[0]["choices"][0]["delta"] == {"role": "assistant"}
    usage = {"object": "text_completion", "choices": [], "usage": {"prompt_tokens": 3}}
    assert stream_phases(parse_events(events(usage)))[0]["choices"] == []


def test_collapse_drops_only_neighbours():
    assert collapse([1, 1, 2, 1]) == [1, 2, 1]


def test_leaves_are_named_by_their_path():
    record = {"a": {"b": 1, "c": [1, 2]}, "d": [{"e": None}, {}], "f": {}}
    assert flatten(record) == {"a.b": 1, "a.c": [1, 2], "d.0.e": None, "d.1": {}, "f": {}}


METRICS = """# TYPE vllm:running gauge
vllm:running{engine="0",model_name="m"} 0.0
# TYPE vllm:success_total counter
vllm:success_total{engine="0",model_name="m",finished_reason="stop"} 1.0
vllm:success_total{engine="0",model_name="m",finished_reason="length"} 2.0
# TYPE vllm:tokens histogram
vllm:tokens_bucket{engine="0",le="1.0",model_name="m"} 1.0
vllm:tokens_bucket{engine="0",le="+Inf",model_name="m"} 2.0
vllm:tokens_count{engine="0",model_name="m"} 2.0
vllm:tokens_sum{engine="0",model_name="m"} 9.0
# TYPE vllm:wait_seconds histogram
vllm:wait_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2.0
vllm:wait_seconds_count{engine="0",model_name="m"} 2.0
vllm:wait_seconds_sum{engine="0",model_name="m"} 0.25
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 5.0
"""


def test_families_have_type_labels_own_values_and_edges():
    described = describe_families(parse(METRICS))
    assert set(described) == {"vllm:running", "vllm:success", "vllm:tokens", "vllm:wait_seconds"}
    assert described["vllm:success"] == {
        "type": "counter",
        "samples": ["vllm:success_total"],
        "labels": ["engine", "finished_reason", "model_name"],
        "values of finished_reason": ["length", "stop"],
    }
    assert described["vllm:tokens"]["buckets"] == [repr(1.0), repr(math.inf)]
    assert other_families(parse(METRICS)) == ["process_cpu_seconds"]


def test_totals_sum_the_samples_whose_labels_fit():
    scrape = parse(METRICS)
    assert scrape.total("vllm:success_total") == 3
    assert scrape.total("vllm:success_total", finished_reason="stop") == 1
    assert scrape.total("vllm:nothing") == 0


def test_growth_leaves_out_gauges_seconds_and_what_stood_still():
    later = (
        METRICS.replace('"stop"} 1.0', '"stop"} 4.0')
        .replace('vllm:tokens_sum{engine="0",model_name="m"} 9.0', 'vllm:tokens_sum{engine="0",model_name="m"} 9.5')
        .replace('m"} 0.25', 'm"} 7.0')
        .replace('vllm:running{engine="0",model_name="m"} 0.0', 'vllm:running{engine="0",model_name="m"} 3.0')
    )
    assert counts_between(parse(METRICS), parse(later)) == {"success_total{finished_reason=stop}": 3, "tokens_sum": 0.5}
