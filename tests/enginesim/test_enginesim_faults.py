"""Each fault does what it says, to the share that it names, and can be switched in a running engine."""

import asyncio
import math
import time

import aiohttp
import pytest

from e2e.enginesim.faults import FaultInjector
from e2e.enginesim.generation import Pace, ReleaseSchedule
from e2e.enginesim.settings import Faults, read_settings
from tests.enginesim.conftest import eventually


async def timed(client, **fields):
    """(seconds to the first token, mean seconds between tokens) of a stream, as its client sees them."""
    body = {"prompt": "hello", "max_tokens": 6, "ignore_eos": True, "stream": True, **fields}
    start = time.monotonic()
    arrivals = []
    async with client.session.post(client.url + "/v1/completions", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                arrivals.append(time.monotonic())
    return arrivals[0] - start, (arrivals[-1] - arrivals[0]) / max(1, len(arrivals) - 1)


def test_a_ttft_factor_moves_the_first_token_and_keeps_the_gaps():
    schedule = ReleaseSchedule(Pace(first_token_factor=3), arrival=100.0)
    assert [schedule.due(made) for made in (100.5, 100.75, 101.0)] == [101.5, 101.75, 102.0]


def test_a_tpot_factor_stretches_the_gaps_and_keeps_the_first_token():
    schedule = ReleaseSchedule(Pace(token_gap_factor=4), arrival=100.0)
    assert [schedule.due(made) for made in (100.5, 100.75, 101.0)] == [100.5, 101.5, 102.5]


def test_a_healthy_pace_delays_nothing():
    schedule = ReleaseSchedule(Pace(), arrival=100.0)
    assert [schedule.due(made) for made in (100.5, 100.75)] == [100.5, 100.75]


async def test_a_client_sees_a_slow_first_token_and_so_do_the_metrics(engine):
    client = await engine(STEP_SECONDS="0.02", SLOW_TTFT_FACTOR="20")
    first, _ = await timed(client)
    assert first >= 20 * 0.02
    assert await client.value("time_to_first_token_seconds_sum") >= 20 * 0.02
    assert await client.value("request_success_total", finished_reason="length") == 1


async def test_a_client_sees_slow_gaps_and_so_do_the_metrics(engine):
    client = await engine(STEP_SECONDS="0.02", SLOW_TPOT_FACTOR="8")
    _, gap = await timed(client)
    assert gap >= 8 * 0.02 * 0.5  # a busy machine hands over the first token late, which shortens the gap after it
    assert await client.value("inter_token_latency_seconds_sum") >= 5 * 8 * 0.02 * 0.9


async def test_slow_steps_slow_the_engine_itself(engine):
    client = await engine(STEP_SECONDS="0.01")
    await client.faults(slow_step_factor=15)
    first, gap = await timed(client)
    assert first >= 0.15
    assert gap >= 0.15 * 0.5
    await client.faults(slow_step_factor=1)
    await client.complete("other", max_tokens=40, ignore_eos=True)
    mean_of_first_request = await client.value("request_time_per_output_token_seconds_bucket", le="0.1")
    assert mean_of_first_request <= 1  # the slow one is above 0.1 s


@pytest.mark.parametrize(("share", "least", "most"), [(0, 0, 0), (0.3, 8, 34), (1, 60, 60)])
async def test_a_share_hits_as_many_as_it_says(engine, share, least, most):
    client = await engine(ERROR_SHARE=str(share), ERROR_STATUS="503")
    statuses = [(await client.post("/v1/completions", {"prompt": "a", "max_tokens": 1}))[0] for _ in range(60)]
    assert set(statuses) <= {200, 503}
    assert least <= statuses.count(503) <= most


async def test_the_same_seed_hits_the_same_requests(engine):
    histories = []
    for seed in ("1", "1", "2"):
        client = await engine(ERROR_SHARE="0.5", SEED=seed)
        answers = [await client.post("/v1/completions", {"prompt": "a", "max_tokens": 1}) for _ in range(20)]
        histories.append([status for status, _ in answers])
    assert histories[0] == histories[1] != histories[2]


async def test_an_error_has_vllms_body(engine):
    client = await engine(ERROR_SHARE="1")
    status, body = await client.post("/v1/completions", {"prompt": "a"})
    assert (status, body["error"]["code"], body["error"]["type"]) == (500, 500, "InternalServerError")


@pytest.mark.parametrize(("share", "least", "most"), [(0, 0, 0), (0.3, 40, 80), (1, 200, 200)])
async def test_a_share_of_requests_is_late_and_the_others_are_not(share, least, most):
    faults = Faults(slow_ttft_factor=9, slow_ttft_share=share, slow_tpot_factor=7, slow_tpot_share=1 - share)
    injector = FaultInjector(faults, seed=0)
    paces = [await injector.meet() for _ in range(200)]
    assert {pace.first_token_factor for pace in paces} <= {1, 9}
    assert {pace.token_gap_factor for pace in paces} <= {1, 7}
    assert least <= sum(pace.first_token_factor == 9 for pace in paces) <= most
    assert 200 - most <= sum(pace.token_gap_factor == 7 for pace in paces) <= 200 - least


async def test_changing_one_fault_does_not_change_whom_another_hits():
    late = []
    for share in (0, 0.5):
        injector = FaultInjector(Faults(slow_ttft_factor=9, slow_ttft_share=0.5, slow_tpot_share=share), seed=0)
        late.append([(await injector.meet()).first_token_factor for _ in range(50)])
    assert late[0] == late[1]


async def test_the_first_requests_hang_and_the_next_are_served(engine):
    client = await engine(HANG_REQUESTS="2")
    hanging = [asyncio.ensure_future(client.complete(f"{i}")) for i in range(2)]

    async def both_hang():
        return (await client.get("/_enginesim/faults"))[1]["hang_requests"] == 0

    await eventually(both_hang, "both requests arrived")
    await client.complete("third")
    assert not any(task.done() for task in hanging)
    assert (await client.get("/health"))[0] == 200
    for task in hanging:
        task.cancel()


async def test_metrics_can_be_nan_or_stay_away_while_requests_are_served(engine):
    client = await engine()
    await client.complete()
    assert await client.value("request_success_total", finished_reason="length") == 1
    await client.faults(metrics="nan")
    samples = [sample for family in (await client.families()).values() for sample in family.samples]
    assert samples
    assert all(math.isnan(sample.value) for sample in samples)
    await client.faults(metrics="cut")
    with pytest.raises(aiohttp.ClientConnectionError):
        await client.get("/metrics")
    await client.complete()
    await client.faults(metrics="")
    assert await client.value("request_success_total", finished_reason="length") == 2


async def test_faults_change_one_by_one(engine):
    client = await engine(ERROR_SHARE="1")
    changed = await client.faults(error_status=429)
    assert (changed["error_share"], changed["error_status"]) == (1, 429)
    assert (await client.post("/v1/completions", {"prompt": "a"}))[0] == 429
    await client.faults(error_share=0)
    await client.complete("a")


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"eror_share": 1}, "eror_share"),
        ({"error_share": 1.1}, "error_share"),
        ({"error_share": -0.1}, "error_share"),
        ({"slow_ttft_factor": 0.9}, "slow_ttft_factor"),
        ({"error_status": 200}, "error_status"),
        ({"metrics": "gone"}, "metrics"),
        ({"load_seconds": 1}, "load_seconds"),
        ([], "object"),
    ],
)
async def test_a_wrong_fault_is_refused_by_name_and_changes_nothing(engine, body, names):
    client = await engine()
    before = await client.get("/_enginesim/faults")
    status, answer = await client.post("/_enginesim/faults", body)
    assert status == 400
    assert names in answer["error"]["message"]
    assert await client.get("/_enginesim/faults") == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENGINESIM_LAOD_SECONDS", "1"),
        ("ENGINESIM_LOAD_SECONDS", "soon"),
        ("ENGINESIM_LOAD_SECONDS", "-1"),
        ("ENGINESIM_LOAD_SECONDS", "inf"),
        ("ENGINESIM_KV_TOKENS", "0"),
        ("ENGINESIM_OOM_AT_START", "maybe"),
        ("ENGINESIM_PREFILL_TOKENS_PER_SECOND", "0"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        read_settings({name: value})


def test_empty_and_foreign_variables_mean_nothing():
    assert read_settings({"ENGINESIM_LOAD_SECONDS": "", "PATH": "/bin"}) == read_settings({})


async def test_a_crash_by_count_takes_the_process_down(spawn):
    engine = await (await spawn(CRASH_AFTER_REQUESTS="2")).ready()
    await engine.client.complete()
    with pytest.raises(aiohttp.ClientConnectionError):
        await engine.client.complete()
    assert await engine.ended() == 1


async def test_a_crash_by_time_can_be_ordered_later(spawn):
    engine = await (await spawn()).ready()
    await engine.client.faults(crash_after_seconds=0.05)
    assert await engine.ended() == 1
    assert "crash" in engine.log


async def test_no_memory_for_the_kv_cache_ends_the_start(spawn):
    engine = await spawn(OOM_AT_START="error")
    assert await engine.ended() == 1
    assert "No available memory for the cache blocks" in engine.log


async def test_the_oom_killer_ends_the_start(spawn):
    assert await (await spawn(OOM_AT_START="killed")).ended() == -9
