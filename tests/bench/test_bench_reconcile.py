"""The small run of `bench/ranges.yaml` on a real control plane."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.apiserver
@pytest.mark.timeout(600)
def test_counts_and_ratios_are_in_range() -> None:
    command = [sys.executable, "-m", "bench.reconcile", "--check", "bench/ranges.yaml", "--json"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    report = json.loads(run.stdout)
    assert report["writes"]["quiet"] == {}
    assert report["baseline"]["kopf handlers"]["writes_per_object"] == 2


def test_a_run_without_a_mode_is_refused() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "bench.reconcile"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert "nothing to run" in run.stderr
