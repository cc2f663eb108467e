"""From the gateways' cumulative counters to what happened in a window.

Gateways count per engine pod, arm and class, since their start and never downwards. Two snapshots make a window. A
window counts only when nothing in it is in doubt: the same gateways in the same incarnation on both ends, times in
order, nothing that fell or vanished, both arms under like load. Otherwise it is dropped whole, for better and for
worse: what a restart has lost may have been the errors. Requests of pods that were not warm throughout enter no count.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from fractions import Fraction

from bayplan.planning.gates.counts import (
    Arm,
    ArmPods,
    ArmTally,
    Row,
    Snapshot,
    SourceCounts,
    Tally,
    TimedCounts,
    Window,
    edges_of,
)
from bayplan.planning.gates.records import EVERY_CLASS, Gate
from bayplan.planning.gates.servicemetrics import Histogram
from bayplan.planning.measurements import Unknown

LEAST_LOAD_RATIO = Fraction(8, 10)
MOST_LOAD_RATIO = Fraction(5, 4)
"""Requests per pod, candidate / baseline, within which both arms carry the same load."""
_NOISE = 9
"""Square of the standard deviations by which two Poisson counts may differ before their ratio says anything."""


class CandidateRows(StrEnum):
    """Which rows are the candidate's counts, and with them the baseline's."""

    REQUESTS = "requests"
    """In a canary stage: the requests of both cohorts."""
    COPIES = "copies"
    """In a shadow stage: copies at the candidate, the requests themselves at the baseline."""
    POOL = "pool"
    """After the promotion: every request at pods of the promoted and of the old revision."""


class _InDoubt(Exception):  # noqa: N818 - it ends the reading of one window, and is no error
    pass


def window_between(
    earlier: Snapshot,
    later: Snapshot,
    *,
    expected: Collection[str],
    pods: ArmPods,
    gates: Iterable[Gate],
    source: CandidateRows = CandidateRows.REQUESTS,
    compared: bool = True,
) -> Window:
    """Count what happened between two snapshots at the gates' edges.

    `expected` names the live gateways. `source` says which rows are the candidate's;
    without `compared` there is no baseline, knowingly. Raises InvalidInput
    for a latency limit that is no edge (`validity.check_gates` says so beforehand).
    """
    start = _moment(earlier, Fraction(0))
    end = _moment(later, start)
    try:
        rows = _increments(earlier, later, expected, pods)
    except _InDoubt as doubt:
        return Window(start, end, problem=str(doubt))
    edges = edges_of(gates)
    tallies: dict[tuple[Arm, str], Tally] = {}
    for old, new in rows:
        arm = _counted_arm(new, pods, source)
        for name in (EVERY_CLASS, new.workload_class) if arm is not None else ():
            if arm is not None and name in edges:
                tallies[arm, name] = tallies.get((arm, name), Tally()) + _increase(old, new, edges[name])
    routed = [(new.arm, _grown(old, new, "requests")) for old, new in rows if new.arm is not Arm.SHADOW]
    problem = _unlike(tallies, pods, compared=compared)
    return Window(
        start,
        end,
        tuple(ArmTally(arm, name, tally) for (arm, name), tally in sorted(tallies.items())) if not problem else (),
        routed_requests=sum(requests for _, requests in routed),
        candidate_requests=sum(requests for arm, requests in routed if arm is Arm.CANDIDATE),
        problem=problem,
    )


def _moment(snapshot: Snapshot, otherwise: Fraction) -> Fraction:
    """When the snapshot was taken: the earliest of its gateways', so that nothing seems fresher than it is."""
    times = [source.at_seconds for source in snapshot.sources.values() if isinstance(source, SourceCounts)]
    return min(times, default=otherwise)


def _increments(
    earlier: Snapshot, later: Snapshot, expected: Collection[str], pods: ArmPods
) -> list[tuple[Row | None, Row]]:
    """Every row of the later snapshot with its predecessor, None where it is new. Raises _InDoubt."""
    pairs: list[tuple[Row | None, Row]] = []
    if not expected:
        raise _InDoubt("no gateway is live")
    for uid in sorted({*expected, *earlier.sources, *later.sources}):
        old, new = earlier.sources.get(uid), later.sources.get(uid)
        if not isinstance(old, SourceCounts):
            raise _InDoubt(f"gateway {uid} before: {_why_not(old)}")
        if not isinstance(new, SourceCounts):
            raise _InDoubt(f"gateway {uid} now: {_why_not(new)}")
        pairs += _of_one_gateway(uid, old, new, pods)
    return pairs


