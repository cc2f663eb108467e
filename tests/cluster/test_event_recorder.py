import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from bayplan.cluster.errors import AlreadyExists, Forbidden, LeaseLost, TooManyRequests
from bayplan.cluster.events import (
    BURST,
    MAX_NOTE,
    MAX_NOTES,
    MAX_QUEUED,
    MAX_REMEMBERED,
    PER_SECOND,
    SERIES_SECONDS,
    WINDOW_SECONDS,
    EventRecorder,
    Subject,
)
from bayplan.cluster.resources import EVENTS, INFERENCE_MODELS, NODES, Key, Resource
from tests.fakes.api import FakeApi
from tests.fakes.clock import FakeClock, settle


def subject(name: str = "m", uid: str = "u1") -> Subject:
    return Subject(INFERENCE_MODELS, Key("ns", name), uid)


class Rig:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = FakeClock()
        start = self.clock.time()
        base = datetime(2026, 1, 1, tzinfo=UTC)
        self.recorder = EventRecorder(
            self.api,
            controller="bayplan-operator",
            instance="pod-1",
            clock=self.clock,
            now=lambda: base + timedelta(seconds=self.clock.time() - start),
        )
        self.task = asyncio.create_task(self.recorder.run())

    def events(self) -> list[dict]:
        return self.api.objects(EVENTS)

    def writes(self) -> list[str]:
        return [verb for verb, plural, _ in self.api.log if plural == "events"]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    assert not rig.task.done(), "the recorder died"
    rig.task.cancel()
    await asyncio.gather(rig.task, return_exceptions=True)


async def test_an_event_has_what_people_and_tools_look_for(rig: Rig) -> None:
    rig.recorder.record(subject(), "Warning", "InsufficientMemory", "14 GiB short", action="Fit")
    await settle()
    (event,) = rig.events()
    assert event["regarding"] == {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "InferenceModel",
        "namespace": "ns",
        "name": "m",
        "uid": "u1",
    }
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "InsufficientMemory", "14 GiB short")
    assert (event["action"], event["reportingController"], event["reportingInstance"]) == (
        "Fit",
        "bayplan-operator",
        "pod-1",
    )
    assert event["metadata"]["namespace"] == "ns"
    assert event["eventTime"] == "2026-01-01T00:00:00.000000Z"
    assert "series" not in event


async def test_repeats_are_counted_in_a_series_and_written_once_a_minute(rig: Rig) -> None:
    for _ in range(100):
        rig.recorder.record(subject(), "Normal", "Placed", "on n1")
    await settle()
    assert rig.writes() == ["create"]
    await rig.clock.advance(SERIES_SECONDS + 1)
    assert rig.writes() == ["create", "patch"]
    (event,) = rig.events()
    assert event["series"] == {"count": 100, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}
    await rig.clock.advance(20 * SERIES_SECONDS)
    assert rig.writes() == ["create", "patch"], "a series that does not grow is not written again"


@pytest.mark.parametrize(("gap", "events"), [(WINDOW_SECONDS - 0.1, 1), (WINDOW_SECONDS, 2)])
async def test_the_same_reason_after_the_window_is_a_new_event(rig: Rig, gap: float, events: int) -> None:
    rig.recorder.record(subject(), "Normal", "Placed", "on n1")
    await rig.clock.advance(gap)
    rig.recorder.record(subject(), "Normal", "Placed", "on n1")
    await settle()
    assert len(rig.events()) == events


async def test_other_reasons_types_and_objects_are_events_of_their_own(rig: Rig) -> None:
    rig.recorder.record(subject(), "Normal", "Placed", "x")
    rig.recorder.record(subject(), "Warning", "Placed", "x")
    rig.recorder.record(subject(), "Normal", "Warm", "x")
    rig.recorder.record(subject(uid="u2"), "Normal", "Placed", "x")
    await settle()
    assert len(rig.events()) == 4


async def test_an_event_about_a_cluster_scoped_object_goes_to_default(rig: Rig) -> None:
    rig.recorder.record(Subject(NODES, Key("", "n1"), "u9"), "Normal", "Drained", "x")
    await settle()
    (event,) = rig.events()
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["regarding"]


async def test_long_names_and_notes_fit(rig: Rig) -> None:
    rig.recorder.record(subject(name="n" * 253), "Normal", "Placed", "x" * (MAX_NOTE + 1))
    await settle()
    (event,) = rig.events()
    assert len(event["metadata"]["name"]) == 253
    assert len(event["note"]) == MAX_NOTE
    assert event["note"].endswith("…")


