"""Gateways' counters for tests: rows, snapshots and windows of two arms."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from bayplan.api.rolloutwords import GateName
from bayplan.planning.gates.counts import Arm, ArmPods, Row, Snapshot, SourceCounts, Window
from bayplan.planning.gates.records import Gate
from bayplan.planning.gates.servicemetrics import Histogram
from bayplan.planning.gates.windows import window_between

CANDIDATE_PODS, BASELINE_PODS = ("c0", "c1"), ("b0", "b1")
PODS = ArmPods(candidate=frozenset(CANDIDATE_PODS), baseline=frozenset(BASELINE_PODS))
EDGES = (Fraction(1, 2), Fraction(1), Fraction(2))
GATES = (
    Gate(GateName.TTFT, Fraction(1)),
    Gate(GateName.TTFT, Fraction(1, 2), workload_class="chat"),
    Gate(GateName.TPOT, Fraction(1)),
    Gate(GateName.ERROR_RATE, Fraction(1, 100)),
)


def histogram(total: int, late: int = 0) -> Histogram:
    """`late` observations between 1 and 2 s, the others within half a second."""
    return Histogram(EDGES, (total - late, total - late, total), total)


def row(pod: str, arm: Arm, requests: int, *, workload_class: str = "chat", late: int = 0, **of: Any) -> Row:
    given: dict[str, Any] = {
        "errors": 0,
        "output_tokens": requests * 10,
        "loaded_seconds": Fraction(requests),
        "ttft": histogram(requests, late),
        "tpot": histogram(requests),
    }
    return Row(pod=pod, arm=arm, workload_class=workload_class, requests=requests, **(given | of))


def rows(requests: int, *, late: int = 0, arm: Arm = Arm.CANDIDATE, **of: Any) -> tuple[Row, ...]:
    """So many requests at every pod of both arms; `late` and further fields are the candidate's."""
    ours = tuple(row(pod, arm, requests, late=late, **of) for pod in CANDIDATE_PODS)
    name = of.get("workload_class", "chat")
    return ours + tuple(row(pod, Arm.BASELINE, requests, workload_class=name) for pod in BASELINE_PODS)


def snapshot(at: Any, given: Sequence[Row], *, gateway: str = "g", incarnation: str = "1") -> Snapshot:
    return Snapshot({gateway: SourceCounts(at, incarnation, tuple(given))})


def window(earlier: Snapshot, later: Snapshot, **of: Any) -> Window:
    given: dict[str, Any] = {"expected": ["g"], "pods": PODS, "gates": GATES}
    return window_between(earlier, later, **(given | of))
