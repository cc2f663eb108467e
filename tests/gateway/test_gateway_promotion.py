"""Plans that promote, and that a gateway acknowledges."""

import asyncio

from tests.gateway.conftest import MakeScripted, MakeTown
from tests.gateway.rollouttrial import MINE, OTHERS, Trial
from tests.gateway.scriptedengine import whole_answer


class TestPromotion:
    async def test_promoted_pods_join_the_pool_and_the_old_ones_leave_it_at_the_end(self, trial: Trial) -> None:
        trial.plan(1, weight=50)
        trial.town.plan(epoch=2, serving="r2", previous="r1")
        assert set(await asyncio.gather(*(trial.ask(OTHERS) for _ in range(20)))) == {200}
        rows = await trial.rows()
        assert set(rows) == {("serving", "serving"), ("candidate", "serving")}
        trial.town.plan(epoch=3, serving="r2")
        for _ in range(5):
            assert await trial.ask(OTHERS) == 200
        assert (await trial.rows()) - rows == {("candidate", "serving"): 5}

    async def test_candidate_that_answers_alone_gets_everything(self, trial: Trial) -> None:
        trial.town.gone(trial.pods["serving"])
        trial.plan(1, weight=100)
        for session in (MINE, OTHERS):
            assert await trial.ask(session) == 200
        assert await trial.rows() == {("candidate", "candidate"): 2}


class TestAcknowledging:
    async def test_epoch_is_told_once_it_is_routed_by(self, trial: Trial) -> None:
        told: list[dict[str, int]] = []
        trial.town.gateway.on_change = lambda: told.append(trial.town.gateway.directory.epochs())
        trial.plan(4, weight=50)
        assert told[-1] == {"rollout-default-trial": 4}
        trial.plan(5)
        assert told[-1] == {"rollout-default-trial": 5}
        assert (await trial.town.evidence())["models"]["default/tiny"]["plan"] == {
            "rollout": "rollout-default-trial",
            "epoch": 5,
        }

    async def test_of_two_rollouts_of_one_model_the_older_counts(self, trial: Trial) -> None:
        trial.town.plan(name="newer", created="2026-11-30T00:00:01Z", epoch=9, serving="r2")
        trial.town.plan(name="older", created="2026-11-30T00:00:00Z", epoch=3, serving="r1")
        assert trial.town.gateway.directory.epochs() == {"rollout-default-older": 3}
        assert await trial.ask() == 200
        assert await trial.rows() == {("serving", "serving"): 1}

    async def test_older_rollout_without_a_plan_takes_nothing_from_the_newer_one(self, trial: Trial) -> None:
        trial.town.plan(name="newer", created="2026-11-30T00:00:01Z", epoch=9, serving="r2")
        trial.town.plan(name="older", created="2026-11-30T00:00:00Z")
        assert trial.town.gateway.directory.epochs() == {"rollout-default-newer": 9}
        assert await trial.ask() == 200
        assert await trial.rows() == {("candidate", "serving"): 1}

    async def test_plan_that_comes_before_its_model_is_obeyed_from_the_first_request_on(
        self, make_town: MakeTown, scripted: MakeScripted
    ) -> None:
        town, engine = await make_town(), await scripted(whole_answer)
        town.plan(epoch=1, serving="r2")
        town.head("candidate", engine.host, revision="r2")
        town.model(serving=("r1",))
        assert (await town.post())[0] == 200
