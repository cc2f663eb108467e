"""Show how far a build is: a bar on a terminal, a plain line every ten seconds elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_SECONDS = 10.0
LINK_BYTES = 1_500_000
"""How much source takes as long to compile as one program takes to link."""
CPU_SECONDS_PER_BYTE = 5e-6
"""Processor time for compiling, as seen in cold builds: the estimate before there is a speed to go by."""
TRUSTED_FRACTION = 0.3
"""Share of the work after which only the speed of this build counts."""


@dataclass(frozen=True, kw_only=True)
class BuildProgress:
    """State of a build: packages that the compiler began, `done` of `total` (None while unknown), programs linked.

    People count packages; the work is counted in bytes of source, because the time per package grows fourfold from the
    first to the last while the time per byte stays within a fifth.
    """

    phase: str
    done: int
    done_bytes: int
    total: int | None
    total_bytes: int
    linked: int
    links: int
    seconds: float
    processors: int

    @property
    def fraction(self) -> float | None:
        """Return the share of the work that is done, 0 to 1; None while the total is unknown."""
        if self.total is None:
            return None
        return (self.done_bytes + self.linked * LINK_BYTES) / (self.total_bytes + self.links * LINK_BYTES)

    @property
    def remaining_seconds(self) -> float | None:
        """Return the expected rest: at first from the usual cost of the source, later from this build's own speed."""
        fraction = self.fraction
        if fraction is None:
            return None
        usual = (self.total_bytes + self.links * LINK_BYTES) * CPU_SECONDS_PER_BYTE / self.processors
        if fraction == 0:
            return max(usual - self.seconds, 0.0)
        trust = min(1.0, fraction / TRUSTED_FRACTION)
        whole = (1 - trust) * usual + trust * self.seconds / fraction
        return max(whole - self.seconds, 0.0)

    def describe(self) -> str:
        """Return one line for a log."""
        if self.total is None:
            return f"{self.phase}: {self.done} so far, {_clock(self.seconds)} elapsed"
        return f"{self.phase}: {self.describe_counts()}, {_clock(self.seconds)} elapsed, {self.describe_remaining()}"

    def describe_counts(self) -> str:
        """Return what is done of what."""
        if self.total is None:
            return f"{self.done} so far"
        packages = f"{self.done} of {self.total} packages"
        linking = self.linked > 0 or self.done >= self.total
        return f"{packages}, {self.linked} of {self.links} programs linked" if linking else packages

    def describe_remaining(self) -> str:
        """Return the estimate in words that promise no more than it knows; empty where there is none."""
        rest = self.remaining_seconds
        if rest is None:
            return ""
        return "about a minute left" if rest < 90 else f"about {rest / 60:.0f} min left"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Reporter(Protocol):
    """Where a build tells how far it is."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """Show a message that stays."""
        ...

    def show(self, progress: BuildProgress) -> None:
        """Show the current state; called often."""
        ...


class LineReporter:
    """For logs: one line per message, and per `LINE_SECONDS` of a phase."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._phase = ""
        self._last = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        self._write(f"[control plane] {text}\n")

    def show(self, progress: BuildProgress) -> None:
        if progress.phase != self._phase:
            self._phase, self._last = progress.phase, 0.0
        if progress.seconds - self._last >= LINE_SECONDS:
            self._last = progress.seconds
            self.say(progress.describe())


class BarReporter:
    """For terminals: one bar that stays in place."""

    def __init__(self, file: TextIO) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rest]}"),
            console=Console(file=file),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def show(self, progress: BuildProgress) -> None:
        if self._task is None:
            self._task = self._progress.add_task(progress.phase, total=None, counts="", rest="")
        fraction = progress.fraction
        self._progress.update(
            self._task,
            description=progress.phase,
            total=None if fraction is None else 1.0,
            completed=fraction or 0.0,
            counts=progress.describe_counts(),
            rest=progress.describe_remaining(),
        )


def reporter_for(file: TextIO) -> Reporter:
    """Return the reporter that suits a stream."""

    def write(text: str) -> None:
        file.write(text)
        file.flush()

    return BarReporter(file) if file.isatty() else LineReporter(write)
