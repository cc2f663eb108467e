"""The text of /metrics as families, and the difference of two scrapes."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from e2e.conformance.records import Json

PREFIX = "vllm:"
OWN_LABELS = frozenset({"engine", "model_name"})
"""On every sample, with values that the caller chose."""


@dataclass(frozen=True)
class Sample:
    """One line: full sample name (with `_bucket`, `_total`, …), labels, value."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Scrape:
    """One answer of /metrics."""

    types: Mapping[str, str]
    """Metric type by family name."""
    samples: Mapping[str, tuple[Sample, ...]]
    """Samples by family name."""

    def total(self, sample: str, **labels: str) -> float:
        """Sum of all samples of this full name whose labels include `labels`; 0 when there is none."""
        return sum(
            entry.value
            for family in self.samples.values()
            for entry in family
            if entry.name == sample and labels.items() <= entry.labels.items()
        )


def parse(text: str) -> Scrape:
    """Parse Prometheus text. Raises ValueError when it is not that."""
    types: dict[str, str] = {}
    samples: dict[str, tuple[Sample, ...]] = {}
    for family in text_string_to_metric_families(text):
        types[family.name] = family.type
        samples[family.name] = tuple(Sample(item.name, dict(item.labels), item.value) for item in family.samples)
    return Scrape(types=types, samples=samples)


def describe_families(scrape: Scrape) -> dict[str, Json]:
    """Per engine family: type, sample names, label names, values of the labels that are its own, bucket edges."""
    described: dict[str, Json] = {}
    for name, kind in scrape.types.items():
        if not name.startswith(PREFIX):
            continue
        samples = scrape.samples[name]
        labels = {key for sample in samples for key in sample.labels}
        entry: dict[str, Json] = {
            "type": kind,
            "samples": sorted({sample.name for sample in samples}),
            "labels": sorted(labels),
        }
        if kind == "histogram":
            edges = {float(sample.labels["le"]) for sample in samples if "le" in sample.labels}
            entry["buckets"] = [repr(edge) for edge in sorted(edges)]
        if not name.endswith("_info"):
            for label in sorted(labels - OWN_LABELS - {"le"}):
                values = {sample.labels[label] for sample in samples if label in sample.labels}
                entry[f"values of {label}"] = sorted(values)
        described[name] = entry
    return described


def other_families(scrape: Scrape) -> list[str]:
    """Names of the families that are not the engine's own: process, interpreter, HTTP server."""
    return sorted(name for name in scrape.types if not name.startswith(PREFIX))


def counts_between(before: Scrape, after: Scrape) -> dict[str, Json]:
    """Growth of every engine counter and histogram count, and of histogram sums that count things, not seconds.

    Samples that did not move are left out. Keys are `name{own labels}`.
    """
    grown: dict[str, Json] = {}
    earlier = {_key(sample): sample.value for family in before.samples.values() for sample in family}
    for name, family in after.samples.items():
        if not name.startswith(PREFIX) or after.types[name] not in ("counter", "histogram"):
            continue
        for sample in family:
            if sample.name.endswith(("_bucket", "_created")) or (
                sample.name.endswith("_sum") and name.endswith("_seconds")
            ):
                continue
            growth = sample.value - earlier.get(_key(sample), 0.0)
            if growth:
                grown[_key(sample)] = int(growth) if growth.is_integer() else growth
    return grown


def _key(sample: Sample) -> str:
    own = ",".join(f"{key}={sample.labels[key]}" for key in sorted(sample.labels.keys() - OWN_LABELS))
    return f"{sample.name.removeprefix(PREFIX)}{{{own}}}" if own else sample.name.removeprefix(PREFIX)
