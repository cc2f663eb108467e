import asyncio

import pytest

from bayplan.cluster.queue import MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS, SWEEP_TURN, Lane, QueueClosed, WorkQueue
from tests.fakes.clock import FakeClock, settle


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue(clock: FakeClock) -> WorkQueue[str]:
    return WorkQueue(clock=clock)


async def take(queue: WorkQueue[str]) -> str | None:
    """The next key, or None when none is ready."""
    task = asyncio.ensure_future(queue.get())
    await settle()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


async def drain(queue: WorkQueue[str]) -> list[str]:
    taken = []
    while (key := await take(queue)) is not None:
        queue.done(key)
        taken.append(key)
    return taken


async def test_keys_come_out_in_the_order_they_came_in(queue: WorkQueue[str]) -> None:
    for key in "cab":
        queue.add(key)
    assert await drain(queue) == ["c", "a", "b"]


async def test_a_key_added_many_times_is_worked_on_once(queue: WorkQueue[str]) -> None:
    for _ in range(5):
        queue.add("a")
        queue.add("a", lane=Lane.SWEEP)
    assert len(queue) == 1
    assert await drain(queue) == ["a"]


async def test_a_key_is_never_in_flight_twice_and_runs_once_more_if_added_meanwhile(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert await take(queue) == "a"
    queue.add("a")
    queue.add("a")
    assert await take(queue) is None
    queue.done("a")
    assert await drain(queue) == ["a"]


async def test_a_key_not_added_meanwhile_is_over_when_done(queue: WorkQueue[str]) -> None:
    queue.add("a")
    await take(queue)
    queue.done("a")
    assert await take(queue) is None


async def test_changes_go_ahead_of_the_sweep(queue: WorkQueue[str]) -> None:
    queue.add("old-1", lane=Lane.SWEEP)
    queue.add("old-2", lane=Lane.SWEEP)
    queue.add("new")
    assert await drain(queue) == ["new", "old-1", "old-2"]


async def test_a_swept_key_that_changes_moves_ahead_and_keeps_its_age(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add("x", lane=Lane.SWEEP)
    queue.add("y", lane=Lane.SWEEP)
    await clock.advance(3)
    queue.add("y")
    assert queue.oldest_seconds() == 3
    assert await drain(queue) == ["y", "x"]


async def test_a_change_during_a_swept_run_stays_a_change(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert await take(queue) == "a"
    queue.add("a", lane=Lane.SWEEP)
    queue.add("a")
    queue.add("b", lane=Lane.SWEEP)
    queue.done("a")
    assert await drain(queue) == ["a", "b"]


async def test_steady_changes_do_not_starve_the_sweep(queue: WorkQueue[str]) -> None:
    queue.add("swept", lane=Lane.SWEEP)
    taken = []
    for number in range(SWEEP_TURN + 1):
        queue.add(f"change-{number}")
        queue.add(f"change-{number}-b")
        key = await take(queue)
        assert key is not None
        queue.done(key)
        taken.append(key)
    assert taken.index("swept") == SWEEP_TURN


@pytest.mark.parametrize(("elapsed", "ready"), [(4.99, False), (5.0, True), (5.01, True)])
async def test_a_delayed_key_comes_at_its_time(
    queue: WorkQueue[str], clock: FakeClock, elapsed: float, ready: bool
) -> None:
    queue.add_after("a", 5.0)
    await clock.advance(elapsed)
    assert (await take(queue) == "a") is ready


async def test_of_several_delays_the_earliest_holds(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add_after("a", 5)
    queue.add_after("a", 9)
    queue.add_after("a", 2)
    await clock.advance(2)
    assert await drain(queue) == ["a"]
    await clock.advance(20)
    assert await drain(queue) == []


async def test_delays_fire_in_order_of_time_and_an_earlier_one_rearms(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add_after("late", 10)
    queue.add_after("early", 1)
    await clock.advance(1)
    assert await drain(queue) == ["early"]
    await clock.advance(9)
    assert await drain(queue) == ["late"]


async def test_a_delay_does_not_hold_back_a_change(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 100)
    queue.add("a")
    assert await drain(queue) == ["a"]


async def test_backoff_doubles_per_key_up_to_its_limit_and_forget_resets_it(queue: WorkQueue[str]) -> None:
    delays = [queue.add_backoff("a") for _ in range(20)]
    assert delays[:4] == [MIN_BACKOFF_SECONDS * factor for factor in (1, 2, 4, 8)]
    assert delays[-1] == MAX_BACKOFF_SECONDS
    assert queue.add_backoff("b") == MIN_BACKOFF_SECONDS
    queue.forget("a")
    assert queue.add_backoff("a") == MIN_BACKOFF_SECONDS


async def test_backoff_survives_thousands_of_failures(queue: WorkQueue[str]) -> None:
    for _ in range(5000):
        delay = queue.add_backoff("a")
    assert delay == MAX_BACKOFF_SECONDS


async def test_backoff_waits_at_least_as_long_as_asked(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add_backoff("a", at_least=3)
    await clock.advance(2.9)
    assert await take(queue) is None
    await clock.advance(0.1)
    assert await take(queue) == "a"


async def test_closing_wakes_every_worker_and_takes_nothing_more(queue: WorkQueue[str]) -> None:
    workers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await settle()
    queue.close()
    results = await asyncio.gather(*workers, return_exceptions=True)
    assert [type(result) for result in results] == [QueueClosed] * 3
    queue.add("a")
    assert len(queue) == 0


async def test_a_cancelled_waiter_passes_its_wake_up_on(queue: WorkQueue[str]) -> None:
    first, second = asyncio.ensure_future(queue.get()), asyncio.ensure_future(queue.get())
    await settle()
    queue.add("a")
    first.cancel()  # woken already, but has not run yet
    await settle()
    assert second.done()
    assert second.result() == "a"
    await asyncio.gather(first, return_exceptions=True)


async def test_many_workers_take_every_key_exactly_once(queue: WorkQueue[str]) -> None:
    seen: list[str] = []

    async def work() -> None:
        while True:
            key = await queue.get()
            await asyncio.sleep(0)
            seen.append(key)
            queue.done(key)

    workers = [asyncio.ensure_future(work()) for _ in range(4)]
    for number in range(200):
        queue.add(f"key-{number}")
    await settle(400)
    assert sorted(seen) == sorted(f"key-{number}" for number in range(200))
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def test_measurements_tell_depth_age_and_work(clock: FakeClock) -> None:
    class Observer:
        def __init__(self) -> None:
            self.calls: list[tuple[str, float]] = []

        def added(self) -> None:
            self.calls.append(("added", 0))

        def retried(self) -> None:
            self.calls.append(("retried", 0))

        def started(self, waited_seconds: float) -> None:
            self.calls.append(("started", waited_seconds))

        def finished(self, worked_seconds: float) -> None:
            self.calls.append(("finished", worked_seconds))

    observer = Observer()
    queue: WorkQueue[str] = WorkQueue(clock=clock, observer=observer)
    queue.add("a")
    queue.add("b")
    await clock.advance(2)
    assert (len(queue), queue.oldest_seconds()) == (2, 2)
    await take(queue)
    await clock.advance(4)
    assert (queue.in_flight, queue.longest_running_seconds()) == (1, 4)
    queue.done("a")
    queue.add_backoff("a")
    assert queue.delayed == 1
    assert observer.calls == [("added", 0), ("added", 0), ("started", 2), ("finished", 4), ("retried", 0)]
