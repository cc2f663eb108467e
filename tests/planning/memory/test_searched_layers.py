"""Models whose layers differ one by one, and classes that have members whose cache is not known."""

from typing import Any

import pytest

from bayplan.planning.memory.architecture import FeedForward, Layer, Mixer, UnknownArchitecture
from bayplan.planning.memory.cachelayers import CacheKind, CacheSpec, cache_layers
from bayplan.planning.memory.catalogue import catalogue_model
from bayplan.planning.memory.modelconfig import parse_config, reduced_config
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.numbers import InvalidInput

SUPER = "nvidia/Llama-3_3-Nemotron-Super-49B-v1"


def config(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["DeciLMForCausalLM"],
        "hidden_size": 8192,
        "num_hidden_layers": len(blocks),
        "num_attention_heads": 64,
        "num_key_value_heads": None,
        "intermediate_size": None,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
        "block_configs": list(blocks),
    }


def block(attention: dict[str, Any] | None = None, ffn: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"attention": attention or {"n_heads_in_group": 8, "no_op": False}, "ffn": ffn or {"ffn_mult": 5.25}}


WITHOUT = {"n_heads_in_group": None, "no_op": True}


def test_layers_without_attention_keep_nothing() -> None:
    model = parse_config(config(block(), block(WITHOUT), block(ffn={"no_op": True})))

    assert model.layers == (
        Layer(Mixer.FULL, FeedForward.DENSE, 28672),
        Layer(Mixer.NONE, FeedForward.DENSE, 28672),
        Layer(Mixer.FULL, FeedForward.NONE, None),
    )
    assert [layer.spec for layer in cache_layers(model, ParallelLayout())] == [
        CacheSpec(CacheKind.FULL, 2 * 8 * 128 * 2)
    ] * 2


def test_the_catalogues_model_of_80_layers_caches_in_49() -> None:
    model = catalogue_model(SUPER).architecture

    assert len(cache_layers(model, ParallelLayout(tensor=2))) == 49
    assert model.intermediate_size == 28672


@pytest.mark.parametrize(
    ("ffn", "width"),
    [({"ffn_mult": 0.5}, 2816), ({"ffn_mult": 1.3125}, 7168), ({"ffn_mult": 2.625}, 14336), ({"ffn_mult": 1}, 5632)],
)
def test_widths_are_rounded_up_to_256(ffn: dict[str, Any], width: int) -> None:
    assert parse_config(config(block(ffn=ffn))).intermediate_size == width


def test_a_stated_width_counts_as_it_is() -> None:
    assert parse_config(config(block(ffn={"intermediate_size": 1000}))).intermediate_size == 1000


def test_a_reduced_config_keeps_the_blocks() -> None:
    whole = config(block(), block(WITHOUT))

    assert parse_config(reduced_config(whole)) == parse_config(whole)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([block({"n_heads_in_group": 8, "replace_with_linear": True})], "replace_with_linear"),
        ([block({"n_heads_in_group": 8, "window_length": 8192})], "window_length"),
        ([block(), block({"n_heads_in_group": 16})], "differ in n_heads_in_group"),
    ],
)
def test_blocks_whose_cache_is_not_known_are_refused(blocks: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UnknownArchitecture, match=message) as refused:
        parse_config(config(*blocks))
    assert refused.value.needs == ("block_configs",)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([{}], "must have an object attention"),
        ([block({"n_heads_in_group": 0})], "n_heads_in_group: must be at least 1"),
        ([block({"n_heads_in_group": 7})], "n_heads_in_group: 7 must divide the 64 heads"),
        ([block(ffn={"ffn_mult": float("nan")})], "ffn_mult: must be a number above 0"),
        ([block(ffn={"ffn_mult": -1})], "ffn_mult: must be a number above 0"),
    ],
)
def test_a_broken_block_names_its_field(blocks: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_config(config(*blocks))


def test_the_list_is_needed_and_as_long_as_the_model() -> None:
    with pytest.raises(UnknownArchitecture, match="DeciLMForCausalLM needs block_configs"):
        parse_config({**config(block()), "block_configs": None})
    with pytest.raises(InvalidInput, match="block_configs: must list all 3 layers"):
        parse_config({**config(block()), "num_hidden_layers": 3})


@pytest.mark.parametrize("field", ["num_kv_shared_layers", "hidden_size_per_layer_input"])
def test_small_gemma_4_models_are_refused_by_the_field_that_sets_them_apart(field: str) -> None:
    gemma = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 2560,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "global_head_dim": 512,
            "intermediate_size": 10240,
            "vocab_size": 262144,
            "sliding_window": 512,
        },
    }

    assert parse_config({**gemma, field: 0}).layers
    with pytest.raises(UnknownArchitecture, match=field):
        parse_config({**gemma, field: 18})
