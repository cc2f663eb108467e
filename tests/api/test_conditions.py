"""Conditions move their time only with their status, and every reason has help."""

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api.conditions import Condition, ConditionType, Reason, Status, merge_conditions
from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.api.meta import MAX_TEXT, parse_rfc3339, rfc3339
from bayplan.api.reasons import REASON_HELP
from bayplan.api.reference import SUMMARIES, reasons_page
from tests.api.specs import FULL_STATUS

FIRST = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def ready(status: Status, reason: Reason, message: str = "") -> list[tuple[ConditionType, Status, Reason, str]]:
    return [(ConditionType.READY, status, reason, message)]


def test_time_stays_while_the_status_is_the_same() -> None:
    old = merge_conditions((), ready("False", Reason.NOT_READY, "1 of 2"), generation=1, now=FIRST)
    new = merge_conditions(
        old, ready("False", Reason.DRAINING, "0 of 2"), generation=2, now=FIRST + timedelta(seconds=9)
    )
    assert new[0].last_transition_time == rfc3339(FIRST)
    assert (new[0].reason, new[0].message, new[0].observed_generation) == ("Draining", "0 of 2", 2)


def test_time_moves_with_the_status() -> None:
    old = merge_conditions((), ready("False", Reason.NOT_READY), generation=1, now=FIRST)
    later = FIRST + timedelta(seconds=9)
    assert merge_conditions(old, ready("True", Reason.READY), generation=1, now=later)[
        0
    ].last_transition_time == rfc3339(later)


def test_equal_world_gives_equal_conditions_at_any_time() -> None:
    old = merge_conditions((), ready("True", Reason.READY), generation=1, now=FIRST)
    assert merge_conditions(old, ready("True", Reason.READY), generation=1, now=FIRST + timedelta(days=1)) == old


def test_type_that_is_no_longer_stated_goes() -> None:
    old = merge_conditions((), [(ConditionType.STALLED, "True", Reason.INVALID_SPEC, "")], generation=1, now=FIRST)
    new = merge_conditions(old, ready("True", Reason.READY), generation=1, now=FIRST)
    assert [condition.type for condition in new] == ["Ready"]


@pytest.mark.parametrize(("length", "kept"), [(MAX_TEXT, MAX_TEXT), (MAX_TEXT + 1, MAX_TEXT), (9999, MAX_TEXT)])
def test_long_message_is_cut_with_a_mark(length: int, kept: int) -> None:
    (condition,) = merge_conditions((), ready("False", Reason.NOT_READY, "x" * length), generation=1, now=FIRST)
    assert len(condition.message) == kept
    assert condition.message.endswith("…") == (length > MAX_TEXT)


def test_every_reason_has_help_that_says_something() -> None:
    assert set(REASON_HELP) == set(Reason)
    for entry in REASON_HELP.values():
        assert entry.conditions
        assert entry.meaning.endswith(".")
        assert entry.action.endswith((".", "`."))


def test_page_of_reasons_lists_each_under_every_condition_that_has_it() -> None:
    page = {part.partition("\n")[0]: part for part in reasons_page().split("\n## ")[1:]}
    for reason, entry in REASON_HELP.items():
        listed = {title for title, part in page.items() if f"| `{reason}` |" in part}
        assert listed == {
            kind.value for kind in entry.conditions if kind not in SUMMARIES or kind is entry.conditions[0]
        }
    assert "| `InsufficientMemory` |" in page["Placed"]
    assert "| `NoLayout` |" in page["Placed"]


def test_reasons_and_types_have_the_form_that_the_schema_asks_for() -> None:
    for reason in Reason:
        for kind in ConditionType:
            Condition(type=kind, status="True", reason=reason, last_transition_time=rfc3339(FIRST))


def test_status_of_this_version_is_read_whole() -> None:
    assert InferenceModelStatus.read(FULL_STATUS).to_wire() == FULL_STATUS


def test_status_of_a_newer_version_is_read_as_far_as_it_can_be() -> None:
    raw: Any = deepcopy(FULL_STATUS)
    raw["placement"]["groups"][0]["stage"] = "Levitating"
    raw["novelty"] = {"a": 1}
    status = InferenceModelStatus.read(raw)
    assert status.placement.groups == ()
    assert status.ready_replicas == 1
    assert status.conditions[0].type == "Ready"


@pytest.mark.property
@settings(deadline=None)
@given(
    raw=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*FULL_STATUS, "type", "status"]), inner, max_size=4)
        ),
        max_leaves=10,
    )
)
def test_no_stored_status_raises(raw: object) -> None:
    assert isinstance(InferenceModelStatus.read(raw), InferenceModelStatus)


def test_times_round_trip_in_the_form_of_kubernetes() -> None:
    assert rfc3339(FIRST.astimezone()) == "2026-01-02T03:04:05Z"
    assert parse_rfc3339("2026-01-02T03:04:05Z") == FIRST
    with pytest.raises(ValueError, match="zone"):
        parse_rfc3339("2026-01-02T03:04:05")
