"""Reading the API server's audit log: who asked what of which object, when, and what was answered.

Both times are the API server's, so delays between two parties' requests are measured by one clock and without a
watcher of our own.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Request:
    """One answered request. `resource` includes the subresource (`pods/binding`); times are seconds since the epoch."""

    verb: str
    user: str
    resource: str
    namespace: str
    name: str
    code: int
    received: float
    answered: float
    sent: Mapping[str, Any] | None = None
    """The body, where the audit policy asks for it."""
    stored: Mapping[str, Any] | None = None
    """The object as answered, where the audit policy asks for it."""

    @property
    def writes(self) -> bool:
        """Whether it was meant to change something."""
        return self.verb in WRITES

    @property
    def done(self) -> bool:
        """Whether the server did what was asked."""
        return self.code < 300

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.namespace}/{self.name}"


class AuditTail:
    """Reads a growing audit log; each `read` continues where the last one ended, at first at the end of the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size

    def read(self) -> list[Request]:
        """Return the requests answered since the last call, in the order of their answers."""
        return list(self._requests())

    def skip(self) -> None:
        """Leave out everything up to now."""
        self._offset = self._path.stat().st_size

    def _requests(self) -> Iterator[Request]:
        with self._path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    return  # still in the writing
                self._offset += len(line)
                entry = json.loads(line)
                if entry["stage"] == "ResponseComplete":
                    yield request_of(entry)


def request_of(entry: Mapping[str, Any]) -> Request:
    """Read one entry of the audit log."""
    reference = entry.get("objectRef") or {}
    resource = "/".join(filter(None, (reference.get("resource"), reference.get("subresource"))))
    stored = entry.get("responseObject")
    # The name of a created object is in the answer, or, at level Request, in the body alone.
    bodies = (stored, entry.get("requestObject"))
    named = (body["metadata"]["name"] for body in bodies if body and (body.get("metadata") or {}).get("name"))
    return Request(
        verb=entry["verb"],
        user=entry["user"]["username"],
        resource=resource,
        namespace=reference.get("namespace", ""),
        name=reference.get("name") or next(named, ""),
        code=(entry.get("responseStatus") or {}).get("code", 0),
        received=_seconds(entry["requestReceivedTimestamp"]),
        answered=_seconds(entry["stageTimestamp"]),
        sent=entry.get("requestObject"),
        stored=stored,
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
