"""JSON as the API server speaks it, with exact fractions where they decide."""

import json
import re
from decimal import Decimal
from typing import Any, Final

_ESCAPED: Final = tuple((char, f"\\u{ord(char):04x}") for char in "<>&\u2028\u2029")
"""What Go's encoder writes as escapes inside strings, the only place where JSON can have these characters."""
_PYTHON_NUMBER: Final = r"-?[0-9]+(?:\.[0-9]+)?e[-+][0-9]+|-?[0-9]+\.0(?![0-9])"
_HAS_PYTHON_NUMBER: Final = re.compile(rf"[\[,:](?:{_PYTHON_NUMBER})")
_STRING_OR_NUMBER: Final = re.compile(rf'"(?:[^"\\]|\\.)*"|{_PYTHON_NUMBER}')


def dumps(body: object) -> bytes:
    """Serialise a request body, byte by byte as the API server itself would write it.

    A ControllerRevision keeps the bytes of its immutable `data`. Another form than the server's own would be a change
    at the first patch of its metadata, such as the garbage collector's when it orphans children, and be refused.
    Decimals become numbers; NaN and Infinity raise ValueError.
    """
    text = json.dumps(body, separators=(",", ":"), sort_keys=True, ensure_ascii=False, default=_encode, allow_nan=False)
    for char, escape in _ESCAPED:
        text = text.replace(char, escape)
    if _HAS_PYTHON_NUMBER.search(text):
        text = _STRING_OR_NUMBER.sub(_number, text)
    return text.encode()


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


def _number(match: re.Match[str]) -> str:
    """A number as Go writes it: no `.0`, digits from 1e-6 up to 1e21, exponents without a leading zero."""
    text = match[0]
    if text.startswith('"'):
        return text
    value = Decimal(text)
    if Decimal("1e-6") <= abs(value) < Decimal("1e21") or not value:
        digits = format(value, "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return re.sub("e-0", "e-", text)
