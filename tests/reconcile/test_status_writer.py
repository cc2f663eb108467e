"""What of a status is written at once, what may wait for a second, and what of it is told as an event."""

from datetime import timedelta
from typing import Any

import pytest

from bayplan.api.autoscaling import ScalingReason, ScalingStatus
from bayplan.api.conditions import ConditionType, Reason, merge_conditions
from bayplan.api.inferencemodel_status import GroupStatus, InferenceModelStatus, PlacementStatus, RevisionStatus, Stage
from bayplan.cluster.cache import Store
from bayplan.cluster.resources import INFERENCE_MODELS
from bayplan.reconcile.inferencemodel.statuswriter import PROGRESS_SECONDS, Standing, StatusWriter
from bayplan.reconcile.inferencemodel.view import ModelView, view_model
from tests.fakes.api import FakeApi
from tests.fakes.clock import FakeClock
from tests.reconcile.operators import wall_clock
from tests.reconcile.world import model_spec

SINCE = "2026-01-01T00:00:00Z"
DECISION = ScalingStatus(
    desired_replicas=1, reason=ScalingReason.HOLD_STABILIZATION, decided_time=SINCE, observed_time=SINCE
)


class Told:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def emit(self, view: ModelView, *, reason: str, message: str, warning: bool) -> None:
        self.reasons.append(reason)


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.now = wall_clock(self.clock)
        self.api = FakeApi(now=self.now)
        self.told = Told()
        self.models: Store[ModelView] = Store(INFERENCE_MODELS)
        self.writer = StatusWriter(self.api, self.models, self.told, now=self.now)
        meta = {"namespace": "team", "name": "llama"}
        self.view = view_model(self.api.seed(INFERENCE_MODELS, {"metadata": meta, "spec": model_spec()}))

    def status(self, **changes: Any) -> InferenceModelStatus:
        verdicts = [(ConditionType.READY, "False", changes.pop("reason", Reason.RESERVING), changes.pop("message", ""))]
        conditions = merge_conditions((), verdicts, generation=1, now=self.now())
        return InferenceModelStatus(observed_generation=1, desired_replicas=1, conditions=conditions, **changes)

    def group(self, stage: Stage) -> PlacementStatus:
        return PlacementStatus(groups=(GroupStatus(name="g", revision="r", stage=stage, since=SINCE),))

    @property
    def writes(self) -> int:
        return self.api.write_count()


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def started(bench: Bench) -> Standing:
    return await bench.writer.write(Standing(bench.view), bench.status())


async def test_equal_status_is_not_written(bench: Bench) -> None:
    standing = await started(bench)
    assert (await bench.writer.write(standing, bench.status())) is standing
    assert await bench.writer.write_in_time(standing, bench.status()) is None
    assert bench.writes == 1


async def test_a_write_is_in_the_cache_at_once(bench: Bench) -> None:
    standing = await started(bench)
    assert bench.models.get(bench.view.key) == standing.view
    assert standing.status == bench.status()


@pytest.mark.parametrize(
    "progress",
    [
        {"placement": "binding"},
        {"message": "another"},
        {"warming_replicas": 1},
        {"pending_replicas": 1},
        {"replicas": 1, "gpus": 1},
        {"draining_replicas": 1},
    ],
    ids=str,
)
async def test_mere_progress_is_written_when_it_is_a_second_old(bench: Bench, progress: dict[str, Any]) -> None:
    standing = await started(bench)
    await bench.clock.advance(10.0)
    if "placement" in progress:
        progress = {"placement": bench.group(Stage.BINDING)}
    status = bench.status(**progress)
    assert await bench.writer.write_in_time(standing, status) == PROGRESS_SECONDS
    await bench.clock.advance(0.25)
    assert await bench.writer.write_in_time(standing, status) == pytest.approx(PROGRESS_SECONDS - 0.25)
    assert bench.writes == 1
    await bench.clock.advance(PROGRESS_SECONDS - 0.25)
    assert await bench.writer.write_in_time(standing, status) is None
    assert bench.writes == 2


async def test_progress_goes_out_with_the_next_news_and_what_comes_after_waits_anew(bench: Bench) -> None:
    standing = await started(bench)
    assert await bench.writer.write_in_time(standing, bench.status(warming_replicas=1)) == PROGRESS_SECONDS
    await bench.clock.advance(0.9)
    news = bench.status(ready_replicas=1, message="serving")
    assert await bench.writer.write_in_time(standing, news) is None
    assert bench.writes == 2
    standing = Standing(bench.models.get(bench.view.key) or bench.view)
    assert standing.status == news
    later = bench.status(ready_replicas=1, message="another")
    assert await bench.writer.write_in_time(standing, later) == PROGRESS_SECONDS


async def test_progress_that_was_undone_is_forgotten(bench: Bench) -> None:
    standing = await started(bench)
    assert await bench.writer.write_in_time(standing, bench.status(warming_replicas=1)) == PROGRESS_SECONDS
    assert await bench.writer.write_in_time(standing, bench.status()) is None
    await bench.clock.advance(10.0)
    assert await bench.writer.write_in_time(standing, bench.status(warming_replicas=1)) == PROGRESS_SECONDS
    assert bench.writes == 1


@pytest.mark.parametrize(
    "news",
    [
        {"reason": Reason.WARMUP_RUNNING},
        {"scaling": DECISION},
        {"ready_replicas": 1},
        {"revisions": RevisionStatus(target="0123456789")},
        {"placement": PlacementStatus(pending_reason="needs 4 GPUs, the best node has 2")},
    ],
    ids=str,
)
async def test_what_somebody_may_act_on_is_written_at_once(bench: Bench, news: dict[str, Any]) -> None:
    standing = await started(bench)
    assert await bench.writer.write_in_time(standing, bench.status(**news)) is None
    assert bench.writes == 2


async def test_a_clock_set_back_delays_by_a_second_at_most(bench: Bench) -> None:
    ahead = [timedelta(hours=1)]
    writer = StatusWriter(bench.api, bench.models, bench.told, now=lambda: bench.now() + ahead[0])
    standing = await writer.write(Standing(bench.view), bench.status())
    assert await writer.write_in_time(standing, bench.status(warming_replicas=1)) == PROGRESS_SECONDS
    ahead[0] = timedelta()
    assert await writer.write_in_time(standing, bench.status(warming_replicas=1)) == PROGRESS_SECONDS


async def test_each_change_of_a_reason_is_told_once(bench: Bench) -> None:
    standing = await started(bench)
    standing = await bench.writer.write(standing, bench.status(message="another text"))
    assert bench.told.reasons == ["Reserving"]
    await bench.writer.write(standing, bench.status(reason=Reason.WARMUP_RUNNING))
    assert bench.told.reasons == ["Reserving", "WarmupRunning"]
