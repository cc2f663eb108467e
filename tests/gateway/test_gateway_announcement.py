"""The Lease by which a gateway announces itself, and what it acknowledges there."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bayplan.api import names
from bayplan.cluster.errors import ApiError
from bayplan.cluster.resources import LEASES, Key
from bayplan.gateway.acknowledgements import Announcement, GatewayPod
from tests.fakes.api import FakeApi
from tests.fakes.clock import FakeClock

POD = GatewayPod("system", "gateway-1", "gateway-uid")


class Scene:
    """An announcement that runs on a clock of its own."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = FakeClock()
        self.draining: dict[str, bool] = {}
        self.epochs: dict[str, int] = {}
        self.announcement = Announcement(
            self.api,
            POD,
            draining=lambda: dict(self.draining),
            epochs=lambda: dict(self.epochs),
            lease_seconds=15,
            clock=self.clock,
        )
        self.task = asyncio.ensure_future(self.announcement.run())

    def lease(self) -> dict[str, Any]:
        (lease,) = self.api.objects(LEASES)
        return lease

    def acknowledged(self) -> list[str]:
        found: list[str] = json.loads(self.lease()["metadata"]["annotations"][names.ANNOTATION_DRAINING_PODS])
        return found

    def plan_epochs(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(self.lease()["metadata"]["annotations"][names.ANNOTATION_PLAN_EPOCHS])
        return found

    def writes(self) -> int:
        return sum(verb == "apply" for verb, _, _ in self.api.log)

    async def change(self, **draining: bool) -> None:
        self.draining = draining
        self.announcement.changed()
        await self.clock.advance(0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.clock.advance(0)
    yield scene
    scene.task.cancel()
    await asyncio.gather(scene.task, return_exceptions=True)


async def test_lease_names_the_pod_and_ends_with_it(scene: Scene) -> None:
    lease = scene.lease()
    assert scene.announcement.announced.is_set()
    assert lease["metadata"]["labels"][names.LABEL_GATEWAY] == "gateway-uid"
    assert (lease["metadata"]["namespace"], lease["spec"]["holderIdentity"]) == ("system", "gateway-1")
    assert lease["spec"]["leaseDurationSeconds"] == 15
    (owner,) = lease["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "gateway-1", "gateway-uid")
    assert scene.acknowledged() == []


async def test_process_without_a_pod_has_a_lease_without_an_owner() -> None:
    api, clock = FakeApi(), FakeClock()
    pod = GatewayPod("system", "laptop", "some-uid", bound=False)
    announcement = Announcement(api, pod, draining=dict, lease_seconds=15, clock=clock)
    task = asyncio.ensure_future(announcement.run())
    await clock.advance(0)
    assert "ownerReferences" not in api.objects(LEASES)[0]["metadata"]
    task.cancel()


async def test_lease_is_renewed_three_times_in_its_duration_and_not_more(scene: Scene) -> None:
    assert scene.writes() == 1
    await scene.clock.advance(4.9)
    assert scene.writes() == 1
    await scene.clock.advance(60.0)
    assert scene.writes() == 13


async def test_draining_pod_is_acknowledged_at_once_when_nothing_is_under_way(scene: Scene) -> None:
    await scene.change(b=False, a=False)
    assert scene.acknowledged() == ["a", "b"]
    assert scene.writes() == 2


async def test_pod_to_which_something_is_under_way_is_acknowledged_once_that_has_arrived(scene: Scene) -> None:
    await scene.change(a=True)
    await scene.clock.advance(2)
    assert scene.acknowledged() == []
    scene.draining["a"] = False
    await scene.clock.advance(0.1)
    assert scene.acknowledged() == ["a"]


async def test_pod_that_is_gone_is_acknowledged_no_longer(scene: Scene) -> None:
    await scene.change(a=False, b=False)
    await scene.change(b=False)
    assert scene.acknowledged() == ["b"]


async def test_acknowledgement_is_written_again_until_it_succeeds(scene: Scene) -> None:
    for _ in range(3):
        scene.api.fail_next("apply", "leases", ApiError("away"))
    await scene.change(a=False)
    assert scene.announcement.failures == 1
    assert scene.announcement.acknowledged == frozenset()
    await scene.clock.advance(2)
    assert scene.acknowledged() == ["a"]
    assert scene.announcement.failures == 0


async def test_plan_is_acknowledged_at_once_and_no_longer_than_it_is_routed_by(scene: Scene) -> None:
    assert scene.plan_epochs() == {}
    scene.epochs = {"rollout": 3, "another": 1}
    await scene.change()
    assert scene.plan_epochs() == {"rollout": 3, "another": 1}
    assert scene.writes() == 2
    scene.epochs = {"rollout": 4}
    await scene.change()
    assert scene.plan_epochs() == {"rollout": 4}
    await scene.change()
    assert scene.writes() == 3, "nothing new was said"


async def test_lease_lapses_here_before_anybody_else_can_think_so_and_is_taken_up_again(scene: Scene) -> None:
    assert not scene.announcement.lapsed
    for _ in range(11):  # from 5 s on, every half second
        scene.api.fail_next("apply", "leases", ApiError("away"))
    await scene.clock.advance(9.9)
    assert not scene.announcement.lapsed
    await scene.clock.advance(0.2)
    assert scene.announcement.lapsed
    await scene.clock.advance(0.5)
    assert not scene.announcement.lapsed


async def test_gateway_without_a_lease_yet_has_lapsed() -> None:
    announcement = Announcement(FakeApi(), POD, draining=dict, lease_seconds=15, clock=FakeClock())
    assert announcement.lapsed


async def test_lease_that_somebody_deletes_comes_back(scene: Scene) -> None:
    scene.api.remove(LEASES, Key("system", "gateway-1"))
    await scene.clock.advance(5)
    assert scene.lease()["spec"]["holderIdentity"] == "gateway-1"


async def test_withdrawn_lease_is_gone_and_a_second_time_is_no_error(scene: Scene) -> None:
    scene.task.cancel()
    await scene.announcement.withdraw()
    assert scene.api.objects(LEASES) == []
    await scene.announcement.withdraw()
    scene.api.fail_next("delete", "leases", ApiError("away"))
    await scene.announcement.withdraw()
