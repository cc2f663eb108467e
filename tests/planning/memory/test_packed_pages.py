"""DeepSeek-V4: pages of several sizes in one block, against what engines printed."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bayplan.planning.memory.architecture import Mixer, UnknownArchitecture
from bayplan.planning.memory.cachelayers import CacheKind, CacheLayer, CacheSpec, PageShape
from bayplan.planning.memory.catalogue import catalogue_model
from bayplan.planning.memory.enginerules import vllm_rules
from bayplan.planning.memory.modelconfig import parse_config
from bayplan.planning.memory.packedpages import packed_layout
from bayplan.planning.memory.pages import PackedBlock, PageLayout, PageRules
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.memory.plan import layout_of_pages, step_size
from bayplan.planning.memory.quantconfig import stated_format
from bayplan.planning.numbers import GIB, InvalidInput
from tests.planning.memory.questions import ask

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
CONFIG: dict[str, Any] = next(
    family["config"]
    for family in json.loads(Path("e2e/conformance/cache_families.json").read_text(encoding="utf-8"))["families"]
    if "DeepSeek-V4" in family["name"]
)


def pages_of(model: str = FLASH, *, version: str = "0.32.0", **flags: Any) -> PageLayout:
    request = ask(model, on="H200", version=version, ranks=ParallelLayout(tensor=8), **flags)
    rules = vllm_rules(request.flags.version)
    return layout_of_pages(request, rules, step_size(request, rules)[0])


def test_the_kinds_of_attention_follow_the_ratios() -> None:
    mixers = [layer.mixer for layer in catalogue_model(FLASH).architecture.layers]

    assert len(mixers) == 43
    assert [mixers.count(kind) for kind in (Mixer.LATENT_WINDOW, Mixer.LATENT_SPARSE, Mixer.LATENT_HEAVY)] == [
        2,
        21,
        20,
    ]
    assert parse_config(CONFIG).is_latent


def test_one_gib_of_the_small_configuration_is_what_the_started_engine_took() -> None:
    """vLLM 0.32 on CPU: 11229 blocks, 26073 tokens at 1024 and 26334 at 8192, batches as long as a request."""
    model = parse_config(CONFIG)
    for length, tokens in ((1024, 26073), (8192, 26334)):
        request = ask("Llama-3.1-8B", version="0.32.0", max_model_len=length, max_num_batched_tokens=length)
        request = replace(request, model=model)
        rules = vllm_rules(request.flags.version)
        pages = layout_of_pages(request, rules, step_size(request, rules)[0])
        blocks = pages.blocks_in([Fraction(GIB)])
        assert (blocks, pages.reported_tokens(blocks, length)) == (11229, tokens)


def test_a_refusal_of_0_22_is_met_to_the_token() -> None:
    """vllm#44376: 6.66 GiB for one request of 30000 tokens, 5.44 GiB hold 13528, with batches of 16384 tokens."""
    pages = pages_of(version="0.22.0", max_model_len=30000, max_num_batched_tokens=16384)

    assert pages.block_bytes == (22 * (37440 + 1728 + 8640),)
    assert round(pages.blocks_for(30000) * pages.block_bytes[0] / GIB, 2) == 6.66
    held = pages.blocks_in([Fraction("5.445") * GIB])
    assert pages.blocks_for(13528) <= held < pages.blocks_for(13600)


@pytest.mark.parametrize(
    ("version", "block_bytes"),
    [
        ("0.22.0", 22 * 47808),
        ("0.23.0", 22 * 37440 + 20 * 1728 + 21 * 8640),
        ("0.26.0", 22 * 37440 + 20 * 1728 + 21 * 8640),
        ("0.27.0", 21 * 37440 + 20 * 1728 + 21 * 8640),
        ("0.32.0", 21 * 37440 + 20 * 1728 + 21 * 8640),
    ],
)
def test_a_block_shrinks_with_the_releases(version: str, block_bytes: int) -> None:
    pages = pages_of(version=version)

    assert pages.block_bytes == (block_bytes,)
    assert [(group.kind, group.layers, group.block_tokens) for group in pages.groups] == [
        (CacheKind.SLIDING, 22, 64),
        (CacheKind.SLIDING, 21, 64),
        (CacheKind.FULL, 62, 256),
        (CacheKind.SLIDING, 42, 4),
        (CacheKind.SLIDING, 20, 8),
    ]


