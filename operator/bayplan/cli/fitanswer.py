"""What `bayplan fit` answers: the layout that was chosen or checked, its memory, and what would fit instead."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from bayplan.cli.fitquestion import FitQuestion
from bayplan.planning.layout.alternatives import Alternatives, Boundary, alternatives, boundaries
from bayplan.planning.layout.declared import declared_problem, no_layout_text
from bayplan.planning.layout.search import Question, Ranking, Weighed, candidates, search
from bayplan.planning.memory.gpucatalogue import Gpu, gpu_catalogue
from bayplan.planning.memory.otherengines import CacheBand, sglang_cache, tensorrt_llm_cache
from bayplan.planning.memory.replica import ReplicaMemory
from bayplan.planning.memory.support import unsupported_text
from bayplan.planning.numbers import GIB


class Verdict(StrEnum):
    """The answer in a word."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FitAnswer:
    """The answer on one GPU product. Without a `best` layout, `problem` says which rule refuses it."""

    question: FitQuestion
    problem: str = ""
    best: Weighed | None = None
    """The chosen layout; the closest one where nothing fits."""
    ranking: Ranking | None = None

    @property
    def fits(self) -> bool:
        """Whether the asked load fits; an unknown answer is none."""
        return self.verdict is Verdict.FITS

    @property
    def verdict(self) -> Verdict:
        """By vLLM's exact plan, or by the band of an engine that divides the GPU in another way."""
        memory = None if self.best is None else self.best.memory
        if memory is None:
            return Verdict.DOES_NOT_FIT
        if self.band is None or self.exact is None:
            return Verdict.FITS if memory.fits else Verdict.DOES_NOT_FIT
        needed = self.needed_cache_gib
        if needed > self.band.most_gib:
            return Verdict.DOES_NOT_FIT
        return Verdict.FITS if needed <= self.band.least_gib else Verdict.UNKNOWN

    @property
    def needed_cache_gib(self) -> Fraction:
        """KV cache of the asked load on the tightest GPU."""
        if self.exact is None:
            return Fraction(0)
        return Fraction(self.exact.verdict.plan.needed_cache_bytes(self.exact.verdict.stage), GIB)

    @property
    def band(self) -> CacheBand | None:
        """What another engine than vLLM leaves for its cache on the tightest GPU."""
        budget, exact = self.question.budget, self.exact
        if exact is None or budget.engine == "vllm":
            return None
        stage = exact.verdict.stage
        if budget.engine == "sglang":
            return sglang_cache(self.question.gpu, weights_gib=stage.weights.gib, fraction=budget.fraction)
        return tensorrt_llm_cache(
            self.question.gpu, weights_gib=stage.weights.gib, activation_gib=stage.peak.gib, fraction=budget.fraction
        )

    @property
    def exact(self) -> ReplicaMemory | None:
        """The exact plan; None where only five numbers are known, or a rule refuses the layout."""
        memory = None if self.best is None else self.best.memory
        return memory if isinstance(memory, ReplicaMemory) else None

    @property
    def marginal(self) -> bool:
        """Within 3 % of the budget either way; a band says so itself."""
        return self.exact is not None and self.band is None and self.exact.verdict.marginal

    @property
    def instead(self) -> Alternatives | None:
        """What would fit instead; searched when it is asked for."""
        return None if self.exact is None else alternatives(self.exact.request)

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """The boundary in each direction; searched when it is asked for."""
        return () if self.exact is None else boundaries(self.exact.request)


def answer(question: FitQuestion) -> FitAnswer:
    """Check or choose the layout and plan its memory. Raises InvalidInput as the plan does."""
    if question.weights is not None:
        problem = unsupported_text(question.gpu, question.weights, question.flags)
        if problem:
            return FitAnswer(question, problem)
    problem = declared_problem(question.facts, question.site, question.wanted)
    if problem:
        return FitAnswer(question, problem)
    layouts = candidates(question.facts, question.site, question.wanted)
    if not layouts:
        return FitAnswer(question, no_layout_text(question.site, question.wanted))
    ranking = search(
        Question(
            facts=question.facts,
            memory_of=question.memory_of,
            gpu=question.gpu,
            step=question.step,
            stages_declared=question.wanted.pipeline is not None,
        ),
        layouts,
    )
    return FitAnswer(question, best=ranking.chosen or ranking.closest, ranking=ranking)


def compared(question: FitQuestion, *, gpus_per_node: int) -> Iterator[tuple[Gpu, FitAnswer]]:
    """The same model and load on every GPU of the catalogue, one node of each."""
    for gpu in gpu_catalogue():
        yield gpu, answer(question.on(gpu, gpus_per_node))
