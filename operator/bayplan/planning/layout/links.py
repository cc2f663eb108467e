"""What the ranks of a replica say to each other in one decode step, over which link, and how long it takes.

A rough price, for comparing layouts of equal size: bytes over the link's bandwidth plus a fixed time per collective.
It tells a tensor group over PCIe from one over NVLink, and a stage on the next node from one on the same.
"""

from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.layout.split import Layout
from bayplan.planning.memory.architecture import FeedForward, ModelArchitecture
from bayplan.planning.memory.gpucatalogue import Gpu, Link

COLLECTIVE_SECONDS = Fraction(29, 10**6)
"""Fixed time of one collective: fitted on 1,074 vLLM measurements of six models on H100, H200, B200 and B300
(aiconfigurator-core 0.12.0's tables)."""
BANDWIDTH_SHARE = Fraction(77, 100)
"""Share of the memory bandwidth that decoding reaches, from the same fit."""
NETWORK_GB_S = Fraction(25, 2)
"""Between nodes, where nobody states it: 100 Gbit/s. An assumption, and named as one."""
PCIE_GB_S = Fraction(32)
"""Between GPUs of a node outside the fast domain: PCIe 4 × 16."""
ACTIVATION_BYTES = 2
CUSTOM_ALL_REDUCE = frozenset({2, 4, 6, 8})
"""Group sizes of vLLM's own all-reduce; others fall back to NCCL [rtx6kpro kimi-k26]."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What one decode step moves. Widths in elements."""

    hidden_size: int
    layers: int
    expert_layers: int
    attention_width: int
    """Elements of all query heads of a token."""
    sequences: int
    """Sequences in the step, over the whole replica."""


def step_facts(model: ModelArchitecture, *, sequences: int) -> StepFacts:
    """What a decode step of `sequences` moves in this architecture."""
    experts = [layer for layer in model.layers if layer.feed_forward is FeedForward.EXPERTS]
    shape = model.attention
    return StepFacts(
        hidden_size=model.hidden_size,
        layers=len(model.layers),
        expert_layers=len(experts),
        attention_width=0 if shape is None else shape.heads * shape.head_dim,
        sequences=sequences,
    )


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of exchange, as often as a step has it."""

    name: str
    ranks: int
    link: Link
    times: int
    """How often per step."""
    seconds: Fraction
    """All of them, per step."""
    fast: bool
    """Inside the fast domain of the GPUs."""
    note: str = ""

    def __str__(self) -> str:
        outside = "" if self.fast else ", outside the fast domain"
        note = f", {self.note}" if self.note else ""
        return (
            f"{self.name} of {self.ranks} over {self.link.value}{outside}{note}: {milliseconds(self.seconds)} per step"
        )


def fast_domain(gpu: Gpu) -> int:
    """GPUs that a link faster than PCIe connects; 1 without one."""
    return 1 if gpu.link is Link.PCIE else gpu.fast_domain_gpus


def milliseconds(seconds: Fraction) -> str:
    """`12.3 ms`; three digits."""
    return f"{float(seconds * 1000):.3g} ms"


@dataclass(frozen=True, slots=True)
class _Path:
    link: Link
    bytes_per_second: Fraction
    fast: bool
    note: str = ""


def _path(gpu: Gpu, ranks: int, *, one_node: bool) -> _Path:
    """The slowest link among `ranks` neighbouring GPUs."""
    if not one_node:
        return _Path(Link.NETWORK, NETWORK_GB_S * 10**9, fast=False, note="100 Gbit/s assumed")
    if ranks <= fast_domain(gpu):
        return _Path(gpu.link, Fraction(gpu.link_gb_s or PCIE_GB_S) * 10**9, fast=True)
    slow = Fraction(gpu.link_gb_s) if gpu.link is Link.PCIE and gpu.link_gb_s else PCIE_GB_S
    return _Path(Link.PCIE, slow * 10**9, fast=False)


def collectives(facts: StepFacts, layout: Layout, gpu: Gpu) -> tuple[Collective, ...]:
    """Every exchange of one decode step under `layout`; empty on one GPU.

    Two all-reduces per layer in a tensor group (ring: 2 × (n − 1) / n of the vector); a gather and a scatter of the
    visited experts' vectors per expert layer over the expert ranks; the hidden state and the residual from stage to
    stage; queries and partial outputs under decode context parallelism.
    """
    tensor, found = layout.tensor, []
    tokens = -(-facts.sequences // layout.data)
    vector = Fraction(tokens * facts.hidden_size * ACTIVATION_BYTES)
    if tensor > 1:
        path = _path(gpu, tensor, one_node=True)
        note = "" if tensor in CUSTOM_ALL_REDUCE else "by NCCL"
        bytes_moved = 2 * vector * (tensor - 1) / tensor
        found.append(
            _priced("tensor all-reduce", tensor, path, times=2 * facts.layers, bytes_moved=bytes_moved, note=note)
        )
    experts = tensor * layout.data
    if facts.expert_layers and experts > 1 and (layout.data > 1 or layout.expert):
        path = _path(gpu, experts, one_node=layout.nodes == 1 or experts <= layout.gpus_per_node)
        moved = vector * layout.data * (experts - 1) / experts
        found.append(_priced("expert exchange", experts, path, times=2 * facts.expert_layers, bytes_moved=moved))
    if layout.pipeline > 1:
        crossing = layout.nodes > 1
        path = _path(gpu, layout.gpus_per_node, one_node=not crossing)
        found.append(
            _priced("pipeline transfer", layout.pipeline, path, times=layout.pipeline - 1, bytes_moved=2 * vector)
        )
    if layout.decode_context > 1:
        context = layout.decode_context
        path = _path(gpu, context, one_node=True)
        moved = Fraction(tokens * facts.attention_width * ACTIVATION_BYTES) * (context - 1) / context
        found.append(_priced("decode context exchange", context, path, times=2 * facts.layers, bytes_moved=moved))
    return tuple(found)


def _priced(name: str, ranks: int, path: _Path, *, times: int, bytes_moved: Fraction, note: str = "") -> Collective:
    seconds = times * (COLLECTIVE_SECONDS + bytes_moved / path.bytes_per_second)
    notes = ", ".join(text for text in (note, path.note) if text)
    return Collective(name, ranks, path.link, times, seconds, path.fast, notes)


def read_seconds(gpu: Gpu, *, stage_bytes: list[Fraction]) -> Fraction | None:
    """Time to read weights and cache of every stage in turn; None where the GPU's bandwidth is not known."""
    if gpu.bandwidth_tb_s is None:
        return None
    return sum(stage_bytes, start=Fraction(0)) / (gpu.bandwidth_tb_s * BANDWIDTH_SHARE * 10**12)
