"""What the soak makes of its samples."""

import pytest

from bench.soak import MOST_PAIRED, Sample, after_warm_up, broken, slope_per_10_minutes


def samples(*megabytes: float, every_seconds: float = 60) -> list[Sample]:
    return [Sample(number * every_seconds, rss, 0.0) for number, rss in enumerate(megabytes)]


def test_slope_is_the_growth_in_ten_minutes() -> None:
    assert slope_per_10_minutes(samples(100, 100.5, 101, 101.5)) == pytest.approx(5)


def test_one_spike_does_not_tilt_the_slope() -> None:
    level = [100.0] * 30
    level[20] = 180.0
    assert slope_per_10_minutes(samples(*level)) == 0


def test_slope_of_many_samples_is_that_of_a_part_of_them() -> None:
    many = samples(*(100 + number / 600 for number in range(5 * MOST_PAIRED)), every_seconds=1)
    assert slope_per_10_minutes(many) == pytest.approx(1)


def test_one_moment_has_no_slope() -> None:
    assert slope_per_10_minutes(samples(100)) is None
    assert slope_per_10_minutes([]) is None


def test_warm_up_is_the_first_third() -> None:
    assert [sample.seconds for sample in after_warm_up(samples(*[100.0] * 10))] == [180, 240, 300, 360, 420, 480, 540]
    assert after_warm_up([]) == []


def figures(*, slope: float | None = 0.9, oldest: float = 29.9, writes: int = 0) -> dict[str, object]:
    return {"soak_mb_per_10_minutes": slope, "queue_oldest_seconds": oldest, "quiet_writes": writes}


def test_a_soak_just_inside_its_bounds_is_sound() -> None:
    assert broken(figures()) == []


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (figures(slope=1.0), "memory"),
        (figures(slope=None), "memory"),
        (figures(oldest=30.0), "waited"),
        (figures(writes=1), "writes at rest"),
    ],
)
def test_each_bound_is_named_when_it_is_broken(found: dict[str, object], word: str) -> None:
    (line,) = broken(found)
    assert word in line
