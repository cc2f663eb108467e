"""Progress of a build: exact counts, an estimate that follows the build's own speed, and little noise in logs."""

import dataclasses
import io

import pytest

from e2e.localcluster.progress import (
    CPU_SECONDS_PER_BYTE,
    LINK_BYTES,
    BarReporter,
    BuildProgress,
    LineReporter,
    reporter_for,
)

SOURCE_BYTES = 20 * LINK_BYTES
WORK_BYTES = SOURCE_BYTES + 4 * LINK_BYTES


def progress(
    *,
    phase: str = "compiling",
    done: int = 0,
    total: int | None = 1000,
    total_bytes: int = SOURCE_BYTES,
    linked: int = 0,
    seconds: float = 0.0,
) -> BuildProgress:
    """A build of packages that are all of one size."""
    return BuildProgress(
        phase=phase,
        done=done,
        done_bytes=total_bytes * done // total if total else 0,
        total=total,
        total_bytes=total_bytes,
        linked=linked,
        links=4,
        seconds=seconds,
        processors=2,
    )


def test_nothing_is_promised_while_the_total_is_unknown() -> None:
    state = progress(total=None, done=12, seconds=3)
    assert state.fraction is None
    assert state.remaining_seconds is None
    assert state.describe() == "compiling: 12 so far, 0:03 elapsed"


def test_the_fraction_reaches_one_only_when_all_is_linked() -> None:
    assert progress().fraction == 0
    assert progress(done=1000).fraction == pytest.approx(SOURCE_BYTES / WORK_BYTES)
    assert progress(done=1000, linked=4).fraction == 1
    assert progress(done=1000, linked=4).remaining_seconds == 0


def test_a_build_with_everything_cached_is_all_links() -> None:
    assert progress(total=0, total_bytes=0, linked=2).fraction == 0.5


def test_the_first_estimate_is_what_such_a_build_usually_takes() -> None:
    assert progress().remaining_seconds == pytest.approx(WORK_BYTES * CPU_SECONDS_PER_BYTE / 2)


@pytest.mark.parametrize("slowness", [0.5, 1.0, 3.0])
def test_the_estimate_becomes_this_builds_own_speed(slowness: float) -> None:
    whole = 200.0 * slowness
    state = progress(done=500, seconds=whole * SOURCE_BYTES / 2 / WORK_BYTES)
    assert state.fraction is not None
    assert state.remaining_seconds == pytest.approx(whole * (1 - state.fraction))


def test_the_estimate_weighs_packages_by_their_source() -> None:
    half_of_the_packages = progress(done=500, seconds=60)
    most_of_the_source = dataclasses.replace(half_of_the_packages, done_bytes=SOURCE_BYTES * 9 // 10)
    assert half_of_the_packages.remaining_seconds is not None
    assert most_of_the_source.remaining_seconds is not None
    assert most_of_the_source.remaining_seconds < half_of_the_packages.remaining_seconds / 2


def test_the_estimate_never_falls_below_zero() -> None:
    assert progress(seconds=10_000).remaining_seconds == 0


@pytest.mark.parametrize(
    ("done", "linked", "shown"),
    [
        (999, 0, "999 of 1000 packages"),
        (999, 1, "999 of 1000 packages, 1 of 4 programs linked"),
        (1000, 0, "1000 of 1000 packages, 0 of 4 programs linked"),
    ],
)
def test_links_are_shown_once_they_matter(done: int, linked: int, shown: str) -> None:
    assert progress(done=done, linked=linked).describe_counts() == shown


def test_a_log_gets_one_line_in_ten_seconds() -> None:
    lines: list[str] = []
    reporter = LineReporter(lines.append)
    for second in range(0, 31):
        reporter.show(progress(done=second, seconds=float(second)))
    assert [line.split()[3] for line in lines] == ["10", "20", "30"]
    assert all(line.endswith("left\n") for line in lines)


def test_a_new_phase_starts_its_own_ten_seconds() -> None:
    lines: list[str] = []
    reporter = LineReporter(lines.append)
    reporter.show(progress(phase="fetching", total=None, seconds=25))
    reporter.show(progress(seconds=3))
    assert len(lines) == 1
    reporter.show(progress(seconds=10))
    assert len(lines) == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_a_file_gets_lines() -> None:
    terminal, file = Terminal(), io.StringIO()
    assert isinstance(reporter_for(file), LineReporter)
    with reporter_for(terminal) as reporter:
        assert isinstance(reporter, BarReporter)
        reporter.say("building [with brackets]")
        reporter.show(progress(total=None, done=3))
        reporter.show(progress(done=500, seconds=50))
    assert "building [with brackets]" in terminal.getvalue()
    assert "500 of 1000 packages" in terminal.getvalue()
