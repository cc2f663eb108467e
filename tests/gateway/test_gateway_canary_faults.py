"""A canary in which something fails: no client notices, and nobody is tried twice."""

import asyncio

import pytest

from bayplan.gateway.endpoints import EngineFacts
from bayplan.gateway.places import Place
from bayplan.planning.admission.records import AdmissionRequest, End
from tests.fakes.clock import until
from tests.gateway.conftest import MakeTrial
from tests.gateway.rollouttrial import MINE, OTHERS, Trial, die, refuse
from tests.gateway.scriptedengine import Connection, Script, whole_answer


class TestWhenSomethingFails:
    @pytest.mark.parametrize("fault", [die, refuse])
    async def test_request_that_the_candidate_does_not_serve_is_served_by_serving(
        self, make_trial: MakeTrial, fault: Script
    ) -> None:
        trial = await make_trial(candidate=fault)
        trial.plan(1, weight=50)
        await trial.lead()
        assert await trial.ask(MINE) == 200
        assert await trial.rows() == {("serving", "serving"): 21, ("candidate", "candidate"): 1}
        assert await trial.errors("candidate") == {"failed": 1}
        assert await trial.errors("serving") == {}

    async def test_request_of_the_pool_is_never_tried_at_the_candidate(self, make_trial: MakeTrial) -> None:
        trial = await make_trial(serving=die)
        trial.plan(1, weight=50)
        for _ in range(4):
            assert await trial.ask(OTHERS) == 503
        assert trial.candidate.received == []

    async def test_candidates_pod_that_vanishes_takes_no_request_with_it(self, make_trial: MakeTrial) -> None:
        async def wait(connection: Connection) -> None:
            await connection.until_client_leaves()

        trial = await make_trial(candidate=wait)
        trial.plan(1, weight=50)
        await trial.lead()
        asked = asyncio.ensure_future(trial.ask(MINE))
        await until(lambda: bool(trial.candidate.received))
        trial.town.gone(trial.pods["candidate"])
        assert await asked == 200
        assert trial.town.held == 0

    async def test_candidate_gets_no_second_chance_where_nobody_else_is_left(self, make_trial: MakeTrial) -> None:
        serving_left = asyncio.Event()

        async def fail_late(connection: Connection) -> None:
            await serving_left.wait()
            connection.reset()

        trial = await make_trial(candidate=fail_late)
        trial.plan(1, weight=50)
        await trial.lead()
        asked = asyncio.ensure_future(trial.ask(MINE))
        await until(lambda: bool(trial.candidate.received))
        trial.town.gone(trial.pods["serving"])
        serving_left.set()
        assert await asked == 503
        assert len(trial.candidate.received) == 1

    async def test_place_that_the_plan_has_taken_away_meanwhile_is_left_before_anything_is_sent(
        self, trial: Trial
    ) -> None:
        """The wait ends and the plan changes in the same turn of the loop."""
        few = EngineFacts(kv_blocks=4, block_size=16, max_num_seqs=64, max_model_len=4096)
        trial.town.head("serving", trial.serving.host, revision="r1", facts=few)
        (pool,) = trial.town.gateway.directory
        place = await pool.enter(AdmissionRequest(tenant="anonymous", prompt_tokens=1, max_output_tokens=50))
        assert isinstance(place, Place)
        asked = asyncio.ensure_future(trial.ask())
        await until(lambda: trial.town.queued() == 1)
        place.release(End.COMPLETED)
        trial.town.plan(epoch=1, serving="r2")
        assert await asked == 200
        assert trial.serving.received == []
        assert await trial.rows() == {("candidate", "serving"): 1}

    async def test_request_that_runs_when_the_weight_is_taken_away_runs_on(self, make_trial: MakeTrial) -> None:
        go_on = asyncio.Event()

        async def slow(connection: Connection) -> None:
            await go_on.wait()
            await whole_answer(connection)

        trial = await make_trial(candidate=slow)
        trial.plan(1, weight=50)
        await trial.lead()
        asked = asyncio.ensure_future(trial.ask(MINE))
        await until(lambda: bool(trial.candidate.received))
        trial.plan(2)
        (row,) = [row for row in (await trial.town.evidence())["rows"] if row["arm"] == "candidate"]
        assert row["running"] == 1
        go_on.set()
        assert await asked == 200
        assert await trial.rows() == {("serving", "serving"): 20, ("candidate", "candidate"): 1}
