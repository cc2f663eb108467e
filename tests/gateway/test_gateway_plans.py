"""Plans as a whole gateway takes them up: from the watch to the Lease, and what it does when it cannot say so."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bayplan.api import names
from bayplan.api.acknowledgements import read_epochs
from bayplan.cluster.errors import ApiError, NotFound
from bayplan.cluster.resources import INFERENCE_MODELS, LEASES, PODS, ROLLOUTS, Key
from bayplan.gateway.generations import SESSION_HEADER
from bayplan.planning.rollout.cohort import Cohort
from tests.fakes.clock import until
from tests.gateway.conftest import MakeScripted
from tests.gateway.gatewaytown import raw_head, raw_model, raw_rollout
from tests.gateway.rollouttrial import CANDIDATE, session_of
from tests.gateway.scriptedengine import ScriptedEngine, whole_answer
from tests.gateway.test_gateway_life import Life

UID = "rollout-default-trial"


class Trial(Life):
    """A gateway with a serving engine and a candidate."""

    async def start(self, scripted: MakeScripted) -> tuple[ScriptedEngine, ScriptedEngine]:
        serving, candidate = await scripted(whole_answer), await scripted(whole_answer)
        self.api.seed(INFERENCE_MODELS, raw_model())
        self.api.seed(PODS, raw_head("serving", serving.host, revision="r1"))
        self.api.seed(PODS, raw_head("candidate", candidate.host, revision="r2"))
        return serving, candidate

    def plan(self, epoch: int, **fields: Any) -> None:
        raw = raw_rollout(epoch=epoch, **(CANDIDATE | fields))
        if any(True for _ in self.api.objects(ROLLOUTS)):
            self.api.edit(ROLLOUTS, Key("default", "trial"), lambda found: found.update(status=raw["status"]))
        else:
            self.api.seed(ROLLOUTS, raw)

    def epochs(self) -> dict[str, int]:
        leases = self.api.objects(LEASES)
        annotations = leases[0]["metadata"]["annotations"] if leases else {}
        return dict(read_epochs(annotations.get(names.ANNOTATION_PLAN_EPOCHS)))

    async def ask(self, cohort: Cohort = Cohort.REST) -> None:
        assert await self.status(headers={SESSION_HEADER: session_of(cohort, 50)}) == 200


@pytest.fixture
async def trial() -> AsyncIterator[Trial]:
    made = Trial(lease_seconds=1.0)
    yield made
    if made.task is not None and not made.task.done():
        await made.end()
    await made.session.close()


async def test_epoch_is_acknowledged_in_the_lease_and_with_it_everything_goes_by_the_plan(
    trial: Trial, scripted: MakeScripted
) -> None:
    _, candidate = await trial.start(scripted)
    trial.plan(1, weight=50)
    await trial.begin()
    await until(lambda: trial.epochs() == {UID: 1})
    for _ in range(3):
        await trial.ask()
    await trial.ask(Cohort.CANDIDATE)
    assert len(candidate.received) == 1
    trial.plan(2)
    await until(lambda: trial.epochs() == {UID: 2})
    for _ in range(3):
        await trial.ask(Cohort.CANDIDATE)
    assert len(candidate.received) == 1
    (row,) = [row for row in json.loads((await trial.admin("/evidence"))[1])["rows"] if row["arm"] == "candidate"]
    assert (row["pod"], row["revision"], row["requests"], row["running"]) == ("pod-candidate", "r2", 1, 0)


async def test_plan_that_cannot_be_carried_out_is_neither_followed_nor_acknowledged(
    trial: Trial, scripted: MakeScripted
) -> None:
    _, candidate = await trial.start(scripted)
    trial.plan(1)
    await trial.begin()
    await until(lambda: trial.epochs() == {UID: 1})
    trial.plan(2, weight=101)
    trial.api.seed(PODS, raw_head("late", candidate.host, revision="r2"))
    await until(lambda: trial.runtime.gateway.directory.head("pod-late"))
    await trial.ask(Cohort.CANDIDATE)
    assert candidate.received == []
    assert trial.epochs() == {UID: 1}
    trial.plan(3)
    await until(lambda: trial.epochs() == {UID: 3})


async def test_rollout_that_is_deleted_is_acknowledged_no_longer(trial: Trial, scripted: MakeScripted) -> None:
    await trial.start(scripted)
    trial.plan(1, weight=50)
    await trial.begin()
    await until(lambda: trial.epochs() == {UID: 1})
    trial.api.remove(ROLLOUTS, Key("default", "trial"))
    await until(lambda: trial.epochs() == {})


async def test_gateway_that_cannot_renew_its_lease_sends_the_candidate_nothing_until_it_can(
    trial: Trial, scripted: MakeScripted
) -> None:
    _, candidate = await trial.start(scripted)
    trial.plan(1, weight=50)
    await trial.begin()
    await until(lambda: trial.epochs() == {UID: 1})
    for _ in range(5):
        await trial.ask()
    for _ in range(100):
        trial.api.fail_next("apply", "leases", ApiError("away"))
    await until(lambda: trial.runtime.announcement.lapsed)
    for _ in range(3):
        await trial.ask(Cohort.CANDIDATE)
    assert candidate.received == []
    trial.api.forget_failures()
    await until(lambda: not trial.runtime.announcement.lapsed)
    await trial.ask(Cohort.CANDIDATE)
    assert len(candidate.received) == 1


async def test_nobody_is_answered_before_the_plans_are_known(trial: Trial, scripted: MakeScripted) -> None:
    await trial.start(scripted)
    trial.plan(1)
    for _ in range(3):
        trial.api.fail_next("list", "rollouts", ApiError("away"))
    begun = asyncio.ensure_future(trial.begin())
    await asyncio.sleep(0.2)
    assert not begun.done()
    await begun
    await until(lambda: trial.epochs() == {UID: 1})


async def test_cluster_that_does_not_know_rollouts_yet_is_served_and_they_are_found_once_it_does(
    trial: Trial, scripted: MakeScripted
) -> None:
    await trial.start(scripted)
    for _ in range(4):
        for verb in ("list", "watch"):
            trial.api.fail_next(verb, "rollouts", NotFound("404 page not found", status=404))
    await trial.begin()
    await trial.ask()
    assert (await trial.admin("/readyz"))[0] == 200
    trial.api.forget_failures()
    trial.plan(1)
    await until(lambda: trial.epochs() == {UID: 1})
