"""How the processes log."""

import json
import logging
import sys
from datetime import UTC, datetime

from bayplan.cli.configuration import Logging


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the names that log collectors look for."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(settings: Logging) -> None:
    """Log to standard error; libraries only from WARNING on, since Kopf and aiohttp log what we report ourselves."""
    handler = logging.StreamHandler(sys.stderr)
    if settings.format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level="WARNING", handlers=[handler], force=True)
    logging.getLogger("bayplan").setLevel(settings.level)
    # It runs in a thread, where there are no signals to see: the runtime handles them.
    logging.getLogger("kopf._core.reactor.running").setLevel("ERROR")
