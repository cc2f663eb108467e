"""What a spec says of its model: a catalogue name, a config.json, five numbers, or nothing; and what contradicts."""

import json
from typing import Any

import pytest

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.planning.layout.engineflags import engine_flags, image_version, read_arguments
from bayplan.planning.layout.knownmodel import KnownModel, from_config
from bayplan.planning.layout.modelnumbers import CountedModel, UnknownModel, model_faults, read_model
from bayplan.planning.memory.formats import WeightFormat
from bayplan.planning.memory.modelconfig import parse_config, reduced_config
from bayplan.planning.memory.quantconfig import stated_format
from bayplan.planning.memory.safetensors import CheckpointSizes
from bayplan.planning.memory.versions import EngineVersion
from bayplan.planning.numbers import InvalidInput

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
}


def spec(architecture: Any = None, *, uri: str = "hf://org/mine", args: tuple[str, ...] = ()) -> InferenceModelSpec:
    model: dict[str, Any] = {"name": "m", "uri": uri, "revision": "abc"}
    if architecture is not None:
        model["architecture"] = architecture
    engine = {"image": "vllm/vllm-openai:v0.32.0", "maxModelLen": 4096, "args": list(args)}
    return InferenceModelSpec.model_validate({"model": model, "engine": engine})


def known(asked: InferenceModelSpec) -> KnownModel:
    found = read_model(asked)
    assert isinstance(found, KnownModel)
    return found


def format_of(found: KnownModel) -> str:
    assert isinstance(found.weights, WeightFormat)
    return found.weights.name


def test_an_address_on_the_hub_is_looked_up_in_the_catalogue() -> None:
    found = known(spec(uri="hf://Qwen/Qwen3-14B"))

    assert len(found.architecture.layers) == 40
    assert format_of(found) == "bf16"
    assert format_of(known(spec(uri="hf://RedHatAI/Qwen3-14B-FP8-dynamic"))) == "fp8"
    assert format_of(known(spec(uri="hf://deepseek-ai/DeepSeek-V3"))) == "fp8-block"


def test_a_name_of_the_catalogue_may_state_another_format() -> None:
    assert format_of(known(spec({"name": "Llama-3.1-8B"}))) == "bf16"
    assert format_of(known(spec({"name": "Llama-3.1-8B", "weightFormat": "awq-4bit"}))) == "awq-4bit"


@pytest.mark.parametrize("uri", ["hf://org/never-heard-of", "s3://bucket/Qwen3-14B", "pvc://claim/Qwen3-14B"])
def test_nothing_is_guessed_about_an_unknown_model(uri: str) -> None:
    found = read_model(spec(uri=uri))

    assert isinstance(found, UnknownModel)
    assert "UnknownArchitecture" in found.message
    assert "bayplan fit --config FILE --write" in found.message


def test_an_unknown_class_names_the_fields_that_it_needs() -> None:
    found = read_model(spec({"config": json.dumps({**CONFIG, "architectures": ["NewForCausalLM"]})}))

    assert isinstance(found, UnknownModel)
    assert "NewForCausalLM is not a known class" in found.message
    assert "num_key_value_heads" in found.message
    missing = read_model(spec({"config": json.dumps({k: v for k, v in CONFIG.items() if k != "hidden_size"})}))
    assert isinstance(missing, UnknownModel)
    assert missing.needs == ("hidden_size",)


def test_five_numbers_are_known_for_what_they_say() -> None:
    numbers = {"parameters": 8_030_261_248, "layers": 32, "attentionHeads": 32, "kvHeads": 8, "headDim": 128}
    found = read_model(spec(numbers))

    assert isinstance(found, CountedModel)
    assert (found.facts.heads, found.facts.kv_heads, found.facts.vocab_size) == (32, (8,), None)


