"""The exact plan of a replica in the words that layout, placement and status share: a fit with its terms in GiB."""

from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.memory.overheads import FORWARD_PEAK, SAMPLER_PEAK
from bayplan.planning.memory.proportional import MemoryDecision
from bayplan.planning.memory.request import PlanRequest
from bayplan.planning.memory.terms import Fit, Term
from bayplan.planning.memory.verdict import MemoryVerdict, decide_fit
from bayplan.planning.numbers import GIB

ACTIVATION = "activation"
"""The peak of one step, whichever of its two parts binds."""


@dataclass(frozen=True, slots=True)
class ReplicaMemory(Fit):
    """The GPU with the least headroom of a replica, and what the replica holds."""

    verdict: MemoryVerdict

    @property
    def fits(self) -> bool:
        """The exact verdict."""
        return self.verdict.fits

    @property
    def headroom_gib(self) -> Fraction:
        """What the asked load leaves; negative is the shortfall."""
        return self.verdict.headroom_bytes / GIB

    @property
    def request(self) -> PlanRequest:
        """What was asked."""
        return self.verdict.plan.request

    @property
    def concurrency(self) -> int:
        """Requests of full length that are asked for."""
        return self.request.concurrency

    @property
    def length(self) -> int:
        """Tokens of a request of full length."""
        return self.verdict.plan.length

    @property
    def max_concurrency(self) -> int:
        """Whole requests of full length that the replica holds."""
        return self.verdict.plan.max_concurrency

    @property
    def kv_tokens(self) -> int:
        """Tokens that the replica's cache holds, as its engine counts them on each data rank."""
        plan = self.verdict.plan
        return plan.cache_tokens * plan.request.ranks.data

    @property
    def least_gpu_gib(self) -> Fraction:
        """Memory that a GPU must show for the verdict to hold."""
        plan = self.verdict.plan
        share = Fraction(1) if plan.request.flags.kv_cache_memory_bytes is not None else plan.utilization
        return self.required_gib / share

    @property
    def stage_bytes(self) -> list[Fraction]:
        """What one decode step of the asked load reads on a GPU of each stage."""
        plan = self.verdict.plan
        needed, sizes = plan.needed_blocks, plan.pages.block_bytes
        return [stage.weights.bytes_per_gpu + needed * sizes[stage.index] for stage in plan.stages]


def replica_memory(request: PlanRequest) -> ReplicaMemory:
    """Plan `request` and judge it. Raises InvalidInput and UnknownArchitecture as `plan_memory` does."""
    verdict = decide_fit(request)
    plan, stage = verdict.plan, verdict.stage
    terms = [*stage.terms, plan.cache_term(stage)]
    shown = tuple(term.as_term() for term in terms if term.bytes_per_gpu)
    return ReplicaMemory(terms=shown, usable_gib=stage.budget_bytes / GIB, verdict=verdict)


SplitMemory = ReplicaMemory | MemoryDecision
"""The exact plan where the architecture is known, the founding text's formula where five numbers are."""


def short_name(term: Term) -> str:
    """A term's name in one line of text."""
    return {FORWARD_PEAK: ACTIVATION, SAMPLER_PEAK: ACTIVATION, "KV cache": "KV", "CUDA graphs": "graphs"}.get(
        term.name, term.name
    )
