"""What the engine takes beside weights and cache: the peak of one step, memory outside PyTorch, CUDA graphs.

The peak is the larger of the forward pass and the sampler, which do not overlap. Formulas and constants are those of
published tables (llm-d-planner's empirical results for vLLM 0.11 and its issue 205 for 0.17 to 0.19) and of the V0 logs
in vllm#10517; none is fitted to a single run.
"""

from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.memory.architecture import FeedForward, ModelArchitecture
from bayplan.planning.memory.enginerules import VllmRules
from bayplan.planning.memory.gpucatalogue import Gpu, Link
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.memory.terms import PlanTerm, Source
from bayplan.planning.numbers import GIB

FORWARD_PEAK = "forward peak"
SAMPLER_PEAK = "sampler peak"
NON_TORCH = "non-torch"
CUDA_GRAPHS = "CUDA graphs"
ADAPTERS = "adapters"

ACTIVATION_BYTES = 2
PIPELINE_STAGE_GIB = Fraction(7, 100)
"""Non-torch memory of a pipeline rank without a tensor group: 0.07 in both tables."""
NON_TORCH_GROUP = 4
ROCM_NON_TORCH_GIB = Fraction(1, 2)
"""ROCm outside PyTorch: what remains of 0.8 to 1.2 GiB after the peaks, whatever the tensor width [kyuz0 logs]."""
ROCM_BAND_GIB = Fraction(3)
"""Until the attention backend is known: the default one takes up to 2.5 GiB more than ROCM_ATTN."""
GRAPH_PIECE_MIB = Fraction(2, 5)
"""A captured piece of one layer at one batch size: median of start logs of single NVIDIA GPUs, vLLM 0.12."""
GRAPH_BAND_GIB = Fraction(1, 2)
SPARSE_GRAPH_GIB, SPARSE_GRAPH_MIB = Fraction(36, 10), Fraction(65)
"""Sparse MLA keeps work space in its graphs. From GLM-5.1 on one machine of 8 GPUs: 4.8 GiB with 64 sequences (four
logs, 19 captured sizes) and up to 6.8 GiB with prediction layers, taken as 51 sizes. One source: a wide band."""
MAX_GRAPH_TOKENS, FINE_GRAPH_TOKENS = 512, 256


@dataclass(frozen=True, slots=True)
class StepSize:
    """What one engine step may hold."""

    batched_tokens: int
    sequences: int
    speculative_tokens: int = 0


def forward_peak(model: ModelArchitecture, step: StepSize, ranks: ParallelLayout) -> PlanTerm:
    """Activations of one full batch: tokens × (3 × hidden + 3 × inner width / tensor) × 2 bytes.

    A mixture of experts counts experts per token × the expert's width, and one hidden vector per visited expert. Llama
    3.1 8B took 110.6 kB a token in vllm#10517, the formula gives 110,592.
    """
    hidden = Fraction(model.hidden_size)
    widths = [Fraction(0)]
    blocks = {layer.feed_forward for layer in model.layers}
    if FeedForward.DENSE in blocks:
        widths.append(3 * Fraction(model.intermediate_size or 0, ranks.tensor))
    if FeedForward.EXPERTS in blocks and model.experts is not None:
        experts = model.experts
        inner = 3 * experts.per_token * Fraction(experts.intermediate_size, ranks.tensor)
        widths.append(inner + experts.per_token * hidden)
    per_token = (3 * hidden + max(widths)) * ACTIVATION_BYTES
    return PlanTerm(
        FORWARD_PEAK,
        step.batched_tokens * per_token,
        Source.ESTIMATED,
        "batched tokens × (3 × hidden + 3 × inner width / tensor) × 2 bytes",
        (("batched tokens", str(step.batched_tokens)), ("bytes per token", f"{float(per_token):g}")),
    )


