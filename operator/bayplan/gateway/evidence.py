"""What was seen of each engine pod: requests, errors by cause, and times counted per edge. Cumulative, never reset.

A row belongs to one pod, revision, arm and workload class. Rows of pods that are gone stay for a while, so that their
last counts can be read, and are then folded into totals per model, revision, arm and class, so that these never fall.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Any, NamedTuple

from bayplan.gateway.settings import Edges
from bayplan.planning.gates.counts import Arm

NANOSECONDS = 1_000_000_000
MOST_FOLDED = 2000
"""Totals of revisions without a pod; the ones added to the longest ago are dropped beyond."""


class Cause(StrEnum):
    """Why a request that an engine had did not end well."""

    UNREACHABLE = "unreachable"
    """No connection: the request cost the engine nothing."""
    FAILED = "failed"
    """5xx, or the connection ended before the first byte."""
    CUT = "cut"
    """The stream broke off, or ended with `finish_reason: abort`, after its first byte."""
    TIMEOUT = "timeout"
    """Silent for too long."""
    REFUSED = "refused"
    """4xx: what the caller sent was wrong. No error of the engine's."""
    CANCELLED = "cancelled"
    """The caller left. No error of the engine's."""


class RowKey(NamedTuple):
    """Whom a row is about."""

    namespace: str
    model: str
    pod: str
    revision: str
    arm: Arm
    workload_class: str


class TimeCounts:
    """A histogram: observations at most each edge, all of them, and their sum."""

    __slots__ = ("_edges_ns", "buckets", "sum_ns")

    def __init__(self, edges_ns: tuple[int, ...]) -> None:
        self._edges_ns = edges_ns
        self.buckets = [0] * (len(edges_ns) + 1)
        self.sum_ns = 0

    def observe(self, ns: int) -> None:
        """Count one; equal to an edge is at most it."""
        self.buckets[bisect_left(self._edges_ns, ns)] += 1
        self.sum_ns += ns

    def add(self, other: "TimeCounts") -> None:
        """Count in all of another one."""
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.sum_ns += other.sum_ns

    @property
    def cumulative(self) -> list[int]:
        """Counts at most each edge; the last one is the count of all."""
        return list(accumulate(self.buckets))

    def to_wire(self) -> dict[str, Any]:
        """Counts per edge, total and sum in seconds."""
        *counts, total = self.cumulative
        return {"counts": counts, "total": total, "sumSeconds": self.sum_ns / NANOSECONDS}


class Row:
    """Counts of one pod, arm and class."""

    __slots__ = ("_loaded_ns", "_loaded_since", "e2e", "errors", "output_tokens", "requests", "running", "tpot", "ttft")

    def __init__(self, edges: "EdgesNs") -> None:
        self.requests = 0
        self.running = 0
        self.errors: Counter[Cause] = Counter()
        self.output_tokens = 0
        self.ttft = TimeCounts(edges.ttft)
        self.tpot = TimeCounts(edges.tpot)
        self.e2e = TimeCounts(edges.e2e)
        self._loaded_ns = 0
        self._loaded_since = 0

    def begin(self, now_ns: int) -> None:
        """A request goes to the pod."""
        self.requests += 1
        self.running += 1
        if self.running == 1:
            self._loaded_since = now_ns

    def end(self, now_ns: int, *, cause: Cause | None, output_tokens: int) -> None:
        """It is over; without a cause it ended well."""
        self.running -= 1
        if self.running == 0:
            self._loaded_ns += now_ns - self._loaded_since
        self.output_tokens += output_tokens
        if cause is not None:
            self.errors[cause] += 1

    def loaded_seconds(self, now_ns: int) -> float:
        """Time during which at least one request was at the pod."""
        since = now_ns - self._loaded_since if self.running else 0
        return (self._loaded_ns + since) / NANOSECONDS

    def add(self, other: "Row", now_ns: int) -> None:
        """Count in all of another row that has ended."""
        self.requests += other.requests
        self.errors.update(other.errors)
        self.output_tokens += other.output_tokens
        for name in ("ttft", "tpot", "e2e"):
            getattr(self, name).add(getattr(other, name))
        self._loaded_ns += round(other.loaded_seconds(now_ns) * NANOSECONDS)


class EdgesNs:
    """Edges in nanoseconds."""

    def __init__(self, edges: Edges) -> None:
        self.ttft, self.tpot, self.e2e = (
            tuple(round(edge * NANOSECONDS) for edge in values) for values in (edges.ttft, edges.tpot, edges.e2e)
        )


class Evidence:
    """All rows since the process started."""

    def __init__(self, edges: Edges, *, retain_seconds: float = 3600.0) -> None:
        self.edges = edges
        self._edges_ns = EdgesNs(edges)
        self._retain_ns = round(retain_seconds * NANOSECONDS)
        self._rows: dict[RowKey, Row] = {}
        self._gone: dict[str, int] = {}
        self._folded: dict[RowKey, Row] = {}

    def row(self, key: RowKey) -> Row:
        """Return the row, a new one if need be."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Row(self._edges_ns)
        return row

    def rows(self) -> Iterator[tuple[RowKey, Row]]:
        """Iterate over the rows of pods."""
        return iter(self._rows.items())

    def totals(self, now_ns: int) -> Mapping[RowKey, Row]:
        """Return sums per model, revision, arm and class, those of pods long gone included; the pod is empty."""
        sums: dict[RowKey, Row] = {}
        for source in (self._folded, self._rows):
            for key, row in source.items():
                own = key._replace(pod="")
                if own not in sums:
                    sums[own] = Row(self._edges_ns)
                sums[own].add(row, now_ns)
        return sums

    def pod_gone(self, pod: str, now_ns: int) -> None:
        """Note that a pod is no more."""
        self._gone.setdefault(pod, now_ns)

    def fold(self, now_ns: int, *, models: set[tuple[str, str]]) -> None:
        """Fold rows of pods gone for long; drop what is about models that exist no more."""
        old = {pod for pod, since in self._gone.items() if now_ns - since >= self._retain_ns}
        for key in [key for key, row in self._rows.items() if key.pod in old and not row.running]:
            row = self._rows.pop(key)
            own = key._replace(pod="")
            sum_of_gone = self._folded.pop(own, None) or Row(self._edges_ns)
            sum_of_gone.add(row, now_ns)
            self._folded[own] = sum_of_gone
        still = {key.pod for key in self._rows}
        self._gone = {pod: since for pod, since in self._gone.items() if pod not in old or pod in still}
        for key in [key for key in self._folded if (key.namespace, key.model) not in models]:
            del self._folded[key]
        for key in list(self._folded)[: max(0, len(self._folded) - MOST_FOLDED)]:
            del self._folded[key]