def test_a_reduced_config_is_the_same_architecture() -> None:
    reduced = reduced_config(CONFIG)

    assert parse_config(reduced) == parse_config(CONFIG)
    assert "transformers_version" not in reduced
    assert known(spec({"config": json.dumps(reduced)})).architecture == parse_config(CONFIG)


def test_nested_fields_stay_nested_in_a_reduced_config() -> None:
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {**CONFIG, "sliding_window": 512}}
    config["text_config"].pop("num_experts")
    reduced = reduced_config(config)

    assert parse_config(reduced) == parse_config(config)
    assert "transformers_version" not in reduced["text_config"]


HEADERS = {"embedding": 620_000_000, "head": 620_000_000, "layers": [1_200_000_000] * 4}


def test_header_bytes_are_better_than_any_format() -> None:
    found = known(spec({"config": json.dumps(CONFIG), "weightBytes": HEADERS, "weightFormat": "fp8-block"}))

    assert isinstance(found.weights, CheckpointSizes)
    assert found.weights.layer_bytes == (1_200_000_000,) * 4
    assert found.facts.expert_block == 128


@pytest.mark.parametrize(
    ("architecture", "path", "says"),
    [
        ({"config": "{]"}, "spec.model.architecture.config", "is not valid JSON"),
        ({"config": "[1]"}, "spec.model.architecture.config", "must be a JSON object"),
        ({"config": json.dumps({**CONFIG, "num_attention_heads": 0})}, "spec.model.architecture.config", "at least 1"),
        ({"config": json.dumps({**CONFIG, "head_dim": 0})}, "spec.model.architecture.config", "head_dim"),
        ({"config": json.dumps({**CONFIG, "hidden_size": float("nan")})}, "spec.model.architecture.config", "finite"),
        ({"config": json.dumps({**CONFIG, "num_hidden_layers": -1})}, "spec.model.architecture.config", "1 to 4096"),
        (
            {"config": json.dumps(CONFIG), "weightBytes": {**HEADERS, "layers": [1] * 4, "embedding": 1, "head": 1}},
            "spec.model.architecture.config",
            "contradict",
        ),
        (
            {"name": "Llama-3.1-8B", "weightBytes": HEADERS},
            "spec.model.architecture.weightBytes",
            "is 32 in config.json and 4 in the files",
        ),
        (
            {
                **{"parameters": 10**9, "layers": 4, "attentionHeads": 8, "kvHeads": 8, "headDim": 64},
                "weightBytes": {"embedding": 10**12, "layers": [1] * 4},
            },
            "spec.model.architecture.weightBytes",
            "contradict 1000000000 parameters",
        ),
        (
            {
                **{"parameters": 10**9, "layers": 4, "attentionHeads": 8, "kvHeads": 8, "headDim": 64},
                "weightBytes": {"embedding": 10**9, "layers": [10**8] * 3},
            },
            "spec.model.architecture.weightBytes.layers",
            "lists 3 layers, and layers is 4",
        ),
        (
            {"config": json.dumps({**CONFIG, "quantization_config": {"quant_method": "new"}})},
            "spec.model.architecture.config",
            "unknown quant_method 'new'",
        ),
    ],
)
def test_contradictions_are_named_with_their_field(architecture: Any, path: str, says: str) -> None:
    (fault,) = model_faults(spec(architecture))

    assert fault.path == path
    assert says in fault.message


def test_engine_arguments_out_of_bounds_are_faults() -> None:
    (fault,) = model_faults(spec({"name": "Llama-3.1-8B"}, args=("--block-size=99999999999999",)))

    assert fault.path == "spec.engine.args"
    assert "block_size" in fault.message


