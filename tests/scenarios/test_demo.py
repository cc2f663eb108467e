"""The README's first command does what it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.scenarios.demo import SCENES

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.scenario
@pytest.mark.timeout(720)
def test_every_scene_of_the_demo_reaches_its_state() -> None:
    played = subprocess.run(
        [sys.executable, "-m", "e2e.scenarios.demo", "--all"],
        cwd=REPOSITORY,
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=660,
        check=False,
    )

    assert played.returncode == 0, played.stdout[-4000:] + played.stderr[-4000:]
    assert f"All {len(SCENES)} scenes reached their state" in played.stdout
    # Each scene shows what a person would type.
    typed = [line for line in played.stdout.splitlines() if line.startswith("$ ")]
    assert sum(line.startswith("$ kubectl apply") for line in typed) >= 6
    assert not any("/clusters/" in line for line in typed)


def test_a_scene_is_played_once_and_the_last_one_of_the_short_demo_cleans_up() -> None:
    assert len({scene.play for scene in SCENES}) == len(SCENES)
    short = [scene.play.__name__ for scene in SCENES if scene.always]
    assert short[-1] == "deletion"
    assert len(short) < len(SCENES)
