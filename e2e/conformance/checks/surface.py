"""What an engine shows before anybody asks it to generate."""

from e2e.conformance.engines import Answer, Engine
from e2e.conformance.metrics import PREFIX, describe_families, other_families
from e2e.conformance.records import Json, Record, shape

CHOSEN_BY_FLAGS = (
    "block_size",
    "cache_dtype",
    "effective_attention_block_size",
    "enable_prefix_caching",
    "engine",
    "gpu_memory_utilization",
    "kv_cache_max_concurrency",
    "kv_cache_memory_bytes",
    "kv_cache_size_tokens",
    "num_gpu_blocks",
)
"""Labels of `vllm:cache_config_info` whose values follow from flags and KV cache size, equal for both engines."""


def _described(answer: Answer) -> dict[str, Json]:
    return {"status": answer.status, "content type": answer.content_type, "body": shape(answer.json())}


async def observe_start(engine: Engine) -> Record:
    """What the port answered from the start of the process to the first 200."""
    return {"states of /health and /v1/models": [" ".join(state) for state in engine.states]}


async def observe_models(engine: Engine) -> Record:
    """The model list and the small endpoints beside it."""
    listed = await engine.call("GET", "/v1/models")
    entry = listed.json()["data"][0]
    return {
        "/v1/models": {
            **_described(listed),
            "listed": len(listed.json()["data"]),
            "id": entry["id"],
            "object": entry["object"],
            "owned_by": entry["owned_by"],
            "max_model_len": entry["max_model_len"],
        },
        "/version": {
            **_described(version := await engine.call("GET", "/version")),
            "release": str(version.json()["version"]).split("+")[0],
        },
        "/load": _described(await engine.call("GET", "/load")),
        "/health": {
            **_described(health := await engine.call("GET", "/health")),
            "bytes": len(health.body),
        },
        "/ping": {"status": (await engine.call("GET", "/ping")).status},
    }


async def observe_families(engine: Engine) -> Record:
    """Every metric family of a fresh engine: name, type, samples, labels, bucket edges."""
    answer = await engine.call("GET", "/metrics")
    scrape = await engine.scrape()
    return {
        "content type": answer.content_type.split(";")[0],
        "families": describe_families(scrape),
        "other": list(other_families(scrape)),
    }


async def observe_cache_config(engine: Engine) -> Record:
    """The labels of the engine's own account of its KV cache, and the values that flags decide."""
    scrape = await engine.scrape()
    (sample,) = scrape.samples[f"{PREFIX}cache_config_info"]
    return {
        "labels": sorted(sample.labels),
        "value": sample.value,
        "chosen": {label: sample.labels.get(label) for label in CHOSEN_BY_FLAGS},
    }