@pytest.mark.parametrize(
    ("stated", "name", "block"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block", 128),
        ({"quant_method": "fp8"}, "fp8", 0),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "gptq-4bit", 64),
        ({"quant_method": "gptq", "bits": 8}, "int8", 0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq-4bit", 128),
        ({"quant_method": "mxfp4"}, "mxfp4", 0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 0),
        ({"quant_method": "auto-round", "bits": 4}, "autoround-int4", 0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
            0,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int"}}}},
            "int4",
            128,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int"}}},
                "ignore": ["lm_head", "re:.*self_attn.*"],
            },
            "int4-experts",
            32,
        ),
    ],
)
def test_a_config_states_its_weight_format(stated: dict[str, Any], name: str, block: int) -> None:
    found = stated_format({**CONFIG, "quantization_config": stated})

    assert found is not None
    assert (found.weights.name, found.block) == (name, block)
    assert format_of(from_config({**CONFIG, "quantization_config": stated})) == name


@pytest.mark.parametrize(
    "stated", [{"quant_method": "bitsandbytes"}, {"bits": 4}, {"quant_method": "gptq", "bits": 3}, "fp8"]
)
def test_an_unknown_format_is_refused_rather_than_guessed(stated: Any) -> None:
    with pytest.raises(InvalidInput, match="quantization_config"):
        stated_format({**CONFIG, "quantization_config": stated})
    assert stated_format(CONFIG) is None


def test_the_engines_own_quantization_packs_a_plain_checkpoint() -> None:
    packed = known(spec({"name": "Llama-3.1-8B"}, args=("--quantization=fp8",)))
    own = known(spec({"name": "DeepSeek-V3"}, args=("--quantization", "fp8")))
    unknown = known(spec({"name": "Llama-3.1-8B"}, args=("--quantization=bitsandbytes",)))

    assert [format_of(one) for one in (packed, own, unknown)] == ["fp8", "fp8-block", "bf16"]


def test_flags_are_read_as_the_engine_reads_them() -> None:
    args = (
        *("--max_num_batched_tokens", "4096", "--block-size=32", "--enforce-eager"),
        *("--no-enable-prefix-caching", "--kv-cache-memory-bytes 1000000000", "--enable-lora", "--max-loras=4"),
        *("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}', "--dtype=float32"),
        *("--mamba-cache-dtype", "float16", "--mamba_ssm_cache_dtype=float32"),
    )
    flags = engine_flags(spec({"name": "Llama-3.1-8B"}, args=args))

    assert flags.version == EngineVersion(0, 32, 0)
    assert (flags.max_num_batched_tokens, flags.block_size, flags.kv_cache_memory_bytes) == (4096, 32, 10**9)
    assert (flags.enforce_eager, flags.enable_prefix_caching, flags.dtype) == (True, False, "float32")
    assert (flags.mamba_cache_dtype, flags.mamba_ssm_cache_dtype) == ("float16", "float32")
    assert flags.speculative_tokens == 2
    assert flags.adapters is not None
    assert (flags.adapters.max_loras, flags.adapters.max_lora_rank) == (4, 16)


@pytest.mark.parametrize(
    "args",
    [
        ("--block-size", "auto"),
        ("--max-num-batched-tokens",),
        ("--speculative-config=[",),
        ("--dtype=int8",),
        ("x",),
        ("--mamba-cache-dtype=fp8",),
    ],
)
def test_what_cannot_be_read_is_left_to_the_engine(args: tuple[str, ...]) -> None:
    plain, odd = spec({"name": "Llama-3.1-8B"}), spec({"name": "Llama-3.1-8B"}, args=args)

    assert engine_flags(odd) == engine_flags(plain)


def test_the_last_of_repeated_arguments_counts() -> None:
    assert read_arguments(("--a=1", "--a", "2", "--b")) == {"--a": "2", "--b": ""}


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("registry.example:5000/mirror/vllm-openai-rocm:0.19.1", "0.19.1"),
        ("vllm/vllm-openai:latest", None),
        ("my-engine:v0.32.0", None),
        ("vllm/vllm-openai@sha256:" + "a" * 64, None),
    ],
)
def test_only_the_engines_own_images_tell_their_version(image: str, version: str | None) -> None:
    found = image_version(image)

    assert (None if found is None else str(found)) == version
