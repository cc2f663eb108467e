"""What a refusal of a known model offers is true: each offer is accepted, and one step beyond it is not."""

import re
from typing import Any

import pytest

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.planning.layout.decision import plan_layout
from bayplan.planning.layout.pools import GpuPool
from bayplan.planning.memory.replica import ReplicaMemory
from tests.planning.fleets import H100, H100_MIB, L4, L4_MIB
from tests.planning.layout.test_known_models import spec


def asked(model: str, *, concurrency: int, length: int, **parallelism: int) -> InferenceModelSpec:
    base = spec({"name": model})
    changes: dict[str, Any] = {
        "concurrency": concurrency,
        "engine": base.engine.model_copy(update={"max_model_len": length}),
        "parallelism": type(base.parallelism)(**parallelism),
    }
    return base.model_copy(update=changes)


REFUSED = [
    (asked("Llama-3.1-8B", concurrency=64, length=32768, tensor=1, pipeline=1), GpuPool(H100, (8,), H100_MIB)),
    (asked("Qwen3-14B", concurrency=4, length=40960), GpuPool(L4, (1,), L4_MIB)),
    (asked("gemma-3-27b-it", concurrency=200, length=131072), GpuPool(H100, (2,), H100_MIB)),
    (asked("DeepSeek-V3", concurrency=4, length=163840, tensor=8, pipeline=1), GpuPool(H100, (8, 8), H100_MIB)),
    (asked("Qwen3-Next-80B-A3B-Instruct", concurrency=500, length=262144), GpuPool(H100, (4,), H100_MIB)),
]


@pytest.mark.parametrize(("wish", "pool"), REFUSED, ids=[wish.model.architecture.name for wish, _ in REFUSED])  # type: ignore[union-attr]
def test_each_offer_is_accepted_and_one_beyond_is_not(wish: InferenceModelSpec, pool: GpuPool) -> None:
    refused = plan_layout(wish, pool)
    assert refused.reason is Reason.INSUFFICIENT_MEMORY
    assert isinstance(refused.memory, ReplicaMemory)
    assert "short by" in refused.message
    concurrency = re.search(r"concurrency ≤ (\d+)", refused.message)
    most = int(concurrency[1]) if concurrency else 0

    def reason(**changes: Any) -> Reason:
        return plan_layout(wish.model_copy(update=changes), pool).reason

    if most:
        assert reason(concurrency=most) is Reason.FITS
    assert reason(concurrency=most + 1) is Reason.INSUFFICIENT_MEMORY
    length = re.search(r"maxModelLen ≤ (\d+)", refused.message)
    if length:
        engine = wish.engine.model_copy(update={"max_model_len": int(length[1])})
        assert reason(engine=engine) is Reason.FITS
    layout = re.search(r"fits with tensor=(\d+)(?: pipeline=(\d+))?(?: data=(\d+))?(?:,|$)", refused.message)
    if layout:
        names = ("tensor", "pipeline", "data")
        sizes = {name: int(size or 1) for name, size in zip(names, layout.groups(), strict=True)}
        assert reason(parallelism=type(wish.parallelism)(**sizes)) is Reason.FITS
    assert most or length or layout or "fits with GPUs of" in refused.message


def test_flags_that_free_memory_are_offered_by_name() -> None:
    wish, pool = asked("Llama-3.1-8B", concurrency=54, length=8192, tensor=1, pipeline=1), REFUSED[0][1]

    assert re.search(r"or --kv-cache-dtype fp8|or --max-num-seqs \d+", plan_layout(wish, pool).message)
