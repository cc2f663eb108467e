"""`bayplan fit` on bad input: exit code 2, the field by its name, and nothing read that need not be."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.specs import MINIMAL_SPEC
from tests.cli.fitcalls import CONFIG, fit, header, manifest, tensors, write


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--config FILE, --model NAME"),
        (("--model", "Llama-3.1-8B"), "state --gpu NAME"),
        (("--model", "never-heard-of", "--gpu", "H100"), "not in the catalogue"),
        (("--model", "Llama-3.1-8B", "--gpu", "Abacus"), "use one of"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--max-model-len", -1), "max_model_len"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--gpu-memory-utilization", "nan"), "finite"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--gpu-memory-utilization", "1.01"), "at most 1"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--gpu-memory-utilization", "much"), "must be a number"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--concurrency", 0), "concurrency"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "-tp", 0), "tensor-parallel-size"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--kv-cache-dtype", "int3"), "kv_cache_dtype"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--quantization", "int3"), "quantization"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--engine-version", "new"), "engine_version"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--gpu-memory-gib", "0"), "above 0"),
        (("--model", "Llama-3.1-8B", "--gpu", "H100", "--block-size", "x"), "block-size"),
        (("--filename", "/nonexistent/model.yaml"), "cannot be read"),
        (("--config", "/nonexistent/config.json", "--gpu", "H100"), "cannot be read"),
        (("--model", "Llama-3.1-8B", "--weights", "/nonexistent", "--gpu", "H100"), "no .safetensors file"),
    ],
)
def test_a_question_that_is_invalid_exits_with_2_and_names_the_field(arguments: tuple[object, ...], says: str) -> None:
    result = fit(*arguments)

    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["NewForCausalLM"]}, "NewForCausalLM is not a known class"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"hidden_size": -5}, "hidden_size"),
        ({"vocab_size": 1.5}, "vocab_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
    ],
)
def test_a_config_that_no_plan_can_be_made_of_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    result = fit("--config", write(tmp_path / "config.json", {**CONFIG, **change}), "--gpu", "H100")

    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize("text", ["", "{", "[]", '{"architectures": NaN', "[" * 100_000])
def test_a_config_that_is_no_json_is_named(tmp_path: Path, text: str) -> None:
    result = fit("--config", write(tmp_path / "config.json", text), "--gpu", "H100")

    assert result.exit_code == 2
    assert "config.json" in result.stderr


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 * 10**9)


def _truncated(path: Path) -> None:
    path.write_bytes(b"\x10\x00")


def _short(path: Path) -> None:
    path.write_bytes(header(tensors())[0])


def _boundless(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 10**18) + b"{}")


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("config.json", _huge, "longer than"),
        ("model.safetensors", _truncated, "truncated"),
        ("model.safetensors", _short, "holds 0 bytes of data"),
        ("model.safetensors", _boundless, "states a header of 1000000000000000000 bytes"),
    ],
)
def test_a_spoiled_file_is_refused_before_it_is_read(
    folder: Path, name: str, spoil: Callable[[Path], None], says: str
) -> None:
    spoil(folder / name)
    result = fit("--model", folder, "--gpu", "H100")

    assert result.exit_code == 2
    assert says in result.stderr


def test_weights_of_another_model_are_a_contradiction(folder: Path) -> None:
    result = fit("--model", "Llama-3.1-8B", "--weights", folder, "--gpu", "H100")

    assert result.exit_code == 2
    assert "num_hidden_layers: is 32 in config.json, and the files hold no tensor of layer 2" in result.stderr


def test_a_wrong_manifest_names_its_fields(tmp_path: Path) -> None:
    result = fit("-f", manifest(tmp_path, concurrency=0), "--gpu", "H100")

    assert result.exit_code == 2
    assert "spec.concurrency" in result.stderr


def test_a_manifest_of_an_unknown_model_says_what_it_needs(tmp_path: Path) -> None:
    unknown = {name: value for name, value in MINIMAL_SPEC["model"].items() if name != "architecture"}
    result = fit("-f", manifest(tmp_path, model=unknown), "--gpu", "H100")

    assert result.exit_code == 2
    assert "UnknownArchitecture" in result.stderr


def test_a_manifest_excludes_the_flags_that_it_states(tmp_path: Path) -> None:
    result = fit("-f", manifest(tmp_path), "--gpu", "H100", "-tp", 2)

    assert result.exit_code == 2
    assert "leave --tensor-parallel-size out" in result.stderr


# --- other engines ----------------------------------------------------------------------------------------------------
