import asyncio
import logging

import pytest

from bayplan.cluster.controller import HOT_RECONCILES, HOT_WINDOW_SECONDS, Controller, Reconcile, Result
from bayplan.cluster.errors import Conflict, TooManyRequests
from bayplan.cluster.resources import Key
from tests.fakes.clock import FakeClock, settle

A, B = Key("ns", "a"), Key("ns", "b")


class Observed:
    def __init__(self) -> None:
        self.results: list[str] = []
        self.hot: list[int] = []

    def reconciled(self, result: str, seconds: float) -> None:
        self.results.append(result)

    def hot_keys(self, count: int) -> None:
        self.hot.append(count)


class Script:
    """A reconcile that does what the test lined up, then succeeds."""

    def __init__(self, *steps: BaseException | Result) -> None:
        self.steps = list(steps)
        self.seen: list[Key] = []

    async def __call__(self, key: Key) -> Result:
        self.seen.append(key)
        step = self.steps.pop(0) if self.steps else Result()
        if isinstance(step, BaseException):
            raise step
        return step


def controller(
    reconcile: Reconcile,
    clock: FakeClock,
    observer: Observed | None = None,
    *,
    keys: tuple[Key, ...] = (A,),
    workers: int = 2,
) -> Controller:
    return Controller("model", reconcile, keys=lambda: keys, workers=workers, clock=clock, observer=observer)


async def test_the_sweep_covers_every_key_and_earlier_changes_are_dropped() -> None:
    script = Script()
    control = controller(script, FakeClock(), keys=(A, B))
    control.enqueue(Key("ns", "before"))
    control.start()
    await settle()
    assert script.seen == [A, B]
    await control.stop(limit_seconds=1)


async def test_a_failure_is_retried_with_backoff_and_success_resets_it() -> None:
    clock, observer = FakeClock(), Observed()
    script = Script(RuntimeError("boom"), RuntimeError("boom"))
    control = controller(script, clock, observer)
    control.start()
    await settle()
    assert len(script.seen) == 1
    await clock.advance(0.0049)
    assert len(script.seen) == 1
    await clock.advance(0.0001)
    assert len(script.seen) == 2
    await clock.advance(0.0101)
    assert len(script.seen) == 3
    assert observer.results == ["error", "error", "success"]
    assert control.queue.failures(A) == 0
    await control.stop(limit_seconds=1)


async def test_a_requested_requeue_comes_at_its_time_and_is_no_failure() -> None:
    clock, observer = FakeClock(), Observed()
    script = Script(Result(requeue_after=7))
    control = controller(script, clock, observer)
    control.start()
    await clock.advance(6.9)
    assert len(script.seen) == 1
    await clock.advance(0.1)
    assert observer.results == ["requeue_after", "success"]
    await control.stop(limit_seconds=1)


async def test_a_requeue_after_zero_runs_again_at_once() -> None:
    clock = FakeClock()
    script = Script(Result(requeue_after=0))
    control = controller(script, clock)
    control.start()
    await settle()
    assert script.seen == [A, A]
    await control.stop(limit_seconds=1)


async def test_a_server_that_asks_to_wait_is_obeyed() -> None:
    clock = FakeClock()
    script = Script(TooManyRequests("slow down", status=429, retry_after=4))
    control = controller(script, clock)
    control.start()
    await clock.advance(3.9)
    assert len(script.seen) == 1
    await clock.advance(0.1)
    assert len(script.seen) == 2
    await control.stop(limit_seconds=1)


async def test_a_cancellation_leaking_out_of_a_reconcile_does_not_end_the_worker() -> None:
    clock, observer = FakeClock(), Observed()
    script = Script(asyncio.CancelledError())
    control = controller(script, clock, observer, workers=1)
    control.start()
    await clock.advance(1)
    assert observer.results == ["error", "success"]
    await control.stop(limit_seconds=1)


