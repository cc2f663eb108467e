"""JSON as the API server speaks it, with exact fractions where they decide."""

import json
from decimal import Decimal
from typing import Any


def dumps(body: object) -> bytes:
    """Serialise a request body; Decimals become numbers, NaN and Infinity raise ValueError."""
    return json.dumps(body, separators=(",", ":"), default=_encode, allow_nan=False).encode()


def loads(data: bytes, *, exact_numbers: bool) -> Any:
    """Parse an answer or a watch line; with `exact_numbers` fractions become Decimals of their very text."""
    return json.loads(data, parse_float=Decimal) if exact_numbers else json.loads(data)


def _encode(value: object) -> float | int:
    if not isinstance(value, Decimal):
        raise TypeError(f"{type(value).__name__} has no JSON form")
    if not value.is_finite():
        raise ValueError(f"{value} has no JSON form")
    # The server keeps numbers as 64-bit floats, so this loses nothing that it would have kept.
    return int(value) if value == value.to_integral_value() else float(value)
