"""One text for one value: what reports and their digests are made of.

Exact numbers stay exact: a fraction is a whole number or the text `a/b`. Floats have no place here, because equal
decisions could then have different texts.
"""

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any


def canonical_json(value: object) -> bytes:
    """The JSON of a value: sorted keys, no spaces, ASCII. Raises TypeError for what has no exact form."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest_of(value: object) -> str:
    """`sha256:` and the hexadecimal digest of the canonical JSON."""
    return f"sha256:{hashlib.sha256(canonical_json(value)).hexdigest()}"


def _plain(value: object) -> Any:  # noqa: PLR0911 - one line per kind of value
    if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, int):
        return value
    if isinstance(value, Decimal | Fraction):
        number = Fraction(value)
        return number.numerator if number.denominator == 1 else f"{number.numerator}/{number.denominator}"
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(member) for key, member in value.items()}
    if isinstance(value, Set):
        return sorted(_plain(member) for member in value)
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} has no exact text: {value!r}")
