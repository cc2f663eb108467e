"""A failed or killed installation leaves nothing that looks installed."""

import os

import pytest

from e2e.realengine import InstallError, NotInstalledError, UnsupportedMachineError, install, installed, locations
from e2e.realengine.environment import Installation, check_this_machine


def machine_runs_the_engine():
    try:
        check_this_machine()
    except UnsupportedMachineError:
        return False
    return True


def make_complete(installation: Installation) -> None:
    (installation.environment / "bin").mkdir(parents=True)
    installation.python.touch()
    installation.model.mkdir()
    (installation.model / "config.json").touch()


@pytest.mark.skipif(not machine_runs_the_engine(), reason="the engine's wheels do not run on this machine")
async def test_failed_installation_leaves_no_environment_and_clears_what_a_killed_one_left(tmp_path):
    # An interpreter that does not find its library fails the first step at once.
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONHOME": str(tmp_path / "nothing")}
    root = locations(environment).environment.parent
    leftover = root / ".staging-of-a-killed-run"
    leftover.mkdir(parents=True)
    with pytest.raises(InstallError, match=r"failed with exit code|GB free"):
        await install(say=lambda _: None, environment=environment)
    assert sorted(path.suffix for path in root.iterdir()) in ([".lock", ".log"], [".lock"])
    assert not leftover.exists()
    with pytest.raises(NotInstalledError):
        installed(environment)


async def test_a_whole_installation_is_found_and_left_alone(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    make_complete(locations(environment))
    assert installed(environment) == locations(environment)
    if machine_runs_the_engine():
        said = []
        assert await install(say=said.append, environment=environment) == locations(environment)
        assert said == []


@pytest.mark.parametrize("missing", ["interpreter", "model"])
def test_half_an_installation_is_none(tmp_path, missing):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    target = locations(environment)
    make_complete(target)
    (target.python if missing == "interpreter" else target.model / "config.json").unlink()
    with pytest.raises(NotInstalledError, match="make real-engine"):
        installed(environment)
