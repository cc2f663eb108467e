"""Series of a Prometheus answer, reduced to the newest sample of each, and the way from its dates to our clock."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FUTURE_SECONDS: Final = 5.0
"""A sample may be this far ahead of our date; more is a clock that is wrong."""


@dataclass(frozen=True, slots=True)
class Series:
    """The newest sample of one series. `stamp` is the date of the scrape in seconds."""

    labels: Mapping[str, str]
    stamp: float
    value: float

    @property
    def name(self) -> str:
        """Name of the metric."""
        return self.labels.get("__name__", "")


@dataclass(frozen=True, slots=True)
class Dates:
    """Dates in seconds against the monotonic clock of this process, both as they are now."""

    clock_seconds: float
    date_seconds: float

    def to_clock(self, stamp: float) -> float:
        """Return when that date was, on our clock; never later than now."""
        return self.clock_seconds - max(0.0, self.date_seconds - stamp)

    def is_future(self, stamp: float) -> bool:
        """Whether a date lies ahead by more than clocks differ."""
        return stamp > self.date_seconds + FUTURE_SECONDS


def read_series(result: Any) -> list[Series]:
    """Read vectors and matrices; raises ValueError, LookupError or TypeError where the answer has another form."""
    found = []
    for entry in result:
        labels = {str(name): str(value) for name, value in entry["metric"].items()}
        samples = entry["values"] if "values" in entry else [entry["value"]]
        stamp, value = samples[-1]
        found.append(Series(labels, float(stamp), float(value)))
    return found
