"""How the demo shows what commands print."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from e2e.scenarios.narration import LOG_WIDTH, Narrator, SceneFailedError


def narrator(*, width: int | None = None, terminal: bool = False) -> tuple[Narrator, io.StringIO]:
    shown = io.StringIO()
    console = Console(file=shown, width=width, force_terminal=terminal, highlight=False, soft_wrap=True, no_color=True)
    return Narrator(kubeconfig=Path("/state/clusters/demo/kubeconfig"), console=console), shown


@pytest.mark.parametrize(("width", "terminal", "most"), [(90, True, 90), (200, True, 200), (None, False, LOG_WIDTH)])
async def test_what_a_command_prints_fits_the_terminal_with_its_margin(
    width: int | None, terminal: bool, most: int
) -> None:
    tell, shown = narrator(width=width, terminal=terminal)
    _, printed = await tell.bayplan("status", "--help")
    tell.came_back(printed)
    widest = max(len(line) for line in shown.getvalue().splitlines())
    assert most - 4 <= widest <= most


async def test_a_command_that_fails_ends_the_scene_with_its_words() -> None:
    tell, _ = narrator()
    with pytest.raises(SceneFailedError, match=r"bayplan status: exit 1: .*no file at '/state"):
        await tell.bayplan("status")
    code, printed = await tell.bayplan("status", fits=(1,))
    assert (code, printed) == (1, "")


def test_lines_are_shown_without_the_folder_of_the_scenario_and_without_blanks_at_their_ends() -> None:
    tell, shown = narrator()
    tell.typed("kubectl apply -f /state/clusters/demo/plan.yaml")
    tell.came_back("a   b   \n")
    assert shown.getvalue() == "$ kubectl apply -f plan.yaml\n  a   b\n"
