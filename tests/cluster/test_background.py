import asyncio
import logging

import pytest

from bayplan.cluster.background import BackgroundTasks
from tests.fakes.clock import settle


async def test_one_task_per_name_runs_and_frees_the_name_when_it_ends() -> None:
    tasks, gate, runs = BackgroundTasks(), asyncio.Event(), []

    async def work() -> None:
        runs.append(1)
        await gate.wait()

    assert tasks.spawn("warm", work())
    assert not tasks.spawn("warm", work())
    await settle()
    assert (runs, "warm" in tasks, len(tasks)) == ([1], True, 1)
    gate.set()
    await settle()
    assert "warm" not in tasks
    assert tasks.spawn("warm", work())
    await tasks.close()


async def test_a_cancelled_name_is_free_at_once_and_its_end_spares_the_successor() -> None:
    tasks, ended = BackgroundTasks(), []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    tasks.spawn("drain", work("first"))
    await settle()
    tasks.cancel("drain")
    tasks.cancel("never there")
    assert tasks.spawn("drain", work("second"))
    await settle()
    assert ended == ["first"]
    assert "drain" in tasks
    await tasks.close()


async def test_the_end_cancels_everything_waits_for_it_and_starts_nothing_more() -> None:
    tasks, ended = BackgroundTasks(), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(1)

    tasks.spawn("a", work())
    tasks.spawn("b", work())
    await settle()
    await tasks.close()
    assert ended == [1, 1]
    assert not tasks.spawn("c", work())


async def test_a_failure_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks()

    async def work() -> None:
        raise RuntimeError("boom")

    with caplog.at_level(logging.ERROR):
        tasks.spawn("warm ns/m", work())
        await settle()
    assert "background task warm ns/m failed" in caplog.text
    assert "warm ns/m" not in tasks
