"""Static against continuous batching: when each request is served, with everything but membership held constant.

Source: the founding chapter's lesson 3. Every active request emits one token per step. Static batching fills an empty
batch and runs it to its longest member; continuous batching fills any free lane before each step. Arrivals wait first
come, first served, ordered by (arrival, id).
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bayplan.planning.numbers import InvalidInput, count, named


class BatchingMode(StrEnum):
    """When membership of the batch may change."""

    STATIC = "static"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request in steps and tokens. Raises InvalidInput that names the field."""

    id: str
    arrival_step: int
    output_tokens: int

    def __post_init__(self) -> None:
        named(self.id, "id")
        object.__setattr__(self, "arrival_step", count(self.arrival_step, "arrival_step", least=0))
        object.__setattr__(self, "output_tokens", count(self.output_tokens, "output_tokens"))


@dataclass(frozen=True, slots=True)
class Completion:
    """First step in which a request was served, and the step after its last."""

    first_service_step: int
    completion_step: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The observed schedule. The makespan is a duration: last completion − first arrival."""

    completions: Mapping[str, Completion]
    makespan_steps: int
    total_wait_steps: int


def schedule(requests: Sequence[BatchRequest], *, lanes: int, mode: BatchingMode) -> Schedule:
    """Run the requests on so many lanes. Raises InvalidInput for no lane, no request, or an id given twice."""
    count(lanes, "lanes")
    if not requests:
        raise InvalidInput("requests", "must not be empty")
    again = [name for name, times in Counter(request.id for request in requests).items() if times > 1]
    if again:
        raise InvalidInput("ids", f"must differ; given more than once: {', '.join(again)}")
    ordered = sorted(requests, key=lambda request: (request.arrival_step, request.id))
    run = _static if mode is BatchingMode.STATIC else _continuous
    starts = run(ordered, lanes)
    completions = {
        request.id: Completion(start, start + request.output_tokens)
        for request, start in zip(ordered, starts, strict=True)
    }
    return Schedule(
        completions=completions,
        makespan_steps=max(done.completion_step for done in completions.values()) - ordered[0].arrival_step,
        total_wait_steps=sum(start - request.arrival_step for request, start in zip(ordered, starts, strict=True)),
    )


def _continuous(ordered: Sequence[BatchRequest], lanes: int) -> list[int]:
    free_at = [0] * lanes
    starts = []
    for request in ordered:
        start = max(request.arrival_step, heapq.heappop(free_at))
        heapq.heappush(free_at, start + request.output_tokens)
        starts.append(start)
    return starts


def _static(ordered: Sequence[BatchRequest], lanes: int) -> list[int]:
    starts: list[int] = []
    step = 0
    while len(starts) < len(ordered):
        waiting = ordered[len(starts) : len(starts) + lanes]
        step = max(step, waiting[0].arrival_step)
        batch = [request for request in waiting if request.arrival_step <= step]
        starts += [step] * len(batch)
        step += max(request.output_tokens for request in batch)
    return starts
