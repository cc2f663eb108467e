"""Older states of the API server, asked from the server itself: `resourceVersionMatch=Exact` on a version seen before.

So a stale answer is a state that really was, whole and consistent, as a lagging replica would give it.
"""

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

REMEMBERED = 64


@dataclass(slots=True)
class History:
    """Resource versions in the order in which they were seen; the whole server counts with one counter."""

    _versions: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def note(self, version: object) -> None:
        """Remember a resourceVersion if it is newer than all before."""
        number = int(version) if isinstance(version, str) and version.isdigit() else 0
        if number and (not self._versions or number > self._versions[-1]):
            self._versions.append(number)

    def note_body(self, data: bytes) -> None:
        """Remember the version of the object in an answer."""
        try:
            metadata = json.loads(data).get("metadata") or {}
        except (ValueError, AttributeError):
            return
        self.note(metadata.get("resourceVersion"))

    def older(self, share: float) -> int | None:
        """Return a version from the past: `share` in [0, 1) of the way back, at least one change. None before that."""
        if len(self._versions) < 2:
            return None
        return self._versions[-2 - int(share * (len(self._versions) - 1))]


def as_of(query: dict[str, str], version: int) -> dict[str, str]:
    """Return the query of a LIST that asks for exactly that version."""
    return query | {"resourceVersion": str(version), "resourceVersionMatch": "Exact"}


def single_object(listing: bytes) -> dict[str, Any] | None:
    """Return the only item of a LIST as a GET would give it, or None for an empty list."""
    found = json.loads(listing)
    items = found.get("items") or []
    if not items:
        return None
    head = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
    return head | dict(items[0])
