"""Reading members of objects as the API server gives them, where anybody may have written anything."""

from collections.abc import Mapping
from typing import Any


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping; what is none counts as empty."""
    return value if isinstance(value, Mapping) else {}


def whole_number(value: object) -> int | None:
    """Return an integer; what is none counts as absent."""
    return value if isinstance(value, int) else None
