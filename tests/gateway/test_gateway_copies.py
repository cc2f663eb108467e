"""Copies of requests for a candidate in shadow: dropped, bounded, and nobody's requests."""

import asyncio

import pytest

from bayplan.gateway.endpoints import EngineFacts
from bayplan.gateway.settings import GatewaySettings
from tests.fakes.clock import until
from tests.gateway.conftest import MakeScripted, MakeTown, MakeTrial
from tests.gateway.rollouttrial import Trial, die, slow_stream
from tests.gateway.scriptedengine import HEAD, Connection, event, whole_answer, whole_stream


class TestCopies:
    def shadow(self, trial: Trial, epoch: int = 1, share: int = 100) -> None:
        trial.plan(epoch, shadowShare=share, baseline=["pod-serving"])

    async def test_copy_is_sent_and_its_answer_dropped(self, make_trial: MakeTrial) -> None:
        async def wrong(connection: Connection) -> None:
            await connection.answer(200, {"choices": [{"index": 0, "text": "no", "finish_reason": "stop"}]})

        trial = await make_trial(candidate=wrong)
        self.shadow(trial)
        status, answer, _ = await trial.town.post(user="me")
        assert (status, answer["choices"][0]["text"]) == (200, "hi")
        await until(lambda: bool(trial.candidate.received))
        ours, theirs = trial.candidate.received[0], trial.serving.received[0]
        assert ours.headers["x-request-id"] == theirs.headers["x-request-id"] + "-copy"
        assert ours.body["cache_salt"] != theirs.body["cache_salt"]
        assert ours.body | {"cache_salt": ""} == theirs.body | {"cache_salt": ""}
        assert await trial.rows() == {("serving", "baseline"): 1, ("candidate", "shadow"): 1}

    async def test_copy_is_no_request_of_a_users(self, trial: Trial) -> None:
        self.shadow(trial)
        assert await trial.ask() == 200
        await until(lambda: bool(trial.candidate.received))
        await until(lambda: trial.town.reserved_tokens() == 0)
        metrics = await trial.town.metrics()
        assert 'bayplan_gateway_requests_total{model="tiny",namespace="default",outcome="completed"} 1.0' in metrics
        assert 'bayplan_gateway_demand_requests_total{model="tiny",namespace="default"} 1.0' in metrics
        assert 'bayplan_gateway_copies_total{model="tiny",namespace="default",outcome="sent"} 1.0' in metrics
        for arm, revision in (("shadow", "r2"), ("baseline", "r1")):
            labels = f'arm="{arm}",class="default",model="tiny",namespace="default",revision="{revision}"'
            assert f"bayplan_gateway_sent_requests_total{{{labels}}} 1.0" in metrics

    async def test_failing_candidate_is_seen_in_its_row_alone(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(candidate=die)
        self.shadow(trial)
        for _ in range(3):
            assert await trial.ask() == 200
        await until(lambda: len(trial.candidate.received) == 3)
        await until(lambda: trial.town.reserved_tokens() == 0)
        assert await trial.errors("candidate") == {"failed": 3}
        assert await trial.errors("serving") == {}

    async def test_copy_holds_room_and_what_finds_none_is_dropped(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(candidate=slow_stream, serving=whole_stream)
        few = EngineFacts(kv_blocks=20, block_size=16, max_num_seqs=64, max_model_len=4096)
        trial.town.head("candidate", trial.candidate.host, revision="r2", facts=few)
        self.shadow(trial)
        for _ in range(3):
            async with trial.town.open_stream() as response:
                assert (await response.read()).endswith(b"[DONE]\n\n")
        await until(lambda: len(trial.candidate.received) == 1)
        pods = (await trial.town.evidence())["models"]["default/tiny"]["pods"]
        assert 0 < pods["pod-candidate"]["reservedKvBlocks"] <= 20
        assert 'outcome="dropped"} 2.0' in await trial.town.metrics()
        assert trial.town.held == 0

    async def test_candidate_with_requests_of_its_own_has_no_copies(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(candidate=slow_stream, serving=whole_stream)
        self.shadow(trial)
        async with trial.town.open_stream() as response:
            await response.read()
        await until(lambda: len(trial.candidate.received) == 1)
        trial.plan(2, weight=10)
        await asyncio.wait_for(trial.candidate.left.wait(), 5)
        await until(lambda: trial.town.reserved_tokens() == 0)
        assert await trial.errors("candidate") == {"cancelled": 1}

    async def test_copy_ends_when_its_requests_client_leaves(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(candidate=slow_stream, serving=slow_stream)
        self.shadow(trial)
        async with trial.town.open_stream() as response:
            await response.content.readany()
            await until(lambda: len(trial.candidate.received) == 1)
            response.close()
        await asyncio.wait_for(trial.candidate.left.wait(), 5)

    async def test_copy_goes_on_when_its_request_has_ended_well(self, make_trial: MakeTrial) -> None:
        go_on = asyncio.Event()

        async def late(connection: Connection) -> None:
            await go_on.wait()
            await whole_answer(connection)

        trial = await make_trial(candidate=late)
        self.shadow(trial)
        assert await trial.ask() == 200
        go_on.set()
        await until(lambda: trial.town.reserved_tokens() == 0)
        (row,) = [row for row in (await trial.town.evidence())["rows"] if row["arm"] == "shadow"]
        assert (row["requests"], row["errors"], row["e2e"]["total"]) == (1, {}, 1)

    async def test_endless_answer_is_read_to_a_bound_and_is_no_error(
        self, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def endless(connection: Connection) -> None:
            await connection.send(HEAD)
            while True:
                await connection.chunk(event("x" * 1000))

        monkeypatch.setattr("bayplan.gateway.copies.MOST_COPY_BYTES", 100_000)
        trial = await make_trial(candidate=endless, serving=whole_stream)
        self.shadow(trial)
        async with trial.town.open_stream() as response:
            await response.read()
        await asyncio.wait_for(trial.candidate.left.wait(), 5)
        await until(lambda: trial.town.reserved_tokens() == 0)
        assert await trial.errors("candidate") == {"cancelled": 1}

    async def test_nothing_is_copied_while_the_gateway_is_busy(
        self, trial: Trial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bayplan.gateway.copies.MOST_COPIES", 0)
        self.shadow(trial)
        assert await trial.ask() == 200
        assert await trial.rows() == {("serving", "baseline"): 1}
        assert 'outcome="dropped"} 1.0' in await trial.town.metrics()

    async def test_nothing_is_copied_while_half_of_the_memory_for_bodies_is_taken(
        self, make_town: MakeTown, scripted: MakeScripted
    ) -> None:
        town = await make_town(settings=GatewaySettings(max_buffered_bytes=2000))
        trial = Trial(town, await scripted(whole_answer), await scripted(whole_answer))
        self.shadow(trial)
        assert await trial.ask(prompt="x" * 700) == 200
        assert await trial.ask(prompt="x") == 200
        await until(lambda: bool(trial.candidate.received))
        assert await trial.rows() == {("serving", "baseline"): 2, ("candidate", "shadow"): 1}
        assert 'outcome="dropped"} 1.0' in await town.metrics()

    async def test_leaving_gateway_ends_its_copies(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(candidate=slow_stream, serving=whole_stream)
        self.shadow(trial)
        async with trial.town.open_stream() as response:
            await response.read()
        await until(lambda: len(trial.candidate.received) == 1)
        trial.town.gateway.refuse_new()
        await asyncio.wait_for(trial.candidate.left.wait(), 5)
        assert trial.town.gateway.held == 0

    async def test_bodies_of_copies_are_given_back(self, trial: Trial) -> None:
        self.shadow(trial)
        for _ in range(3):
            assert await trial.ask() == 200
        await until(lambda: len(trial.candidate.received) == 3)
        await until(lambda: trial.town.gateway.generations.buffered_bytes == 0)
