"""Warm-up and drain beside the workers: stages, deadlines, and what is forgotten."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bayplan.api.inferencemodel import Warmup
from bayplan.api.inferencemodel_status import WarmupStage
from bayplan.cluster.clock import sleep
from bayplan.planning.groups.members import Group
from bayplan.reconcile.background import TaskTable, run_all
from bayplan.reconcile.inferencemodel.drain import DrainTracker
from bayplan.reconcile.inferencemodel.warmup import Outcome, WarmupTracker
from bayplan.telemetry.engine import EngineUnreachableError
from tests.fakes.clock import FakeClock, settle
from tests.planning.replicagroups import assignment, build_one, ready, running
from tests.reconcile.engines import FakeEngine
from tests.reconcile.operators import BASE, wall_clock

OWNER, ADDRESS = "team/llama", "10.0.0.0"
WARMUP = Warmup(load_deadline_seconds=60, deadline_seconds=10)


class Bench:
    """Both trackers over one engine and one clock."""

    def __init__(self) -> None:
        self.clock, self.engine, self.changes = FakeClock(), FakeEngine(), 0
        now = wall_clock(self.clock)
        options: dict[str, Any] = {"now": now, "sleep": lambda seconds: sleep(self.clock, seconds)}
        self.warm = WarmupTracker(self.engine, **options)
        self.acknowledged = True
        self.drain = DrainTracker(self.engine, acknowledged=lambda *_: self.acknowledged, **options)

    def changed(self) -> None:
        self.changes += 1

    def start(self, group: Group) -> None:
        self.warm.ensure(OWNER, group, served_name="llama", warmup=WARMUP, changed=self.changed)

    def leave(self, group: Group, *, seconds: int = 30) -> None:
        self.drain.ensure(OWNER, group, deadline_seconds=seconds, changed=self.changed)

    def stage(self, group: Group) -> tuple[WarmupStage, Outcome] | None:
        seen = self.warm.observe(group)
        return None if seen is None else (seen.stage, seen.outcome)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    found = Bench()
    yield found
    await found.warm.close()
    await found.drain.close()


def warming() -> Group:
    return build_one(running(assignment(), since=BASE))


def draining() -> Group:
    return build_one([replace(member, draining_since=BASE) for member in ready(assignment(), since=BASE)])


# --- warm-up ----------------------------------------------------------------------------------------------------------


async def test_each_stage_is_seen_with_its_start_and_told_once(bench: Bench) -> None:
    group, engine = warming(), bench.engine.at[ADDRESS]
    engine.listening = False
    bench.start(group)
    await bench.clock.advance(5)
    assert bench.stage(group) == (WarmupStage.STARTING, Outcome.RUNNING)
    engine.listening, engine.models = True, ()
    await bench.clock.advance(5)
    assert bench.stage(group) == (WarmupStage.LISTENING, Outcome.RUNNING)
    engine.models, engine.generation_error = ("llama",), "not yet"
    await bench.clock.advance(3)
    assert bench.stage(group) == (WarmupStage.GENERATING, Outcome.RUNNING)
    seen = bench.warm.observe(group)
    assert seen is not None
    assert 10 <= (seen.since - BASE).total_seconds() <= 13
    engine.generation_error = ""
    await bench.clock.advance(3)
    assert bench.stage(group) == (WarmupStage.GENERATING, Outcome.SUCCEEDED)
    assert bench.changes == 5


async def test_an_address_without_an_answer_is_not_listening(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(_: str) -> list[str]:
        raise EngineUnreachableError("no route")

    monkeypatch.setattr(bench.engine, "served_models", unreachable)
    group = warming()
    bench.start(group)
    await bench.clock.advance(5)
    assert bench.stage(group) == (WarmupStage.STARTING, Outcome.RUNNING)


@pytest.mark.parametrize(("seconds", "outcome"), [(57, Outcome.RUNNING), (63, Outcome.FAILED)])
async def test_loading_has_a_deadline_from_the_containers_start(bench: Bench, seconds: float, outcome: Outcome) -> None:
    group = warming()
    bench.engine.at[ADDRESS].models = ("another",)
    bench.start(group)
    await bench.clock.advance(seconds)
    seen = bench.warm.observe(group)
    assert seen is not None
    assert seen.outcome is outcome


@pytest.mark.parametrize(("seconds", "outcome"), [(7, Outcome.RUNNING), (11, Outcome.FAILED)])
async def test_generating_has_a_deadline_of_its_own(bench: Bench, seconds: float, outcome: Outcome) -> None:
    group = warming()
    bench.engine.at[ADDRESS].generation_error = "out of memory"
    bench.start(group)
    await bench.clock.advance(seconds)
    seen = bench.warm.observe(group)
    assert seen is not None
    assert seen.outcome is outcome
    if outcome is Outcome.FAILED:
        assert seen.message == "no generation succeeded within 10 s: out of memory"


@pytest.mark.parametrize("missing", ["pod_ip", "container_id", "container_started"])
async def test_nothing_is_asked_before_the_container_runs_and_has_an_address(bench: Bench, missing: str) -> None:
    group = build_one([replace(member, **{missing: None}) for member in running(assignment(), since=BASE)])
    bench.start(group)
    await bench.clock.advance(5)
    assert bench.stage(group) is None
    assert bench.engine.at[ADDRESS].calls == []


async def test_one_container_is_warmed_once_however_often_it_is_asked_for(bench: Bench) -> None:
    group = warming()
    for _ in range(3):
        bench.start(group)
        await settle()
    assert bench.engine.at[ADDRESS].calls == ["models", "generate"]


async def test_another_container_is_warmed_anew_and_the_old_one_forgotten(bench: Bench) -> None:
    group = warming()
    bench.start(group)
    await settle()
    other = build_one([replace(member, container_id="c-2") for member in running(assignment(), since=BASE)])
    bench.warm.retain(OWNER, [other])
    assert bench.stage(group) is None
    assert bench.stage(other) is None
    bench.start(other)
    await settle()
    assert bench.stage(other) == (WarmupStage.GENERATING, Outcome.SUCCEEDED)


# --- drain ------------------------------------------------------------------------------------------------------------


async def test_two_idle_scrapes_in_a_row_end_a_drain(bench: Bench) -> None:
    group = draining()
    bench.leave(group)
    await settle()
    assert bench.drain.result(group) is None
    await bench.clock.advance(1)
    result = bench.drain.result(group)
    assert result is not None
    assert result.idle
    assert bench.changes == 1


async def test_a_request_between_two_idle_scrapes_starts_the_count_again(bench: Bench) -> None:
    group, engine = draining(), bench.engine.at[ADDRESS]
    bench.leave(group)
    await settle()
    engine.waiting = 1
    await bench.clock.advance(1)
    engine.waiting = 0
    await bench.clock.advance(1)
    assert bench.drain.result(group) is None
    await bench.clock.advance(1)
    assert bench.drain.result(group) is not None


async def test_an_engine_that_refuses_connections_has_ended(bench: Bench) -> None:
    group = draining()
    bench.engine.at[ADDRESS].listening = False
    bench.leave(group)
    await bench.clock.advance(1)
    result = bench.drain.result(group)
    assert result is not None
    assert result.reason == "idle: nothing listens any more"


@pytest.mark.parametrize(("seconds", "over"), [(29, False), (30, True)])
async def test_a_busy_drain_ends_at_its_deadline(bench: Bench, seconds: float, over: bool) -> None:
    group = draining()
    bench.engine.at[ADDRESS].running = 2
    bench.leave(group)
    await bench.clock.advance(seconds)
    result = bench.drain.result(group)
    assert (result is not None) is over
    if result is not None:
        assert (result.idle, result.reason) == (False, "deadline of 30 s passed: 2 running, 0 waiting")


async def test_scrapes_before_every_gateway_has_acknowledged_prove_nothing(bench: Bench) -> None:
    group = draining()
    bench.acknowledged = False
    bench.leave(group)
    await bench.clock.advance(5)
    assert bench.drain.result(group) is None
    bench.acknowledged = True
    await bench.clock.advance(1)
    assert bench.drain.result(group) is None, "one scrape later than the acknowledgement"
    await bench.clock.advance(1)
    result = bench.drain.result(group)
    assert result is not None
    assert result.idle


async def test_a_gateway_that_appears_in_between_starts_the_count_anew(bench: Bench) -> None:
    group = draining()
    bench.leave(group)
    await settle()
    bench.acknowledged = False
    await bench.clock.advance(1)
    bench.acknowledged = True
    await bench.clock.advance(1)
    assert bench.drain.result(group) is None
    await bench.clock.advance(1)
    assert bench.drain.result(group) is not None


async def test_a_gateway_that_never_acknowledges_is_waited_for_until_the_deadline(bench: Bench) -> None:
    group = draining()
    bench.acknowledged = False
    bench.leave(group)
    await bench.clock.advance(29)
    assert bench.drain.result(group) is None
    await bench.clock.advance(1)
    result = bench.drain.result(group)
    assert result is not None
    assert (result.idle, "not acknowledged by every gateway" in result.reason) == (False, True)


async def test_an_engine_that_listens_no_more_needs_no_acknowledgement(bench: Bench) -> None:
    group = draining()
    bench.acknowledged = False
    bench.engine.at[ADDRESS].listening = False
    bench.leave(group)
    await bench.clock.advance(1)
    assert bench.drain.result(group) is not None


async def test_a_second_drain_of_the_same_pod_is_judged_by_itself(bench: Bench) -> None:
    group = draining()
    bench.leave(group)
    await bench.clock.advance(2)
    assert bench.drain.result(group) is not None
    again = build_one([replace(m, draining_since=BASE + timedelta(seconds=60)) for m in group.members])
    assert bench.drain.result(again) is None
    bench.drain.retain(OWNER, [again])
    assert bench.drain.result(group) is None


async def test_unknown_load_waits_for_the_deadline(bench: Bench) -> None:
    group = draining()
    bench.engine.at[ADDRESS].load_error = "/metrics answered 500"
    bench.leave(group)
    await bench.clock.advance(29)
    assert bench.drain.result(group) is None
    await bench.clock.advance(1)
    assert bench.drain.result(group) is not None


async def test_a_head_without_an_address_never_served(bench: Bench) -> None:
    group = build_one([replace(m, draining_since=BASE, pod_ip=None) for m in ready(assignment(), since=BASE)])
    bench.leave(group)
    await settle()
    result = bench.drain.result(group)
    assert result is not None
    assert result.idle


async def test_a_group_that_does_not_drain_is_not_watched(bench: Bench) -> None:
    group = build_one(ready(assignment(), since=BASE))
    bench.leave(group)
    await bench.clock.advance(60)
    assert bench.drain.result(group) is None
    assert bench.engine.at[ADDRESS].calls == []


# --- the table --------------------------------------------------------------------------------------------------------


async def test_only_tasks_of_retained_subjects_live_on() -> None:
    table, clock, done = TaskTable(), FakeClock(), []

    async def work(name: str) -> None:
        await sleep(clock, 5)
        done.append(name)

    for name in ("a", "b"):
        table.start("owner", name, work(name), name=name)
    table.start("other", "a", work("other"), name="other")
    await settle()
    assert table.retain("owner", ["b", "c"]) == ["a"]
    assert not table.running("owner", "a")
    await clock.advance(5)
    assert sorted(done) == ["b", "other"]
    assert table.retain("nobody", ()) == []
    await table.close()


async def test_all_work_ends_before_the_first_error_is_raised() -> None:
    done: list[str] = []

    async def work(name: str, *, fails: bool) -> str:
        await settle(3)
        done.append(name)
        if fails:
            raise ValueError(name)
        return name

    with pytest.raises(ValueError, match="b"):
        await run_all([work("a", fails=False), work("b", fails=True), work("c", fails=True), work("d", fails=False)])
    assert sorted(done) == ["a", "b", "c", "d"]
    assert await run_all([work("e", fails=False)]) == ["e"]
    assert await run_all(()) == []
