"""Parameter counts against published totals, and how ranks share tensors."""

from dataclasses import replace
from fractions import Fraction

import pytest

from bayplan.planning.memory.catalogue import catalogue_model, find_model, model_names
from bayplan.planning.memory.formats import mxfp4_padding, weight_format
from bayplan.planning.memory.parallel import ParallelLayout
from bayplan.planning.memory.weights import MeasuredWeights, measured_for, stage_weights
from bayplan.planning.numbers import GIB, InvalidInput

EXACT = [name for name in model_names() if not catalogue_model(name).published_is_rounded]
ROUNDED = [name for name in model_names() if catalogue_model(name).published_is_rounded]


def test_most_entries_have_an_exact_published_count() -> None:
    assert len(EXACT) >= 60


@pytest.mark.parametrize("name", EXACT)
def test_parameters_equal_the_published_count(name: str) -> None:
    model = catalogue_model(name)

    assert model.parameters == model.published_parameters


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_are_near_a_rounded_count(name: str) -> None:
    """A card rounds to two or three digits and may leave out the vision tower or count it."""
    model = catalogue_model(name)

    assert model.parameters == pytest.approx(model.published_parameters, rel=0.14)


def test_names_are_found_without_organisation_tuning_and_format() -> None:
    found = find_model("RedHatAI/Qwen3-14B-FP8-dynamic")

    assert found is not None
    assert found.name == "Qwen/Qwen3-14B"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "meta-llama/Meta-Llama-3.1-8B"),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "Qwen/Qwen3-8B"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "meta-llama/Llama-3.3-70B-Instruct"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-block", "meta-llama/Meta-Llama-3.1-8B"),
        ("/models/Qwen2.5-7B-Instruct/", "Qwen/Qwen2.5-7B"),
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/9c925d64", "Qwen/Qwen3-8B"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-ai/DeepSeek-R1"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3"),
        ("sakamakismile/Qwen3.6-27B-Text-NVFP4-MTP", "nvidia/Qwen3.6-27B-NVFP4"),
        ("google/gemma-3-27b-it-qat-q4_0-unquantized", "google/gemma-3-27b-it"),
        ("QuantTrio/GLM-4.5-Air-AWQ-FP16Mix", "zai-org/GLM-4.5-Air"),
        ("LLAMA3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
        ("Qwen3-235B-A22B-w4a16-g128", "Qwen/Qwen3-235B-A22B"),
    ],
)
def test_a_checkpoint_is_found_however_it_is_packed_and_wherever_it_lies(name: str, found: str) -> None:
    model = find_model(name)

    assert model is not None
    assert model.name == found


@pytest.mark.parametrize(("name", "least"), [("Qwen/Qwen3.5-9B", 17.66), ("zai-org/GLM-4.7-Flash", 55.87)])
def test_entries_from_start_logs_agree_with_the_load_that_was_logged(name: str, least: float) -> None:
    assert load(name, "bf16") == pytest.approx(least, rel=0.01)


def test_another_version_is_not_found_as_this_one() -> None:
    first, second = find_model("mistralai/Mistral-7B-v0.1"), find_model("TheBloke/Mistral-7B-Instruct-v0.2-AWQ")
    assert first is not None
    assert second is not None
    assert (first.architecture.attention, second.architecture.attention) == (
        replace(first.architecture.attention, window=4096) if first.architecture.attention else None,
        replace(first.architecture.attention, window=None) if first.architecture.attention else None,
    )
    assert find_model("mistralai/Mistral-7B-v0.9") is None
    assert find_model("no-such-model") is None
    with pytest.raises(InvalidInput, match="not in the catalogue"):
        catalogue_model("no-such-model")


def load(name: str, kind: str, **ranks: int) -> float:
    model = catalogue_model(name).architecture
    return float(stage_weights(model, weight_format(kind), ParallelLayout(**ranks))[0].gib)


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "logged"),
    [
        # llm-d-planner#205 and its empirical results
        ("Llama-3.1-8B", "bf16", {}, 14.99),
        ("Llama-3.1-8B", "bf16", {"tensor": 4}, 3.77),
        ("Llama-3.1-8B", "bf16", {"pipeline": 2}, 7.51),
        ("Llama-3.1-8B", "fp32", {}, 29.98),
        ("Qwen3-14B", "bf16", {}, 27.52),
        ("Llama-3.3-70B-Instruct", "fp8", {}, 67.72),
        # kyuz0 logs
        ("Qwen3-14B", "fp8", {}, 15.34),
        ("Qwen3-30B-A3B", "gptq-4bit", {}, 15.61),
    ],
)
def test_class_estimates_agree_with_logged_loads(name: str, kind: str, ranks: dict[str, int], logged: float) -> None:
    assert load(name, kind, **ranks) == pytest.approx(logged, rel=0.02)


@pytest.mark.parametrize(
    ("vendor", "capability", "logged"), [("nvidia", (9, 0), 13.5), ("nvidia", (8, 9), 13.72), ("amd", None, 14.31)]
)
def test_mxfp4_experts_are_padded_by_their_kernel(
    vendor: str, capability: tuple[int, int] | None, logged: float
) -> None:
    """gpt-oss-20b: 12.8 GiB in the file; H100, Marlin and ROCm load more."""
    model = catalogue_model("gpt-oss-20b").architecture
    padding = mxfp4_padding(vendor=vendor, compute_capability=capability)

    loaded = stage_weights(model, weight_format("mxfp4"), ParallelLayout(), padding=padding)[0]

    assert float(loaded.gib) == pytest.approx(logged, rel=0.015)
    assert float(stage_weights(model, weight_format("mxfp4"), ParallelLayout())[0].gib) == pytest.approx(12.8, rel=0.01)


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="quantization"):
        weight_format("int3")


def test_a_measured_load_is_carried_to_another_width_in_proportion() -> None:
    model = catalogue_model("Llama-3.1-8B").architecture
    measured = MeasuredWeights(Fraction(15))

    halved = measured_for(measured, model, measured=ParallelLayout(), wanted=ParallelLayout(tensor=2))

    assert halved.gib_per_gpu == pytest.approx(Fraction(15, 2), rel=0.001)


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(32, 4, (8, 8, 8, 8)), (36, 5, (7, 7, 7, 8, 7)), (61, 2, (31, 30)), (62, 4, (15, 16, 16, 15))],
)
def test_spare_layers_go_to_the_middle_stages(layers: int, stages: int, sizes: tuple[int, ...]) -> None:
    found = ParallelLayout(pipeline=stages).stages(layers)

    assert tuple(len(span) for span in found) == sizes
    assert found[-1].stop == layers


def test_a_partition_must_add_up() -> None:
    assert len(ParallelLayout(pipeline=2, stage_layers=(16, 32)).stages(48)[1]) == 32
    with pytest.raises(InvalidInput, match="add up to 48"):
        ParallelLayout(pipeline=2, stage_layers=(16, 32)).stages(49)
    with pytest.raises(InvalidInput, match="pipeline"):
        ParallelLayout(pipeline=5).stages(4)


def test_tied_embeddings_are_held_on_both_ends_of_a_pipeline() -> None:
    model = catalogue_model("Llama-3.2-1B").architecture
    first, last = stage_weights(model, weight_format("bf16"), ParallelLayout(pipeline=2))

    assert first.gib == pytest.approx(last.gib, rel=0.001)
    assert first.gib * GIB > model.vocab_size * model.hidden_size * 2
