"""Folders outside the repository, locks between processes, and whole-or-nothing writes."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import IO

LOCK_POLL_SECONDS = 0.25


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `${XDG_CACHE_HOME:-~/.cache}/bayplan`: what can be made again."""
    return _base(environment, "XDG_CACHE_HOME", ".cache")


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `${XDG_STATE_HOME:-~/.local/state}/bayplan`: running clusters and the logs of failed ones."""
    return _base(environment, "XDG_STATE_HOME", ".local/state")


def _base(environment: Mapping[str, str], variable: str, default: str) -> Path:
    chosen = environment.get(variable, "")
    # The XDG specification says that a relative path there is to be ignored.
    return (Path(chosen) if Path(chosen).is_absolute() else Path.home() / default) / "bayplan"


@contextlib.asynccontextmanager
async def locked(path: Path, *, say: Callable[[str], None] | None = None) -> AsyncIterator[None]:
    """Hold an exclusive lock on `path` between processes. The kernel frees it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    told = False
    while (file := hold(path)) is None:
        if not told and say is not None:
            say(f"waiting for another process that holds {path}")
        told = True
        await asyncio.sleep(LOCK_POLL_SECONDS)
    with file:
        yield


def hold(path: Path) -> IO[bytes] | None:
    """Return an open file that holds the lock on `path` until it is closed, or None when another process holds it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def write_whole(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file so that readers see the old content or the new, never half of it."""
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    staging.replace(path)
