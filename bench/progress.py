"""Bars for whoever watches, on standard error, so that `--json` stays clean."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Bars:
    """One bar per kind of work, made when its first step is reported."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def advance(self, what: str, total: int) -> None:
        """Count one step of `what`."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.advance(self._tasks[what])

    def note(self, text: str) -> None:
        """Say what goes on without a count."""
        self._progress.console.print(text, style="dim")


@contextmanager
def bars(console: Console) -> Iterator[Bars]:
    """Show bars for the length of the block."""
    columns = (TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)
