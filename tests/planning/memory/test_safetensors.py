"""Header sums on generated files are exact; files that lie are refused before anything is allocated."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.cli.modelfiles import INDEX_NAME, read_checkpoint, read_config, read_header
from bayplan.planning.memory.catalogue import catalogue_model
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.memory.safetensors import MAX_HEADER_BYTES, MAX_TENSORS, header_length, load_json, parse_header
from bayplan.planning.memory.terms import Source
from bayplan.planning.memory.weights import stage_weights
from bayplan.planning.numbers import InvalidInput

SIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1}


def header_of(tensors: dict[str, tuple[str, list[int]]]) -> tuple[bytes, int]:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for side in shape:
            size *= side
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    return json.dumps(entries).encode(), begin


def write(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> int:
    """A file with real offsets and a hole for data; returns the bytes of its tensors."""
    header, data = header_of(tensors)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + data)
    return data


def test_sums_are_exact_over_shards(tmp_path: Path) -> None:
    first = write(
        tmp_path / "model-00001-of-00002.safetensors",
        {"model.embed_tokens.weight": ("BF16", [64, 8]), "model.layers.0.mlp.weight": ("F8_E4M3", [16, 8])},
    )
    second = write(
        tmp_path / "model-00002-of-00002.safetensors",
        {
            "model.layers.1.mlp.weight": ("F8_E4M3", [16, 8]),
            "model.layers.1.mlp.weight_scale": ("F32", [16]),
            "model.layers.2.mlp.weight": ("BF16", [4]),
            "visual.blocks.0.weight": ("BF16", [10]),
            "lm_head.weight": ("BF16", [64, 8]),
        },
    )
    (tmp_path / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": first + second}, "weight_map": {}}))

    sizes = read_checkpoint(tmp_path, layers=2)

    assert sizes.total_bytes == first + second
    assert sizes.layer_bytes == (128, 128 + 64)
    assert sizes.embedding_bytes == 1024 + 20
    assert sizes.head_bytes == 1024
    assert sizes.mtp_bytes == 8


@given(
    shapes=st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.lists(st.integers(0, 64), max_size=3)), max_size=12)
)
def test_any_header_that_tiles_its_data_is_added_up_exactly(shapes: list[tuple[str, list[int]]]) -> None:
    header, data = header_of({f"model.layers.{index}.w": shape for index, shape in enumerate(shapes)})

    assert sum(tensor.size_bytes for tensor in parse_header(header, data_bytes=data)) == data


def test_a_plan_uses_the_header_sum(tmp_path: Path) -> None:
    model = catalogue_model("Qwen2.5-0.5B").architecture
    tensors = {"model.embed_tokens.weight": ("BF16", [model.vocab_size, model.hidden_size])}
    tensors |= {f"model.layers.{index}.w": ("BF16", [1000, 15000]) for index in range(24)}
    total = write(tmp_path / "model.safetensors", tensors)

    term = stage_weights(model, read_checkpoint(tmp_path, layers=24), ParallelLayout())[0]

    assert term.source is Source.HEADER_SUM
    assert term.bytes_per_gpu == pytest.approx(total, rel=0.001)


def test_bytes_that_contradict_the_parameters_are_named(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {f"model.layers.{index}.w": ("BF16", [10]) for index in range(24)})
    sizes = read_checkpoint(tmp_path, layers=24)

    with pytest.raises(InvalidInput, match="480 bytes contradict 494032768 parameters"):
        stage_weights(catalogue_model("Qwen2.5-0.5B").architecture, sizes, ParallelLayout())


def test_an_index_that_contradicts_the_headers_is_named(tmp_path: Path) -> None:
    data = write(tmp_path / "model.safetensors", {"layers.0.w": ("BF16", [10])})
    index = tmp_path / INDEX_NAME

    index.write_text(json.dumps({"metadata": {"total_size": data}}))
    assert read_checkpoint(tmp_path, layers=1).total_bytes == data
    index.write_text(json.dumps({"metadata": {"total_size": data + 1}}))
    with pytest.raises(InvalidInput, match="states 21 bytes where the headers add up to 20"):
        read_checkpoint(tmp_path, layers=1)


def test_a_second_copy_of_the_weights_beside_those_of_the_index_is_not_counted(tmp_path: Path) -> None:
    """Mistral's repositories hold consolidated.safetensors as well."""
    data = write(tmp_path / "model-00001-of-00001.safetensors", {"layers.0.w": ("BF16", [10])})
    write(tmp_path / "consolidated.safetensors", {"layers.0.attention.wq.weight": ("BF16", [10])})
    placed = {"layers.0.w": "model-00001-of-00001.safetensors"}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": data}, "weight_map": placed}))

    assert read_checkpoint(tmp_path, layers=1).total_bytes == data


