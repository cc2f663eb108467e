"""One spec on the GPUs of one product, read once: what the decision and its refusals look at."""

from dataclasses import dataclass

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.provenance import Provenance
from bayplan.planning.layout.knownmodel import KnownModel
from bayplan.planning.layout.links import StepFacts, step_facts
from bayplan.planning.layout.memorytext import split_memory
from bayplan.planning.layout.modelnumbers import CountedModel, ModelNumbers, UnknownModel, counted_step, read_model
from bayplan.planning.layout.pools import GpuPool
from bayplan.planning.layout.records import RecordedLayout
from bayplan.planning.layout.rules import RuleFacts
from bayplan.planning.layout.search import Question, Site, Wanted
from bayplan.planning.layout.split import Layout, Split
from bayplan.planning.memory.replica import SplitMemory
from bayplan.planning.placement.inventory import Sharing

UNBOUNDED = RuleFacts(layers=64)
"""Of a model of which nothing is known: the engine's rules are left to the engine."""


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    """The layout for one GPU product, or why there is none.

    `reason` is Fits, OverriddenByPolicy, UnknownGPUMemory or UnknownArchitecture with a layout, InsufficientMemory,
    UnsupportedOnHardware or NoLayout without.
    """

    pool: GpuPool
    reason: Reason
    message: str
    layout: Layout | None = None
    memory: SplitMemory | None = None
    """Memory of `layout`, or of the closest one when nothing fits; None when a rule failed before memory mattered."""
    provenance: Provenance = Provenance.DERIVED
    why: str = ""
    """Why this layout and not the next best."""
    runner_up: Layout | None = None
    lost: str = ""
    """Why the runner-up lost."""
    exchanges: tuple[str, ...] = ()
    """What the ranks exchange per step, over which link."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One spec on one pool."""

    spec: InferenceModelSpec
    pool: GpuPool
    model: ModelNumbers
    facts: RuleFacts
    site: Site
    wanted: Wanted
    recorded: RecordedLayout | None

    def memory(self, split: Split) -> SplitMemory | None:
        """The memory of the spec under `split`, by the revision's own evidence where that is about this split."""
        recorded = self.recorded
        return split_memory(
            self.spec,
            self.model,
            gpu=self.pool.gpu,
            gpu_memory_gib=self.pool.gpu_memory_gib,
            split=split,
            measured_blocks=recorded.blocks if recorded is not None and recorded.split.sizes == split.sizes else None,
        )

    def question(self) -> Question:
        """What the search needs."""
        return Question(
            facts=self.facts,
            memory_of=self.memory,
            gpu=self.pool.gpu if self.pool.links_known else None,
            step=_step(self.spec, self.model),
            stages_declared=self.wanted.pipeline is not None,
        )


def ask(spec: InferenceModelSpec, pool: GpuPool, recorded: RecordedLayout | None) -> Asked:
    """Read the spec. Raises InvalidInput for numbers that contradict each other."""
    model = read_model(spec)
    return Asked(
        spec=spec,
        pool=pool,
        model=model,
        facts=UNBOUNDED if isinstance(model, UnknownModel) else model.facts,
        site=Site(pool.node_sizes, gpu=str(pool), single="" if pool.sharing is Sharing.NONE else pool.sharing.value),
        wanted=wanted_of(spec),
        recorded=recorded,
    )


def _step(spec: InferenceModelSpec, model: ModelNumbers) -> StepFacts | None:
    """What a decode step of the asked load moves."""
    if isinstance(model, KnownModel):
        return step_facts(model.architecture, sequences=spec.concurrency)
    return counted_step(model, sequences=spec.concurrency) if isinstance(model, CountedModel) else None


def wanted_of(spec: InferenceModelSpec) -> Wanted:
    """What the spec declares of a layout."""
    declared = spec.parallelism
    return Wanted(
        tensor=declared.tensor,
        pipeline=declared.pipeline,
        data=declared.data,
        expert=declared.expert,
        decode_context=declared.decode_context,
    )