def sampler_peak(model: ModelArchitecture, step: StepSize, rules: VllmRules) -> PlanTerm:
    """Logits of all sequences and the sampler's copies of them; not divided by the tensor width."""
    sequences = min(step.sequences, step.batched_tokens)
    return PlanTerm(
        SAMPLER_PEAK,
        sequences * model.vocab_size * rules.sampler_bytes,
        Source.ESTIMATED,
        "sequences × vocabulary × bytes per entry",
        (
            ("sequences", str(sequences)),
            ("vocabulary", str(model.vocab_size)),
            ("bytes per entry", f"{float(rules.sampler_bytes):g}"),
        ),
    )


def non_torch(rules: VllmRules, gpu: Gpu, ranks: ParallelLayout, *, attention_backend: str = "") -> PlanTerm:
    """Driver context, communication buffers and libraries: memory that PyTorch does not see.

    A tensor group over NVLink takes more from 0.18 on (2.06 to 2.17 GiB on H100); on boards without NVLink the older
    figure stands, once per group of four ranks (GLM-5.1 on 8 boards; vllm#51590 overshot by as much).
    """
    if gpu.vendor == "amd":
        default = attention_backend.upper() != "ROCM_ATTN"
        gib = ROCM_NON_TORCH_GIB + (gpu.default_backend_gib if default else 0)
        return PlanTerm(
            NON_TORCH,
            gib * GIB,
            Source.ESTIMATED,
            "ROCm, with the default attention backend" if default else "ROCm with ROCM_ATTN",
            band_bytes=ROCM_BAND_GIB * GIB if default else Fraction(GIB),
        )
    gib, words = rules.non_torch_gib, "one GPU"
    if ranks.tensor > 1 and gpu.link is Link.NVLINK:
        gib, words = rules.non_torch_nvlink_gib, "tensor group over NVLink"
    elif ranks.tensor > 1:
        gib = rules.non_torch_group_gib * (
            1 if ranks.tensor <= NON_TORCH_GROUP else Fraction(ranks.tensor, NON_TORCH_GROUP)
        )
        words = "tensor group without NVLink"
    elif ranks.pipeline > 1:
        gib, words = PIPELINE_STAGE_GIB, "pipeline stage"
    return PlanTerm(NON_TORCH, gib * GIB, Source.ESTIMATED, words, (("tensor", str(ranks.tensor)),))


def captured_sizes(step: StepSize) -> int:
    """Number of batch sizes for which graphs are captured, up to twice what one decode step holds and at most 512.

    1, 2, 4, then each multiple of 8 below 256, then of 16 [vLLM `config/vllm.py`, cudagraph_capture_sizes].
    """
    largest = min(MAX_GRAPH_TOKENS, 2 * step.sequences * (1 + step.speculative_tokens))
    small = [1, 2, 4, *range(8, FINE_GRAPH_TOKENS, 8), *range(FINE_GRAPH_TOKENS, MAX_GRAPH_TOKENS + 1, 16)]
    return sum(size <= largest for size in small)


def cuda_graphs(model: ModelArchitecture, step: StepSize, *, layers: int, enforce_eager: bool) -> PlanTerm:
    """CUDA graphs of one stage of `layers` layers: captured sizes × (layers + 1) × memory of one piece.

    A rough figure: what kernels keep in a graph differs by backend. Sparse MLA has a figure of its own.
    """
    if enforce_eager:
        return PlanTerm(CUDA_GRAPHS, Fraction(0), Source.DERIVED, "eager mode captures none")
    sizes = captured_sizes(step)
    inputs = (("captured sizes", str(sizes)), ("layers", str(layers)))
    if model.indexer is not None:
        total = SPARSE_GRAPH_GIB * GIB + sizes * SPARSE_GRAPH_MIB * 2**20
        formula = "work space of sparse MLA + captured sizes × memory of one"
    else:
        total = sizes * (layers + 1) * GRAPH_PIECE_MIB * 2**20
        formula = "captured sizes × (layers + 1) × memory of a piece"
    return PlanTerm(
        CUDA_GRAPHS, total, Source.ESTIMATED, formula, inputs, band_bytes=max(total / 2, GRAPH_BAND_GIB * GIB)
    )
