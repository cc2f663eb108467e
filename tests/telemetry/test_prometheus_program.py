"""Where the Prometheus program for tests comes from, and what is said when it comes from nowhere."""

from pathlib import Path

import pytest

from e2e.prometheus import MissingPrometheusError, ensure_prometheus


def program(folder: Path) -> Path:
    folder.mkdir(parents=True)
    found = folder / "prometheus"
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    return found


async def test_one_on_the_path_is_taken(tmp_path: Path) -> None:
    found = program(tmp_path / "bin")

    assert await ensure_prometheus(cache=tmp_path / "cache", environment={"PATH": str(tmp_path / "bin")}) == found


async def test_an_unpacked_one_is_taken(tmp_path: Path) -> None:
    found = program(tmp_path / "prometheus" / "usr" / "bin")

    assert await ensure_prometheus(cache=tmp_path, environment={"PATH": "/nowhere"}) == found


async def test_a_machine_without_debians_tools_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(MissingPrometheusError, match="no `prometheus` on PATH, and no apt-get and dpkg-deb"):
        await ensure_prometheus(cache=tmp_path, environment={"PATH": "/nowhere"})
    assert list(tmp_path.iterdir()) == []


async def test_a_download_that_fails_is_shown_and_leaves_nothing(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("apt-get", "dpkg-deb"):
        (tools / name).write_text("#!/bin/sh\necho no network here\nexit 100\n")
        (tools / name).chmod(0o755)
    cache = tmp_path / "cache"

    with pytest.raises(MissingPrometheusError, match="no network here"):
        await ensure_prometheus(cache=cache, environment={"PATH": f"{tools}"})
    assert [path.name for path in cache.iterdir()] == ["prometheus.lock"]
