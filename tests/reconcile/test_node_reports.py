"""Labels and amounts of nodes that cannot be read are said once each, and never stop anything."""

import asyncio
from typing import Any

import pytest

from bayplan.cluster.controller import Controller
from bayplan.cluster.resources import Key
from bayplan.reconcile.fleet import NodeView, node_store, view_node
from bayplan.reconcile.nodereports import NodeReports
from tests.reconcile.world import node

MEMORY = "label nvidia.com/gpu.memory is 'lots': ignored"
COUNT = "label nvidia.com/gpu.count is '-8': ignored"


class Desk:
    """A node cache under a `NodeReports`, and what it has said and queued."""

    def __init__(self) -> None:
        self.nodes = node_store()
        self.said: list[tuple[str, str]] = []
        self.queued: list[Key] = []
        self.spoke = asyncio.Event()
        self.reports = NodeReports(self.nodes, self._say)
        self.reports.enqueue = self.queued.append
        self._version = 0

    def _say(self, view: NodeView, fact: str) -> None:
        self.said.append((view.key.name, fact))
        self.spoke.set()

    def put(self, name: str, *, uid: str = "", **labels: str) -> None:
        self._version += 1
        body: dict[str, Any] = node(name, gpus=8)
        keys = {"memory": "nvidia.com/gpu.memory", "count": "nvidia.com/gpu.count"}
        body["metadata"]["labels"] |= {keys[label]: value for label, value in labels.items()}
        body["metadata"] |= {"uid": uid or f"uid-{name}", "resourceVersion": str(self._version)}
        self.nodes.put(view_node(body))

    def remove(self, name: str) -> None:
        self._version += 1
        self.nodes.discard(Key("", name), f"uid-{name}", self._version)

    async def work(self) -> list[tuple[str, str]]:
        """Reconcile what is queued; return what was said by it."""
        keys, before = [*self.queued], len(self.said)
        self.queued.clear()
        for key in keys:
            await self.reports.reconcile(key)
        return self.said[before:]


async def test_each_fact_is_said_once() -> None:
    desk = Desk()
    desk.put("a", memory="lots")
    assert await desk.work() == [("a", MEMORY)]
    desk.put("a", memory="lots")
    assert desk.queued == []
    desk.put("a", memory="lots", count="-8")
    assert await desk.work() == [("a", COUNT)]
    desk.put("b", count="-8")
    assert await desk.work() == [("b", COUNT)]


async def test_a_node_that_makes_sense_is_never_looked_at() -> None:
    desk = Desk()
    desk.put("a", memory="81559")
    assert (desk.queued, list(desk.reports.keys())) == ([], [])


async def test_a_fact_that_comes_back_is_said_again() -> None:
    desk = Desk()
    for memory, said in (("lots", [("a", MEMORY)]), ("81559", []), ("lots", [("a", MEMORY)])):
        desk.put("a", memory=memory)
        assert await desk.work() == said


@pytest.mark.parametrize("removed_first", [True, False])
async def test_another_node_of_the_same_name_is_another_node(removed_first: bool) -> None:
    desk = Desk()
    desk.put("a", memory="lots")
    await desk.work()
    if removed_first:
        desk.remove("a")
    desk.put("a", uid="another", memory="lots")
    assert await desk.work() == [("a", MEMORY)]


async def test_the_sweep_of_a_new_leader_says_what_was_seen_before_it_led() -> None:
    desk = Desk()
    desk.put("a", memory="lots")
    desk.put("b", memory="81559")
    desk.queued.clear()
    controller = Controller("Node", desk.reports.reconcile, keys=desk.reports.keys, workers=1)
    desk.reports.enqueue = controller.enqueue
    controller.start()
    await asyncio.wait_for(desk.spoke.wait(), timeout=5)
    await controller.stop(limit_seconds=1)
    assert desk.said == [("a", MEMORY)]
    assert list(desk.reports.keys()) == []
