"""Reservations of several models are written at the same time, and none of them sees what another has taken as free."""

import asyncio
from collections.abc import Mapping
from typing import Any

from bayplan.cluster.errors import Forbidden
from bayplan.cluster.resources import PODS, Key, Resource
from tests.fakes.clock import settle
from tests.reconcile.operators import Operator
from tests.reconcile.world import World, pinned_node


class HeldCreates:
    """A port that keeps creates of pods until `answer` is called, before they are done or `after`."""

    def __init__(self, world: World, *, after: bool) -> None:
        self.after = after
        self.held: list[asyncio.Future[bool]] = []
        self._api = world.api

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._api, verb)

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Any:
        if resource is not PODS:
            return await self._api.create(resource, namespace, body)
        done = await self._api.create(resource, namespace, body) if self.after else None
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.held.append(answer)
        if not await answer:
            raise Forbidden("denied by a policy", status=403)
        return done or await self._api.create(resource, namespace, body)

    async def answer(self, *, admitted: bool) -> None:
        self.held.pop(0).set_result(admitted)
        await settle()


def held_world(*nodes: str, after: bool = False) -> tuple[World, Operator, HeldCreates]:
    world = World()
    for name in nodes:
        world.add_node(name, gpus=1)
    port = HeldCreates(world, after=after)
    operator = Operator(
        world.api,
        world.clock,
        world.engine,
        now=world.now,
        metrics=world.metrics,
        port=port,
    )
    operator.load()
    return world, operator, port


async def start(operator: Operator, key: Key) -> "asyncio.Task[None]":
    operator.deliver()
    task = asyncio.create_task(operator.reconcile(key))
    await settle()
    return task


async def test_two_models_are_reserved_at_the_same_time_on_different_gpus() -> None:
    world, operator, port = held_world("n1", "n2")
    tasks = [await start(operator, world.add_model(name)) for name in ("a", "b")]
    assert len(port.held) == 2
    while port.held:
        await port.answer(admitted=True)
    await asyncio.gather(*tasks)
    assert sorted(str(pinned_node(pod)) for name in "ab" for pod in world.pods(name)) == ["n1", "n2"]


def free_gpus(operator: Operator) -> int:
    return sum(free.gpus for free in operator.fleet.inventory().free.values())


async def test_a_reservation_that_the_watch_shows_before_its_answer_counts_once() -> None:
    world, operator, port = held_world("n1", "n2", after=True)
    first = await start(operator, world.add_model("a"))
    assert free_gpus(operator) == 1
    operator.deliver(PODS)
    assert len(world.pods("a")) == len(port.held) == 1
    assert free_gpus(operator) == 1
    await port.answer(admitted=True)
    await first
    assert free_gpus(operator) == 1


async def test_what_a_refused_reservation_gives_back_goes_to_the_model_that_was_told_no_room() -> None:
    world, operator, port = held_world("n1")
    first, second = world.add_model("a"), world.add_model("b")
    refused = await start(operator, first)
    await (await start(operator, second))
    assert world.reason(second, "Placed") == ("False", "InsufficientGPU")
    await port.answer(admitted=False)
    await refused
    assert world.reason(first, "Placed") == ("False", "AdmissionDenied")
    operator.queued.clear()
    await world.clock.advance(0.3)
    assert second in operator.queued
    placed = await start(operator, second)
    await port.answer(admitted=True)
    await placed
    (pod,) = world.pods("b")
    assert pinned_node(pod) == "n1"
