"""Signals, exit codes, groups of nodes, and the command line."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from e2e.enginesim.flags import parse_flags
from tests.enginesim.conftest import eventually, loopback, parse_events

SLOW = {"STEP_SECONDS": "0.01"}
CHAT = [{"role": "user", "content": "new"}]


async def read_all(response):
    return parse_events(await response.read())


async def first_line(response):
    line = await response.content.readline()
    assert line.startswith(b"data: {")
    await response.content.readline()


async def test_sigterm_cuts_streams_with_a_normal_looking_end(spawn):
    engine = await (await spawn(**SLOW)).ready()
    waiting = asyncio.ensure_future(engine.client.complete(max_tokens=4000, ignore_eos=True))
    async with engine.client.open_stream(stream_options={"include_usage": True}) as response:
        await first_line(response)
        engine.send_signal(signal.SIGTERM)
        *_, last, usage, done = await read_all(response)
    assert (response.status, last["choices"][0]["finish_reason"], done) == (200, "abort", "[DONE]")
    assert usage["usage"]["completion_tokens"] < 4000
    assert (await waiting)["choices"][0]["finish_reason"] == "abort"
    assert await engine.ended() == 0


def chat_is_refused(engine):
    """Whether a new chat gets 500, as draining engines answer; one that came just before the signal waits for long."""

    async def refused():
        chat = engine.client.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1})
        try:
            return (await asyncio.wait_for(chat, 1))[0] == 500
        except TimeoutError:
            return False

    return refused


async def test_with_a_shutdown_timeout_streams_end_whole_and_new_requests_are_turned_away(spawn):
    engine = await (await spawn("--shutdown-timeout 60 --max-num-seqs 1", SLOW_STEP_FACTOR="200")).ready()
    async with engine.client.open_stream(max_tokens=200) as response:
        await first_line(response)
        queued = asyncio.ensure_future(engine.client.complete("queued", max_tokens=5, ignore_eos=True))

        async def waits():
            return await engine.client.value("num_requests_waiting") == 1

        await eventually(waits, "the second request waits")
        engine.send_signal(signal.SIGTERM)

        await eventually(chat_is_refused(engine), "a new chat gets 500")
        assert (await engine.client.get("/health"))[0] == 200
        late = await engine.client.complete("new", max_tokens=5)
        assert (late["choices"][0]["text"], late["choices"][0]["finish_reason"]) == ("", "abort")
        assert late["usage"]["completion_tokens"] == 0
        assert await engine.client.events(prompt="new") == ["[DONE]"]
        usage, done = await engine.client.events(prompt="new", stream_options={"include_usage": True})
        assert (usage["choices"], done) == ([], "[DONE]")
        assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (3, 0)
        await engine.client.faults(slow_step_factor=1)
        events = await read_all(response)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert 1 + sum(len(event["choices"][0]["text"]) for event in events[:-1]) == 200
    assert (await queued)["usage"]["completion_tokens"] == 5
    assert await engine.ended() == 0


async def test_a_stream_longer_than_the_shutdown_timeout_is_cut(spawn):
    engine = await (await spawn("--shutdown-timeout 1", **SLOW)).ready()
    async with engine.client.open_stream() as response:
        await first_line(response)
        engine.send_signal(signal.SIGTERM)
        events = await read_all(response)
    assert (events[-2]["choices"][0]["finish_reason"], events[-1]) == ("abort", "[DONE]")
    assert await engine.ended() == 0


async def test_a_second_signal_ends_the_process_at_once(spawn):
    engine = await (await spawn("--shutdown-timeout 600", **SLOW)).ready()
    async with engine.client.open_stream() as response:
        await first_line(response)
        engine.send_signal(signal.SIGTERM)
        await eventually(chat_is_refused(engine), "the engine drains")
        engine.send_signal(signal.SIGTERM)
        assert await engine.ended() == 1
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_requests_that_hang_do_not_hold_up_the_end(spawn):
    engine = await (await spawn(HANG_REQUESTS="1")).ready()
    hanging = asyncio.ensure_future(engine.client.post("/v1/completions", {"prompt": "a"}))

    async def hangs():
        return (await engine.client.get("/_enginesim/faults"))[1]["hang_requests"] == 0

    await eventually(hangs, "the request hangs")
    engine.send_signal(signal.SIGTERM)
    assert (await hanging)[0] == 500
    assert await engine.ended() == 0


async def test_tokens_held_back_by_a_fault_are_cut_too(spawn):
    engine = await (await spawn(SLOW_TPOT_FACTOR="5000")).ready()
    async with engine.client.open_stream(max_tokens=5) as response:
        await first_line(response)

        async def engine_is_done():
            return await engine.client.value("num_requests_running") == 0

        await eventually(engine_is_done, "the engine itself is done")
        engine.send_signal(signal.SIGTERM)
        events = await read_all(response)
    assert (events[-2]["choices"][0]["finish_reason"], events[-1]) == ("abort", "[DONE]")
    assert await engine.ended() == 0


async def test_sigterm_while_loading_ends_in_order(spawn):
    engine = await spawn(LOAD_SECONDS="600")

    async def loading():
        return "starting to load" in engine.log

    await eventually(loading, "it loads")
    engine.send_signal(signal.SIGTERM)
    assert await engine.ended() == 0


async def test_it_runs_as_a_module_and_says_where_it_listens():
    host = loopback()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "e2e.enginesim", "serve", "tiny", "--host", host, "--port", "0"),
        cwd=Path(__file__).parents[2],
        env={"PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            while b"listening on http://" + host.encode() not in (line := await process.stdout.readline()):
                assert line, "it ended"
        process.terminate()
        assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_a_taken_port_is_said(spawn):
    host = loopback()
    await (await spawn(host=host)).ready()
    second = await spawn(host=host)
    assert await second.ended() == 1
    assert "cannot listen" in second.log
    assert "Traceback" not in second.log


async def test_wrong_variables_and_flags_end_with_status_2(spawn):
    one = await spawn(LOAD_SECONDS="soon")
    two = await spawn("--max-model-len many")
    assert (await one.ended(), await two.ended()) == (2, 2)
    assert "ENGINESIM_LOAD_SECONDS" in one.log
    assert "--max-model-len" in two.log


async def test_a_kv_cache_too_small_ends_with_status_1(spawn):
    engine = await spawn(KV_TOKENS="100")
    assert await engine.ended() == 1
    assert "max_model_len" in engine.log
    assert "Traceback" not in engine.log


# -- groups


async def group(spawn, flags="", **environment):
    """(head, rank 1), started rank first."""
    host = loopback()
    shared = f"--nnodes 2 --master-addr {host} {flags}"
    rank = await spawn(f"{shared} --node-rank 1 --headless", **environment)
    head = await spawn(f"{shared} --node-rank 0", host=host, **environment)
    return head, rank


async def test_a_head_is_not_ready_before_its_ranks(spawn):
    host = loopback()
    head = await spawn(f"--nnodes 2 --master-addr {host}", host=host)

    async def loaded():
        return "KV cache" in head.log

    await eventually(loaded, "the head loaded its part")
    with pytest.raises(aiohttp.ClientConnectionError):
        await head.client.get("/health")
    await spawn(f"--nnodes 2 --master-addr {host} --node-rank 1 --headless")
    await head.ready()
    await head.client.complete()


async def test_a_lost_rank_takes_the_head_down_and_cuts_its_streams(spawn):
    head, rank = await group(spawn, **SLOW)
    await head.ready()
    async with head.client.open_stream() as response:
        await first_line(response)
        rank.process.kill()
        assert await head.ended() == 1
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert "rank 1 is gone" in head.log


async def test_a_rank_lost_while_loading_takes_the_head_down(spawn):
    head, rank = await group(spawn, LOAD_SECONDS="600")

    async def joined():
        return "rank 1 of 2 joined" in head.log

    await eventually(joined, "the rank joined")
    rank.process.kill()
    assert await head.ended() == 1


async def test_a_rank_without_memory_takes_the_group_down(spawn):
    host = loopback()
    head = await spawn(f"--nnodes 2 --master-addr {host}", host=host)
    rank = await spawn(f"--nnodes 2 --master-addr {host} --node-rank 1 --headless", OOM_AT_START="error")
    assert (await head.ended(), await rank.ended()) == (1, 1)


async def test_a_rank_leaves_when_its_head_is_gone(spawn):
    head, rank = await group(spawn)
    await head.ready()
    head.process.kill()
    assert await rank.ended() == 1


async def test_a_rank_that_crashes_takes_the_head_down(spawn):
    host = loopback()
    shared = f"--nnodes 2 --master-addr {host}"
    head = await spawn(shared, host=host)
    rank = await spawn(f"{shared} --node-rank 1 --headless", CRASH_AFTER_SECONDS="0.1")
    assert (await head.ended(), await rank.ended()) == (1, 1)


async def test_the_end_of_the_head_is_the_end_of_its_ranks(spawn):
    head, rank = await group(spawn)
    await head.ready()
    head.send_signal(signal.SIGTERM)
    assert (await head.ended(), await rank.ended()) == (0, 0)


async def test_a_rank_told_to_end_stays_while_its_head_drains(spawn):
    head, rank = await group(spawn, "--shutdown-timeout 60", **SLOW)
    await head.ready()
    async with head.client.open_stream(max_tokens=100) as response:
        await first_line(response)
        for process in (rank, head):
            process.send_signal(signal.SIGTERM)
        events = await read_all(response)
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert (await head.ended(), await rank.ended()) == (0, 0)


async def test_a_rank_told_to_end_without_a_timeout_takes_the_head_down(spawn):
    head, rank = await group(spawn)
    await head.ready()
    rank.send_signal(signal.SIGTERM)
    assert (await rank.ended(), await head.ended()) == (0, 1)


async def test_a_group_that_stays_incomplete_fails_in_time(spawn):
    host = loopback()
    head = await spawn(f"--nnodes 2 --master-addr {host}", host=host, GROUP_JOIN_SECONDS="0.2")
    rank = await spawn(f"--nnodes 2 --master-addr {loopback()} --node-rank 1 --headless", GROUP_JOIN_SECONDS="0.2")
    assert (await head.ended(), await rank.ended()) == (1, 1)
    assert "ranks [1] were not ready" in head.log
    assert "did not answer" in rank.log


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n", b"join 0 2\n", b"join 2 2\n", b"join 1 3\n", b"x" * 10**6])
async def test_a_stranger_at_the_group_port_is_turned_away(spawn, greeting):
    host = loopback()
    head = await spawn(f"--nnodes 2 --master-addr {host}", host=host)

    async def open_port():
        try:
            return await asyncio.open_connection(host, 29501)
        except OSError:
            return None

    reader, writer = await eventually(open_port, "the group port listens")
    writer.write(greeting)
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    await spawn(f"--nnodes 2 --master-addr {host} --node-rank 1 --headless")
    await head.ready()


# -- command line


def flags(text):
    return parse_flags(text.split())


def test_the_model_is_named_in_any_of_vllms_ways():
    for text in ("serve m", "m", "--model m", "serve --port 1 m", "serve --enforce-eager m", "serve --model=m"):
        assert flags(text).model == "m"


def test_flags_that_users_pass_are_read():
    got = flags(
        "serve /models/x --served-model-name a b --max_model_len 8K --max-num-seqs=3 --block-size 32 -tp 4 -pp 2 -dp 2 "
        "--max-num-batched-tokens 4k --kv-cache-dtype fp8 --gpu-memory-utilization 0.5 --no-enable-prefix-caching "
        "--shutdown-timeout 20"
    )
    assert (got.served_model_name, got.max_model_len, got.max_num_seqs) == (("a", "b"), 8192, 3)
    assert (got.tensor_parallel_size, got.pipeline_parallel_size, got.data_parallel_size) == (4, 2, 2)
    assert (got.max_num_batched_tokens, got.block_size, got.kv_cache_dtype) == (4000, 32, "fp8")
    assert (got.gpu_memory_utilization, got.enable_prefix_caching, got.shutdown_timeout) == (0.5, False, 20)


def test_the_served_name_is_the_model_and_steps_hold_all_sequences_by_default():
    got = flags("m --max-num-seqs 3000")
    assert (got.served_model_name, got.max_num_batched_tokens) == (("m",), 3000)


def test_flags_without_an_effect_are_named_and_do_not_swallow_others():
    got = flags(
        "serve m --dtype bfloat16 --async-scheduling --port 7 --trust_remote_code --hf_overrides={} -O3 --seed -1 "
        "--no-enforce-eager -asc 2 --speculative-config.method ngram -cc.level=3 --middleware a.b --uvicorn-log info"
    )
    assert (got.model, got.port) == ("m", 7)
    assert got.ignored == (
        "--dtype",
        "--async-scheduling",
        "--trust-remote-code",
        "--hf-overrides",
        "--optimization-level",
        "--seed",
        "--no-enforce-eager",
        "-asc",
        "--speculative-config",
        "-cc",
        "--middleware",
        "--uvicorn-log-level",
    )


@pytest.mark.parametrize(
    "text",
    [
        "--no-such-flag=1",
        "--no-such-flag",
        "--no-such-flag 1",
        "--disable-log-requests",
        "--dtypes=half",
        "-x",
        "--no-dtype",
        "another-model",
    ],
)
def test_a_flag_that_vllm_does_not_have_is_refused_as_vllm_refuses_it(text, capsys):
    with pytest.raises(SystemExit) as ended:
        flags(f"serve m {text} --port 7")
    assert ended.value.code == 2
    assert f"error: unrecognized arguments: {text.split()[0]}" in capsys.readouterr().err


async def test_an_unknown_flag_ends_the_process_with_status_2(spawn):
    engine = await spawn("--no-such-flag=1")
    assert await engine.ended() == 2
    assert "--no-such-flag=1" in engine.log
    assert "Traceback" not in engine.log


async def test_values_of_ignored_flags_are_not_logged(spawn):
    engine = await (await spawn("--api-key s3cret --hf-token=t0ken")).ready()
    assert "--api-key --hf-token" in engine.log
    assert "s3cret" not in engine.log
    assert "t0ken" not in engine.log


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("serve", "no model"),
        ("m --headless", "--headless"),
        ("m --nnodes 2 --node-rank 1", "--headless"),
        ("m --nnodes 2 --node-rank 2 --headless --master-addr 127.0.0.1", "--node-rank"),
        ("m --nnodes 2 --node-rank 1 --headless", "--master-addr"),
        ("m --gpu-memory-utilization 1.01", "--gpu-memory-utilization"),
        ("m --gpu-memory-utilization 0", "--gpu-memory-utilization"),
        ("m --max-num-seqs 0", "--max-num-seqs"),
        ("m --max-model-len 1.5", "--max-model-len"),
        ("m --tensor-parallel-size 0", "--tensor-parallel-size"),
    ],
)
def test_wrong_flags_are_named(text, named, capsys):
    with pytest.raises(SystemExit) as ended:
        flags(text)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_json_values_survive_the_command_line():
    assert flags(f"m --speculative-config={json.dumps({'a': 1}).replace(' ', '')}").ignored == ("--speculative-config",)
