"""`python -m e2e.chaos`: real operator processes under every class of faults, killed at each kind of write, in pairs.

Progress goes to standard error, the report to standard output. Each failure names the command that plays the same
life again: the seed decides which requests and events are tampered with.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from e2e.chaos.campaign import ROWS
from e2e.chaos.faults import FaultClass
from e2e.chaos.life import DivergedError
from e2e.chaos.story import STORIES
from e2e.chaos.suite import MATRIX, PAIRS, PARTS, StoryReport, own_ground, run_story


async def suite(
    *, stories: Sequence[str], parts: Sequence[str], seeds: Sequence[int], console: Console
) -> list[StoryReport]:
    """Run the chosen parts on each story, with a bar."""
    reports = []
    lives = sum(row in ROWS for row in parts) * len(seeds) + 3 * (PAIRS in parts) + 1
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with own_ground() as ground:
        for name in stories:
            with Progress(*columns, console=console) as bar:
                # How many lives the matrix takes is known only once the undisturbed life was played.
                task = bar.add_task(name, total=None if MATRIX in parts else lives)

                def advance(text: str, bar: Progress = bar, task: TaskID = task) -> None:
                    bar.console.print(text, markup=False, highlight=False)
                    bar.advance(task)

                reports.append(await run_story(ground, STORIES[name], parts=parts, seeds=seeds, advance=advance))
    return reports


def table(reports: Sequence[StoryReport]) -> Table:
    """Return what was injected and what came of it, by row."""
    found = Table("story", "row", "lives", "injected", "states checked", "problems")
    for report in reports:
        for row in dict.fromkeys(life.row for life in report.campaign.lives):
            lives = [life for life in report.campaign.lives if life.row == row]
            injected: Counter[FaultClass] = report.campaign.injected(row)
            problems = sum(len(life.problems) for life in lives)
            states = sum(life.states_checked for life in lives)
            found.add_row(report.story, row, str(len(lives)), str(injected.total()), str(states), str(problems))
        if (matrix := report.matrix) is not None:
            found.add_row(
                report.story,
                MATRIX,
                str(matrix.lives),
                f"{matrix.crashes} kills at {len(matrix.hit)} of {matrix.points} points",
                str(matrix.states_checked),
                str(len(matrix.divergences)),
            )
        for pair in report.pairs:
            counts = (str(pair.disturbances), str(pair.states_checked), str(len(pair.problems)))
            found.add_row(report.story, pair.name, "1", *counts)
    return found


def main(
    *,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per class: 1 to this.")] = 2,
    seed: Annotated[int | None, typer.Option(help="Only this seed.")] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Only these parts: {', '.join(PARTS)}.")] = None,
    story: Annotated[list[str] | None, typer.Option(help=f"Only these stories: {', '.join(STORIES)}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
) -> None:
    """Play stories under faults and compare their ends with the undisturbed ones."""
    _known("--only", only or (), PARTS)
    _known("--story", story or (), tuple(STORIES))
    console = Console(stderr=True)
    chosen = [seed] if seed is not None else list(range(1, seeds + 1))
    try:
        reports = asyncio.run(
            suite(stories=story or tuple(STORIES), parts=only or PARTS, seeds=chosen, console=console)
        )
    except DivergedError as error:
        console.print(f"the undisturbed life fails: {error}", markup=False)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps([report.to_json() for report in reports], indent=2))
    else:
        Console().print(table(reports))
    problems = [problem for report in reports for problem in report.problems()]
    for problem in problems:
        console.print(problem, markup=False, highlight=False)
    raise typer.Exit(1 if problems else 0)


def _known(option: str, given: Sequence[str], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise typer.BadParameter(f"{option} {name}: must be one of {', '.join(names)}")


if __name__ == "__main__":
    typer.run(main)
