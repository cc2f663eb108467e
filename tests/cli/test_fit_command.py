"""`bayplan fit`: verdicts and exit codes, and what it prints."""

import json
from pathlib import Path

import pytest
import yaml

from bayplan.api.inferencemodel import Architecture
from tests.api.specs import MINIMAL_SPEC, model
from tests.cli.fitcalls import CONFIG, LLAMA, answered, fit, header, manifest, tensors, write


def test_a_model_that_fits_exits_with_0_and_shows_its_terms() -> None:
    result = fit(*LLAMA, "--gpu", "H100", "--concurrency", 16)

    assert result.exit_code == 0
    for text in ("fits: 16 requests of 8192 tokens", "weights", "14.96 GiB", "sampler peak", "non-torch", "KV cache"):
        assert text in result.stdout
    assert "79.19 GiB that the driver shows" in result.stdout or "that the driver shows (measured)" in result.stdout
    assert "█" in result.stdout


def test_a_model_that_does_not_fit_exits_with_1_and_says_what_would() -> None:
    refused = ("--model", "Llama-3.3-70B-Instruct", "--gpu", "H100", "--tensor-parallel", 1, "--max-model-len", 8192)
    result, found = fit(*refused), answered(*refused)

    assert result.exit_code == 1
    assert "does not fit" in result.stdout
    assert "--tensor-parallel-size 2" in result.stdout
    assert found["fits"] is False
    assert found["headroomGib"] < 0
    assert found["alternatives"]["tensor"] == 2


def test_the_layout_is_derived_and_the_runner_up_is_named() -> None:
    found = answered("--model", "Llama-3.3-70B-Instruct", "--gpu", "H100", "--max-model-len", 8192)

    assert found["fits"] is True
    assert found["layout"]["gpus"] == 2
    assert found["runnerUp"]["lost"]
    assert [exchange["insideFastDomain"] for exchange in found["exchanges"]] == [True]


def test_a_size_that_breaks_a_rule_of_the_engine_does_not_start() -> None:
    result = fit(*LLAMA, "--gpu", "H100", "-tp", 3)

    assert result.exit_code == 1
    assert "tensor=3 does not divide the 32 attention heads; the next valid size is tensor=4" in result.stdout


def test_a_format_that_the_gpu_cannot_run_names_those_that_can() -> None:
    found = answered(*LLAMA, "--gpu", "V100", "--quantization", "fp8")

    assert found["fits"] is False
    assert "cannot run fp8" in found["problem"]
    assert "H100" in found["problem"]


def marginal() -> tuple[object, ...]:
    """A load whose headroom is within 3 % of the budget."""
    asked = (*LLAMA, "--gpu", "H100", "--tensor-parallel-size", 1)
    most = answered(*asked, "--concurrency", 1)["maxConcurrency"]
    return (*asked, "--concurrency", most)


def test_strict_turns_a_marginal_fit_into_1() -> None:
    asked = marginal()
    found = answered(*asked)

    assert (found["fits"], found["marginal"]) == (True, True)
    assert found["decidingFlag"].startswith("--")
    assert fit(*asked).exit_code == 0
    assert fit(*asked, "--strict").exit_code == 1
    assert fit(*LLAMA, "--gpu", "H100", "--strict").exit_code == 0


def test_one_request_more_than_the_most_does_not_fit() -> None:
    *asked, most = marginal()

    assert fit(*asked, most).exit_code == 0
    assert fit(*asked, int(str(most)) + 1).exit_code == 1


def test_json_has_every_term_with_its_provenance_and_inputs() -> None:
    found = answered(*LLAMA, "--gpu", "H100")
    terms = {term["name"]: term for term in found["terms"]}

    assert {"weights", "sampler peak", "non-torch", "CUDA graphs", "KV cache"} == set(terms)
    assert terms["weights"]["provenance"] == "estimated"
    assert terms["KV cache"]["provenance"] == "derived"
    assert terms["KV cache"]["inputs"]["tokens"] == "8192"
    assert sum(term["gib"] for term in found["terms"]) == pytest.approx(found["requiredGib"], abs=0.001)
    assert found["kv"]["printedTokens"] > 100_000
    assert found["rulesSince"] == "0.32.0"


def test_flags_move_the_answer_as_they_move_the_engine() -> None:
    plain = answered(*LLAMA, "--gpu", "H100")
    fp8 = answered(*LLAMA, "--gpu", "H100", "--kv-cache-dtype", "fp8")
    stated = answered(*LLAMA, "--gpu", "H100", "--kv-cache-memory-bytes", 2**31, "--block-size", 32)
    fewer = answered(*LLAMA, "--gpu", "H100", "--max-num-seqs", 64, "--max-num-batched-tokens", 2048)
    lora = answered(*LLAMA, "--gpu", "H100", "--max-loras", 8, "--max-lora-rank", 64)

    assert fp8["kvTokens"] > 1.9 * plain["kvTokens"]
    assert stated["kv"]["blocks"] == 2**31 // (32 * 2 * 32 * 8 * 128 * 2)
    assert fewer["kvTokens"] > plain["kvTokens"] > lora["kvTokens"]


