"""Folders, locks and whole writes."""

import asyncio
import stat
from pathlib import Path

import pytest

from e2e.localcluster.files import cache_folder, hold, locked, state_folder, write_whole


def test_folders_follow_the_xdg_variables(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "bayplan"
    assert state_folder({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "bayplan"


@pytest.mark.parametrize("value", [None, "", "relative/path"])
def test_an_unusable_xdg_variable_means_the_home_folder(value: str | None) -> None:
    environment = {} if value is None else {"XDG_CACHE_HOME": value, "XDG_STATE_HOME": value}
    assert cache_folder(environment) == Path.home() / ".cache" / "bayplan"
    assert state_folder(environment) == Path.home() / ".local" / "state" / "bayplan"


async def test_a_lock_admits_one_at_a_time_and_tells_who_waits(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / "lock"
    inside = 0
    said: list[str] = []

    async def enter() -> None:
        nonlocal inside
        async with locked(lock, say=said.append):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    async with locked(lock):
        waiting = [asyncio.ensure_future(enter()) for _ in range(3)]
        while len(said) < 3:  # noqa: ASYNC110 - told by a callback
            await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)
    assert said == [f"waiting for another process that holds {lock}"] * 3


async def test_a_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        async with locked(tmp_path / "lock"):
            raise RuntimeError
    held = hold(tmp_path / "lock")
    assert held is not None
    assert hold(tmp_path / "lock") is None
    held.close()


def test_a_whole_write_replaces_and_keeps_secrets_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a much longer old content")
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
