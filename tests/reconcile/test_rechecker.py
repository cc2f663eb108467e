"""The live reads behind a release: their order, their sharing, and what happens when they fail."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from bayplan.api import names
from bayplan.cluster.errors import ApiError, ServerError
from bayplan.cluster.port import Json
from bayplan.cluster.resources import NODES, PODS, Resource
from bayplan.planning.groups.members import Group, GroupLimits, build_groups
from bayplan.planning.groups.reservation import Recheck, RecheckVerdict
from bayplan.planning.placement.inventory import Node
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY
from bayplan.reconcile.inferencemodel import manifests
from bayplan.reconcile.inferencemodel.manifests import ModelIdentity
from bayplan.reconcile.inferencemodel.release import Rechecker
from bayplan.reconcile.pods import view_pod
from tests.fakes.api import FakeApi
from tests.planning.replicagroups import NOW, assignment
from tests.reconcile.test_manifests import BOUNDS, required, spec
from tests.reconcile.world import foreign_pod, node

PIN = {"key": "metadata.name", "operator": "In"}


def admit(_: Node) -> str:
    return ""


class Watched:
    """The reads of the port; `before` runs ahead of each list, given its field selector."""

    def __init__(self, api: FakeApi) -> None:
        self.before: Callable[[str], None] = lambda _: None
        self.lists: list[str] = []
        self._api = api

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._api, verb)

    async def list_pages(self, resource: Resource, **selectors: Any) -> AsyncGenerator[tuple[list[Json], str], None]:
        selector = selectors.get("field_selector") or ""
        self.before(selector)
        self.lists.append(selector)
        async for page in self._api.list_pages(resource, **selectors):
            yield page


def seed_group(api: FakeApi, name: str, *nodes: str, gpus: int = 2, model: str = "llama") -> Group:
    """A wholly reserved, gated group on the API server."""
    plan = assignment(nodes=nodes, gpus=gpus, group=name)
    owner = ModelIdentity(namespace="team", name=model, uid=f"{model}-uid")
    stored = [api.seed(PODS, manifests.pod(owner, spec(), plan, rank, BOUNDS)) for rank in range(len(nodes))]
    return group_of(stored)


def group_of(stored: list[Json]) -> Group:
    members = [member for raw in stored if (member := view_pod(raw).member) is not None]
    (group,) = build_groups(members, now=NOW, lost_nodes={}, limits=GroupLimits(incomplete_seconds=1e9))
    return group


def release_pod(api: FakeApi, group: Group, rank: int, on: str, *, bind: bool = False) -> None:
    def change(pod: Json) -> None:
        pod["spec"]["schedulingGates"] = []
        pod["spec"]["affinity"] = required({"matchFields": [{**PIN, "values": [on]}]})
        if bind:
            pod["spec"]["nodeName"] = on

    member = group.members[rank]
    api.edit(PODS, view_pod(next(p for p in api.objects(PODS) if p["metadata"]["uid"] == member.uid)).key, change)


@pytest.fixture
def api() -> FakeApi:
    found = FakeApi()
    for name in ("n1", "n2", "n3"):
        found.seed(NODES, node(name))
    return found


def rechecker(port: Any) -> Rechecker:
    return Rechecker(port, topology=DEFAULT_TOPOLOGY)


async def recheck(port: Any, group: Group) -> Recheck:
    return await rechecker(port).recheck(group, admits=admit, predecessors=())


async def test_a_pod_bound_between_the_reads_is_seen(api: FakeApi) -> None:
    """Were the node's pods listed first, it would be in neither list: not yet bound there, no longer unbound here."""
    rival = seed_group(api, "rival-z-0-0", "n1", model="rival")
    release_pod(api, rival, 0, "n1")
    group, port = seed_group(api, "llama-z-0-0", "n1"), Watched(api)

    def bind_before_second_list(_: str) -> None:
        if len(port.lists) == 1:
            release_pod(api, rival, 0, "n1", bind=True)

    port.before = bind_before_second_list
    found = await recheck(port, group)
    assert port.lists == ["spec.nodeName=", "spec.nodeName=n1"]
    assert (found.verdict, found.reason) == (RecheckVerdict.GIVE_BACK, "node n1 would hold 4 of 2 GPUs")


async def test_a_released_rank_counts_although_its_head_is_bound_to_a_node_that_is_not_read(api: FakeApi) -> None:
    rival = seed_group(api, "rival-z-0-0", "n3", "n1", model="rival")
    release_pod(api, rival, 0, "n3", bind=True)
    release_pod(api, rival, 1, "n1")
    found = await recheck(api, seed_group(api, "llama-z-0-0", "n1"))
    assert found.reason == "node n1 would hold 4 of 2 GPUs"


