"""Scheduling as HTTP shows it: the prefix cache, waiting, clients that leave, and the metrics of all that."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.enginesim.conftest import eventually

PROMPT = list(range(1000, 1109))
FACTS = Path(__file__).parent / "vllm_0_32_metrics.txt"
TYPES_WITHOUT_SUFFIX = {"counter": "_total", "gauge": "", "histogram": ""}


def facts():
    """{exposed name: (type, labels)} of a fresh vLLM 0.32."""
    rows = [line.split() for line in FACTS.read_text().splitlines() if not line.startswith("#")]
    return {name: (kind, tuple(labels.split(","))) for name, kind, labels in rows}


async def test_metric_families_types_and_labels_are_those_of_vllm(engine):
    client = await engine()
    seen = {}
    for family in (await client.families()).values():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        seen[family.name + TYPES_WITHOUT_SUFFIX[family.type]] = (family.type, tuple(sorted(labels)))
    created = {name.removesuffix("_created") for name in seen if name.endswith("_created")}
    assert {name: seen[name] for name in seen if not name.endswith("_created")} == facts()
    assert created == {name.removesuffix("_total") for name, (kind, _) in seen.items() if kind == "counter"} | {
        name for name, (kind, _) in seen.items() if kind == "histogram"
    }


async def test_cache_config_carries_what_the_engine_has(engine):
    client = await engine(
        "--block-size 32 --max-model-len 1024 --kv-cache-dtype fp8 --gpu-memory-utilization 0.5",
        KV_TOKENS="10250",
        KV_BYTES_PER_TOKEN="1000",
    )
    (sample,) = (await client.families())["vllm:cache_config_info"].samples
    labels = sample.labels
    assert (labels["block_size"], labels["effective_attention_block_size"]) == ("32", "32")
    assert (labels["num_gpu_blocks"], labels["kv_cache_size_tokens"]) == ("320", "10240")
    assert (labels["kv_cache_memory_bytes"], labels["kv_cache_max_concurrency"]) == ("10240000", "10.0")
    assert (labels["cache_dtype"], labels["gpu_memory_utilization"]) == ("fp8", "0.5")
    assert labels["enable_prefix_caching"] == "True"


async def test_counters_account_for_every_token(engine):
    client = await engine("--block-size 16")
    for _ in range(2):
        await client.complete("x" * 50, max_tokens=10)
    await client.complete("hi", max_tokens=1000, temperature=0, min_tokens=3, stop="e")
    stopped = int(await client.value("generation_tokens_total")) - 20
    assert await client.value("prompt_tokens_total") == 102
    assert await client.value("prompt_tokens_cached_total") == 48
    assert await client.value("prompt_tokens_by_source_total", source="local_compute") == 54
    assert await client.value("prompt_tokens_by_source_total", source="local_cache_hit") == 48
    assert await client.value("prompt_tokens_cached_by_source_total", source="device") == 48
    assert await client.value("prefix_cache_queries_total") == 102
    assert await client.value("prefix_cache_hits_total") == 48
    assert await client.value("request_success_total", finished_reason="length") == 2
    assert await client.value("request_success_total", finished_reason="stop") == 1
    assert await client.value("iteration_tokens_total_sum") == 54 + 20 + stopped
    for name, count in (
        ("time_to_first_token_seconds", 3),
        ("inter_token_latency_seconds", 18 + stopped - 1),
        ("request_time_per_output_token_seconds", 3),
        ("e2e_request_latency_seconds", 3),
        ("request_queue_time_seconds", 3),
        ("request_prefill_time_seconds", 3),
        ("request_decode_time_seconds", 3),
        ("request_inference_time_seconds", 3),
        ("request_prompt_tokens", 3),
        ("request_generation_tokens", 3),
        ("request_params_n", 3),
        ("request_params_max_tokens", 3),
        ("request_max_num_generation_tokens", 3),
        ("request_num_preemptions", 3),
        ("request_prefill_kv_computed_tokens", 3),
    ):
        assert (name, await client.value(f"{name}_count")) == (name, count)
    assert await client.value("request_generation_tokens_sum") == 20 + stopped
    assert await client.value("request_prefill_kv_computed_tokens_sum") == 54
    assert await client.value("request_params_max_tokens_sum") == 1020
    assert await client.value("num_requests_running") == 0
    assert await client.value("kv_cache_usage_perc") == 0


async def test_a_prompt_of_109_tokens_hits_96_under_its_own_salt_only(engine):
    client = await engine("--block-size 32")
    hits = []
    before = 0.0
    for salt in ("a", "a", "b", None, None):
        await client.complete(PROMPT, cache_salt=salt, max_tokens=1)
        now = await client.value("prefix_cache_hits_total")
        hits.append(now - before)
        before = now
    assert hits == [0, 96, 0, 0, 96]


async def test_the_next_turn_of_a_conversation_hits_the_last_answer(engine):
    client = await engine("--block-size 16")
    messages = [{"role": "user", "content": "hello"}]
    body = {"messages": messages, "max_tokens": 100, "ignore_eos": True, "temperature": 0}
    _, answer = await client.post("/v1/chat/completions", body)
    messages += [answer["choices"][0]["message"], {"role": "user", "content": "more"}]
    await client.post("/v1/chat/completions", body)
    assert await client.value("prefix_cache_hits_total") == (23 + 100 - 1) // 16 * 16


async def test_nothing_is_cached_where_prefix_caching_is_off(engine):
    client = await engine("--no-enable-prefix-caching")
    for _ in range(2):
        await client.complete(PROMPT, max_tokens=1)
    assert await client.value("prefix_cache_hits_total") == 0


async def test_requests_beyond_max_num_seqs_wait_and_all_are_answered(engine):
    client = await engine("--max-num-seqs 4")
    requests = [asyncio.ensure_future(client.complete(f"{i}", max_tokens=150, ignore_eos=True)) for i in range(10)]

    async def six_wait():
        return await client.value("num_requests_waiting") == 6 and await client.value("num_requests_running") == 4

    await eventually(six_wait, "six requests wait")
    assert await client.value("num_requests_waiting_by_reason", reason="capacity") == 6
    bodies = await asyncio.gather(*requests)
    assert all(body["usage"]["completion_tokens"] == 150 for body in bodies)
    assert await client.value("num_requests_waiting") == 0


async def test_a_pool_too_small_for_all_preempts_and_loses_no_token(engine):
    client = await engine("--block-size 16 --max-model-len 320", KV_TOKENS="320")
    requests = [client.complete(f"{i}", max_tokens=200, ignore_eos=True, temperature=0) for i in range(3)]
    bodies = await asyncio.gather(*requests)
    assert all(body["usage"]["completion_tokens"] == 200 for body in bodies)
    assert all(len(body["choices"][0]["text"]) == 200 for body in bodies)
    preemptions = await client.value("num_preemptions_total")
    assert preemptions > 0
    assert await client.value("request_num_preemptions_sum") == preemptions


async def test_a_client_that_leaves_frees_its_blocks_at_once(engine):
    client = await engine("--max-num-seqs 1", STEP_SECONDS="0.05")
    async with client.open_stream() as response:
        await response.content.readline()
        assert await client.value("kv_cache_usage_perc") > 0
        queued = asyncio.ensure_future(client.complete("queued", max_tokens=4000, ignore_eos=True))

        async def one_waits():
            return await client.value("num_requests_waiting") == 1

        await eventually(one_waits, "the second request waits")
        queued.cancel()

        async def none_waits():
            return await client.value("num_requests_waiting") == 0

        await eventually(none_waits, "the queued request is gone")
        response.close()

    async def free():
        return await client.value("kv_cache_usage_perc") == 0 and await client.value("num_requests_running") == 0

    await eventually(free, "the blocks are free")
    # As in vLLM, sequences whose client left are in no count of ended ones.
    for reason in ("stop", "length", "abort", "error"):
        assert await client.value("request_success_total", finished_reason=reason) == 0


async def test_a_client_that_leaves_without_streaming_is_noticed_too(engine):
    client = await engine(STEP_SECONDS="0.05")
    request = asyncio.ensure_future(client.complete(max_tokens=4000, ignore_eos=True))

    async def runs():
        return await client.value("num_requests_running") == 1

    await eventually(runs, "the request runs")
    request.cancel()

    async def gone():
        return await client.value("num_requests_running") == 0

    await eventually(gone, "the request is gone")


async def test_data_parallel_ranks_are_engines_of_their_own(engine):
    client = await engine("--data-parallel-size 2 --max-num-seqs 1")
    streams = [client.open_stream() for _ in range(2)]
    async with streams[0] as one, streams[1] as two:
        for response in (one, two):
            await response.content.readline()

        async def both_run():
            return [await client.value("num_requests_running", engine=rank) for rank in "01"] == [1, 1]

        await eventually(both_run, "each rank runs one request")


async def test_the_port_refuses_until_the_engine_is_ready(service):
    built, client = service(LOAD_SECONDS="0.2", COMPILE_SECONDS="0.2", CACHE_SECONDS="0.2")
    starting = asyncio.ensure_future(built.start(None))
    refusals = 0
    while not starting.done():
        try:
            await client.get("/health")
        except aiohttp.ClientConnectionError:
            refusals += 1
        await asyncio.sleep(0.01)
    assert refusals
    assert await starting
    assert (await client.get("/health"))[0] == 200
    assert (await client.get("/v1/models"))[1]["data"]
    await client.complete()


async def test_an_early_listener_is_healthy_before_its_model_is_listed(service):
    built, client = service(LISTEN_EARLY="1", LOAD_SECONDS="3600")
    starting = asyncio.ensure_future(built.start(None))

    async def healthy():
        try:
            return (await client.get("/health"))[0] == 200
        except aiohttp.ClientConnectionError:
            return False

    await eventually(healthy, "it listens")
    assert (await client.get("/v1/models"))[1]["data"] == []
    assert (await client.post("/v1/completions", {"prompt": "a"}))[0] == 503
    starting.cancel()


async def test_an_early_listener_serves_once_loaded(engine):
    client = await engine(LISTEN_EARLY="1", LOAD_SECONDS="0.05")
    assert (await client.get("/v1/models"))[1]["data"]
    await client.complete()


@pytest.mark.parametrize(("tokens", "starts"), [("1008", False), ("1024", True), ("1040", True)])
async def test_a_kv_cache_smaller_than_the_model_length_is_refused(service, tokens, starts):
    built, _ = service("--max-model-len 1024 --block-size 16", KV_TOKENS=tokens)
    if starts:
        assert await built.start(None)
    else:
        with pytest.raises(ValueError, match="1008 tokens"):
            await built.start(None)
