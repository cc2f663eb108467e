"""`ranges.yaml`: what a run's figures must satisfy. Counts by bound, times only as ratios to the run's own baseline."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.report import KEYS


class RangesError(ValueError):
    """The file cannot be used; the message names the field."""


class Bound(BaseModel):
    """Limits of a count, both inclusive."""

    model_config = ConfigDict(extra="forbid")

    least: float | None = None
    most: float | None = None


class Ratio(BaseModel):
    """Limits of a figure divided by another column's figure of the same name."""

    model_config = ConfigDict(extra="forbid")

    to: str
    least: float | None = None
    most: float | None = None


class Ranges(BaseModel):
    """The whole file. `run` holds the modes of `bench.reconcile` that the ranges are about."""

    model_config = ConfigDict(extra="forbid")

    run: dict[str, Any] = Field(default_factory=dict)
    counts: dict[str, Bound] = Field(default_factory=dict)
    ratios: dict[str, Annotated[Ratio, Field()]] = Field(default_factory=dict)


def load_ranges(path: Path) -> Ranges:
    """Read a file; raises RangesError that names what is wrong."""
    try:
        ranges = Ranges.model_validate(yaml.safe_load(path.read_text()) or {})
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise RangesError(f"{path}: {error}") from None
    return ranges


@dataclass(frozen=True)
class _Finding:
    name: str
    value: float | None
    least: float | None
    most: float | None
    unit: str = ""

    def __str__(self) -> str:
        limits = [f"at least {self.least:g}" for _ in (1,) if self.least is not None]
        limits += [f"at most {self.most:g}" for _ in (1,) if self.most is not None]
        seen = "not measured" if self.value is None else f"{self.value:.4g}{self.unit}"
        return f"{self.name} is {seen}, allowed is {' and '.join(limits)}"

    @property
    def broken(self) -> bool:
        if self.value is None:
            return True
        below = self.least is not None and self.value < self.least
        return below or (self.most is not None and self.value > self.most)


def violations(ranges: Ranges, report: Mapping[str, Any]) -> list[str]:
    """Return one line per figure out of its range; a figure that was not measured is out of range, too."""
    findings = [_Finding(name, _figure(report, name), bound.least, bound.most) for name, bound in ranges.counts.items()]
    for name, ratio in ranges.ratios.items():
        ours, theirs = _figure(report, name), report["baseline"].get(ratio.to, {}).get(name)
        value = None if ours is None or not theirs else ours / theirs
        findings.append(_Finding(name, value, ratio.least, ratio.most, f" x {ratio.to}"))
    return [str(finding) for finding in findings if finding.broken]


def _figure(report: Mapping[str, Any], name: str) -> float | None:
    found = report[name] if name in KEYS else report["details"].get(name)
    return None if found is None else float(found)
