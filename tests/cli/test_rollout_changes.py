"""What a person may say about a trial, as changes of the spec."""

from datetime import UTC, datetime
from typing import Any

import pytest

from bayplan.api.rollout import MAX_APPROVALS
from bayplan.cli.rolloutchanges import ChangeRefusedError, abort, approve, pause, retry
from tests.cli.rollouts import rollout

NOW = datetime(2026, 11, 30, 7, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("phase", "index", "stage"), [("Shadow", 1, "canary-10"), ("Canary", 3, "promote"), ("Warm", 1, "canary-10")]
)
def test_approval_is_for_the_candidate_and_the_next_stage(phase: str, index: int, stage: str) -> None:
    change = approve(rollout(phase=phase, index=index), revision=None, stage=None)
    assert change.spec == {"approvals": [{"revision": "c1", "stage": stage}]}


def test_approval_of_a_stage_that_asks_for_none_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        ChangeRefusedError, match="canary-30 asks for no approval: those that do are canary-10, promote"
    ):
        approve(rollout(index=2), revision=None, stage=None)
    with pytest.raises(ChangeRefusedError, match="warm asks for no approval"):
        approve(rollout(phase="Paper", index=None), revision=None, stage=None)
    with pytest.raises(ChangeRefusedError, match="none does"):
        approve(rollout(spec={"stages": [{"kind": "Warm"}]}), revision=None, stage="warm")


def test_approvals_that_stand_there_stay_and_the_oldest_make_room() -> None:
    old = [{"revision": f"r{n}", "stage": "promote"} for n in range(MAX_APPROVALS)]
    change = approve(rollout(spec={"approvals": old}), revision="x", stage="promote")
    assert change.spec["approvals"] == [*old[1:], {"revision": "x", "stage": "promote"}]
    again = approve(rollout(spec={"approvals": old}), revision="r3", stage="promote")
    assert again.spec == {}


def test_pause_and_its_end_change_only_what_differs() -> None:
    assert pause(rollout(), resume=False).spec == {"paused": True}
    assert pause(rollout(spec={"paused": True}), resume=False).spec == {}
    assert pause(rollout(spec={"paused": True}), resume=True).spec == {"paused": False}
    assert pause(rollout(), resume=True).spec == {}


def test_abort_names_the_candidate() -> None:
    assert abort(rollout(), revision=None).spec == {"abort": "c1"}
    assert abort(rollout(spec={"abort": "c1"}), revision=None).spec == {}
    assert abort(rollout(), revision="other").spec == {"abort": "other"}


@pytest.mark.parametrize("phase", ["Replacing", "Retained"])
def test_abort_after_the_promotion_names_what_was_promoted(phase: str) -> None:
    plan = {"epoch": 9, "serving": "c1", "previous": "s1"} if phase == "Replacing" else {"epoch": 9, "serving": "c1"}
    assert abort(rollout(phase=phase, index=None, plan=plan), revision=None).spec == {"abort": "c1"}


@pytest.mark.parametrize("fields", [{"phase": "Steady"}, {"phase": "RolledBack"}, {"phase": None}, {"trial": None}])
@pytest.mark.parametrize("say", [abort, lambda raw, revision: approve(raw, revision=revision, stage="promote")])
def test_without_a_trial_there_is_nothing_to_say_about_it(fields: dict[str, Any], say: Any) -> None:
    with pytest.raises(ChangeRefusedError, match="nothing is on trial"):
        say(rollout(**fields), revision=None)


def test_retry_is_a_token_that_was_not_there_and_takes_back_an_abort() -> None:
    assert retry(rollout(), token=None, now=NOW).spec == {"retry": "2026-11-30T07:00:00Z"}
    assert retry(rollout(spec={"abort": "c1"}), token="again", now=NOW).spec == {"retry": "again", "abort": None}
    assert retry(rollout(spec={"retry": "again"}), token="again", now=NOW).spec == {}


def test_last_stage_is_followed_by_none() -> None:
    with pytest.raises(ChangeRefusedError, match="no stage is left"):
        approve(rollout(index=4), revision=None, stage=None)


def test_object_that_the_operator_has_not_seen_is_no_error() -> None:
    bare = {**rollout(), "status": None}
    assert pause(bare, resume=False).spec == {"paused": True}
    with pytest.raises(ChangeRefusedError):
        abort(bare, revision=None)
