"""The API server's date instead of a wall clock that may be wrong or set while we run."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from bayplan.cluster.client import ApiClient
from bayplan.cluster.errors import NotFound
from bayplan.cluster.resources import PODS
from bayplan.cluster.servertime import ServerTime
from tests.fakes.clock import FakeClock
from tests.fakes.server import ScriptedServer, refuse, reply

SERVER = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
HALF = timedelta(seconds=0.5)


class Wall:
    def __init__(self) -> None:
        self.date = datetime(2031, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.date


def header(date: datetime) -> str:
    return format_datetime(date, usegmt=True)


def test_the_machines_date_counts_until_the_server_has_told_its_own() -> None:
    clock, wall = FakeClock(), Wall()
    time = ServerTime(clock, local=wall)
    assert time.now() == wall.date

    time.observe(header(SERVER), took_seconds=0.1)
    assert time.now() == SERVER + HALF
    wall.date += timedelta(hours=5)
    clock.jump(10)
    assert time.now() == SERVER + HALF + timedelta(seconds=10)


@pytest.mark.parametrize(
    ("off", "believed"), [(0.9, False), (-1.0, False), (2.0, True), (-2.0, True), (3600.0, True), (-3600.0, True)]
)
def test_only_a_real_difference_sets_it_anew(off: float, believed: bool) -> None:
    time = ServerTime(FakeClock(), local=Wall())
    time.observe(header(SERVER), took_seconds=0)
    other = SERVER + timedelta(seconds=off)
    time.observe(header(other), took_seconds=0)

    expected = other.replace(microsecond=0) if believed else SERVER
    assert time.now() == expected + HALF


def test_late_answers_and_rubbish_are_ignored() -> None:
    wall = Wall()
    time = ServerTime(FakeClock(), local=wall)
    time.observe(header(SERVER), took_seconds=1.01)
    for rubbish in (None, "", "yesterday", "Wed, 99 Foo 2026 00:00:00 GMT"):
        time.observe(rubbish, took_seconds=0)
    assert time.now() == wall.date

    time.observe(header(SERVER), took_seconds=1.0)
    assert time.now() == SERVER + HALF


@pytest.mark.parametrize("good", [True, False])
async def test_every_answer_tells_the_date_refusals_too(good: bool) -> None:
    dates: list[tuple[str | None, float]] = []

    def note(date: str | None, *, took_seconds: float) -> None:
        dates.append((date, took_seconds))

    stamp = {"Date": header(SERVER)}
    step = reply({"metadata": {"name": "a"}}, headers=stamp) if good else refuse(404, "NotFound", headers=stamp)
    server = ScriptedServer()
    server.others = [step]
    await server.start()
    async with ApiClient(server.credentials(), on_date=note) as client:
        with nullcontext() if good else pytest.raises(NotFound):
            await client.get(PODS, "team", "a")
    await server.stop()

    assert [date for date, _ in dates] == [header(SERVER)]
    assert 0 <= dates[0][1] < 5