def test_what_if_shows_the_boundary_in_each_direction() -> None:
    result = fit(*LLAMA, "--gpu", "RTX 4090", "--what-if")
    found = answered(*LLAMA, "--gpu", "RTX 4090", "--what-if")["whatIf"]

    assert "how far each setting can go alone" in result.stdout
    limits = {one["setting"]: one for one in found}
    assert set(limits) == {
        *("concurrency", "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens"),
        *("--tensor-parallel-size", "--gpu-memory-utilization"),
    }
    assert int(limits["--max-model-len"]["limit"]) > 8192
    assert limits["--gpu-memory-utilization"]["side"] == "at least"


def test_compare_gpus_lists_every_known_gpu_with_its_verdict() -> None:
    found = answered(*LLAMA, "--compare-gpus")
    by_name = {one["gpu"]: one for one in found}

    assert len(by_name) > 30
    assert by_name["T4"]["fits"]
    assert by_name["T4"]["layout"]["gpus"] > by_name["H200"]["layout"]["gpus"] == 1
    assert by_name["H200"]["maxConcurrency"] > by_name["L4"]["maxConcurrency"]
    table = fit(*LLAMA, "--compare-gpus")
    assert table.exit_code == 0
    assert "CONCURRENCY" in table.stdout


def test_no_gpu_of_the_comparison_fits_is_1() -> None:
    asked = ("--model", "DeepSeek-V3", "--max-model-len", 131072, "--compare-gpus", "--gpus-per-node", 1)
    assert fit(*asked).exit_code == 1


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_folder_gives_header_sums(folder: Path) -> None:
    found = answered("--model", folder, "--gpu", "L4")
    weights = found["terms"][0]

    assert (weights["name"], weights["provenance"]) == ("weights", "header sum")
    assert weights["inputs"]["header bytes"] == str(header(tensors())[1])


def test_write_emits_a_block_that_the_api_reads_back(folder: Path) -> None:
    result = fit("--model", folder, "--write")
    block = yaml.safe_load(result.stdout)["spec"]["model"]["architecture"]

    assert result.exit_code == 0
    read = Architecture.model_validate(block, by_alias=True, by_name=False)
    assert read.weight_bytes is not None
    assert len(read.weight_bytes.layers) == 2
    assert json.loads(read.config or "")["hidden_size"] == 256


def test_write_of_a_catalogue_name_is_the_name() -> None:
    block = yaml.safe_load(fit("--model", "RedHatAI/Qwen3-14B-FP8-dynamic", "--write").stdout)

    assert block == {"spec": {"model": {"architecture": {"name": "Qwen/Qwen3-14B", "weightFormat": "fp8"}}}}


def test_a_manifest_is_asked_for_each_of_its_products(tmp_path: Path) -> None:
    path = manifest(tmp_path, placement={"gpuProducts": ["NVIDIA-L4", "NVIDIA-H100-80GB-HBM3"]}, concurrency=8)
    found = answered("-f", path)

    assert [one["gpu"] for one in found] == ["L4", "H100-80GB-HBM3"]
    assert [one["fits"] for one in found] == [True, True]
    assert "five numbers" in found[0]["model"]


def test_a_written_block_in_a_manifest_gives_the_same_plan(tmp_path: Path, folder: Path) -> None:
    block = yaml.safe_load(fit("--model", folder, "--write").stdout)["spec"]["model"]["architecture"]
    asked = {**MINIMAL_SPEC["model"], "architecture": block}
    path = manifest(tmp_path, model=asked, engine={**MINIMAL_SPEC["engine"], "gpuMemoryUtilization": 0.92})

    by_manifest = answered("-f", path, "--gpu", "L4")
    by_flags = answered("--model", folder, "--gpu", "L4", "--max-model-len", 8192, "--engine-version", "0.32.0")

    assert by_manifest["terms"] == by_flags["terms"]
    assert by_manifest["kv"] == by_flags["kv"]


def test_an_engine_that_chooses_its_share_has_a_band() -> None:
    asked = (*LLAMA, "--gpu", "H100", "-tp", 1, "--engine", "sglang")
    low, high = answered(*asked)["cacheBandGib"]
    token = 2 * 32 * 8 * 128 * 2 * 8192 / 2**30

    assert high - low == pytest.approx(0.1 * 79.2, abs=0.1)
    for concurrency, verdict, code in (
        (int(low / token) - 1, "fits", 0),
        (int((low + high) / 2 / token), "unknown", 1),
        (int(high / token) + 1, "does not fit", 1),
    ):
        assert answered(*asked, "--concurrency", concurrency)["verdict"] == verdict
        assert fit(*asked, "--concurrency", concurrency).exit_code == code
    assert "leaves" in fit(*asked).stdout


