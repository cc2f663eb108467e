"""What a head's annotation promises: the memory plan's room in blocks, or the spec's promise where that is unknown."""

from fractions import Fraction
from typing import Any

import pytest

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.planning.admission.bounds import AdmissionBounds, admission_bounds
from bayplan.planning.memory import MemoryDecision
from tests.api.specs import MINIMAL_SPEC
from tests.planning.layout.memories import memory_of

GPU = "NVIDIA-L40S"


def spec(**engine: Any) -> InferenceModelSpec:
    return InferenceModelSpec.model_validate({**MINIMAL_SPEC, "engine": {**MINIMAL_SPEC["engine"], **engine}})


def memory(wish: InferenceModelSpec, gib: int | None, *, tensor: int = 1) -> MemoryDecision:
    return memory_of(wish, gpu_memory_gib=None if gib is None else Fraction(gib), tensor=tensor)


def bounds(wish: InferenceModelSpec, gib: int | None, **more: Any) -> AdmissionBounds:
    return admission_bounds(
        wish, memory(wish, gib, **more), gpu_product=GPU, gpu_memory_gib=None if gib is None else Fraction(gib)
    )


def test_blocks_are_the_memory_that_is_left_over_all_gpus_of_a_replica() -> None:
    wish = spec()
    for tensor in (1, 2):
        decision = memory(wish, 48, tensor=tensor)
        assert decision.usable_gib is not None
        room = decision.usable_gib - sum(term.gib_per_gpu for term in decision.terms if term.name != "KV cache")
        # 32 layers x keys and values x 8 heads x 128 elements of 2 bytes, a part of it on each GPU
        token_bytes = Fraction(2 * 32 * 8 * 128 * 2, tensor)
        expected = int(room * 2**30 / token_bytes) // 16
        assert bounds(wish, 48, tensor=tensor).kv_blocks == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("gib", [None, 1])
def test_without_a_proof_the_promise_of_the_spec_stands(gib: int | None) -> None:
    wish = spec(maxModelLen=1000).model_copy(update={"concurrency": 7})

    assert bounds(wish, gib).kv_blocks == 7 * 63


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ([], 16),
        (["--block-size=32"], 32),
        (["--block_size", "64"], 64),
        (["--block-size 128"], 128),
        (["--block-size=32", "--block-size=8"], 8),
        (["--block-size=auto"], 16),
        (["--block-size"], 16),
        (["--block-size=0"], 16),
    ],
)
def test_the_block_size_is_the_engines(args: list[str], size: int) -> None:
    found = bounds(spec(args=args), 48)

    assert found.block_size == size
    assert found.kv_tokens == pytest.approx(bounds(spec(), 48).kv_tokens, abs=size)


def test_sequences_are_the_users_or_the_engines_default() -> None:
    assert bounds(spec(maxNumSeqs=9), 48).max_num_seqs == 9
    assert bounds(spec(), 48).max_num_seqs == 256
    assert bounds(spec(), 80).max_num_seqs == 1024
    assert bounds(spec(), None).max_num_seqs == 256
    assert bounds(spec(), 48).max_model_len == 8192


def test_the_annotation_reads_back() -> None:
    found = bounds(spec(), 48)

    assert AdmissionBounds.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kvBlocks":1}', '{"kvBlocks":0,"blockSize":1,"maxNumSeqs":1,"maxModelLen":1}', "7"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
        AdmissionBounds.from_json(text)
