"""What would make a model fit: the largest load, the smallest width, and the flags that free memory.

Each answer is a plan of its own, never an extrapolation: activation moves with batch and length, so the verdict need
not be monotonic in a flag (vllm#10517: 20,000 and 35,000 tokens fitted where 29,000 did not).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from bayplan.planning.layout.rules import MAX_WIDTH, facts_for, keeps_rules
from bayplan.planning.layout.split import Split
from bayplan.planning.memory.plan import plan_memory
from bayplan.planning.memory.request import PlanRequest
from bayplan.planning.memory.verdict import decide_fit
from bayplan.planning.memory.weights import MeasuredWeights, WeightNumbers, measured_for
from bayplan.planning.numbers import InvalidInput

LEAST_BATCHED_TOKENS = 512
MOST_SEQUENCES, MOST_TOKENS = 65536, 2**20
"""Largest values that are tried."""
SAFE_UTILIZATION = Fraction(95, 100)
"""The most that is advised; above it graph capture and fragments have no room [vllm#1298]."""


@dataclass(frozen=True, slots=True)
class Change:
    """Flags that together make a refused request fit, as the engine names them."""

    flags: tuple[tuple[str, str], ...]
    request: PlanRequest

    def __str__(self) -> str:
        return " ".join(f"{name} {value}".strip() for name, value in self.flags)


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What would fit beside the request as asked. None: no such value."""

    max_concurrency: int
    """Most requests of the asked length; 0 when not one fits."""
    max_model_len: int | None
    """Longest length at the asked concurrency."""
    tensor: int | None
    """Smallest valid tensor width above the asked one."""
    changes: tuple[Change, ...]
    """Changes of flags that keep the load, the least invasive first; empty when the request fits."""


def alternatives(request: PlanRequest) -> Alternatives:
    """Search around `request`. Raises InvalidInput and UnknownArchitecture as `plan_memory` does."""
    verdict = decide_fit(request)
    return Alternatives(
        max_concurrency=verdict.plan.max_concurrency,
        max_model_len=longest_length(request),
        tensor=None if verdict.fits else smallest_tensor(request),
        changes=() if verdict.fits else tuple(changes_that_fit(request)),
    )


def _fits(request: PlanRequest) -> bool:
    try:
        return decide_fit(request).fits
    except InvalidInput:
        return False


def longest_length(request: PlanRequest) -> int | None:
    """Longest `--max-model-len` up to the model's own at the asked concurrency; None when not one token fits.

    The search halves the interval over whole plans; where the verdict is not monotonic it finds a length that fits.
    """
    top = max(request.max_model_len, request.model.max_position_embeddings or 0)
    if _fits(request.with_flags(max_model_len=top)):
        return top
    low, high = 0, top
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(request.with_flags(max_model_len=middle)):
            low = middle
        else:
            high = middle
    return low or None


def smallest_tensor(request: PlanRequest) -> int | None:
    """Smallest valid tensor width above the asked one that fits; None when none up to 64 does.

    A measured load is carried over to other widths in proportion to the tensor classes of a rank.
    """
    facts, asked = facts_for(request.model, request.weights), request.ranks
    split = Split(asked.tensor, asked.pipeline, asked.data, asked.expert_parallel)
    for tensor in range(asked.tensor + 1, MAX_WIDTH + 1):
        if keeps_rules(facts, replace(split, tensor=tensor)):
            ranks = replace(asked, tensor=tensor)
            if _fits(replace(request, ranks=ranks, weights=_weights_for(request, tensor))):
                return tensor
    return None


def _weights_for(request: PlanRequest, tensor: int) -> WeightNumbers:
    weights = request.weights
    if not isinstance(weights, MeasuredWeights):
        return weights
    return measured_for(weights, request.model, measured=request.ranks, wanted=replace(request.ranks, tensor=tensor))


def changes_that_fit(request: PlanRequest) -> Iterator[Change]:
    """Flags that make a refused request fit without touching its load.

    Sequences and batched tokens each alone, the mildest value that does; both together; then utilization up to 0.95,
    an fp8 cache, and eager mode.
    """
    plan = plan_memory(request)
    sequences = list(_halves(plan.step.sequences, least=max(1, -(-request.concurrency // request.ranks.data))))
    tokens = list(_halves(plan.step.batched_tokens, least=LEAST_BATCHED_TOKENS))
    found = [
        _first(request, "max_num_seqs", sequences),
        _first(request, "max_num_batched_tokens", tokens),
    ]
    if not any(found) and sequences and tokens:
        found.append(_pair(request, sequences, tokens))
    if plan.utilization < SAFE_UTILIZATION and request.flags.kv_cache_memory_bytes is None:
        found.append(_first(request, "gpu_memory_utilization", [SAFE_UTILIZATION]))
    if request.flags.kv_cache_dtype in {"auto", "bfloat16", "float16"}:
        found.append(_first(request, "kv_cache_dtype", ["fp8"]))
    if plan.rules.graphs_in_budget and not request.flags.enforce_eager:
        found.append(_first(request, "enforce_eager", [True]))
    yield from (change for change in found if change is not None)


def _halves(value: int, *, least: int) -> Iterator[int]:
    """Powers of two below `value` down to `least`, largest first."""
    power = 1 << (value - 1).bit_length() if value > 1 else 1
    while power > least:
        power //= 2
        if least <= power < value:
            yield power


def _flag(name: str, value: object) -> tuple[str, str]:
    text = "" if value is True else f"{float(value):g}" if isinstance(value, Fraction) else str(value)
    return "--" + name.replace("_", "-"), text


def _first(
    request: PlanRequest, name: str, values: list[int] | list[Fraction] | list[str] | list[bool]
) -> Change | None:
    for value in values:
        changed = request.with_flags(**{name: value})
        if _fits(changed):
            return Change((_flag(name, value),), changed)
    return None


def _pair(request: PlanRequest, sequences: list[int], tokens: list[int]) -> Change | None:
    """Both step flags, shrunk in turn: the forward pass and the sampler do not add up, so one alone may not help."""
    for seqs, batched in zip(
        [*sequences, *[sequences[-1]] * len(tokens)], [*tokens, *[tokens[-1]] * len(sequences)], strict=False
    ):
        changed = request.with_flags(max_num_seqs=seqs, max_num_batched_tokens=batched)
        if _fits(changed):
            return Change((_flag("max_num_seqs", seqs), _flag("max_num_batched_tokens", batched)), changed)
    return None


@dataclass(frozen=True, slots=True)
class Boundary:
    """How far one setting can go with all others as they are."""

    setting: str
    """Name of the engine's flag, or of the load."""
    asked: str
    limit: str
    """The last value that fits, "any" where all of them do; empty when none does."""
    side: str
    """"at most" or "at least"."""


def boundaries(request: PlanRequest) -> tuple[Boundary, ...]:
    """The boundary in each direction. Searches halve an interval; each answer is a plan of its own."""
    plan = plan_memory(request)
    longest, tensor = longest_length(request), _least_tensor(request)
    sequences = _last(
        lambda value: _fits(request.with_flags(max_num_seqs=value)),
        low=-(-request.concurrency // request.ranks.data) - 1,
        high=MOST_SEQUENCES,
    )
    tokens = _last(lambda value: _fits(request.with_flags(max_num_batched_tokens=value)), low=0, high=MOST_TOKENS)
    found = [
        Boundary("concurrency", str(request.concurrency), _text(plan.max_concurrency), "at most"),
        Boundary("--max-model-len", str(plan.length), _text(longest), "at most"),
        Boundary("--max-num-seqs", str(plan.step.sequences), _text(sequences, top=MOST_SEQUENCES), "at most"),
        Boundary("--max-num-batched-tokens", str(plan.step.batched_tokens), _text(tokens, top=MOST_TOKENS), "at most"),
        Boundary("--tensor-parallel-size", str(request.ranks.tensor), _text(tensor), "at least"),
    ]
    if request.flags.kv_cache_memory_bytes is None:
        hundredths = _first_of(
            100, lambda value: _fits(request.with_flags(gpu_memory_utilization=Fraction(value, 100)))
        )
        limit = "" if hundredths is None else f"{hundredths / 100:g}"
        found.append(Boundary("--gpu-memory-utilization", f"{float(plan.utilization):g}", limit, "at least"))
    return tuple(found)


def _text(value: int | None, *, top: int | None = None) -> str:
    if not value:
        return ""
    return "any" if value == top else str(value)


def _last(fits: Callable[[int], bool], *, low: int, high: int) -> int | None:
    """The largest value above `low`, up to `high`, that fits; None when the one after `low` does not."""
    first = low
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if low > first else None


def _first_of(high: int, fits: Callable[[int], bool]) -> int | None:
    """The smallest value from 1 up to `high` that fits."""
    if not fits(high):
        return None
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _least_tensor(request: PlanRequest) -> int | None:
    """The smallest valid tensor width that fits."""
    facts, asked = facts_for(request.model, request.weights), request.ranks
    for tensor in range(1, asked.tensor + 1):
        split = Split(tensor, asked.pipeline, asked.data, asked.expert_parallel)
        if asked.decode_context == 1 and keeps_rules(facts, split):
            narrower = replace(request, ranks=replace(asked, tensor=tensor), weights=_weights_for(request, tensor))
            if _fits(narrower):
                return tensor
    return asked.tensor if _fits(request) else smallest_tensor(request)
