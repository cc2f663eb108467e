"""Loading the course's cases and comparing what the planner says with what they expect."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

BUNDLED = Path(__file__).with_name("cases.json")
RELATIVE_TOLERANCE = 1e-9

_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def source() -> Path:
    """The file that BAYPLAN_COURSE_CASES names, else the bundled one."""
    return Path(os.environ.get("BAYPLAN_COURSE_CASES") or BUNDLED)


@dataclass(frozen=True)
class Case:
    area: str
    name: str
    input: Mapping[str, Any]
    expect: Mapping[str, Any]
    """What we are held to: `production_expect` where the course simplifies and the case states one."""
    tags: frozenset[str]
    production: bool = False
    """Whether `expect` is what a real system does, where the course simplifies."""

    @property
    def id(self) -> str:
        return f"{self.area}-{self.name}"

    @property
    def for_information(self) -> bool:
        return self.expect.get("unspecified") is True


def load(path: Path) -> tuple[Case, ...]:
    """Read cases; numbers keep their decimal text."""
    raw = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    return tuple(_case(entry) for entry in raw)


def _case(entry: Mapping[str, Any]) -> Case:
    tags = frozenset(entry.get("tags", ()))
    given = entry["input"]
    production = entry.get("production_expect") if "course-simplification" in tags else None
    return Case(
        area=entry["area"],
        name=entry["name"],
        input=_with_non_finite(given) if "non-finite" in tags else given,
        expect=entry["expect"] if production is None else production,
        tags=tags,
        production=production is not None,
    )


def _with_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_non_finite(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_with_non_finite(member) for member in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def count_by_area(cases: Iterable[Case]) -> dict[str, int]:
    return dict(sorted(Counter(case.area for case in cases).items()))


def differences(expected: Mapping[str, Any], found: Mapping[str, Any], *, to_the_bit: bool) -> list[str]:
    """Every key of `expected` that `found` lacks or says differently."""
    return [
        f"{key}: expected {value}, found {found.get(key, 'nothing')}"
        for key, value in expected.items()
        if key not in found or not _equal(value, found[key], to_the_bit=to_the_bit)
    ]


def _equal(expected: Any, found: Any, *, to_the_bit: bool) -> bool:
    """Real numbers are Fractions on our side and compare with a tolerance; counts are ints and compare exactly."""
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        same = expected.keys() == found.keys()
        return same and all(_equal(value, found[key], to_the_bit=to_the_bit) for key, value in expected.items())
    if isinstance(found, Fraction):
        if isinstance(expected, bool) or not isinstance(expected, int | float | Decimal):
            return False
        wanted, number = float(expected), float(found)
        return number == wanted or (not to_the_bit and abs(number - wanted) <= RELATIVE_TOLERANCE * abs(wanted))
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    return bool(expected == found)
