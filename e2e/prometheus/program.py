"""Where the program comes from: PATH, the cache, or Debian's package, unpacked and not installed."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from e2e.localcluster.files import cache_folder, locked

PACKAGE = "prometheus"
FETCH_SECONDS = 300.0


class MissingPrometheusError(Exception):
    """There is no prometheus program and none can be fetched; the message says what to install."""


async def ensure_prometheus(*, cache: Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the program, fetching it first where the machine has Debian's tools. Raises MissingPrometheusError."""
    on_path = shutil.which("prometheus", path=environment.get("PATH"))
    if on_path is not None:
        return Path(on_path)
    folder = (cache if cache is not None else cache_folder(environment)) / "prometheus"
    program = folder / "usr" / "bin" / "prometheus"
    if os.access(program, os.X_OK):
        return program
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool, path=environment.get("PATH")) is None]
    if missing:
        raise MissingPrometheusError(
            f"no `prometheus` on PATH, and no {' and '.join(missing)} to fetch Debian's package with: install it"
        )
    async with locked(folder.with_suffix(".lock")):
        if not os.access(program, os.X_OK):
            await _unpack(folder, environment)
    return program


async def _unpack(folder: Path, environment: Mapping[str, str]) -> None:
    staging = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        problem = await _run("apt-get", "download", PACKAGE, folder=staging, environment=environment)
        if problem and os.geteuid() == 0:
            # A fresh image has no package lists.
            await _run("apt-get", "update", folder=staging, environment=environment)
            problem = await _run("apt-get", "download", PACKAGE, folder=staging, environment=environment)
        packages = sorted(staging.glob("*.deb"))
        if problem or not packages:
            raise MissingPrometheusError(f"no `prometheus` on PATH, and `apt-get download {PACKAGE}` failed: {problem}")
        unpacked = staging / "unpacked"
        problem = await _run("dpkg-deb", "-x", str(packages[0]), str(unpacked), folder=staging, environment=environment)
        if problem or not os.access(unpacked / "usr" / "bin" / "prometheus", os.X_OK):
            raise MissingPrometheusError(f"{packages[0].name} holds no program: {problem}")
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


async def _run(*command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command; return what went wrong, empty when nothing did."""
    program, *arguments = command
    process = await asyncio.create_subprocess_exec(
        shutil.which(program, path=environment.get("PATH")) or program,
        *arguments,
        cwd=folder,
        env={**environment, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), FETCH_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"`{' '.join(command)}` took longer than {FETCH_SECONDS:g} s"
    return "" if process.returncode == 0 else output.decode(errors="replace")[-400:].strip() or "no output"