def _why_not(side: Unknown | None) -> str:
    return "was not there" if side is None else side.reason


def _of_one_gateway(uid: str, old: SourceCounts, new: SourceCounts, pods: ArmPods) -> list[tuple[Row | None, Row]]:
    if new.incarnation != old.incarnation:
        raise _InDoubt(f"gateway {uid} started anew: what it had counted before is lost")
    if new.at_seconds <= old.at_seconds:
        raise _InDoubt(f"gateway {uid}: the later counts are not later")
    before, now = {row.key: row for row in old.rows}, {row.key: row for row in new.rows}
    if len(before) != len(old.rows) or len(now) != len(new.rows):
        raise _InDoubt(f"gateway {uid}: a row stands there twice")
    for key in before.keys() - now.keys():
        if key[0] in pods.candidate | pods.baseline:
            raise _InDoubt(f"gateway {uid}: the counts of pod {key[0]} are gone")
    for key, row in now.items():
        if key in before and _fell(before[key], row):
            raise _InDoubt(f"gateway {uid}: counts of pod {row.pod} fell")
    return [(before.get(key), row) for key, row in now.items()]


def _fell(old: Row, new: Row) -> bool:
    """Whether any counter is lower than before, or a histogram changed its edges."""
    names = ("requests", "errors", "output_tokens", "loaded_seconds")
    if any(getattr(new, name) < getattr(old, name) for name in names):
        return True
    for before, now in ((old.ttft, new.ttft), (old.tpot, new.tpot)):
        if before.edges != now.edges or now.total < before.total:
            return True
        if any(late < early for early, late in zip(before.counts, now.counts, strict=True)):
            return True
    return False


def _counted_arm(row: Row, pods: ArmPods, source: CandidateRows) -> Arm | None:
    """The arm whose counts the row is part of."""
    if source is CandidateRows.POOL:
        ours, theirs = row.arm is not Arm.SHADOW, row.arm is not Arm.SHADOW
    else:
        ours = row.arm is (Arm.SHADOW if source is CandidateRows.COPIES else Arm.CANDIDATE)
        theirs = row.arm is Arm.BASELINE
    if ours and row.pod in pods.candidate:
        return Arm.CANDIDATE
    return Arm.BASELINE if theirs and row.pod in pods.baseline else None


def _grown(old: Row | None, new: Row, name: str) -> int:
    grown: int = getattr(new, name) - (getattr(old, name) if old is not None else 0)
    return grown


def _increase(old: Row | None, new: Row, edges: tuple[Fraction | None, Fraction | None]) -> Tally:
    ttft, tpot = edges
    return Tally(
        requests=_grown(old, new, "requests"),
        errors=_grown(old, new, "errors"),
        output_tokens=_grown(old, new, "output_tokens"),
        loaded_seconds=new.loaded_seconds - (old.loaded_seconds if old is not None else 0),
        ttft=_timed(None if old is None else old.ttft, new.ttft, ttft),
        tpot=_timed(None if old is None else old.tpot, new.tpot, tpot),
    )


def _timed(old: Histogram | None, new: Histogram, edge: Fraction | None) -> TimedCounts:
    if edge is None:
        return TimedCounts()
    within, total = new.at_most(edge), new.total
    return TimedCounts(within, total) if old is None else TimedCounts(within - old.at_most(edge), total - old.total)


def _unlike(tallies: Mapping[tuple[Arm, str], Tally], pods: ArmPods, *, compared: bool) -> str:
    """Why the arms are not under like load; empty when they are, or their counts are too small to tell."""
    if not pods.candidate:
        return "candidate has no warm pod"
    if not pods.baseline:
        return "baseline has no warm pod" if compared else ""
    ours, theirs = (tallies.get((arm, EVERY_CLASS), Tally()).requests for arm in (Arm.CANDIDATE, Arm.BASELINE))
    per_pod = Fraction(ours, len(pods.candidate)), Fraction(theirs, len(pods.baseline))
    if LEAST_LOAD_RATIO * per_pod[1] <= per_pod[0] <= MOST_LOAD_RATIO * per_pod[1]:
        return ""
    scaled = Fraction(theirs * len(pods.candidate), len(pods.baseline))
    if (ours - scaled) ** 2 <= _NOISE * (ours + scaled):
        return ""
    return f"unlike load: {float(per_pod[0]):g} requests per candidate pod, {float(per_pod[1]):g} per baseline pod"
