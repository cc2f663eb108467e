"""From requests in the audit log to figures. Pure; times are seconds, the API server's own."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from bayplan.api import names
from e2e.localcluster.auditlog import Request

Key = tuple[str, str]
"""Namespace and name."""
MODELS = names.INFERENCEMODEL_PLURAL
STATUS = f"{MODELS}/status"


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that at least `share` (0 to 1) of all do not exceed; None without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def created(requests: Iterable[Request]) -> dict[Key, float]:
    """Return when the create of each InferenceModel came in."""
    return {
        (request.namespace, request.name): request.received
        for request in requests
        if request.done and request.verb == "create" and request.resource == MODELS
    }


def first_status(requests: Iterable[Request]) -> dict[Key, float]:
    """Return when the first status write of each InferenceModel was answered."""
    found: dict[Key, float] = {}
    for request in requests:
        if request.done and request.writes and request.resource == STATUS:
            found.setdefault((request.namespace, request.name), request.answered)
    return found


def ready(requests: Iterable[Request]) -> dict[Key, float]:
    """Return when a status with Ready=True of each InferenceModel was first written."""
    found: dict[Key, float] = {}
    for request in requests:
        if not (request.done and request.resource == STATUS and request.sent):
            continue
        conditions = (request.sent.get("status") or {}).get("conditions") or ()
        if any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions):
            found.setdefault((request.namespace, request.name), request.answered)
    return found


def bound(requests: Iterable[Request]) -> dict[Key, float]:
    """Return when the last pod of each InferenceModel was bound, by the pods' model label."""
    owner: dict[Key, Key] = {}
    found: dict[Key, float] = {}
    for request in requests:
        key = (request.namespace, request.name)
        if not request.done or request.verb != "create":
            continue
        if request.resource == "pods" and request.sent:
            model = (request.sent["metadata"].get("labels") or {}).get(names.LABEL_MODEL)
            if model:
                owner[key] = (request.namespace, model)
        elif request.resource == "pods/binding" and key in owner:
            found[owner[key]] = max(request.answered, found.get(owner[key], 0.0))
    return found


def delays(since: Mapping[Key, float], until: Mapping[Key, float]) -> list[float]:
    """Return the seconds from one event to the other for each object that has both."""
    return [moment - since[key] for key, moment in until.items() if key in since]


def per_second(since: Mapping[Key, float], until: Mapping[Key, float]) -> float | None:
    """Return objects per second from the first of the earlier events to the last of the later ones."""
    both = [key for key in until if key in since]
    if not both:
        return None
    seconds = max(until[key] for key in both) - min(since[key] for key in both)
    return len(both) / seconds if seconds > 0 else None


def by_kind(requests: Iterable[Request]) -> dict[str, int]:
    """Count requests by `verb resource`."""
    counts = Counter(f"{request.verb} {request.resource}" for request in requests)
    return dict(sorted(counts.items()))


def histogram_quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return a quantile of cumulative (upper bound, count) pairs as Prometheus does: linear inside a bucket.

    Observations above the last finite bound count as that bound; None without observations.
    """
    ordered = sorted(buckets)
    total = ordered[-1][1] if ordered else 0.0
    if total <= 0:
        return None
    rank, lower, below = share * total, 0.0, 0.0
    for bound_, count in ordered:
        if count >= rank:
            if math.isinf(bound_):
                return lower
            inside = count - below
            return lower + (bound_ - lower) * ((rank - below) / inside if inside else 1.0)
        lower, below = (lower if math.isinf(bound_) else bound_), count
    return lower
