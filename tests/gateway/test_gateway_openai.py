"""The contract with clients, held up to OpenAI's own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from bayplan.gateway.settings import GatewaySettings
from bayplan.planning.admission.sheds import ShedCode
from tests.fakes.clock import until
from tests.gateway.conftest import MakeScripted, MakeTown
from tests.gateway.gatewaytown import FACTS, Town
from tests.gateway.scriptedengine import whole_answer
from tests.gateway.test_gateway_waiting import Gate

MakeClient = Callable[..., AsyncOpenAI]
ONE_SEAT = replace(FACTS, max_num_seqs=1)


@pytest.fixture
async def client() -> AsyncIterator[MakeClient]:
    made: list[AsyncOpenAI] = []

    def make(town: Town, *, retries: int = 0, path: str = "/v1", **fields: Any) -> AsyncOpenAI:
        made.append(AsyncOpenAI(base_url=town.url + path, api_key="any", max_retries=retries, timeout=20, **fields))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def test_models_chats_completions_and_streams_work(town: Town, client: MakeClient) -> None:
    openai_client = client(town)
    models = await openai_client.models.list()
    assert [model.id for model in models.data] == ["default/tiny"]
    messages: Any = [{"role": "user", "content": "hello"}]
    chat = await openai_client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=5)
    assert chat.choices[0].message.content
    completion = await openai_client.completions.create(model="default/tiny", prompt="hello", max_tokens=5)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 5
    by_path = client(town, path="/models/default/tiny/v1")
    text, usage = "", None
    stream = await by_path.chat.completions.create(
        model="tiny", messages=messages, max_completion_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    assert text
    assert usage is not None
    assert usage.completion_tokens == 9
    await until(lambda: town.held == 0)


@pytest.mark.parametrize("retries", [0, 2])
async def test_shed_is_a_rate_limit_error_with_code_and_hint_and_is_retried(
    make_town: MakeTown, scripted: MakeScripted, client: MakeClient, retries: int
) -> None:
    town = await make_town(settings=GatewaySettings(max_queued_requests=0))
    town.model()
    gate = Gate()
    town.head("a", (await scripted(gate, whole_answer)).host, facts=ONE_SEAT)
    async with town.open_stream() as running:
        await running.content.readany()
        asking = asyncio.ensure_future(
            client(town, retries=retries).completions.create(model="tiny", prompt="hello", max_tokens=8)
        )
        (pool,) = town.gateway.directory
        await until(lambda: pool.readings().sheds[ShedCode.QUEUE_FULL] == 1)
        gate.opened.set()
        await running.read()
    if retries:
        # The hint of a pool that has seen nothing yet is one second: the client comes back by itself and gets in.
        assert (await asking).choices[0].text == "hi"
        return
    with pytest.raises(openai.RateLimitError) as shed:
        await asking
    assert shed.value.code == "queue_full"
    assert shed.value.response.headers["retry-after"] == "1"
    assert shed.value.body["retry_after"] == 1  # type: ignore[index]


async def test_refusal_for_good_is_not_retried(town: Town, client: MakeClient) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client(town, retries=5).completions.create(model="tiny", prompt="hello", max_tokens=10_000)
    assert refused.value.code == "request_too_large"
    (pool,) = town.gateway.directory
    assert pool.readings().sheds[ShedCode.REQUEST_TOO_LARGE] == 1


async def test_errors_have_the_types_that_clients_catch(make_town: MakeTown, client: MakeClient) -> None:
    town = await make_town()
    town.model()
    asking = client(town)
    with pytest.raises(openai.InternalServerError) as unready:
        await asking.completions.create(model="tiny", prompt="a")
    assert unready.value.code == "no_ready_replica"
    with pytest.raises(openai.NotFoundError) as unknown:
        await asking.completions.create(model="other", prompt="a")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        await asking.completions.create(model="tiny", prompt="a", max_tokens=-1)
    assert (wrong.value.code, wrong.value.param) == ("invalid_request", "max_tokens")


async def test_client_that_closes_its_stream_frees_the_place(town: Town, client: MakeClient) -> None:
    stream = await client(town).completions.create(
        model="tiny", prompt="hello", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    assert town.held == 1
    await stream.close()
    await until(lambda: town.held == 0)
