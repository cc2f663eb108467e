"""Build etcd and the three Kubernetes servers from pinned Go modules, once, into a cache outside the repository.

The cache folder is named by a digest of everything that decides the result, filled elsewhere and moved into place, all
under a lock: whoever is killed in between leaves nothing that looks finished.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.localcluster.files import cache_folder, locked
from e2e.localcluster.processes import SupervisedProcess, log_tail
from e2e.localcluster.progress import BuildProgress, Reporter, reporter_for
from e2e.localcluster.toolchain import find_go, required_go_version

MODULE = Path(__file__).parent / "controlplane"
BINARIES: Final[Mapping[str, str]] = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
}
GO_NAMES: Final[Mapping[str, str]] = {"server": "etcd"}
"""What `go build` calls a binary where that is not its own name: the last element of the package path."""
STALE_PACKAGES = '{{if .Stale}}{{.ImportPath}}{{"\\t"}}{{.Dir}}{{range .GoFiles}}{{"\\t"}}{{.}}{{end}}{{end}}'
"""For `go list`: what is not in Go's build cache, hence exactly what `go build -v` will name, with its source files."""
TICK_SECONDS = 0.5


class BuildError(Exception):
    """The build failed; the message ends with the last lines of the log and where the whole log is."""


@dataclass(frozen=True, kw_only=True)
class BuildRecipe:
    """What decides the binaries: the module's two files, the flags and the platform."""

    module: Path
    kubernetes_version: str
    flags: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, module: Path = MODULE) -> "BuildRecipe":
        """Read the recipe of a module folder. Raises BuildError when its go.mod names no Kubernetes version."""
        go_mod = (module / "go.mod").read_bytes()
        found = re.search(rb"k8s\.io/kubernetes v((\d+)\.(\d+)\.\S+)", go_mod)
        if found is None:
            raise BuildError(f"{module / 'go.mod'} requires no k8s.io/kubernetes version")
        version, major, minor = (part.decode() for part in found.groups())
        stamp = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
        linker = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in stamp.items())
        flags = ("-trimpath", "-mod=readonly", "-buildvcs=false", f"-ldflags=-s -w {linker}")
        parts = [
            go_mod,
            (module / "go.sum").read_bytes(),
            "\0".join([*flags, *BINARIES.values()]).encode(),
            f"{sys.platform}/{platform.machine()}".encode(),
        ]
        digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]
        return cls(module=module, kubernetes_version=version, flags=flags, digest=digest)


def cached_binaries(recipe: BuildRecipe, cache: Path) -> Path | None:
    """Return the folder with the four binaries, None when they are not built yet."""
    folder = cache / "controlplane" / recipe.digest
    return folder if all(os.access(folder / name, os.X_OK) for name in BINARIES) else None


async def ensure_binaries(
    *,
    module: Path = MODULE,
    cache: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    reporter: Reporter | None = None,
) -> Path:
    """Return the folder with the four binaries, building them first when they are not cached.

    A cold build takes 6 to 15 minutes on two cores and 4 GB of Go caches; only one runs at a time, others wait for it.
    Raises BuildError or ToolchainError.
    """
    recipe = BuildRecipe.of(module)
    cache = cache if cache is not None else cache_folder(environment)
    if (folder := cached_binaries(recipe, cache)) is not None:
        return folder
    root = cache / "controlplane"
    with reporter or reporter_for(sys.stderr) as report:
        async with locked(root / f"{recipe.digest}.lock", say=report.say):
            if (folder := cached_binaries(recipe, cache)) is not None:
                return folder
            go = await find_go(
                required=required_go_version((module / "go.mod").read_text()),
                cache=cache,
                environment=environment,
                say=report.say,
            )
            staging = root / f".building-{recipe.digest}"
            shutil.rmtree(staging, ignore_errors=True)  # left by a killed build: the lock says that nobody uses it
            staging.mkdir()
            try:
                await _Build(recipe, go=go, environment=environment, staging=staging, report=report).run()
                _put_in_place(staging, root / recipe.digest)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return root / recipe.digest


