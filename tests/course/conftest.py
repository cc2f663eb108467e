"""Names, at the end of a run, the course's areas that have no decisions yet."""

import pytest

from tests.course.cases import count_by_area, load, source
from tests.course.runners import NOT_BUILT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    waiting = {area: cases for area, cases in count_by_area(load(source())).items() if area in NOT_BUILT}
    if waiting:
        terminalreporter.section("course areas that are not built yet")
        for area, cases in waiting.items():
            terminalreporter.line(f"{area}: {cases} cases not run")