async def test_a_gated_rank_of_a_partly_released_older_group_counts_too(api: FakeApi) -> None:
    rival = seed_group(api, "rival-z-0-0", "n3", "n1", model="rival")
    release_pod(api, rival, 0, "n3", bind=True)
    found = await recheck(api, seed_group(api, "llama-z-0-0", "n1"))
    assert found.verdict is RecheckVerdict.GIVE_BACK


async def test_a_reservation_counts_whether_or_not_this_process_knows_its_model(api: FakeApi) -> None:
    """Another operator may have seen the model first; ownership is read from the pod."""
    seed_group(api, "rival-z-0-0", "n1", model="never-seen")
    assert (await recheck(api, seed_group(api, "llama-z-0-0", "n1"))).verdict is RecheckVerdict.GIVE_BACK


async def test_annotations_of_a_stranger_reserve_nothing(api: FakeApi) -> None:
    rival = seed_group(api, "rival-z-0-0", "n1", model="rival")
    key = view_pod(api.objects(PODS)[0]).key
    api.edit(PODS, key, lambda pod: pod["metadata"]["ownerReferences"][0].update(kind="ReplicaSet"))
    assert rival.assignment is not None
    assert (await recheck(api, seed_group(api, "llama-z-0-0", "n1"))).verdict is RecheckVerdict.RELEASE


async def test_a_node_that_is_gone_gives_the_group_back(api: FakeApi) -> None:
    group = seed_group(api, "llama-z-0-0", "n1", "n9")
    assert (await recheck(api, group)).reason == "node n9 is gone"


async def test_rechecks_that_wait_together_share_one_set_of_reads(api: FakeApi) -> None:
    port = Watched(api)
    groups = [seed_group(api, f"llama-z-{number}-0", f"n{number + 1}") for number in range(3)]
    tool = rechecker(port)
    found = await asyncio.gather(*(tool.recheck(group, admits=admit, predecessors=()) for group in groups))
    assert [verdict.verdict for verdict in found] == [RecheckVerdict.RELEASE] * 3
    assert len(port.lists) == 4


async def test_reads_under_way_serve_nobody_who_comes_later(api: FakeApi) -> None:
    """Their reads began before the later group's last POST."""
    port = Watched(api)
    tool, late = rechecker(port), []

    def arrive(selector: str) -> None:
        if selector == "spec.nodeName=n1" and not late:
            group = seed_group(api, "llama-z-1-0", "n2")
            late.append(asyncio.ensure_future(tool.recheck(group, admits=admit, predecessors=())))

    port.before = arrive
    await tool.recheck(seed_group(api, "llama-z-0-0", "n1"), admits=admit, predecessors=())
    assert (await late[0]).verdict is RecheckVerdict.RELEASE
    assert port.lists == ["spec.nodeName=", "spec.nodeName=n1", "spec.nodeName=", "spec.nodeName=n2"]


async def test_reads_that_fail_tell_everybody_and_the_next_recheck_works(api: FakeApi) -> None:
    tool = rechecker(api)
    groups = [seed_group(api, f"llama-z-{number}-0", f"n{number + 1}") for number in range(2)]
    api.fail_next("list", "pods", ServerError("unavailable", status=503))
    both = await asyncio.gather(
        *(tool.recheck(group, admits=admit, predecessors=()) for group in groups), return_exceptions=True
    )
    assert all(isinstance(answer, ApiError) for answer in both)
    assert (await tool.recheck(groups[0], admits=admit, predecessors=())).verdict is RecheckVerdict.RELEASE


async def test_a_rule_that_fails_for_one_group_harms_no_other(api: FakeApi) -> None:
    def broken(_: Node) -> str:
        raise RuntimeError("a defect")

    tool = rechecker(api)
    first, second = seed_group(api, "llama-z-0-0", "n1"), seed_group(api, "llama-z-1-0", "n2")
    bad, good = await asyncio.gather(
        tool.recheck(first, admits=broken, predecessors=()),
        tool.recheck(second, admits=admit, predecessors=()),
        return_exceptions=True,
    )
    assert isinstance(bad, RuntimeError)
    assert isinstance(good, Recheck)
    assert good.verdict is RecheckVerdict.RELEASE


async def test_closing_cancels_what_waits(api: FakeApi) -> None:
    tool = rechecker(api)
    task = asyncio.ensure_future(tool.recheck(seed_group(api, "llama-z-0-0", "n1"), admits=admit, predecessors=()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await tool.close()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_foreign_pods_on_the_node_count_with_gpus_and_others_do_not(api: FakeApi) -> None:
    api.seed(PODS, foreign_pod("elsewhere", "n2", gpus=2))
    group = seed_group(api, "llama-z-0-0", "n1")
    assert (await recheck(api, group)).verdict is RecheckVerdict.RELEASE
    api.seed(PODS, foreign_pod("here", "n1", gpus=1, labels={names.LABEL_MODEL: "llama"}))
    assert (await recheck(api, group)).reason == "node n1 would hold 3 of 2 GPUs"