def _put_in_place(staging: Path, folder: Path) -> None:
    for go_name, name in GO_NAMES.items():
        if (staging / go_name).exists():
            (staging / go_name).rename(staging / name)
    missing = [name for name in BINARIES if not (staging / name).exists()]
    if missing:
        raise BuildError(f"go build ended well but made no {', '.join(missing)}")
    shutil.rmtree(folder, ignore_errors=True)  # incomplete: somebody removed a binary by hand
    staging.rename(folder)


class _Build:
    """One run of `go list` and `go build` with its log and progress."""

    def __init__(
        self, recipe: BuildRecipe, *, go: Path, environment: Mapping[str, str], staging: Path, report: Reporter
    ) -> None:
        self.recipe = recipe
        self.go = str(go)
        # GOTOOLCHAIN: this very toolchain was chosen for its version, so none must be downloaded in its place.
        self.environment = {**environment, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
        self.staging = staging
        self.report = report
        self.log = staging.parent / f"{recipe.digest}.log"
        self.started = time.monotonic()

    async def run(self) -> None:
        self.log.unlink(missing_ok=True)
        self.report.say(f"building Kubernetes {self.recipe.kubernetes_version} and etcd with {self.go}, log {self.log}")
        packages = self.staging / "packages.txt"
        listing = ["-deps", "-f", STALE_PACKAGES]
        async with self._go(["list", *self.recipe.flags, *listing, *BINARIES.values()], output=packages) as process:
            await self._follow(process, phase="fetching modules", expected=None)
        stale = dict(map(_source_bytes, packages.read_text().split("\n")[:-1]))
        packages.unlink()
        command = ["build", "-v", *self.recipe.flags, "-o", f"{self.staging}{os.sep}", *BINARIES.values()]
        async with self._go(command) as process:
            await self._follow(process, phase="compiling", expected=stale)
        seconds = time.monotonic() - self.started
        record = {"kubernetes": self.recipe.kubernetes_version, "packages": len(stale), "seconds": round(seconds, 1)}
        (self.staging / "build.json").write_text(json.dumps(record) + "\n")
        self.report.say(f"built in {seconds / 60:.1f} min")

    @contextlib.asynccontextmanager
    async def _go(self, arguments: list[str], *, output: Path | None = None) -> AsyncIterator[SupervisedProcess]:
        process = SupervisedProcess.start(
            [self.go, *arguments],
            name="go",
            log_path=self.log,
            stdout_path=output,
            environment=self.environment,
            folder=self.recipe.module,
        )
        try:
            yield process
        finally:
            await process.stop()

    async def _follow(self, process: SupervisedProcess, *, phase: str, expected: Mapping[str, int] | None) -> None:
        """Report progress from the log until the command ends. Raises BuildError when it fails."""
        started = time.monotonic()
        done = done_bytes = 0
        half_line = b""
        with self.log.open("rb") as log:
            log.seek(0, os.SEEK_END if expected is None else os.SEEK_SET)
            waiting = asyncio.ensure_future(process.wait())
            try:
                while True:
                    finished, _ = await asyncio.wait([waiting], timeout=TICK_SECONDS)
                    *lines, half_line = (half_line + log.read()).split(b"\n")
                    for line in lines:
                        if expected is None:
                            done += line.startswith(b"go: downloading ")
                        elif (size := expected.get(line.decode(errors="replace"))) is not None:
                            done += 1
                            done_bytes += size
                    self.report.show(
                        BuildProgress(
                            phase=phase,
                            done=done,
                            done_bytes=done_bytes,
                            total=None if expected is None else len(expected),
                            total_bytes=sum(expected.values()) if expected else 0,
                            linked=sum((self.staging / name).exists() for name in (*BINARIES, *GO_NAMES)),
                            links=len(BINARIES),
                            seconds=time.monotonic() - started,
                            processors=os.cpu_count() or 1,
                        )
                    )
                    if finished:
                        break
            finally:
                waiting.cancel()
        if (code := process.exit_code()) != 0:
            raise BuildError(
                f"{phase} failed: go ended with exit code {code}; the log's last lines:\n{log_tail(self.log)}\n"
                f"full log: {self.log}"
            )


def _source_bytes(line: str) -> tuple[str, int]:
    """Return a package and the size of its Go files, to which the time for compiling it is proportional."""
    package, folder, *files = line.split("\t")
    return package, sum((Path(folder) / name).stat().st_size for name in files)
