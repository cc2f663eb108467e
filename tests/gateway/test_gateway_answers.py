"""The thin path: a request is admitted, relayed unchanged, and gives back what it held."""

import json

import aiohttp

from bayplan.api.names import ENGINE_PORT
from tests.fakes.clock import until
from tests.gateway.gatewaytown import Town


async def test_completion_comes_back_as_the_engine_gave_it(town: Town) -> None:
    status, body, headers = await town.post()
    assert status == 200
    assert body["usage"]["completion_tokens"] == 8
    assert body["choices"][0]["finish_reason"] == "length"
    assert headers["X-Request-Id"].startswith("bayplan-")
    assert body["id"] == f"cmpl-{headers['X-Request-Id']}"
    assert town.held == town.reserved_tokens() == 0


async def test_chat_completion_comes_back(town: Town) -> None:
    messages = [{"role": "user", "content": "hello"}]
    status, body, _ = await town.post("/v1/chat/completions", messages=messages, prompt=None)
    assert status == 200
    assert body["choices"][0]["message"]["content"]
    assert town.held == 0


async def test_stream_has_the_bytes_of_the_engine(town: Town) -> None:
    # The same seed gives the same text; only id and time differ, which are made equal by the very same answer.
    async with town.open_stream(max_tokens=40, temperature=0, stream_options={"include_usage": True}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        relayed = await response.read()
    (head,) = town.heads.values()
    body = {
        "model": "tiny", "prompt": "hello", "max_tokens": 40, "ignore_eos": True, "stream": True, "temperature": 0,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{head.address}:{ENGINE_PORT}/v1/completions", json=body) as response,
    ):
        direct = await response.read()

    def contents(raw: bytes) -> list[object]:
        events = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line]
        assert events.pop() == b"[DONE]"
        return [(one["choices"], one.get("usage")) for one in map(json.loads, events)]

    assert contents(relayed) == contents(direct)
    assert len(contents(relayed)) > 10
    assert town.held == 0


async def test_room_is_held_while_the_stream_runs_and_given_back_at_its_end(town: Town) -> None:
    async with town.open_stream(max_tokens=400) as response:
        await response.content.readany()
        assert town.held == 1
        assert town.reserved_tokens() == 5 + 4 + 400  # bytes of the prompt, its frame, and the output
        await response.read()
    await until(lambda: town.held == 0)
    assert town.reserved_tokens() == 0


async def test_models_are_listed_under_their_full_names(town: Town) -> None:
    async with town.session.get(town.url + "/v1/models") as response:
        listed = await response.json()
    assert [(one["id"], one["ready"]) for one in listed["data"]] == [("default/tiny", True)]


async def test_model_answers_to_short_full_and_path_name(town: Town) -> None:
    for path, model in (
        ("/v1/completions", "tiny"),
        ("/v1/completions", "default/tiny"),
        ("/models/default/tiny/v1/completions", "tiny"),
        ("/models/default/tiny/v1/completions", None),
    ):
        status, body, _ = await town.post(path, model=model)
        assert status == 200, body


async def test_demand_and_outcomes_are_counted(town: Town) -> None:
    await town.post()
    async with town.open_stream(max_tokens=20) as response:
        await response.read()
    text = await town.metrics()
    own = 'model="tiny",namespace="default"'
    lines = set(text.splitlines())

    def value(name: str, **labels: str) -> float:
        for line in lines:
            if line.startswith(name + "{") and all(f'{key}="{label}"' in line for key, label in labels.items()):
                return float(line.rpartition(" ")[2])
        raise AssertionError((name, labels, own))

    assert value("bayplan_gateway_demand_tokens_total", kind="prompt") == 2 * 9
    assert value("bayplan_gateway_demand_tokens_total", kind="output") == 28
    assert value("bayplan_gateway_requests_total", outcome="completed") == 2
    assert value("bayplan_gateway_reserved_tokens") == 0
    assert value("bayplan_gateway_ttft_seconds_count", revision="r1") == 1
    assert value("bayplan_gateway_e2e_seconds_count", revision="r1") == 2
    evidence = await town.evidence()
    (row,) = evidence["rows"]
    assert row["pod"] == "pod-a"
    assert row["requests"] == 2
    assert row["outputTokens"] == 28
    assert row["errors"] == {}
    assert row["loadedSeconds"] > 0
    assert evidence["gateway"]["uid"] == "gateway-uid"
    assert evidence["models"]["default/tiny"]["demandOutputTokens"] == 28
    assert evidence["models"]["default/tiny"]["pods"]["pod-a"]["reservedTokens"] == 0
