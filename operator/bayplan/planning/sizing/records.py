"""What sizing starts from. Every record raises InvalidInput that names the field."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from bayplan.api.capacityplan import MAX_CLASSES
from bayplan.api.capacitywords import PricedUnit
from bayplan.planning.numbers import InvalidInput, count, exact, named, not_negative, positive


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """Requests of one kind at their mean size. `burst_multiplier` is peak rate / mean rate.

    The objectives are the class's own p95 limits; a measurement that does not keep them proves nothing for it.
    """

    name: str
    requests_per_second: Fraction
    prompt_tokens: int
    output_tokens: int
    mean_service_seconds: Fraction
    burst_multiplier: Fraction = Fraction(1)
    max_p95_ttft_seconds: Fraction | None = None
    max_p95_tpot_seconds: Fraction | None = None

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        named(self.name, "name")
        put("requests_per_second", not_negative(self.requests_per_second, "requests_per_second"))
        for name in ("prompt_tokens", "output_tokens"):
            put(name, count(getattr(self, name), name, least=0))
        put("mean_service_seconds", positive(self.mean_service_seconds, "mean_service_seconds"))
        burst = exact(self.burst_multiplier, "burst_multiplier")
        if burst < 1:
            raise InvalidInput("burst_multiplier", f"must be at least 1, not {self.burst_multiplier}")
        put("burst_multiplier", burst)
        for name in ("max_p95_ttft_seconds", "max_p95_tpot_seconds"):
            if getattr(self, name) is not None:
                put(name, positive(getattr(self, name), name))

    @property
    def peak_requests_per_second(self) -> Fraction:
        """Rate at the peak."""
        return self.requests_per_second * self.burst_multiplier

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of one request."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """What one replica does, measured within its objectives."""

    prefill_tokens_per_second: Fraction
    output_tokens_per_second: Fraction
    max_concurrent_requests: int
    kv_tokens: int | None = None
    """Tokens that its KV cache holds; None: not known, so that dimension is left out."""

    def __post_init__(self) -> None:
        for name in ("prefill_tokens_per_second", "output_tokens_per_second"):
            object.__setattr__(self, name, positive(getattr(self, name), name))
        slots = count(self.max_concurrent_requests, "max_concurrent_requests")
        object.__setattr__(self, "max_concurrent_requests", slots)
        if self.kv_tokens is not None:
            object.__setattr__(self, "kv_tokens", count(self.kv_tokens, "kv_tokens"))


@dataclass(frozen=True, slots=True)
class Resilience:
    """What must be left over."""

    min_replicas: int = 1
    reserved_fraction: Fraction = Fraction(0)
    """Share of every replica's measured capacity that is kept free, at least 0 and below 1."""
    domain_level: str | None = None
    """Topology level of which the largest domain may be lost; None: none is."""
    maintenance_replicas: int = 0
    """Replicas that may be away for maintenance, at the same time as a domain."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_replicas", count(self.min_replicas, "min_replicas"))
        reserved = not_negative(self.reserved_fraction, "reserved_fraction")
        if reserved >= 1:
            raise InvalidInput("reserved_fraction", f"must be below 1, not {self.reserved_fraction}")
        object.__setattr__(self, "reserved_fraction", reserved)
        away = count(self.maintenance_replicas, "maintenance_replicas", least=0)
        object.__setattr__(self, "maintenance_replicas", away)

    @property
    def usable_fraction(self) -> Fraction:
        """Share of every replica that may be planned with."""
        return 1 - self.reserved_fraction


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that are reported when they are exceeded, and change nothing. None: no bound. Equal passes."""

    max_replicas: int | None = None
    max_gpus: int | None = None
    max_hourly_cost: Fraction | None = None

    def __post_init__(self) -> None:
        for name in ("max_replicas", "max_gpus"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, count(getattr(self, name), name, least=0))
        if self.max_hourly_cost is not None:
            object.__setattr__(self, "max_hourly_cost", not_negative(self.max_hourly_cost, "max_hourly_cost"))


@dataclass(frozen=True, slots=True)
class Price:
    """Cost of one unit for an hour, and where the number comes from: without source and date it proves nothing."""

    hourly_cost: Fraction
    currency: str
    source: str
    observed_at_seconds: Fraction
    unit: PricedUnit = PricedUnit.GPU

    def __post_init__(self) -> None:
        object.__setattr__(self, "hourly_cost", not_negative(self.hourly_cost, "hourly_cost"))
        named(self.currency, "currency")
        named(self.source, "source")
        object.__setattr__(self, "observed_at_seconds", exact(self.observed_at_seconds, "observed_at_seconds"))


def check_classes(classes: Sequence[WorkloadClass]) -> None:
    """Raise InvalidInput for no class, for more than MAX_CLASSES, and for two of one name."""
    if not classes:
        raise InvalidInput("workload_classes", "must not be empty")
    if len(classes) > MAX_CLASSES:
        raise InvalidInput("workload_classes", f"must be at most {MAX_CLASSES}, not {len(classes)}")
    seen: set[str] = set()
    for one in classes:
        if one.name in seen:
            raise InvalidInput("class_names", f"must differ: {one.name} is there twice")
        seen.add(one.name)


def check_bounds(resilience: Resilience, limits: Limits) -> None:
    """Raise InvalidInput when the fewest replicas are more than the most."""
    if limits.max_replicas is not None and limits.max_replicas < resilience.min_replicas:
        raise InvalidInput("max_replicas", f"must be at least min_replicas {resilience.min_replicas}")
