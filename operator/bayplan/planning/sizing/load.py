"""From workload classes to replicas, dimension by dimension.

    prefill     = Σ rate × burst × prompt tokens / (prefill tokens/s × usable)
    decode      = Σ rate × burst × output tokens / (output tokens/s × usable)
    concurrency = Σ rate × burst × service time / (concurrent requests × usable)      (Little's law)
    kv-tokens   = Σ rate × burst × service time × (prompt + output) / (KV tokens × usable)
    floor       = the fewest replicas that are wanted

Each is rounded up by itself; the largest result counts, and every dimension that reaches it binds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from bayplan.api.capacitywords import Dimension
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.sizing.records import ReplicaCapacity, Resilience, WorkloadClass, check_classes


@dataclass(frozen=True, slots=True)
class FleetDemand:
    """What all classes ask for at their peaks."""

    prompt_tokens_per_second: Fraction
    output_tokens_per_second: Fraction
    concurrent_requests: Fraction
    kv_tokens: Fraction
    """Tokens of all requests that are served at the same time."""

    @property
    def tokens_per_second(self) -> Fraction:
        """Prompt and output tokens together."""
        return self.prompt_tokens_per_second + self.output_tokens_per_second


def fleet_demand(classes: Sequence[WorkloadClass]) -> FleetDemand:
    """Add up the classes. Raises InvalidInput for none, too many, equal names, and for no output at all."""
    check_classes(classes)
    demand = FleetDemand(
        prompt_tokens_per_second=sum((c.peak_requests_per_second * c.prompt_tokens for c in classes), Fraction(0)),
        output_tokens_per_second=sum((c.peak_requests_per_second * c.output_tokens for c in classes), Fraction(0)),
        concurrent_requests=sum((c.peak_requests_per_second * c.mean_service_seconds for c in classes), Fraction(0)),
        kv_tokens=sum((c.peak_requests_per_second * c.mean_service_seconds * c.tokens for c in classes), Fraction(0)),
    )
    if demand.output_tokens_per_second == 0:
        raise InvalidInput("output_demand", "must be above 0: no class asks for output tokens")
    return demand


@dataclass(frozen=True, slots=True)
class LoadSizing:
    """Replicas that the load needs, and every number that decided."""

    unrounded: Mapping[Dimension, Fraction]
    service_tokens_per_second: Fraction
    """Prompt and output tokens that one replica serves of this mix when its tightest dimension is full."""

    @property
    def rounded(self) -> Mapping[Dimension, int]:
        """Whole replicas by dimension."""
        return {dimension: math.ceil(replicas) for dimension, replicas in self.unrounded.items()}

    @property
    def replicas(self) -> int:
        """The most that a dimension calls for."""
        return max(self.rounded.values())

    @property
    def demand_replicas(self) -> int:
        """The most that anything but the floor calls for: what demand alone asks for."""
        return max(replicas for name, replicas in self.rounded.items() if name is not Dimension.FLOOR)

    @property
    def binding(self) -> tuple[Dimension, ...]:
        """Every dimension that calls for that many, by name: ties after rounding are ties."""
        return tuple(sorted(name for name, replicas in self.rounded.items() if replicas == self.replicas))

    @property
    def bottlenecks(self) -> tuple[Dimension, ...]:
        """The binding dimensions with the largest unrounded value."""
        most = max(self.unrounded[name] for name in self.binding)
        return tuple(name for name in self.binding if self.unrounded[name] == most)


def size_load(demand: FleetDemand, capacity: ReplicaCapacity, resilience: Resilience) -> LoadSizing:
    """Turn demand into replicas of that capacity."""
    usable = resilience.usable_fraction
    full = {
        Dimension.PREFILL: demand.prompt_tokens_per_second / capacity.prefill_tokens_per_second,
        Dimension.DECODE: demand.output_tokens_per_second / capacity.output_tokens_per_second,
        Dimension.CONCURRENCY: demand.concurrent_requests / capacity.max_concurrent_requests,
    }
    if capacity.kv_tokens is not None:
        full[Dimension.KV_TOKENS] = demand.kv_tokens / capacity.kv_tokens
    return LoadSizing(
        unrounded={
            **{name: replicas / usable for name, replicas in full.items()},
            Dimension.FLOOR: Fraction(resilience.min_replicas),
        },
        service_tokens_per_second=demand.tokens_per_second / max(full.values()),
    )
