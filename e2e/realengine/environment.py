"""The engine's own cached environment: made whole or not at all, named by the digest of what went into it."""

import asyncio
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.localcluster.files import cache_folder, locked
from e2e.localcluster.processes import SupervisedProcess, log_tail
from e2e.realengine.progress import PipProgress
from e2e.realengine.recipe import (
    EXPECTED_INSTALLED_GB,
    LOCK,
    LOOKED_UP_DISTRIBUTION,
    LOOKED_UP_VERSION,
    TINY_MODEL_SCRIPT,
    check_machine,
    digest,
    environment_digest,
    read_cpu_flags,
)

NEEDED_FREE_GB = 11.0
"""Installed size, the downloaded wheels beside it until they are unpacked, and a margin."""
CHECK = (
    "import importlib.metadata as m, torch, vllm; from vllm.platforms import current_platform as p;"
    "assert p.is_cpu(), p; print(m.version('vllm'), torch.__version__)"
)

Say = Callable[[str], None]


class InstallError(RuntimeError):
    """A step of the installation failed; the message has the end of its output and names the log."""


class NotInstalledError(RuntimeError):
    """The engine is not in the cache."""


@dataclass(frozen=True)
class Installation:
    """Where the engine and the tiny model are."""

    environment: Path
    model: Path

    @property
    def python(self) -> Path:
        """The interpreter that imports the engine."""
        return self.environment / "bin" / "python"

    def is_complete(self) -> bool:
        """Whether both parts are there; each appears by one rename."""
        return self.python.exists() and (self.model / "config.json").exists()


def locations(environment: Mapping[str, str] = os.environ) -> Installation:
    """Where an installation by this recipe belongs, whether or not it is there."""
    root = cache_folder(environment) / "realengine"
    name = environment_digest(LOCK.read_bytes(), python=sys.version_info[:2])
    model = digest(name.encode(), TINY_MODEL_SCRIPT.read_bytes())
    return Installation(environment=root / name, model=root / f"tiny-{model}")


def installed(environment: Mapping[str, str] = os.environ) -> Installation:
    """The installation in the cache.

    Raises:
        NotInstalledError: when it is missing or was made by another recipe.
    """
    found = locations(environment)
    if not found.is_complete():
        raise NotInstalledError(f"no real engine in {found.environment.parent}: run `make real-engine` (about 6 GB)")
    return found


def check_this_machine() -> str:
    """`check_machine` for the machine that this runs on."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except FileNotFoundError:
        cpuinfo = ""
    return check_machine(
        system=platform.system(),
        machine=platform.machine(),
        cpu_flags=read_cpu_flags(cpuinfo),
        python=sys.version_info[:2],
    )


async def install(*, say: Say, environment: Mapping[str, str] = os.environ) -> Installation:
    """Make environment and model unless they are there. A run that is killed leaves no half of either.

    Raises:
        UnsupportedMachineError: the engine's binaries do not run here.
        InstallError: a step failed, or the disk is too small.
    """
    instructions = check_this_machine()
    target = locations(environment)
    root = target.environment.parent
    async with locked(root / "install.lock", say=say):
        if not target.python.exists():
            say(
                f"real engine: {LOOKED_UP_VERSION} with {instructions}, about {EXPECTED_INSTALLED_GB:g} GB, into {root}"
            )
            _clear_leftovers(root)
            _check_free(root)
            await _make_environment(target.environment, environment=environment, say=say)
        if not target.is_complete():
            say(f"making the tiny model in {target.model}")
            await _make_model(target, environment=environment)
    return target


async def remake_model(*, say: Say, environment: Mapping[str, str] = os.environ) -> Path:
    """Make the tiny model again in an installed environment and return its folder."""
    target = locations(environment)
    if not target.python.exists():
        raise NotInstalledError(f"no real engine in {target.environment.parent}: run `make real-engine` (about 6 GB)")
    async with locked(target.environment.parent / "install.lock", say=say):
        await _make_model(target, environment=environment)
    return target.model


def _clear_leftovers(root: Path) -> None:
    # Under the lock nobody else is installing, so whatever still has a staging name was left by a killed run.
    for leftover in root.glob(".staging-*"):
        shutil.rmtree(leftover)


def _check_free(root: Path) -> None:
    free_gb = shutil.disk_usage(root).free / 1e9
    if free_gb < NEEDED_FREE_GB:
        raise InstallError(
            f"{root} has {free_gb:.1f} GB free, the installation needs {NEEDED_FREE_GB:g} GB while it runs"
        )


async def _make_environment(target: Path, *, environment: Mapping[str, str], say: Say) -> None:
    root = target.parent
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=root))
    log = root / "install.log"
    log.unlink(missing_ok=True)
    downloads = staging / "downloads"
    downloads.mkdir()
    made = staging / "environment"
    python = made / "bin" / "python"
    try:
        await _run([sys.executable, "-m", "venv", str(made)], log=log, environment=environment)
        total = len(re.findall(r"^[A-Za-z0-9]", LOCK.read_text(), re.MULTILINE))
        await _run(
            [
                *(str(python), "-m", "pip", "install", "--require-hashes", "--no-deps", "--no-cache-dir"),
                *("--only-binary", ":all:", "--no-compile", "--progress-bar", "off", "--disable-pip-version-check"),
                *("-r", str(LOCK)),
            ],
            log=log,
            # The wheels are unpacked from here: /tmp may be memory, and the staging folder goes away with everything.
            environment={**environment, "TMPDIR": str(downloads)},
            progress=PipProgress(say=say, log=log, site_packages=_site_packages(made), total=total),
        )
        _write_looked_up_metadata(_site_packages(made))
        say("checking that the engine starts its CPU platform")
        await _run([str(python), "-c", CHECK], log=log, environment=environment)
        # Nothing in use names the old place: the engine is always started as `python -m`, never by its script.
        made.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _site_packages(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _write_looked_up_metadata(site_packages: Path) -> None:
    folder = site_packages / f"{LOOKED_UP_DISTRIBUTION}-{LOOKED_UP_VERSION}.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {LOOKED_UP_DISTRIBUTION}\nVersion: {LOOKED_UP_VERSION}\n"
    (folder / "METADATA").write_text(metadata)


async def _make_model(target: Installation, *, environment: Mapping[str, str]) -> None:
    root = target.model.parent
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=root))
    try:
        made = staging / "model"
        await _run(
            [str(target.python), str(TINY_MODEL_SCRIPT), str(made)],
            log=root / "model.log",
            environment={**environment, "HF_HUB_OFFLINE": "1"},
        )
        if target.model.exists():
            target.model.rename(staging / "previous")
        made.rename(target.model)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


async def _run(
    command: list[str], *, log: Path, environment: Mapping[str, str], progress: PipProgress | None = None
) -> None:
    process = SupervisedProcess.start(command, name=command[0], log_path=log, environment=environment)
    watching = asyncio.create_task(progress.watch()) if progress is not None else None
    try:
        code = await process.wait()
    finally:
        if watching is not None:
            watching.cancel()
        await process.stop()
    if code != 0:
        raise InstallError(
            f"`{' '.join(command[:4])} …` failed with exit code {code}\n{log_tail(log)}\nfull log: {log}"
        )
