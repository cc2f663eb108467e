"""A short walk with the real operator on a real control plane; `python -m e2e.specwalk` walks all of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
STEPS = {"inferencemodels": 10, "capacityplans": 6, "rollouts": 6}


@pytest.mark.scenario
@pytest.mark.apiserver
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", STEPS)
def test_a_short_walk_diverges_nowhere(kind: str) -> None:
    some = ["--kind", kind, "--steps", str(STEPS[kind]), "--walkers", "3", "--seed", "1"]
    command = [sys.executable, "-m", "e2e.specwalk", *some, "--json"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.stdout, run.stderr[-3000:]
    report = json.loads(run.stdout)
    assert report["divergences"] == []
    assert report["legal"] + report["ruled_out"] + report["illegal"] == STEPS[kind]
    assert report["legal_and_ready"] > 0
    assert report["illegal"] > 0