@pytest.mark.parametrize("file", ["../other.safetensors", "model.bin", 5, "gone.safetensors"])
def test_an_index_of_files_that_are_not_beside_it_is_refused(tmp_path: Path, file: object) -> None:
    write(tmp_path / "model.safetensors", {"layers.0.w": ("BF16", [10])})
    document = {"metadata": {"total_size": 20}, "weight_map": {"layers.0.w": file}}
    (tmp_path / INDEX_NAME).write_text(json.dumps(document))

    with pytest.raises(InvalidInput, match=r"no \.safetensors file beside it|cannot be read"):
        read_checkpoint(tmp_path, layers=1)


def test_files_of_another_number_of_layers_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {f"model.layers.{index}.w": ("BF16", [10]) for index in range(4)})

    assert read_checkpoint(tmp_path, layers=4).mtp_bytes == 0
    assert read_checkpoint(tmp_path, layers=3).mtp_bytes == 20
    assert read_checkpoint(tmp_path, layers=1, prediction_layers=3).mtp_bytes == 60
    with pytest.raises(InvalidInput, match=r"num_hidden_layers: is 2 in config\.json, and the files hold layer 3"):
        read_checkpoint(tmp_path, layers=2)
    with pytest.raises(InvalidInput, match=r"num_hidden_layers: is 5 in config\.json, and the files hold no tensor"):
        read_checkpoint(tmp_path, layers=5)


def test_layers_of_towers_are_no_layers_of_the_model(tmp_path: Path) -> None:
    write(
        tmp_path / "model.safetensors",
        {"model.layers.0.w": ("BF16", [10]), "model.audio_tower.layers.7.w": ("BF16", [3])},
    )

    assert read_checkpoint(tmp_path, layers=1).embedding_bytes == 6


def test_more_tensors_than_any_model_has_are_refused_before_they_are_decoded() -> None:
    header = b'{"a": {"data_offsets": [0, 1]}' + b', "data_offsets": 1' * MAX_TENSORS + b"}"

    with pytest.raises(InvalidInput, match=f"names more than {MAX_TENSORS} tensors"):
        parse_header(header, data_bytes=1)


@pytest.mark.parametrize(
    ("prefix", "file_bytes", "message"),
    [
        (b"\x01", 1, "is truncated"),
        (struct.pack("<Q", 10**18), 10**19, "states a header of 1000000000000000000 bytes"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1), 10**12, "the format allows"),
        (struct.pack("<Q", 0), 100, "empty header"),
        (struct.pack("<Q", 93), 100, "it is truncated"),
    ],
)
def test_a_length_is_checked_before_it_is_believed(prefix: bytes, file_bytes: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        header_length(prefix, file_bytes=file_bytes)


def test_the_largest_lengths_pass() -> None:
    assert header_length(struct.pack("<Q", MAX_HEADER_BYTES), file_bytes=MAX_HEADER_BYTES + 8) == MAX_HEADER_BYTES
    assert header_length(struct.pack("<Q", 92), file_bytes=100) == 92


def test_a_file_cut_inside_its_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path, {"w": ("BF16", [10])})
    path.write_bytes(path.read_bytes()[:20])

    with pytest.raises(InvalidInput, match="it is truncated"):
        read_header(path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "BF16", "shape": [2], "data_offsets": [0, 5]}, "takes 5 bytes where its shape needs 4"),
        ({"dtype": "XX", "shape": [2], "data_offsets": [0, 4]}, "unknown dtype"),
        ({"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]}, "begins at byte 4"),
        ({"dtype": "BF16", "shape": [-2], "data_offsets": [0, 4]}, "whole numbers"),
        ({"dtype": "BF16", "shape": [True], "data_offsets": [0, 2]}, "whole numbers"),
        ({"dtype": "BF16", "shape": [2**40, 2**40], "data_offsets": [0, 4]}, "more elements"),
        ({"dtype": "BF16", "shape": [2], "data_offsets": [0]}, "two data_offsets"),
        ([], "no JSON object"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(entry: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_header(json.dumps({"w": entry}).encode(), data_bytes=4)


@pytest.mark.parametrize("text", [b"{", b"[" * 200_000, b'{"a": ' + b"9" * 10_000 + b"}", b"\xff\xfe", b"[]"])
def test_a_header_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput):
        parse_header(text, data_bytes=0)


def test_json_beyond_its_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2 * 2**30)

    with pytest.raises(InvalidInput, match="is longer than 16777216 bytes"):
        read_config(path)
    assert load_json(b"[1]", name="x", limit=3) == [1]
    with pytest.raises(InvalidInput, match="longer than 2"):
        load_json(b"[1]", name="x", limit=2)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_config(tmp_path / "config.json")
    with pytest.raises(InvalidInput, match=r"no \.safetensors file"):
        read_checkpoint(tmp_path, layers=1)