def test_a_stated_share_is_no_band() -> None:
    asked = (*LLAMA, "--gpu", "H100", "-tp", 1)
    stated = answered(*asked, "--engine", "sglang", "--mem-fraction-static", "0.85")["cacheBandGib"]
    free = answered(*asked, "--engine", "tensorrt-llm", "--free-gpu-memory-fraction", "0.5")["cacheBandGib"]

    assert stated[0] == stated[1] == pytest.approx(0.85 * 79.19 - 14.96, abs=0.05)
    assert free[0] == free[1] < stated[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--engine", "llama.cpp"), "must be one of vllm, sglang, tensorrt-llm"),
        (("--mem-fraction-static", "0.8"), "belongs to --engine sglang"),
        (("--engine", "sglang", "--free-gpu-memory-fraction", "0.8"), "belongs to --engine tensorrt-llm"),
        (("--engine", "sglang", "--mem-fraction-static", "1.2"), "at most 1"),
    ],
)
def test_a_share_belongs_to_its_engine(arguments: tuple[str, ...], says: str) -> None:
    result = fit(*LLAMA, "--gpu", "H100", *arguments)

    assert result.exit_code == 2
    assert says in result.stderr


def test_the_cache_has_the_type_that_the_checkpoint_declares(tmp_path: Path) -> None:
    declared = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    plain = write(tmp_path / "plain.json", {**CONFIG, "quantization_config": {**declared, "kv_cache_scheme": None}})
    packed = write(tmp_path / "packed.json", {**CONFIG, "quantization_config": declared})

    def block_bytes(config: Path, *flags: object) -> int:
        terms = {term["name"]: term for term in answered("--config", config, "--gpu", "L4", *flags)["terms"]}
        return int(terms["KV cache"]["inputs"]["block bytes"])

    assert block_bytes(packed) * 2 == block_bytes(plain)
    assert block_bytes(packed, "--kv-cache-dtype", "bfloat16") == block_bytes(plain)
    assert block_bytes(packed, "--engine-version", "0.14.0") == block_bytes(plain)
    block = yaml.safe_load(fit("--config", packed, "--write").stdout)["spec"]["model"]["architecture"]
    again = write(tmp_path / "again.json", block["config"])
    assert block_bytes(again, "--quantization", block["weightFormat"]) == block_bytes(packed)


def test_speculation_with_prediction_layers_that_are_not_there_is_refused() -> None:
    result = fit(*LLAMA, "--gpu", "H100", "--speculative-tokens", 3)

    assert result.exit_code == 2
    assert "states no prediction layers" in result.stderr
    assert fit("--model", "Qwen3-Next-80B-A3B-Instruct", "--gpu", "B200", "--speculative-tokens", 2).exit_code == 0
    assert fit("--model", "GLM-4.5-Air", "--gpu", "B200", "--speculative-tokens", 1).exit_code == 0


@pytest.mark.parametrize(
    ("written", "tokens"), [("8192", 8192), ("8K", 8192), ("8k", 8000), ("25.6k", 25600), (" 16K ", 16384)]
)
def test_numbers_are_written_as_for_the_engine(written: str, tokens: int) -> None:
    terms = {term["name"]: term for term in answered(*LLAMA, "--max-model-len", written, "--gpu", "H100")["terms"]}

    assert terms["KV cache"]["inputs"]["tokens"] == str(tokens)


@pytest.mark.parametrize("written", ["8x", "1.5", "auto", "9" * 30, "-5", "0", "nan"])
def test_other_numbers_are_refused(written: str) -> None:
    assert fit(*LLAMA, "--gpu", "H100", f"--kv-cache-memory-bytes={written}").exit_code == 2


def test_a_length_beyond_the_models_own_is_remarked_on() -> None:
    long = answered("--model", "Llama-3.1-8B", "--gpu", "H100", "--max-model-len", 200_000)
    longest = answered("--model", "Llama-3.1-8B", "--gpu", "H100", "--max-model-len", 131_072)

    assert any("VLLM_ALLOW_LONG_MAX_MODEL_LEN" in text for text in long["remarks"])
    assert not any("VLLM_ALLOW_LONG_MAX_MODEL_LEN" in text for text in longest["remarks"])


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-model-len", 4096),
        ("--kv-cache-dtype", "fp8"),
        ("--concurrency", 64),
        ("--engine", "sglang"),
        ("--tensor-parallel-size", 1),
        ("--enforce-eager",),
    ],
)
def test_no_flag_beside_a_manifest_is_ignored(tmp_path: Path, flags: tuple[object, ...]) -> None:
    manifest = write(tmp_path / "model.yaml", yaml.safe_dump(model(MINIMAL_SPEC)))

    assert fit("--filename", manifest, "--gpu", "H100", "--what-if").exit_code in (0, 1)
    result = fit("--filename", manifest, "--gpu", "H100", *flags)
    assert result.exit_code == 2
    assert f"leave {flags[0]} out" in result.stderr


def test_a_block_that_no_attention_backend_takes_is_refused() -> None:
    assert fit(*LLAMA, "--gpu", "H100", "--block-size", 48).exit_code == 0
    result = fit(*LLAMA, "--gpu", "H100", "--block-size", 7)

    assert result.exit_code == 2
    assert "block_size: must be 1 or a multiple of 16, not 7" in result.stderr