async def test_a_failure_is_logged_once_with_its_key_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    script = Script(*[RuntimeError("boom")] * 4, RuntimeError("other"), Conflict("raced", status=409))
    control = controller(script, clock)
    with caplog.at_level(logging.INFO, logger="bayplan.cluster.controller"):
        control.start()
        await clock.advance(60)
    levels = [(record.levelname, record.getMessage().split(";")[0]) for record in caplog.records]
    assert levels == [
        ("WARNING", "model ns/a: RuntimeError: boom"),
        ("WARNING", "model ns/a: RuntimeError: other"),
        ("INFO", "model ns/a: Conflict: 409: raced"),
    ]
    assert caplog.records[0].exc_info is not None
    assert caplog.records[2].exc_info is None
    await control.stop(limit_seconds=1)


async def test_one_key_is_reconciled_by_one_worker_at_a_time_and_others_go_on() -> None:
    gates = {A: asyncio.Event(), B: asyncio.Event()}
    running: list[Key] = []
    overlaps: list[Key] = []

    async def reconcile(key: Key) -> Result:
        if key in running:
            overlaps.append(key)
        running.append(key)
        await gates[key].wait()
        running.remove(key)
        return Result()

    control = controller(reconcile, FakeClock(), keys=(A, B), workers=4)
    control.start()
    await settle()
    control.enqueue(A)
    await settle()
    assert sorted(running) == [A, B]
    for gate in gates.values():
        gate.set()
    await settle()
    assert not overlaps
    await control.stop(limit_seconds=1)


async def test_the_stop_lets_work_in_flight_end() -> None:
    gate, ended = asyncio.Event(), []

    async def reconcile(key: Key) -> Result:
        await gate.wait()
        ended.append(key)
        return Result()

    control = controller(reconcile, FakeClock())
    control.start()
    await settle()
    stopping = asyncio.ensure_future(control.stop(limit_seconds=30))
    await settle()
    gate.set()
    await stopping
    assert ended == [A]


async def test_the_stop_cuts_off_work_that_does_not_end() -> None:
    cut: list[Key] = []

    async def reconcile(key: Key) -> Result:
        try:
            await asyncio.Event().wait()
        finally:
            cut.append(key)
        return Result()

    control = controller(reconcile, FakeClock())
    control.start()
    await settle()
    await control.stop(limit_seconds=0.01)
    assert cut == [A]


@pytest.mark.parametrize(("runs", "hot"), [(HOT_RECONCILES, 0), (HOT_RECONCILES + 1, 1)])
async def test_a_key_reconciled_too_often_in_a_window_is_reported(runs: int, hot: int) -> None:
    clock, observer = FakeClock(), Observed()
    script = Script(*[Result(requeue_after=0)] * (runs - 1))
    control = controller(script, clock, observer)
    control.start()
    await settle(40 * runs)
    assert len(script.seen) == runs
    await clock.advance(HOT_WINDOW_SECONDS)
    control.enqueue(B)
    await settle()
    assert observer.hot == [hot]
    await control.stop(limit_seconds=1)


def test_no_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1"):
        Controller("model", Script(), workers=0)


async def test_what_changed_while_nobody_led_goes_before_the_rest_of_the_sweep() -> None:
    script, keys = Script(), tuple(Key("ns", f"m{number}") for number in range(9))
    late = keys[-1]
    control = Controller("model", script, keys=lambda: keys, urgent=lambda key: key == late, workers=1)
    control.start()
    await settle()
    assert script.seen == [late, *keys[:-1]]
    await control.stop(limit_seconds=1)


async def test_a_sweep_with_nothing_to_do_leaves_the_loop_to_others() -> None:
    script = Script()
    control = controller(script, FakeClock(), keys=tuple(Key("ns", f"m{number}") for number in range(500)), workers=4)
    control.start()
    turns = 0
    while len(script.seen) < 500:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100
    await control.stop(limit_seconds=1)
