"""Ranges: on the limit is inside, beyond it is named, and what was not measured counts as broken."""

from pathlib import Path
from typing import Any

import pytest

from bench.ranges import Ranges, RangesError, load_ranges, violations
from bench.report import KEYS

RANGES = Path(__file__).parents[2] / "bench" / "ranges.yaml"


def report(**figures: Any) -> dict[str, Any]:
    baseline = {"kopf handlers": {"objects_per_second": 50.0, "writes_per_object": 2.0}}
    return dict.fromkeys(KEYS) | {"details": {}, "baseline": baseline} | figures


@pytest.mark.parametrize(("value", "broken"), [(8.9, True), (9, False), (12, False), (12.1, True), (None, True)])
def test_count_is_inside_up_to_its_limits(value: float | None, broken: bool) -> None:
    ranges = Ranges.model_validate({"counts": {"writes_per_placed_model": {"least": 9, "most": 12}}})
    assert bool(violations(ranges, report(writes_per_placed_model=value))) == broken


@pytest.mark.parametrize(("value", "broken"), [(24.9, True), (25.0, False), (90.0, False), (None, True)])
def test_ratio_compares_with_the_baseline_of_the_same_run(value: float | None, broken: bool) -> None:
    ranges = Ranges.model_validate({"ratios": {"objects_per_second": {"to": "kopf handlers", "least": 0.5}}})
    assert bool(violations(ranges, report(objects_per_second=value))) == broken


def test_ratio_without_a_baseline_is_broken() -> None:
    ranges = Ranges.model_validate({"ratios": {"objects_per_second": {"to": "nobody", "least": 0.5}}})
    assert violations(ranges, report(objects_per_second=10)) == [
        "objects_per_second is not measured, allowed is at least 0.5"
    ]


def test_details_can_be_bounded_too() -> None:
    ranges = Ranges.model_validate({"counts": {"placed_refused_writes": {"most": 0}}})
    assert violations(ranges, report(details={"placed_refused_writes": 0})) == []
    assert violations(ranges, report(details={"placed_refused_writes": 1})) == [
        "placed_refused_writes is 1, allowed is at most 0"
    ]


def test_misspelt_key_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ranges.yaml"
    path.write_text("counts: {quiet_writes: {mots: 0}}")
    with pytest.raises(RangesError, match="mots"):
        load_ranges(path)


def test_shipped_ranges_can_be_read() -> None:
    ranges = load_ranges(RANGES)
    assert ranges.counts["restart_writes"].most == 0
    assert ranges.counts["quiet_writes"].most == 0
    assert set(ranges.ratios) <= set(KEYS)
