"""What the operator logs, and how."""

import json
import logging

import pytest

from bayplan.cli.configuration import Logging
from bayplan.cli.logs import JsonFormatter, set_up_logging


@pytest.fixture(autouse=True)
def restored_logging() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("bayplan").setLevel(logging.NOTSET)


def test_a_json_line_holds_time_level_logger_and_message() -> None:
    record = logging.LogRecord("bayplan.x", logging.WARNING, "file", 1, "placed %s", ("a/b",), None)
    line = json.loads(JsonFormatter().format(record))

    assert (line["level"], line["logger"], line["msg"]) == ("warning", "bayplan.x", "placed a/b")
    assert line["ts"].endswith("+00:00")


def test_an_exception_stays_on_one_line() -> None:
    failure = ValueError("two\nlines")
    record = logging.LogRecord("bayplan", logging.ERROR, "file", 1, "failed", (), (ValueError, failure, None))
    text = JsonFormatter().format(record)

    assert "\n" not in text
    assert "ValueError" in json.loads(text)["error"]


def test_libraries_are_quiet_and_our_level_is_the_configured_one(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(Logging(format="console", level="INFO"))
    logging.getLogger("kopf.objects").info("handler succeeded")
    logging.getLogger("bayplan.reconcile").info("reserved")
    logging.getLogger("bayplan.reconcile").debug("detail")
    shown = capsys.readouterr().err

    assert "reserved" in shown
    assert "succeeded" not in shown
    assert "detail" not in shown
