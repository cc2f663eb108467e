"""The exact plan of one replica: terms per pipeline stage, the cache that remains, and how it is paged."""

from dataclasses import dataclass, replace
from fractions import Fraction

from bayplan.planning.memory.adapters import adapter_bytes
from bayplan.planning.memory.cachelayers import cache_layers
from bayplan.planning.memory.enginerules import NEWEST_KNOWN, VllmRules, batch_defaults, vllm_rules
from bayplan.planning.memory.formats import MXFP4_EXPERTS, WeightFormat, mxfp4_padding
from bayplan.planning.memory.overheads import (
    ADAPTERS,
    CUDA_GRAPHS,
    NON_TORCH,
    StepSize,
    cuda_graphs,
    forward_peak,
    non_torch,
    sampler_peak,
)
from bayplan.planning.memory.packedpages import packed_layout
from bayplan.planning.memory.pages import PageLayout, PageRules, page_layout
from bayplan.planning.memory.request import PlanRequest
from bayplan.planning.memory.terms import KV_CACHE, OVERHEAD, PlanTerm, Source
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.memory.weights import stage_weights
from bayplan.planning.numbers import GIB

DRAFT_WEIGHTS = "draft weights"
CORRECTION = "measured difference"
"""What an engine's own report differs by from the sum of the terms."""
DEFAULT_BLOCK_TOKENS = 16
LATENT_BLOCK_TOKENS = 64
"""Block of the MLA kernels on GPUs from 9.0 on; sparse MLA takes it everywhere [vLLM `platforms/cuda.py`]."""
LATENT_BLOCK_TOKENS_10 = 128


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One GPU of a pipeline stage. Bytes are exact."""

    index: int
    layers: range
    weights: PlanTerm
    forward: PlanTerm
    sampler: PlanTerm | None
    """On the last stage only."""
    non_torch: PlanTerm
    graphs: PlanTerm
    extras: tuple[PlanTerm, ...]
    """Draft weights, adapter slots, and the difference to a measurement."""
    budget_bytes: Fraction
    total_bytes: Fraction
    graphs_in_budget: bool
    stated_cache_bytes: int | None = None
    """`--kv-cache-memory-bytes`: the cache is stated, and the budget is all of the GPU."""

    @property
    def peak(self) -> PlanTerm:
        """The larger of forward and sampler: the one that binds."""
        if self.sampler is None or self.forward.bytes_per_gpu >= self.sampler.bytes_per_gpu:
            return self.forward
        return self.sampler

    @property
    def terms(self) -> tuple[PlanTerm, ...]:
        """Everything that leaves the budget before the cache, in the order of a start-up."""
        counted = (self.weights, *self.extras, self.peak, self.non_torch)
        return (*counted, self.graphs) if self.graphs_in_budget else counted

    @property
    def used_bytes(self) -> Fraction:
        """Sum of the terms."""
        return sum((term.bytes_per_gpu for term in self.terms), start=Fraction(0))

    @property
    def cache_bytes(self) -> Fraction:
        """What is left for the cache; negative when nothing is."""
        if self.stated_cache_bytes is not None:
            return Fraction(self.stated_cache_bytes)
        return self.budget_bytes - self.used_bytes

    @property
    def uncounted_bytes(self) -> Fraction:
        """Taken from outside the budget, as far as the engine's version leaves it there."""
        return Fraction(0) if self.graphs_in_budget else self.graphs.bytes_per_gpu

    @property
    def outside_bytes(self) -> Fraction:
        """Memory beyond the budget."""
        return self.total_bytes - self.budget_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The answer of `plan_memory`."""

    request: PlanRequest
    rules: VllmRules
    step: StepSize
    utilization: Fraction
    length: int
    pages: PageLayout
    stages: tuple[StagePlan, ...]
    remarks: tuple[str, ...]
    """What was assumed because it was not stated."""

    @property
    def binding_stage(self) -> StagePlan:
        """The stage whose pool holds the fewest blocks."""
        sizes = self.pages.block_bytes
        return min(self.stages, key=lambda stage: stage.cache_bytes / (sizes[stage.index] or 1))

    @property
    def blocks(self) -> int:
        """Blocks of the pool, the same on every stage."""
        return self.pages.blocks_in([stage.cache_bytes for stage in self.stages])

    @property
    def cache_tokens(self) -> int:
        """What the engine will print as its cache size in tokens."""
        return self.pages.reported_tokens(self.blocks, self.length)

    @property
    def concurrency(self) -> Fraction:
        """Requests of full length that one rank's cache holds, as the engine prints it."""
        return self.pages.concurrency(self.blocks, self.length)

    @property
    def max_concurrency(self) -> int:
        """Whole requests of full length that one replica holds: every attention rank has its own cache."""
        per_rank = self.pages.usable_blocks(self.blocks) // self.pages.blocks_for(self.length)
        return per_rank * self.request.ranks.data

    @property
    def needed_blocks(self) -> int:
        """Blocks that the asked load takes on the busiest rank."""
        per_rank = -(-self.request.concurrency // self.request.ranks.data)
        return per_rank * self.pages.blocks_for(self.length) + (1 if self.rules.null_block else 0)

    def needed_cache_bytes(self, stage: StagePlan) -> int:
        """Cache of the asked load on a stage."""
        return self.needed_blocks * self.pages.block_bytes[stage.index]

    def headroom_bytes(self, stage: StagePlan) -> Fraction:
        """What the asked load leaves on a stage; negative is the shortfall."""
        if stage.stated_cache_bytes is not None:
            over = stage.budget_bytes - stage.used_bytes - stage.stated_cache_bytes
            return min(over, stage.cache_bytes - self.needed_cache_bytes(stage))
        return stage.cache_bytes - self.needed_cache_bytes(stage)

    def cache_term(self, stage: StagePlan) -> PlanTerm:
        """The asked load as a term."""
        return PlanTerm(
            KV_CACHE,
            Fraction(self.needed_cache_bytes(stage)),
            Source.DERIVED,
            "blocks × bytes of a block",
            (
                ("requests", str(self.request.concurrency)),
                ("tokens", str(self.length)),
                ("groups", str(len(self.pages.groups))),
                ("block tokens", str(self.pages.smallest_block_tokens)),
                ("block bytes", str(self.pages.block_bytes[stage.index])),
            ),
        )


COMPRESSED_BLOCK_TOKENS = 256
"""The only block that DeepSeek-V4's backends take, whatever the flag says [vLLM `sparse_mla.py`]."""


def _block_tokens(request: PlanRequest) -> int:
    model, capability = request.model, request.gpu.compute_capability
    if model.compressed is not None:
        return COMPRESSED_BLOCK_TOKENS
    if request.flags.block_size is not None:
        return request.flags.block_size
    if not model.is_latent:
        return DEFAULT_BLOCK_TOKENS
    if model.indexer is None and capability is not None and capability[0] in {10, 11}:
        return LATENT_BLOCK_TOKENS_10
    if model.indexer is None and (capability is None or capability < (9, 0) or capability[0] >= 12):
        return DEFAULT_BLOCK_TOKENS
    return LATENT_BLOCK_TOKENS


def _in_flight_batches(request: PlanRequest, rules: VllmRules) -> int:
    """Batches whose tokens a window must hold [`max_concurrent_batches`]; asynchronous scheduling is on by default."""
    if not rules.in_flight_batches:
        return 1
    pipeline = request.ranks.pipeline
    return pipeline if pipeline > 1 or request.flags.async_scheduling is False else 2


def page_rules(request: PlanRequest, rules: VllmRules, step: StepSize) -> PageRules:
    """The paging rules of this deployment."""
    flags, model = request.flags, request.model
    caching = rules.state_checkpoints if flags.enable_prefix_caching is None else flags.enable_prefix_caching
    return PageRules(
        block_tokens=max(
            _block_tokens(request), rules.latent_hybrid_block if model.is_latent and model.has_states else 0
        ),
        groups_by_kind=rules.groups_by_kind,
        chunked_by_kind=rules.chunked_by_kind,
        padding_ratio=rules.padding_ratio,
        in_flight_tokens=_in_flight_batches(request, rules) * step.batched_tokens,
        extra_state_blocks=int(caching) + flags.speculative_tokens,
        mamba_checkpoint_blocks=int(caching and rules.mamba_checkpoints),
        decode_context=request.ranks.decode_context,
        tokens_by_concurrency=rules.tokens_by_concurrency,
        packed_block=rules.packed_block,
        null_block=rules.null_block,
    )


def step_size(request: PlanRequest, rules: VllmRules) -> tuple[StepSize, tuple[str, ...]]:
    """Batched tokens and sequences of one step, and what was assumed."""
    flags = request.flags
    defaults = batch_defaults(
        rules, gpu_name=request.gpu.name, gpu_gib=request.gpu.visible_gib, max_model_len=request.max_model_len
    )
    tokens = flags.max_num_batched_tokens or defaults.batched_tokens
    sequences = flags.max_num_seqs or min(defaults.sequences, tokens)
    remarks = []
    if flags.max_num_batched_tokens is None:
        remarks.append(f"--max-num-batched-tokens {tokens} by default: {defaults.reason}")
    if flags.max_num_seqs is None:
        remarks.append(f"--max-num-seqs {sequences} by default: {defaults.reason}")
    return StepSize(tokens, sequences, flags.speculative_tokens), tuple(remarks)


def layout_of_pages(request: PlanRequest, rules: VllmRules, step: StepSize) -> PageLayout:
    """The page layout alone: exact arithmetic over the model, the layout and the engine's rules."""
    layers = cache_layers(
        request.model,
        request.ranks,
        kv_cache_dtype=request.flags.kv_cache_dtype,
        states=request.flags.states,
        speculative_tokens=request.flags.speculative_tokens,
        draft=request.draft_cache,
        own_token_beside_window=rules.own_token_beside_window,
    )
    paged = packed_layout if any(layer.spec.page for layer in layers) else page_layout
    return paged(layers, page_rules(request, rules, step), stages=request.ranks.pipeline)


def plan_memory(request: PlanRequest) -> MemoryPlan:
    """Work out every term of `request` on every stage, and the cache that they leave.

    Raises InvalidInput for a request that no plan can be made of, UnknownArchitecture for a model without the fields
    that it needs.
    """
    flags, model, ranks, gpu = request.flags, request.model, request.ranks, request.gpu
    rules = vllm_rules(flags.version)
    step, remarks = step_size(request, rules)
    utilization = flags.gpu_memory_utilization or rules.default_utilization
    if flags.gpu_memory_utilization is None:
        remarks = (*remarks, f"--gpu-memory-utilization {float(utilization):g} by default")
    remarks = (*remarks, *_length_remarks(request), *_version_remarks(flags.version))
    total = gpu.visible_gib * GIB
    budget = total if flags.kv_cache_memory_bytes is not None else total * utilization
    padding = None
    if isinstance(request.weights, WeightFormat) and request.weights.name in MXFP4_EXPERTS:
        padding = mxfp4_padding(vendor=gpu.vendor, compute_capability=gpu.compute_capability)
    weights = stage_weights(model, request.weights, ranks, padding=padding, draft_layers=flags.speculative_tokens > 0)
    spans = ranks.stages(len(model.layers))
    pages = layout_of_pages(request, rules, step)
    sampler = sampler_peak(model, step, rules)
    forward = forward_peak(model, step, ranks)
    outside = non_torch(rules, gpu, ranks, attention_backend=flags.attention_backend)
    if request.overhead_gib is not None:
        forward = PlanTerm(OVERHEAD, request.overhead_gib * GIB, Source.DECLARED, "declared for all but weights and KV")
        sampler, outside = replace(sampler, bytes_per_gpu=Fraction(0)), PlanTerm(NON_TORCH, Fraction(0), Source.DERIVED)
    last = len(spans) - 1
    stages = tuple(
        StagePlan(
            index=index,
            layers=span,
            weights=weights[index],
            forward=forward,
            sampler=sampler if index == last else None,
            non_torch=outside,
            graphs=_graphs(request, step, layers=len(span)),
            extras=_extras(request, span, last=index == last),
            budget_bytes=budget,
            total_bytes=total,
            graphs_in_budget=rules.graphs_in_budget,
            stated_cache_bytes=flags.kv_cache_memory_bytes,
        )
        for index, span in enumerate(spans)
    )
    if request.measured_blocks is not None and flags.kv_cache_memory_bytes is None:
        stages = tuple(_corrected(stage, request.measured_blocks * pages.block_bytes[stage.index]) for stage in stages)
    return MemoryPlan(
        request=request,
        rules=rules,
        step=step,
        utilization=utilization,
        length=request.max_model_len,
        pages=pages,
        stages=stages,
        remarks=remarks,
    )


def _graphs(request: PlanRequest, step: StepSize, *, layers: int) -> PlanTerm:
    if request.overhead_gib is not None:
        return PlanTerm(CUDA_GRAPHS, Fraction(0), Source.DERIVED, "part of the declared overhead")
    return cuda_graphs(request.model, step, layers=layers, enforce_eager=request.flags.enforce_eager)


def _corrected(stage: StagePlan, cache_bytes: int) -> StagePlan:
    """The stage with a term that makes the others leave exactly the cache that an engine reported."""
    difference = PlanTerm(
        CORRECTION, stage.cache_bytes - cache_bytes, Source.MEASURED, "what the engine's own report differs by"
    )
    return replace(stage, extras=(*stage.extras, difference))


def _extras(request: PlanRequest, span: range, *, last: bool) -> tuple[PlanTerm, ...]:
    found = []
    if request.draft_weight_bytes and last:
        found.append(PlanTerm(DRAFT_WEIGHTS, Fraction(request.draft_weight_bytes), Source.DECLARED))
    slots = request.flags.adapters
    if slots is not None:
        found.append(
            PlanTerm(
                ADAPTERS,
                adapter_bytes(request.model, slots, request.ranks, span),
                Source.DERIVED,
                "slots × rank × (in + out) of each adapted matrix",
                (("slots", str(slots.max_loras)), ("rank", str(slots.max_lora_rank))),
            )
        )
    return tuple(found)


def _length_remarks(request: PlanRequest) -> tuple[str, ...]:
    """A length beyond the model's own: the engine refuses it at start [vLLM `_get_and_verify_max_len`]."""
    own = request.model.max_position_embeddings
    if own is None or request.max_model_len <= own:
        return ()
    return (
        f"--max-model-len {request.max_model_len} is above the model's own {own}: without a scaled rotary embedding in "
        "its config.json the engine refuses it unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
    )


def _version_remarks(version: EngineVersion | None) -> tuple[str, ...]:
    if version is None:
        return (f"engine version not stated: the rules of vLLM {NEWEST_KNOWN} are taken",)
    if version > NEWEST_KNOWN:
        return (f"vLLM {version} is newer than the newest known rules, those of {NEWEST_KNOWN}",)
    return ()
