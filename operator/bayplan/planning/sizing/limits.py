"""Bounds that a sized fleet exceeds. All of them are told, in one order, and none changes a number."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from bayplan.planning.sizing.cost import Cost
from bayplan.planning.sizing.records import Limits


class Bound(StrEnum):
    """What was exceeded."""

    MAX_REPLICAS = "fleet-ceiling"
    QUOTA = "quota"
    BUDGET = "hourly-budget"


@dataclass(frozen=True, slots=True)
class Breach:
    """One bound, and by how much."""

    bound: Bound
    message: str


def find_breaches(
    limits: Limits, *, replicas: int, gpus: int, cost: Cost | None, quota_shortfall: str = ""
) -> tuple[Breach, ...]:
    """Return every breach. Equal to a bound passes; without a cost no budget is judged."""
    found = []
    if limits.max_replicas is not None and replicas > limits.max_replicas:
        over = replicas - limits.max_replicas
        text = f"{replicas} replicas needed, at most {limits.max_replicas}: {over} over"
        found.append(Breach(Bound.MAX_REPLICAS, text))
    if limits.max_gpus is not None and gpus > limits.max_gpus:
        over = gpus - limits.max_gpus
        found.append(Breach(Bound.QUOTA, f"{gpus} GPUs needed, limits.maxGpus is {limits.max_gpus}: {over} over"))
    if quota_shortfall:
        found.append(Breach(Bound.QUOTA, quota_shortfall))
    if limits.max_hourly_cost is not None and cost is not None and cost.per_hour > limits.max_hourly_cost:
        excess = cost.per_hour - limits.max_hourly_cost
        found.append(
            Breach(
                Bound.BUDGET,
                f"{money(cost.per_hour)} per hour needed, budget {money(limits.max_hourly_cost)}: {money(excess)} over",
            )
        )
    return tuple(found)


def money(amount: Fraction) -> str:
    """An amount for people: two decimals, more where it would read as nothing."""
    return f"{float(amount):.2f}" if amount == 0 or amount >= Fraction(1, 100) else f"{float(amount):.2g}"
