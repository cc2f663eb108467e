"""The columns of a file of observations, and how people fill them: read once, so that the rest sees one spelling."""

import csv
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from bayplan.planning.numbers import InvalidInput

COLUMNS = (
    "id", "source", "model", "params", "quant", "kv_dtype", "gpu", "gpu_mem_gib", "tp", "pp", "gpu_memory_utilization",
    "max_model_len", "max_num_seqs", "vllm_version", "reported_model_load_gib_per_gpu", "reported_kv_gib_per_gpu",
    "reported_kv_tokens", "reported_max_concurrency", "outcome", "note", "url", "max_num_batched_tokens",
    "enforce_eager", "reported_activation_peak_gib", "reported_non_torch_gib", "reported_cuda_graph_gib",
    "needed_kv_gib", "reported_est_max_len",
)  # fmt: skip
_NUMBERS = frozenset(COLUMNS[7:13] + COLUMNS[14:18] + (COLUMNS[21], *COLUMNS[23:]))
_WHOLE = frozenset(
    {
        "tp",
        "pp",
        "max_model_len",
        "max_num_seqs",
        "reported_kv_tokens",
        "max_num_batched_tokens",
        "reported_est_max_len",
    }
)
_UNKNOWN = frozenset({"", "-", "?", "n/a", "na", "nan", "none", "null", "unknown", "default"})
_TRUE = frozenset({"true", "yes", "1", "on"})
_CACHE_TYPES: Mapping[str, str] = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32",
    "e4m3": "fp8_e4m3", "fp8e4m3": "fp8_e4m3", "fp8-e4m3": "fp8_e4m3", "fp8 e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2",
    "fp8e5m2": "fp8_e5m2", "fp8-e5m2": "fp8_e5m2", "float8": "fp8", "fp4": "nvfp4",
}  # fmt: skip
_FORMATS: Mapping[str, str] = {
    "fp4": "nvfp4", "bnb": "", "bnb-4bit": "", "bitsandbytes": "", "gguf": "", "w8a8-fp8": "fp8", "fp8_e4m3": "fp8",
    "compressed-tensors": "", "int4-awq": "awq-4bit", "4bit": "int4", "8bit": "int8", "awq-int4": "awq-4bit",
    "gptq-int4": "gptq-4bit", "gptq-8bit": "int8", "gptq-int8": "int8",
}  # fmt: skip
"""Spellings of formats; "" for those whose bits per weight no name tells."""


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of the file; raises InvalidInput unless it has the columns of the known form."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    needed = {"model", "gpu", "tp", "reported_kv_tokens", "reported_kv_gib_per_gpu"}
    missing = sorted(needed - set(rows[0] if rows else ()))
    if missing:
        raise InvalidInput("rows", f"{path.name} lacks the columns {', '.join(missing)}")
    return [_row(row, f"{path.name}:{line}") for line, row in enumerate(rows, start=2)]


def _row(row: Mapping[str | None, Any], place: str) -> dict[str, str]:
    """One row with every column, in the spellings that the rest of this module reads.

    Columns that the file lacks are blank. Raises InvalidInput for a number that is none.
    """
    clean = dict.fromkeys(COLUMNS, "")
    for name, value in row.items():
        if isinstance(name, str) and isinstance(value, str):
            text = value.strip()
            clean[name.strip()] = "" if text.lower() in _UNKNOWN else text
    for name in _NUMBERS:
        clean[name] = _number(clean[name], f"{place}, {name}", whole=name in _WHOLE)
    utilization = clean["gpu_memory_utilization"]
    if utilization and Fraction(utilization) > 1:
        clean["gpu_memory_utilization"] = str(Fraction(utilization) / 100)
    clean["id"] = clean["id"] or place
    cache, kind, outcome = clean["kv_dtype"].lower(), clean["quant"].lower(), clean["outcome"].lower()
    clean["kv_dtype"] = _CACHE_TYPES.get(cache, cache)
    clean["quant"] = _FORMATS.get(kind, kind)
    clean["outcome"] = {"nofit": "no-fit", "no fit": "no-fit", "ok": "fit"}.get(outcome, outcome)
    clean["enforce_eager"] = "true" if clean["enforce_eager"].lower() in _TRUE else ""
    return clean


def _number(text: str, name: str, *, whole: bool) -> str:
    """A number without thousands separators, sign of approximation, unit; "" for a blank."""
    plain = re.sub(r"(?<=\d)[,_](?=\d{3}(?:\D|$))", "", text.lower().lstrip("~≈").strip())
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*(k|gib|gb|%|x|tokens)?", plain)
    if not text:
        return ""
    if match is None:
        raise InvalidInput(name, f"must be a number, not {text[:40]!r}")
    number = Fraction(match[1]) * (1000 if match[2] == "k" else 1)
    return str(number.numerator) if number.denominator == 1 and (whole or "." not in match[1]) else match[1]
