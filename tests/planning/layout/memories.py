"""The founding formula's memory of a spec, for tests that start from five numbers."""

from fractions import Fraction

from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.planning.layout.memorytext import counted_memory
from bayplan.planning.layout.modelnumbers import CountedModel, read_model
from bayplan.planning.layout.split import Split
from bayplan.planning.memory import MemoryDecision


def memory_of(
    asked: InferenceModelSpec, *, gpu_memory_gib: Fraction | None, tensor: int = 1, pipeline: int = 1
) -> MemoryDecision:
    model = read_model(asked)
    assert isinstance(model, CountedModel)
    return counted_memory(asked, model, gpu_memory_gib=gpu_memory_gib, split=Split(tensor, pipeline))