def test_speculation_adds_a_window_and_nothing_else() -> None:
    plain, speculating = pages_of(), pages_of(speculative_tokens=1)

    assert sum(group.layers for group in speculating.groups) == sum(group.layers for group in plain.groups) + 1
    assert speculating.block_bytes == plain.block_bytes


def test_every_pipeline_stage_holds_its_own_pages() -> None:
    request = ask(FLASH, on="H200", version="0.32.0", ranks=ParallelLayout(tensor=4, pipeline=2))
    rules = vllm_rules(request.flags.version)
    pages = layout_of_pages(request, rules, step_size(request, rules)[0])

    assert len(pages.block_bytes) == 2
    assert sum(pages.groups[2].stage_bytes) == 21 * 37440 + 20 * 1728 + 21 * 8640


def test_no_width_divides_the_vectors() -> None:
    one = ask(FLASH, on="B300", version="0.32.0")
    rules = vllm_rules(one.flags.version)

    assert layout_of_pages(one, rules, step_size(one, rules)[0]).block_bytes == pages_of().block_bytes


@pytest.mark.parametrize("kind", ["bfloat16", "nvfp4"])
def test_another_cache_type_than_fp8_is_refused(kind: str) -> None:
    with pytest.raises(InvalidInput, match=r"kv_cache_dtype: .*must be auto or fp8 for DeepseekV4ForCausalLM"):
        pages_of(kv_cache_dtype=kind)


def test_the_block_is_the_kernels_whatever_the_flag_says() -> None:
    assert pages_of(block_size=64).block_bytes == pages_of().block_bytes


@pytest.mark.parametrize("name", ["o_lora_rank", "o_groups", "hc_mult", "q_lora_rank", "qk_rope_head_dim"])
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(UnknownArchitecture, match=rf"DeepseekV4ForCausalLM needs {name}"):
        parse_config({key: value for key, value in CONFIG.items() if key != name})


@pytest.mark.parametrize("name", ["sliding_window", "index_head_dim", "compress_ratios"])
def test_a_layer_without_its_part_is_refused(name: str) -> None:
    with pytest.raises(UnknownArchitecture, match=name):
        parse_config({key: value for key, value in CONFIG.items() if key != name})


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ([0, 0, 4], "must list all 6 layers"),
        ([0, 0, 4, 128, 8, 0], "must be of 0, 1, 4, 128, not 8"),
        ([0, 0, 4, 128, True, 0], "must be of 0, 1, 4, 128, not True"),
        ("004", "must list all 6 layers"),
    ],
)
def test_ratios_that_the_engine_has_no_kernel_for_are_refused(ratios: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=rf"compress_ratios: {message}"):
        parse_config({**CONFIG, "compress_ratios": ratios})


def test_the_formats_of_experts_and_of_the_rest_are_read() -> None:
    stated = stated_format(
        {
            "expert_dtype": "fp4",
            "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
        }
    )

    assert stated is not None
    assert stated.weights.name == "mxfp4-fp8"


def test_pages_without_a_mix_of_sizes_are_not_guessed() -> None:
    spec = CacheSpec(CacheKind.FULL, 584, page=PageShape(entry_tokens=128, alignment=576))

    with pytest.raises(InvalidInput, match="must hold layers of ratio 4"):
        packed_layout([CacheLayer(0, spec)] * 2, PageRules(block_tokens=256))


def test_a_window_wider_than_every_full_page_is_refused_before_0_27() -> None:
    full = CacheSpec(CacheKind.FULL, 8, page=PageShape())
    mixed = [CacheSpec(CacheKind.SLIDING, size, reach=8, page=PageShape(4)) for size in (512, 4096)]
    layers = [CacheLayer(0, spec) for spec in (full, *mixed)]

    assert packed_layout(layers, PageRules(block_tokens=256)).block_bytes == (4 * (512 + 4096),)
    with pytest.raises(InvalidInput, match="must make a page of 16384 bytes fit"):
        packed_layout(layers, PageRules(block_tokens=256, packed_block=PackedBlock.SLOTS))


@pytest.mark.parametrize(("version", "pages"), [("0.26.0", 1), ("0.27.1", 1), ("0.28.0", 2), ("0.32.0", 2)])
def test_hybrids_cache_prefixes_by_default_from_0_28(version: str, pages: int) -> None:
    """0.26 and 0.27 leave it off (`engine/arg_utils.py`); Qwen3-Next at 0.32: 145115 tokens, without it 184692."""
    layout = pages_of("Qwen/Qwen3-Next-80B-A3B-Instruct", version=version)

    assert {group.state_blocks for group in layout.groups if group.kind is CacheKind.STATE} == {pages}
