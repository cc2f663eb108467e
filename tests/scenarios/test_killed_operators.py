"""A whole life of models under an operator that is killed at seeded moments."""

import pytest
from rich.console import Console

from e2e.scenarios.restart import campaign


@pytest.mark.scenario
@pytest.mark.timeout(600)
async def test_killed_operators_reach_the_same_end_state_and_then_rest() -> None:
    report = await campaign(kills=5, seed=20261129, console=Console(quiet=True))

    assert report["kills"] == 5
    assert report["steps_converged"] == 7
    assert report["states_checked"] > 100
    assert report["over_allocations"] == []
    assert report["writes_after_convergence"] == []
