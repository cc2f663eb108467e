"""`bayplan fit` as tests call it, and small model files for it."""

import json
import struct
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner, Result

from bayplan.cli.main import app
from tests.api.specs import MINIMAL_SPEC, model

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
LLAMA = ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--engine-version", "0.32.0", "--max-model-len", "8192")
"""Fits on one H100 many times over."""


def fit(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["fit", *map(str, arguments)], env={"COLUMNS": "160", "NO_COLOR": "1"})


def answered(*arguments: object) -> Any:
    result = fit(*arguments, "--json")
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def header(tensors: dict[str, list[int]]) -> tuple[bytes, int]:
    """A safetensors header of bf16 tensors, and the bytes of its data."""
    entries, end = {}, 0
    for name, shape in tensors.items():
        size = 2
        for side in shape:
            size *= side
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text, end


def tensors() -> dict[str, list[int]]:
    found = {"model.embed_tokens.weight": [1024, 256], "lm_head.weight": [1024, 256], "model.norm.weight": [256]}
    for layer in range(2):
        found |= {
            f"model.layers.{layer}.self_attn.q_proj.weight": [256, 256],
            f"model.layers.{layer}.mlp.up_proj.weight": [512, 256],
        }
    return found


def manifest(tmp_path: Path, **changes: Any) -> Path:
    return write(tmp_path / "model.yaml", yaml.safe_dump(model({**MINIMAL_SPEC, **changes}, "llama")))
