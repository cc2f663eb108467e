"""Measured numbers, or why there is none.

Unknown is a value: it carries its reason and never turns into zero. Counters are compared by the incarnation of the
process that counts, so that a restart is not read as a fall.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.numbers import exact, named, not_negative


@dataclass(frozen=True, slots=True)
class Unknown:
    """A number that could not be measured, and why."""

    reason: str


Measured = Fraction | Unknown


def measured(value: float | Fraction | None, name: str) -> Measured:
    """A raw reading as a number of at least 0; missing, non-finite and negative ones are Unknown with the reason."""
    if value is None:
        return Unknown(f"{name} is missing")
    if isinstance(value, float) and not math.isfinite(value):
        return Unknown(f"{name} is {value}")
    if value < 0:
        return Unknown(f"{name} is negative: {float(value):g}")
    return exact(value, name)


def moment(seconds: float) -> Fraction:
    """A time on a clock to the microsecond: as a float is, it would be a fraction of dozens of digits."""
    return Fraction(round(seconds * 1_000_000), 1_000_000)


@dataclass(frozen=True, slots=True)
class CounterSample:
    """A counter of one process: `incarnation` changes whenever it starts again from 0. Raises InvalidInput."""

    at_seconds: Fraction
    value: Fraction
    incarnation: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "at_seconds", exact(self.at_seconds, "at_seconds"))
        object.__setattr__(self, "value", not_negative(self.value, "value"))
        named(self.incarnation, "incarnation")


@dataclass(frozen=True, slots=True)
class Total:
    """A sum over sources and the part of them that it covers; from the others nothing, or only a part, is known."""

    value: Measured
    coverage: Fraction


def total_rate(
    earlier: Mapping[str, CounterSample], later: Mapping[str, CounterSample], expected: Collection[str]
) -> Total:
    """Increase per second of counters, summed over the expected sources; others have gone and are left out.

    A source is covered when both samples are of one incarnation, in order, and did not fall. One that restarted
    contributes what it counted since, a lower bound, and is not covered; neither is one without both samples.
    """
    rates: list[Fraction] = []
    covered = 0
    for source in expected:
        old, new = earlier.get(source), later.get(source)
        if old is None or new is None or new.at_seconds <= old.at_seconds:
            continue
        restarted = new.incarnation != old.incarnation or new.value < old.value
        increase = new.value if restarted else new.value - old.value
        rates.append(increase / (new.at_seconds - old.at_seconds))
        covered += not restarted
    return _total(rates, covered, expected)


def total_of(readings: Mapping[str, Measured], expected: Collection[str]) -> Total:
    """Sum of gauges over the expected sources; one without a known reading is not covered."""
    known = [value for source in expected if not isinstance(value := readings.get(source), Unknown | None)]
    return _total(known, len(known), expected)


def _total(parts: Collection[Fraction], covered: int, expected: Collection[str]) -> Total:
    if not expected:
        return Total(Fraction(0), Fraction(1))
    if not parts:
        return Total(Unknown(f"none of {len(expected)} sources answered"), Fraction(0))
    return Total(sum(parts, start=Fraction(0)), Fraction(covered, len(expected)))
