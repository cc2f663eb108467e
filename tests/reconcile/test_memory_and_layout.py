"""What a model's numbers make of it: terms and layouts in its status, refusals, and what engines report."""

import json
from typing import Any

import pytest

from bayplan.api import names
from bayplan.cluster.metrics import Metrics
from bayplan.cluster.resources import CONTROLLER_REVISIONS, INFERENCE_MODELS, Key
from bayplan.reconcile.inferencemodel.evidence import MeasuredCaches
from tests.planning.fleets import H100
from tests.reconcile.world import World, model_spec

A100 = "NVIDIA-A100-SXM4-80GB"
V100 = "Tesla-V100-SXM2-32GB"


def named(name: str, **more: Any) -> dict[str, Any]:
    return {**model_spec()["model"], "architecture": {"name": name, **more}}


def fleet(*gpus: tuple[str, str, int], count: int = 8) -> World:
    """Nodes of (name, product, MiB of memory)."""
    found = World()
    for name, product, mib in gpus:
        labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(mib)}
        found.add_node(name, gpus=count, labels=labels)
    return found


def records(cluster: World) -> dict[str, Any]:
    (revision,) = cluster.objects(CONTROLLER_REVISIONS)
    found: dict[str, Any] = json.loads(revision["metadata"]["annotations"][names.ANNOTATION_LAYOUTS])
    return found


def message(cluster: World, key: Key, kind: str = "MemoryFit") -> str:
    found = cluster.condition(key, kind)
    return "" if found is None else str(found["message"])


async def test_terms_carry_their_provenance_and_the_runner_up_its_reason() -> None:
    cluster = fleet(("n1", H100, 81559))
    key = cluster.add_model(model=named("Llama-3.1-8B"), concurrency=16)
    await cluster.run()

    (memory,), (layout,) = cluster.status(key)["memory"], cluster.status(key)["parallelism"]
    terms = {term["name"]: term for term in memory["terms"]}
    assert {name: term["provenance"] for name, term in terms.items()} == {
        "weights": "Estimated",
        "sampler peak": "Estimated",
        "non-torch": "Estimated",
        "CUDA graphs": "Estimated",
        "KV cache": "Derived",
    }
    assert (memory["fits"], memory["marginal"]) == (True, False)
    assert float(terms["KV cache"]["gibPerGpu"]) == pytest.approx(16, abs=0.01)
    assert layout["runnerUp"] == "tensor=2 pipeline=1: takes 2 GPUs instead of 1"
    assert "KV 16.0 for 16 × 8192 tokens, activation 1.9 estimated" in message(cluster, key)
    assert cluster.reason(key, "Ready") == ("True", "Ready")


async def test_a_refusal_says_what_is_short_and_what_would_fit() -> None:
    cluster = fleet(("n1", H100, 81559))
    key = cluster.add_model(model=named("Llama-3.3-70B-Instruct"), parallelism={"tensor": 2, "pipeline": 1})
    await cluster.run()

    assert cluster.reason(key, "MemoryFit") == ("False", "InsufficientMemory")
    assert cluster.pods() == []
    text = message(cluster, key)
    assert "with tensor=2 pipeline=1: needs " in text
    assert "(weights 65.7 estimated, " in text
    assert ": short by " in text
    assert "; fits with tensor=4, or " in text
    assert "--max-num-seqs" in text


async def test_warn_places_it_all_the_same_and_says_so() -> None:
    cluster = fleet(("n1", H100, 81559))
    key = cluster.add_model(
        model=named("Llama-3.3-70B-Instruct"), parallelism={"tensor": 2, "pipeline": 1}, memoryPolicy="Warn"
    )
    await cluster.run()

    assert cluster.reason(key, "MemoryFit") == ("False", "OverriddenByPolicy")
    assert "memoryPolicy is Warn" in message(cluster, key)
    assert len(cluster.pods()) == 1


async def test_a_model_that_fits_on_some_products_is_placed_only_there() -> None:
    cluster = fleet(("small", "NVIDIA-L4", 23034), ("large", H100, 81559), count=1)
    key = cluster.add_model(model=named("Qwen3-32B", weightFormat="fp8"), replicas=2)
    await cluster.run()

    assert [pod["spec"]["nodeName"] for pod in cluster.pods()] == ["large"]
    assert cluster.reason(key, "MemoryFit") == ("True", "Fits")
    assert "NVIDIA-L4: InsufficientMemory" in message(cluster, key)
    assert [entry["gpuProduct"] for entry in cluster.status(key)["memory"]] == ["NVIDIA-L4", H100]


async def test_a_format_that_no_gpu_here_runs_names_the_products_that_would() -> None:
    cluster = fleet(("n1", V100, 32768))
    key = cluster.add_model(model=named("Llama-3.1-8B", weightFormat="fp8"))
    await cluster.run()

    assert cluster.reason(key, "MemoryFit") == ("False", "UnsupportedOnHardware")
    assert cluster.reason(key, "Stalled") == ("True", "UnsupportedOnHardware")
    assert "H100" in message(cluster, key)
    assert cluster.pods() == []


async def test_a_model_of_which_nothing_is_known_is_placed_with_a_reason() -> None:
    cluster = fleet(("n1", H100, 81559))
    model = {name: value for name, value in model_spec()["model"].items() if name != "architecture"}
    key = cluster.add_model(model=model, parallelism={"tensor": 2})
    await cluster.run()

    assert cluster.reason(key, "MemoryFit") == ("Unknown", "UnknownArchitecture")
    assert "bayplan fit --config FILE --write" in message(cluster, key)
    assert "memory" not in cluster.status(key) or cluster.status(key)["memory"] == []
    (pod,) = cluster.pods()
    assert "--tensor-parallel-size=2" in pod["spec"]["containers"][0]["args"]
    assert cluster.reason(key, "Ready") == ("True", "Ready")


