"""What a fleet costs. Nothing is decided by a price but whether a budget is kept."""

from dataclasses import dataclass
from fractions import Fraction

from bayplan.api.capacitywords import PricedUnit
from bayplan.planning.sizing.load import FleetDemand
from bayplan.planning.sizing.records import Price

SECONDS_PER_HOUR = 3600
MILLION = 10**6


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of the whole fleet, in the price's currency; tokens are those offered at the peak."""

    per_hour: Fraction
    per_million_output_tokens: Fraction
    per_million_tokens: Fraction


def fleet_cost(price: Price, demand: FleetDemand, *, replicas: int, gpus_per_replica: int) -> Cost:
    """Price so many replicas: cost per hour / tokens per hour × 10⁶."""
    units = replicas * (gpus_per_replica if price.unit is PricedUnit.GPU else 1)
    per_hour = units * price.hourly_cost
    output = demand.output_tokens_per_second * SECONDS_PER_HOUR
    every = demand.tokens_per_second * SECONDS_PER_HOUR
    return Cost(per_hour, per_hour / output * MILLION, per_hour / every * MILLION)
