"""No value ends a PromQL string; `test_prometheus_source` asks a real server with the same values."""

import pytest

from bayplan.telemetry.promql import any_of, quoted, selector


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", '"a"'), ('a"b', '"a\\"b"'), ("a\\", '"a\\\\"'), ("a\nb\r", '"a\\nb\\r"'), ('\\"', '"\\\\\\""')],
)
def test_quotes_backslashes_and_line_ends_are_escaped(value: str, text: str) -> None:
    assert quoted(value) == text


def test_a_choice_matches_its_values_only() -> None:
    assert any_of(["a.b", "c|d"]) == "a\\.b|c\\|d"


def test_selector_has_all_matchers() -> None:
    found = selector(names=["up"], equal={"namespace": 'x"} or vector(1) #'}, one_of={"pod": ["a-0", "b"]})

    assert found == '{__name__=~"up",namespace="x\\"} or vector(1) #",pod=~"a\\\\-0|b"}'
    assert selector(one_of={"pod": ["a"]}) == '{pod=~"a"}'
