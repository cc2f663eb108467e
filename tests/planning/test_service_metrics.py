from fractions import Fraction

import pytest

from bayplan.planning.batching import BatchingMode, BatchRequest, schedule
from bayplan.planning.gates.servicemetrics import (
    Histogram,
    Objective,
    Objectives,
    Trace,
    evaluate,
    evaluate_classes,
    nearest_rank,
)
from bayplan.planning.numbers import InvalidInput

OBJECTIVES = Objectives(Fraction(1), Fraction("0.2"), Fraction(3), Fraction(3))


def trace(first: str = "1", done: str = "3", tokens: int = 11, **fields: str) -> Trace:
    return Trace(
        **({"id": "r", "arrived_at": Fraction(0)} | fields),  # type: ignore[arg-type]
        first_token_at=Fraction(first),
        completed_at=Fraction(done),
        output_tokens=tokens,
    )


def test_every_limit_itself_passes_and_just_beyond_it_fails() -> None:
    assert evaluate([trace()], OBJECTIVES).meets_objectives
    assert evaluate([trace(first="1.001", done="3")], OBJECTIVES).violations == (Objective.TTFT,)
    assert evaluate([trace(done="3.001", first="1")], OBJECTIVES).violations == (Objective.TPOT, Objective.E2E)


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (19, 19), (20, 19), (21, 20), (40, 38)])
def test_the_95th_percentile_is_the_nearest_rank(count: int, rank: int) -> None:
    assert nearest_rank(Fraction(value) for value in range(count, 0, -1)) == rank


def test_a_slow_class_fails_its_own_objectives_alone_and_an_idle_one_is_neither_met_nor_missed() -> None:
    slow = trace(first="50", done="60", workload_class="batch")

    reports = evaluate_classes(
        [trace(workload_class="interactive"), slow], dict.fromkeys(("interactive", "batch", "idle"), OBJECTIVES)
    )

    assert reports["interactive"] is not None
    assert reports["interactive"].meets_objectives
    assert reports["batch"] is not None
    assert not reports["batch"].meets_objectives
    assert reports["idle"] is None


def test_a_class_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidInput, match="batch has no objectives"):
        evaluate_classes([trace(workload_class="batch")], {"interactive": OBJECTIVES})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"first": "-1"}, "first_token_at"),
        ({"first": "2", "done": "1"}, "completed_at"),
        ({"tokens": 0}, "output_tokens"),
        ({"id": " "}, "id"),
    ],
)
def test_an_impossible_trace_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        trace(**fields)  # type: ignore[arg-type]

    assert caught.value.field == field


def test_no_time_gives_no_throughput() -> None:
    with pytest.raises(InvalidInput, match="window"):
        evaluate([trace(first="0", done="0")], OBJECTIVES)


class TestHistogram:
    HISTOGRAM = Histogram(edges=(Fraction("0.5"), Fraction(1), Fraction(2)), counts=(10, 19, 20), total=20)

    def test_a_percentile_at_an_edge_is_exact(self) -> None:
        assert self.HISTOGRAM.percentile_meets(Fraction(1)) is True
        assert self.HISTOGRAM.percentile_meets(Fraction("0.5")) is False
        assert self.HISTOGRAM.percentile_bounds() == (Fraction("0.5"), 1)

    @pytest.mark.parametrize(("limit", "nearest"), [("0.7", "0.5 and 1"), ("0.1", "are 0.5"), ("3", "are 2")])
    def test_a_limit_that_is_no_edge_is_refused_with_the_nearest(self, limit: str, nearest: str) -> None:
        with pytest.raises(InvalidInput, match=nearest):
            self.HISTOGRAM.percentile_meets(Fraction(limit))

    def test_without_observations_nothing_is_met(self) -> None:
        empty = Histogram(edges=(Fraction(1),), counts=(0,), total=0)

        assert empty.percentile_meets(Fraction(1)) is None
        assert empty.percentile_bounds() is None

    def test_above_the_last_edge_there_is_no_upper_bound(self) -> None:
        assert Histogram(edges=(Fraction(1),), counts=(1,), total=20).percentile_bounds() == (1, None)

    @pytest.mark.parametrize(
        ("edges", "counts", "total"), [((1, 1), (0, 0), 0), ((1, 2), (2, 1), 2), ((1,), (3,), 2), ((1,), (1, 2), 2)]
    )
    def test_what_is_no_histogram_is_refused(self, edges: tuple[int, ...], counts: tuple[int, ...], total: int) -> None:
        with pytest.raises(InvalidInput):
            Histogram(edges=tuple(map(Fraction, edges)), counts=counts, total=total)


def test_the_makespan_does_not_depend_on_the_origin_of_time() -> None:
    def run(shift: int, mode: BatchingMode) -> int:
        sizes = [(0, 1), (0, 5), (1, 1), (9, 2)]
        requests = [BatchRequest(str(i), at + shift, tokens) for i, (at, tokens) in enumerate(sizes)]
        return schedule(requests, lanes=2, mode=mode).makespan_steps

    for mode in BatchingMode:
        assert run(0, mode) == run(100, mode)
