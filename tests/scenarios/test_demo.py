"""The README's first command does what it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.scenario
@pytest.mark.timeout(600)
def test_every_scene_of_the_demo_reaches_its_state() -> None:
    played = subprocess.run(
        [sys.executable, "-m", "e2e.scenarios.demo", "--all"],
        cwd=REPOSITORY,
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )

    assert played.returncode == 0, played.stdout[-4000:] + played.stderr[-4000:]
    assert "All 11 scenes reached their state" in played.stdout
    # Each scene shows what a person would type.
    assert played.stdout.count("$ kubectl apply") >= 6
