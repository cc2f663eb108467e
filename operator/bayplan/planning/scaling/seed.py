"""How many replicas tokens ask for: the policy `Seed`.

    rate replicas  = ceil(arriving tokens/s / (service tokens/s × target utilization))
    queue replicas = ceil(queued tokens / (service tokens/s × drain seconds)), without the utilization, on purpose
    demand         = rate replicas + queue replicas, then clamped to the fleet's bounds

Up at once when the newest observation demands more and the cool-down has passed; down only to the highest demand of a
complete window. CPU has no say. Source: the founding chapter's lesson 10, formula and order unchanged.

Repairs of the course: an old newest sample is Unknown; a window with a hole longer than the allowed gap is not
complete; demand is reported before the clamp as well; more ready than desired is a state like any other; a backlog that
grows because the replicas asked for are still coming does not ask again; an incomplete observation is a lower bound,
which may raise and never lowers; requests that only pass a queue on their way are no backlog; after a restart one
window passes before anything falls.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from bayplan.api.autoscaling import ScalingReason
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.numbers import InvalidInput, count, exact, not_negative, positive, share

UNKNOWN_REASONS = frozenset({ScalingReason.HOLD_STALE_METRICS, ScalingReason.HOLD_UNKNOWN_METRICS})
"""Reasons that say that the demand is not known."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Demand on one model at one moment. Raises InvalidInput for negative and non-finite numbers.

    `coverage` is the part of the sources that the numbers come from; a covered part is scaled to the whole.
    """

    at_seconds: Fraction
    queued_tokens: Measured
    arrival_tokens_per_second: Measured
    coverage: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "at_seconds", exact(self.at_seconds, "at_seconds"))
        for name in ("queued_tokens", "arrival_tokens_per_second"):
            value = getattr(self, name)
            if not isinstance(value, Unknown):
                object.__setattr__(self, name, not_negative(value, name))
        covered = not_negative(self.coverage, "coverage")
        if covered > 1:
            raise InvalidInput("coverage", f"must be at most 1, not {self.coverage}")
        object.__setattr__(self, "coverage", covered)


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """Bounds and pace. Raises InvalidInput that names the field."""

    min_replicas: int
    max_replicas: int
    service_tokens_per_second: Fraction
    """Tokens that one replica serves per second, in the unit of the observations."""
    target_utilization: Fraction = Fraction(8, 10)
    queue_drain_seconds: Fraction = Fraction(60)
    """Time within which a backlog should be gone."""
    passing_queue_seconds: Fraction = Fraction(0)
    """What the ready replicas serve within this time is no backlog: every request passes a queue on its way."""
    scale_up_cooldown_seconds: Fraction = Fraction(15)
    """Least time since the last change, in either direction, before the next rise."""
    scale_up_samples: int = 1
    """Newest observations that must all demand more before a rise; 2 passes over one that saw the rise only partly."""
    scale_down_stabilization_seconds: Fraction = Fraction(300)
    """Window whose highest demand a fall stops at."""
    max_sample_gap_seconds: Fraction | None = Fraction(45)
    """Longest hole in a complete window; None accepts any, as the course does."""
    max_sample_age_seconds: Fraction | None = Fraction(45)
    """Oldest newest observation; None accepts any, as the course does."""
    least_coverage: Fraction = Fraction(7, 10)
    """Part of the sources that must have answered before an observation may lower anything."""

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("min_replicas", count(self.min_replicas, "min_replicas"))
        put("max_replicas", count(self.max_replicas, "max_replicas"))
        if self.max_replicas < self.min_replicas:
            raise InvalidInput("max_replicas", f"must be at least min_replicas {self.min_replicas}")
        put("scale_up_samples", count(self.scale_up_samples, "scale_up_samples"))
        for name in ("service_tokens_per_second", "queue_drain_seconds"):
            put(name, positive(getattr(self, name), name))
        for name in ("target_utilization", "least_coverage"):
            put(name, share(getattr(self, name), name))
        for name in ("scale_up_cooldown_seconds", "scale_down_stabilization_seconds", "passing_queue_seconds"):
            put(name, not_negative(getattr(self, name), name))
        for name in ("max_sample_gap_seconds", "max_sample_age_seconds"):
            if getattr(self, name) is not None:
                put(name, positive(getattr(self, name), name))
        gap = self.max_sample_gap_seconds
        if gap is not None and gap > self.scale_down_stabilization_seconds:
            raise InvalidInput(
                "scale_down_stabilization_seconds",
                f"must be at least max_sample_gap_seconds {gap}, or a window could hold fewer than two samples",
            )

    def clamp(self, replicas: int) -> int:
        """The nearest number within the bounds."""
        return min(self.max_replicas, max(self.min_replicas, replicas))


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What was decided before and what became of it. Raises InvalidInput for negative counts.

    More ready than desired is normal while surplus replicas drain. Times are on the clock of the observations.
    """

    desired_replicas: int
    ready_replicas: int
    pending_replicas: int = 0
    warming_replicas: int = 0
    last_scale_at_seconds: Fraction | None = None
    """Last change of the target; None: never."""
    last_queue_replicas: int | None = None
    """Queue replicas that the last rise asked for; None: not known, so a backlog counts in full."""
    last_ready_at_seconds: Fraction | None = None
    """When the newest replica became ready."""
    observing_since_seconds: Fraction | None = None
    """When this process began to observe; None: long ago."""

    def __post_init__(self) -> None:
        for name in ("desired_replicas", "ready_replicas", "pending_replicas", "warming_replicas"):
            object.__setattr__(self, name, count(getattr(self, name), name, least=0))
        if self.last_queue_replicas is not None:
            count(self.last_queue_replicas, "last_queue_replicas", least=0)
        for name in ("last_scale_at_seconds", "last_ready_at_seconds", "observing_since_seconds"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, exact(getattr(self, name), name))


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The target and every number that decided it."""

    target_replicas: int
    reason: ScalingReason
    message: str
    observed_at_seconds: Fraction
    rate_replicas: int | None
    """None: the arrival rate is not known."""
    queue_replicas: int | None
    """As measured; None: the backlog is not known."""
    counted_queue_replicas: int
    """What of the backlog asks for replicas that are not coming already."""
    raw_demand_replicas: int
    """Before the clamp; a lower bound while something is not known."""
    demand_replicas: int
    """After the clamp."""
    ready_capacity_tokens_per_second: Fraction
    clamped: bool
    """Whether the bounds changed the target."""
    window_start_seconds: Fraction
    window_complete: bool
    window_demand_replicas: int | None
    """Highest clamped demand inside the window; None when it holds no observation."""

    @property
    def demand_known(self) -> bool:
        """Whether the newest demand was measured in full and lately."""
        return self.reason not in UNKNOWN_REASONS


@dataclass(frozen=True, slots=True)
class _Need:
    """Replicas that one observation asks for."""

    rate: int | None
    queue: int | None
    complete: bool
    unknown: tuple[str, ...] = field(default=())

    def raw(self, queue_limit: int | None = None) -> int:
        queue = self.queue or 0
        return (self.rate or 0) + (queue if queue_limit is None else min(queue, queue_limit))


def decide_scaling(
    observations: Iterable[Observation], state: ScalingState, policy: ScalingPolicy, *, now_seconds: Fraction
) -> ScalingDecision:
    """Decide the number of replicas. Raises InvalidInput without an observation, or with one from the future.

    Order: stale → up (confirmed, cool-down) → Unknown → down (restart, complete window) → steady; then the bounds,
    whatever happened.
    """
    now = exact(now_seconds, "now_seconds")
    history = sorted(observations, key=lambda observation: observation.at_seconds)
    if not history:
        raise InvalidInput("observations", "must not be empty; say Unknown where nothing could be measured")
    newest = history[-1]
    if newest.at_seconds > now:
        raise InvalidInput("at_seconds", f"must not be after now: {float(newest.at_seconds)} > {float(now)}")
    rate_capacity = policy.service_tokens_per_second * policy.target_utilization
    queue_capacity = policy.service_tokens_per_second * policy.queue_drain_seconds
    passing = state.ready_replicas * policy.service_tokens_per_second * policy.passing_queue_seconds
    needs = [
        _need(one, policy, rate_capacity=rate_capacity, queue_capacity=queue_capacity, passing_tokens=passing)
        for one in history
    ]
    newest_need = needs[-1]
    queue_limit = _queue_limit(state, policy, now)
    raw = newest_need.raw(queue_limit)
    demand = policy.clamp(raw)
    window = _window(history, needs, policy, now)
    stale = _stale(now - newest.at_seconds, policy)
    if stale:
        target, reason, why = state.desired_replicas, ScalingReason.HOLD_STALE_METRICS, stale
    elif demand > state.desired_replicas:
        lately = [policy.clamp(need.raw(queue_limit)) for need in needs[-policy.scale_up_samples :]]
        target, reason, why = _rise(lately, state, policy, now)
    elif not newest_need.complete:
        target, reason = state.desired_replicas, ScalingReason.HOLD_UNKNOWN_METRICS
        why = f"not known: {', '.join(newest_need.unknown)}"
    elif demand == state.desired_replicas:
        target, reason, why = demand, ScalingReason.STEADY, f"{demand} desired"
    else:
        target, reason, why = _fall(window, state, policy, now)
    bounded = policy.clamp(target)
    message = f"{_demand_text(newest_need, raw, policy)}; {why}"
    if bounded != target:
        message += f"; clamped from {target} to {bounded}"
    return ScalingDecision(
        target_replicas=bounded,
        reason=reason,
        message=message,
        observed_at_seconds=newest.at_seconds,
        rate_replicas=newest_need.rate,
        queue_replicas=newest_need.queue,
        counted_queue_replicas=raw - (newest_need.rate or 0),
        raw_demand_replicas=raw,
        demand_replicas=demand,
        ready_capacity_tokens_per_second=state.ready_replicas * rate_capacity,
        clamped=bounded != target,
        window_start_seconds=window.start,
        window_complete=window.complete,
        window_demand_replicas=window.demand,
    )


@dataclass(frozen=True, slots=True)
class _Window:
    start: Fraction
    complete: bool
    demand: int | None
    why_not: str


_Verdict = tuple[int, ScalingReason, str]


def _stale(age: Fraction, policy: ScalingPolicy) -> str:
    oldest = policy.max_sample_age_seconds
    if oldest is None or age <= oldest:
        return ""
    return f"measured {float(age):g} s ago, at most {float(oldest):g} s count"


def _rise(lately: Sequence[int], state: ScalingState, policy: ScalingPolicy, now: Fraction) -> _Verdict:
    desired = state.desired_replicas
    agreeing = sum(demand > desired for demand in lately)
    if agreeing < policy.scale_up_samples:
        why = f"{agreeing} of {policy.scale_up_samples} samples demand more than {desired}"
        return desired, ScalingReason.HOLD_UNCONFIRMED, why
    if state.last_scale_at_seconds is not None:
        elapsed = now - state.last_scale_at_seconds
        if elapsed < policy.scale_up_cooldown_seconds:
            why = (
                f"{float(elapsed):g} s since the last change, a rise needs {float(policy.scale_up_cooldown_seconds):g}"
            )
            return desired, ScalingReason.HOLD_COOLDOWN, why
    return lately[-1], ScalingReason.SCALE_UP, f"{desired} to {lately[-1]}"


def _fall(window: _Window, state: ScalingState, policy: ScalingPolicy, now: Fraction) -> _Verdict:
    desired = state.desired_replicas
    if state.observing_since_seconds is not None:
        observed = now - state.observing_since_seconds
        needed = policy.scale_down_stabilization_seconds
        if observed < needed:
            why = f"observing for {float(observed):g} s, a fall needs {float(needed):g} s"
            return desired, ScalingReason.HOLD_AFTER_RESTART, why
    if not window.complete or window.demand is None:
        return desired, ScalingReason.HOLD_STABILIZATION, window.why_not
    if window.demand >= desired:
        return desired, ScalingReason.HOLD_STABILIZATION, f"the window's highest demand is {window.demand}"
    return window.demand, ScalingReason.SCALE_DOWN, f"{desired} to the window's highest demand {window.demand}"


def _need(
    observation: Observation,
    policy: ScalingPolicy,
    *,
    rate_capacity: Fraction,
    queue_capacity: Fraction,
    passing_tokens: Fraction,
) -> _Need:
    unknown = []
    whole = observation.coverage
    if whole < policy.least_coverage:
        unknown.append(f"only {float(100 * whole):.0f} % of the sources answered")
        whole = Fraction(1)  # what was not seen cannot be extrapolated from so little; what was seen is a lower bound
    rate, queue = observation.arrival_tokens_per_second, observation.queued_tokens
    rate_replicas = queue_replicas = None
    if isinstance(rate, Unknown):
        unknown.append(f"arriving tokens ({rate.reason})")
    else:
        rate_replicas = _replicas(rate, whole, rate_capacity)
    if isinstance(queue, Unknown):
        unknown.append(f"queued tokens ({queue.reason})")
    else:
        queue_replicas = 0 if queue <= passing_tokens * whole else _replicas(queue, whole, queue_capacity)
    return _Need(rate_replicas, queue_replicas, not unknown, tuple(unknown))


def _replicas(tokens: Fraction, whole: Fraction, capacity: Fraction) -> int:
    """ceil(tokens / whole / capacity) in whole numbers: fractions in between would cost most of a decision."""
    over = tokens.numerator * whole.denominator * capacity.denominator
    return -(-over // (tokens.denominator * whole.numerator * capacity.numerator))


def _queue_limit(state: ScalingState, policy: ScalingPolicy, now: Fraction) -> int | None:
    """Queue replicas that may count while those asked for by the last rise are coming, or have not drained it yet."""
    if state.last_queue_replicas is None:
        return None
    coming = state.pending_replicas + state.warming_replicas > 0
    ready_at = state.last_ready_at_seconds
    draining = ready_at is not None and now - ready_at < policy.queue_drain_seconds
    return state.last_queue_replicas if coming or draining else None


def _window(history: Sequence[Observation], needs: Sequence[_Need], policy: ScalingPolicy, now: Fraction) -> _Window:
    start = now - policy.scale_down_stabilization_seconds
    inside = [(seen, need) for seen, need in zip(history, needs, strict=True) if start <= seen.at_seconds]
    demand = max((policy.clamp(need.raw()) for _, need in inside), default=None)
    before = [seen.at_seconds for seen in history if seen.at_seconds <= start]
    why_not = ""
    if not before:
        why_not = f"the history of {float(now - history[0].at_seconds):g} s does not fill the window yet"
    elif not inside:
        why_not = "the window holds no observation"
    elif any(not need.complete for _, need in inside):
        why_not = "something in the window is not known"
    elif policy.max_sample_gap_seconds is not None:
        times = [before[-1], *(seen.at_seconds for seen, _ in inside), now]
        gap = max(later - earlier for earlier, later in pairwise(times))
        if gap > policy.max_sample_gap_seconds:
            why_not = f"a hole of {float(gap):g} s in the window"
    return _Window(start, not why_not, demand, why_not)


def _demand_text(need: _Need, raw: int, policy: ScalingPolicy) -> str:
    rate = "?" if need.rate is None else need.rate
    queue = "?" if need.queue is None else need.queue
    counted = raw - (need.rate or 0)
    coming = f", {counted} counted" if need.queue is not None and counted != need.queue else ""
    return f"demand {raw} (rate {rate} + queue {queue}{coming}) within {policy.min_replicas} to {policy.max_replicas}"
