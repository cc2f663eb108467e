"""Differences need a reason, reasons need a difference."""

import pytest

from e2e.conformance.checks import SESSIONS, check_names
from e2e.conformance.compare import (
    ABSENT,
    KNOWN_DIFFERENCES,
    Difference,
    KnownDifference,
    KnownDifferencesError,
    compare,
    read_known,
)

REASON = "the look-alike has no such thing"


def entry(path):
    return KnownDifference(path=path, reason=REASON)


def test_equal_records_pass_and_every_value_is_counted():
    record = {"check": {"a": 1, "b": {"c": "x", "d": [1, 2]}}}
    result = compare(simulator=record, real=record, known=())
    assert result.passed
    assert (result.values, result.differences) == (3, ())


def test_no_check_compares_nothing():
    result = compare(simulator={}, real={}, known=[entry("check.a")])
    assert (result.passed, result.values) == (True, 0)


@pytest.mark.parametrize(("left", "right"), [(1, 2), (True, 1), (1, 1.0), (None, ABSENT), ([1], [2]), ("a", None)])
def test_a_difference_without_a_reason_fails(left, right):
    result = compare(simulator={"check": {"a": left}}, real={"check": {"a": right}}, known=())
    assert not result.passed
    assert result.unlisted == (Difference("check.a", left, right),)


@pytest.mark.parametrize("side", ["simulator", "real"])
def test_what_only_one_engine_has_is_a_difference(side):
    records = {"simulator": {"check": {"a": 1}}, "real": {"check": {"a": 1}}}
    records[side] = {"check": {"a": 1, "more": 2}}
    (difference,) = compare(**records, known=()).differences
    assert (difference.path, getattr(difference, side)) == ("check.more", 2)
    assert ABSENT in (difference.simulator, difference.real)


def test_a_listed_difference_passes_with_its_reason():
    result = compare(simulator={"check": {"a": 1}}, real={"check": {"a": 2}}, known=[entry("check.a")])
    assert result.passed
    assert result.differences[0].reason == REASON


def test_a_listed_difference_that_is_gone_fails():
    result = compare(simulator={"check": {"a": 1}}, real={"check": {"a": 1}}, known=[entry("check.a")])
    assert not result.passed
    assert result.stale == (entry("check.a"),)


def test_an_entry_of_a_check_that_did_not_run_is_not_stale():
    record = {"check": {"a": 1}}
    assert compare(simulator=record, real=record, known=[entry("other.a")]).passed


def test_patterns_cover_many_paths_of_their_check_alone():
    left = {"check": {"a": {"x": 1}, "b": {"x": 1}}, "other": {"a": {"x": 1}}}
    right = {"check": {"a": {"x": 2}, "b": {"x": 2}}, "other": {"a": {"x": 2}}}
    result = compare(simulator=left, real=right, known=[entry("check.*.x")])
    assert [difference.path for difference in result.unlisted] == ["other.a.x"]


def test_answers_with_different_statuses_differ_once():
    left = {"check": {"case": {"status": 200, "body": {"a": 1}}, "status of all": 1}}
    right = {"check": {"case": {"status": 400, "error": {"b": 1}}, "status of all": 2}}
    paths = [difference.path for difference in compare(simulator=left, real=right, known=()).differences]
    assert paths == ["check.case.status", "check.status of all"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "must be a list"),
        ("- path: check.a", "entry 1: reason"),
        (f"- {{path: check.a, reason: {REASON}}}\n- {{path: check.b, reason: short}}", "entry 2: reason"),
        (f"- {{path: '*.a', reason: {REASON}}}", "entry 1: path"),
        (f"- {{path: check, reason: {REASON}}}", "entry 1: path"),
        (f"- {{path: check.a, reason: {REASON}, more: 1}}", "entry 1: more"),
        (f"- {{path: check.a, reason: {REASON}}}\n" * 2, "check.a is listed twice"),
    ],
)
def test_a_wrong_list_is_refused_by_entry_and_field(text, message):
    with pytest.raises(KnownDifferencesError, match=message):
        read_known(text)


def test_the_list_is_valid_and_names_checks_that_exist():
    assert {known.check for known in read_known(KNOWN_DIFFERENCES.read_text())} <= set(check_names())


def test_check_names_are_unique_and_a_check_that_ends_its_engine_is_the_last_of_its_session():
    assert len(set(check_names())) == len(check_names())
    ending = {"sigterm", "sigterm-drain"}
    assert ending == {check.name for session in SESSIONS for check in session.checks[-1:]} & ending
    assert not ending & {check.name for session in SESSIONS for check in session.checks[:-1]}