async def test_another_note_is_another_event_and_is_logged(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for note in ("code 1 (Error)", "code 137 (OOMKilled)", "code 1 (Error)"):
        rig.recorder.record(subject(), "Warning", "EngineFailed", note)
    await settle()
    assert sorted(event["note"] for event in rig.events()) == ["code 1 (Error)", "code 137 (OOMKilled)"]
    assert caplog.text.count("EngineFailed: code 1 (Error)") == 1
    assert caplog.text.count("EngineFailed: code 137 (OOMKilled)") == 1


async def test_notes_beyond_ten_are_counted_with_the_last_until_the_window_has_passed(rig: Rig) -> None:
    for number in range(MAX_NOTES + 5):
        rig.recorder.record(subject(), "Warning", "EngineFailed", f"note {number}")
    await rig.clock.advance(SERIES_SECONDS + 1)
    assert len(rig.events()) == MAX_NOTES
    (counted,) = [event for event in rig.events() if "series" in event]
    assert (counted["note"], counted["series"]["count"]) == (f"note {MAX_NOTES - 1}", 6)
    await rig.clock.advance(WINDOW_SECONDS)
    rig.recorder.record(subject(), "Warning", "EngineFailed", "news")
    await settle()
    assert "news" in [event["note"] for event in rig.events()]


async def test_an_event_whose_answer_was_lost_is_not_dropped(rig: Rig) -> None:
    rig.api.fail_next("create", "events", AlreadyExists("exists", status=409), after_success=True)
    rig.recorder.record(subject(), "Normal", "Ready", "x")
    await settle()
    rig.recorder.record(subject(), "Normal", "Ready", "x")
    await rig.clock.advance(SERIES_SECONDS + 1)
    (event,) = rig.events()
    assert event["series"]["count"] == 2
    assert rig.recorder.dropped == 0


@pytest.mark.parametrize("error", [Forbidden("namespace is terminating", status=403), LeaseLost("not the leader")])
async def test_a_refused_event_is_counted_and_the_next_one_tried(rig: Rig, error: Exception) -> None:
    rig.api.fail_next("create", "events", error)  # type: ignore[arg-type]
    rig.recorder.record(subject(), "Normal", "Placed", "x")
    await settle()
    assert (rig.recorder.dropped, rig.events()) == (1, [])
    rig.recorder.record(subject(), "Normal", "Placed", "x")
    await settle()
    assert len(rig.events()) == 1


async def test_a_server_under_load_is_left_alone_for_as_long_as_it_asks(rig: Rig) -> None:
    rig.api.fail_next("create", "events", TooManyRequests("busy", status=429, retry_after=5))
    rig.recorder.record(subject(), "Normal", "A", "x")
    rig.recorder.record(subject(), "Normal", "B", "x")
    await rig.clock.advance(4.9)
    assert rig.events() == []
    await rig.clock.advance(0.1)
    assert [event["reason"] for event in rig.events()] == ["B"]


async def test_what_does_not_fit_is_dropped_and_counted_and_recording_never_waits(rig: Rig) -> None:
    def full(verb: str, resource: Resource, obj: dict) -> None:
        return None

    rig.api.refuse = full
    for number in range(MAX_QUEUED + 7):
        rig.recorder.record(subject(uid=f"u{number}"), "Normal", "Placed", "x")
    assert rig.recorder.dropped == 7
    await rig.recorder.flush()
    assert len(rig.events()) >= MAX_QUEUED - 1


async def test_a_burst_is_spread_over_time_and_nothing_of_it_is_lost(rig: Rig) -> None:
    for number in range(BURST + 100):
        rig.recorder.record(subject(uid=f"u{number}"), "Normal", "Placed", "x")
    await rig.clock.advance(0.0)
    for _ in range(BURST):
        await settle()
    at_once = len(rig.events())
    assert at_once == pytest.approx(BURST, abs=1)
    await rig.clock.advance(1.0)
    assert len(rig.events()) - at_once == pytest.approx(PER_SECOND, abs=1)
    await rig.clock.advance(100 / PER_SECOND)
    assert len(rig.events()) == BURST + 100
    stamps = {event["eventTime"] for event in rig.events()}
    assert len(stamps) == 1, "an event says when it happened, not when it was written"


async def test_memory_is_bounded(rig: Rig) -> None:
    for number in range(MAX_REMEMBERED + 500):
        rig.recorder.record(subject(uid=f"u{number}"), "Normal", "Placed", "x")
        if number % 500 == 0:
            await rig.recorder.flush()
    assert len(rig.recorder._entries) <= MAX_REMEMBERED


async def test_what_is_older_than_the_window_takes_no_memory(rig: Rig) -> None:
    for number in range(50):
        rig.recorder.record(subject(uid=f"u{number}"), "Normal", "Placed", "x")
    await rig.clock.advance(WINDOW_SECONDS)
    rig.recorder.record(subject(), "Normal", "Placed", "x")
    assert len(rig.recorder._entries) == 1
