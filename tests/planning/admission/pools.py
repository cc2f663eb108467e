"""Small pools to decide in: one block is one token unless a test says otherwise, and time stands in whole seconds."""

from collections.abc import Iterable
from typing import Any

from bayplan.planning.admission.core import AdmissionCore
from bayplan.planning.admission.forecast import Forecast
from bayplan.planning.admission.records import (
    NANOSECONDS,
    AdmissionPolicy,
    AdmissionRequest,
    Admitted,
    Decided,
    Decision,
    End,
    Queued,
    Readings,
    Released,
    Resources,
    Settled,
)
from bayplan.planning.admission.sheds import Shed, ShedCode


def seconds(number: float) -> int:
    return round(number * NANOSECONDS)


def ask(tokens: int, *, tenant: str = "a", output: int = 0, **fields: Any) -> AdmissionRequest:
    """A request of so many tokens in all, `output` of them output."""
    return AdmissionRequest(
        tenant=tenant, prompt_tokens=tokens - output, max_output_tokens=output, **{"payload_digest": "body", **fields}
    )


def policy(**fields: Any) -> AdmissionPolicy:
    return AdmissionPolicy(
        **{"block_size": 1, "max_tokens_per_request": 1000, "max_queued_requests": 100, "max_wait_seconds": 3600}
        | fields
    )


class Pool:
    """A core with a clock that stands still unless told, and short words for what tests do."""

    def __init__(
        self,
        *budgets: int,
        sequences: int = 1000,
        forecast: Forecast | None = None,
        **fields: Any,
    ) -> None:
        self.core = AdmissionCore(policy(**fields), forecast)
        self.now = seconds(1000)
        for number, budget in enumerate(budgets):
            self.replica(f"r{number}", budget, sequences=sequences)

    def replica(self, uid: str, blocks: int, *, sequences: int = 1000, **fields: Any) -> tuple[Settled, ...]:
        capacity = Resources(blocks, sequences)
        return self.core.set_replica(uid, capacity=capacity, now_ns=self.now, **fields).settled

    def decide(self, request: AdmissionRequest) -> Decided:
        return self.core.decide(request, self.now)

    def ask(self, tokens: int, **fields: Any) -> Decision:
        return self.decide(ask(tokens, **fields)).decision

    def admit(self, tokens: int, **fields: Any) -> Admitted:
        decision = self.ask(tokens, **fields)
        assert isinstance(decision, Admitted), decision
        return decision

    def queue(self, tokens: int, **fields: Any) -> Queued:
        decision = self.ask(tokens, **fields)
        assert isinstance(decision, Queued), decision
        return decision

    def shed(self, tokens: int, **fields: Any) -> Shed:
        decision = self.ask(tokens, **fields)
        assert isinstance(decision, Shed), decision
        return decision

    def release(self, ticket: int, *, end: End = End.COMPLETED, output_tokens: int | None = None) -> Released:
        return self.core.release(ticket, self.now, end=end, output_tokens=output_tokens)

    def later(self, number: float) -> None:
        self.now += seconds(number)

    @property
    def readings(self) -> Readings:
        return self.core.readings()


def tickets(settled: Iterable[Settled]) -> list[int]:
    return [one.ticket for one in settled]


def admitted(settled: Iterable[Settled]) -> list[int]:
    return [one.ticket for one in settled if isinstance(one.decision, Admitted)]


def codes(settled: Iterable[Settled]) -> list[ShedCode]:
    return [one.decision.code for one in settled if isinstance(one.decision, Shed)]


def serve_once(pool: Pool, *, tokens: int = 10, output: int = 5, held_seconds: float = 1.0) -> None:
    """Let the pool observe one completed request, so that it can predict."""
    hold = pool.admit(tokens, output=output, tenant="probe")
    pool.later(held_seconds / 2)
    pool.core.first_token(hold.ticket, pool.now)
    pool.later(held_seconds / 2)
    pool.release(hold.ticket, output_tokens=output)