async def test_an_address_that_the_catalogue_knows_needs_no_numbers() -> None:
    cluster = fleet(("n1", H100, 81559))
    model = {**model_spec()["model"], "uri": "hf://Qwen/Qwen3-14B"}
    del model["architecture"]
    key = cluster.add_model(model=model)
    await cluster.run()

    assert cluster.reason(key, "MemoryFit") == ("True", "Fits")
    assert "weights 27.5 estimated" in message(cluster, key)


async def test_a_config_that_contradicts_itself_is_an_invalid_spec() -> None:
    cluster = fleet(("n1", H100, 81559))
    config = json.dumps({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 0})
    key = cluster.add_model(model={**model_spec()["model"], "architecture": {"config": config}})
    await cluster.run()

    assert cluster.reason(key, "Accepted") == ("False", "InvalidSpec")
    assert "spec.model.architecture.config: num_hidden_layers" in message(cluster, key, "Accepted")
    assert cluster.pods() == []


async def test_data_ranks_with_whole_experts_reach_the_engine() -> None:
    cluster = fleet(("n1", "NVIDIA-H200", 143771))
    key = cluster.add_model(model=named("DeepSeek-V3"), concurrency=64)
    await cluster.run()

    (layout,) = cluster.status(key)["parallelism"]
    assert (layout["tensor"], layout["data"], layout["expert"], layout["gpusPerReplica"]) == (1, 8, True, 8)
    (pod,) = cluster.pods()
    args = pod["spec"]["containers"][0]["args"]
    assert {"--data-parallel-size=8", "--enable-expert-parallel", "--tensor-parallel-size=1"} <= set(args)
    assert pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert records(cluster)["NVIDIA-H200"]["data"] == 8
    assert cluster.reason(key, "Ready") == ("True", "Ready")


# --- what engines report ----------------------------------------------------------------------------------------------


def planned_blocks(cluster: World, key: Key) -> int:
    """The blocks that the plan leaves, of 16 tokens: 2 MiB each for an 8B model with 8 KV heads."""
    (memory,) = cluster.status(key)["memory"]
    cache = next(float(term["gibPerGpu"]) for term in memory["terms"] if term["name"] == "KV cache")
    return int((float(memory["headroomGib"]) + cache) * 2**30 / 2**21)


async def reported(share: float) -> tuple[World, Key, int]:
    """An 8B model whose first replica reports `share` of the planned cache."""
    cluster = fleet(("n1", H100, 81559))
    key = cluster.add_model(model=named("Llama-3.1-8B"), concurrency=16)
    await cluster.settle()
    blocks = int(planned_blocks(cluster, key) * share)
    cluster.schedule()
    cluster.kubelets()
    cluster.engine.at[cluster.address(cluster.pod_names()[0])].cache_blocks = blocks
    await cluster.run()
    await cluster.advance(5)
    return cluster, key, blocks


async def test_a_report_within_three_percent_confirms_the_plan() -> None:
    cluster, key, _ = await reported(0.98)

    assert "blocks" not in records(cluster)[H100]
    assert cluster.reason(key, "Ready") == ("True", "Ready")


@pytest.mark.parametrize("share", [0.8, 1.2])
async def test_a_report_beyond_three_percent_replaces_the_estimate(share: float) -> None:
    cluster, key, blocks = await reported(share)

    assert records(cluster)[H100]["blocks"] == blocks
    (memory,) = cluster.status(key)["memory"]
    terms = {term["name"]: term for term in memory["terms"]}
    assert terms["measured difference"]["provenance"] == "Measured"
    assert (float(terms["measured difference"]["gibPerGpu"]) > 0) == (share < 1)
    assert planned_blocks(cluster, key) == pytest.approx(blocks, abs=8)
    assert cluster.reason(key, "Ready") == ("True", "Ready")


async def test_evidence_shows_in_a_metric_and_survives_a_restart() -> None:
    cluster, key, blocks = await reported(0.8)
    await cluster.restart()
    await cluster.run()

    assert records(cluster)[H100]["blocks"] == blocks
    assert planned_blocks(cluster, key) == pytest.approx(blocks, abs=8)
    metrics = Metrics()
    metrics.collect_from(MeasuredCaches(cluster.operator.revisions))
    line = next(text for text in metrics.render().decode().split("\n") if text.startswith("bayplan_kv_cache_measured"))
    assert f'gpu_product="{H100}",model="llama",namespace="{key.namespace}"' in line
    assert float(line.rsplit(" ", 1)[1]) == pytest.approx(0.8, abs=0.01)


async def test_evidence_belongs_to_its_revision() -> None:
    cluster, key, _ = await reported(0.8)
    spec = next(m for m in cluster.api.objects(INFERENCE_MODELS))["spec"]
    cluster.edit_spec(key, engine={**spec["engine"], "image": "vllm/vllm-openai:v0.32.1"})
    await cluster.run()

    (memory,) = cluster.status(key)["memory"]
    assert "measured difference" not in {term["name"] for term in memory["terms"]}


async def test_less_cache_than_the_load_needs_moves_nothing_that_runs() -> None:
    cluster, key, _ = await reported(0.1)

    assert cluster.reason(key, "MemoryFit") == ("Unknown", "LayoutKept")
    assert cluster.reason(key, "Ready") == ("True", "Ready")
    assert len(cluster.pods()) == 1
