"""Fixtures of the local cluster's tests."""

from pathlib import Path

import pytest
from localcluster_support import BuildSite


@pytest.fixture
def site(tmp_path: Path) -> BuildSite:
    return BuildSite(tmp_path)


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own, so that clusters of other runs are out of sight."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "bayplan" / "clusters"
