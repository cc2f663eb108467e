"""Groups over two nodes: what their ranks are told, and that they live, fail and move as one."""

from typing import Any

import pytest

from bayplan.api import names
from bayplan.cluster.errors import ApiError, ServerError
from bayplan.cluster.resources import PDBS, PODS, SERVICES, Key, Resource
from tests.reconcile.world import TWO_NODES, World, foreign_pod

Json = dict[str, Any]


def world(*, nodes: int = 3) -> World:
    found = World()
    for number in range(1, nodes + 1):
        found.add_node(f"n{number}", zone=f"zone-{number}")
    return found


async def serving(*, nodes: int = 3, **changes: Any) -> tuple[World, Key]:
    cluster = world(nodes=nodes)
    key = cluster.add_model(**TWO_NODES, **changes)
    await cluster.run()
    assert cluster.status(key)["readyReplicas"] == 1
    return cluster, key


def placed(cluster: World) -> dict[str, str | None]:
    return {pod["metadata"]["name"][-3:]: pod["spec"].get("nodeName") for pod in cluster.pods()}


def deleting(cluster: World) -> list[str]:
    return [p["metadata"]["name"][-5:] for p in cluster.pods() if p["metadata"].get("deletionTimestamp")]


# --- shape ------------------------------------------------------------------------------------------------------------


async def test_both_ranks_are_told_where_the_head_is_and_which_rank_they_are() -> None:
    cluster, _ = await serving()
    head, worker = cluster.pods()
    group = head["metadata"]["labels"][names.LABEL_GROUP]
    assert [p["metadata"]["name"] for p in (head, worker)] == [f"{group}-0", f"{group}-1"]
    assert [p["spec"]["hostname"] for p in (head, worker)] == [f"{group}-0", f"{group}-1"]
    assert {p["spec"]["subdomain"] for p in (head, worker)} == {"llama-ranks"}
    for rank, pod in enumerate((head, worker)):
        args = pod["spec"]["containers"][0]["args"]
        assert {"--nnodes=2", f"--node-rank={rank}", f"--master-addr={group}-0.llama-ranks.team.svc"} < set(args)
        assert {"--tensor-parallel-size=2", "--pipeline-parallel-size=2"} < set(args)
        assert ("--headless" in args) == (rank > 0)
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert "startupProbe" in head["spec"]["containers"][0]
    assert "startupProbe" not in worker["spec"]["containers"][0]
    assert names.ANNOTATION_ASSIGNMENT not in worker["metadata"]["annotations"]


async def test_a_headless_service_names_ranks_before_they_are_ready() -> None:
    cluster, _ = await serving()
    services = {service["metadata"]["name"]: service["spec"] for service in cluster.objects(SERVICES)}
    assert set(services) == {"llama", "llama-ranks"}
    assert services["llama-ranks"]["clusterIP"] == "None"
    assert services["llama-ranks"]["publishNotReadyAddresses"] is True
    labels = cluster.pods()[0]["metadata"]["labels"]
    chosen = (names.LABEL_MODEL, names.LABEL_MODEL_UID, names.LABEL_RANK)
    assert services["llama"]["selector"] == {label: labels[label] for label in chosen}
    assert services["llama-ranks"]["selector"] == {label: labels[label] for label in chosen[:2]}


async def test_every_rank_is_marked_warm_on_its_own_container_and_the_budget_covers_both() -> None:
    cluster, _ = await serving()
    for pod in cluster.pods():
        warm = next(c for c in pod["status"]["conditions"] if c["type"] == names.CONDITION_WARM)
        assert warm["message"] == pod["status"]["containerStatuses"][0]["containerID"]
    assert [budget["spec"]["minAvailable"] for budget in cluster.objects(PDBS)] == [2]


async def test_one_replica_is_one_in_every_count() -> None:
    cluster, key = await serving()
    status = cluster.status(key)
    assert (status["replicas"], status["readyReplicas"], status["gpus"]) == (1, 1, 4)
    (group,) = status["placement"]["groups"]
    assert group["nodes"] == ["n1", "n2"]


# --- reserve and release ----------------------------------------------------------------------------------------------


async def test_nothing_is_released_before_both_ranks_are_reserved() -> None:
    cluster = world()
    cluster.add_model(**TWO_NODES)
    await cluster.settle()
    verbs = [(verb, key.name[-3:]) for verb, plural, key in cluster.writes() if plural == "pods"]
    assert verbs[:2] == [("create", "0-0"), ("create", "0-1")]
    assert sorted(verbs[2:]) == [("patch", "0-0"), ("patch", "0-1")]


async def test_reads_of_a_recheck_begin_after_the_last_create() -> None:
    cluster = world()
    cluster.add_model(**TWO_NODES)
    await cluster.settle()
    log = [(verb, plural) for verb, plural, _ in cluster.api.log]
    last_create = max(i for i, entry in enumerate(log) if entry == ("create", "pods"))
    reads = [i for i, (verb, plural) in enumerate(log) if verb == "list" and plural == "pods"]
    assert len(reads) == 3, "unbound ones and two nodes"
    assert min(reads) > last_create


async def test_one_set_of_reads_serves_all_groups_of_a_pass() -> None:
    cluster = world(nodes=2)
    cluster.add_model(replicas=4)
    await cluster.settle()
    assert len([entry for entry in cluster.api.log if entry[:2] == ("list", "pods")]) == 3


@pytest.mark.parametrize(("outage", "completed"), [(20, True), (40, False)])
async def test_a_half_reserved_group_is_completed_in_time_and_removed_after_the_limit(
    outage: float, completed: bool
) -> None:
    cluster = world()
    key = cluster.add_model(**TWO_NODES)
    cluster.operator.deliver()
    cluster.api.refuse = no_rank_1
    await cluster.operator.reconcile(key)
    (head,) = cluster.pods()
    assert head["spec"]["schedulingGates"]
    await cluster.operator.close()
    cluster.api.refuse = None
    await cluster.clock.advance(outage)
    cluster.operator = cluster.new_operator()
    await cluster.run()
    assert (cluster.pods()[0]["metadata"]["uid"] == head["metadata"]["uid"]) is completed
    assert cluster.status(key)["readyReplicas"] == 1


def no_rank_1(verb: str, resource: Resource, obj: Json) -> ApiError | None:
    rank_1 = verb == "create" and resource is PODS and obj["metadata"]["labels"][names.LABEL_RANK] == "1"
    return ServerError("internal error", status=500) if rank_1 else None


async def test_the_limit_of_an_incomplete_group_comes_by_itself() -> None:
    cluster = world()
    key = cluster.add_model(**TWO_NODES)
    cluster.api.refuse = no_rank_1
    await cluster.advance(29)
    (head,) = cluster.pods()
    await cluster.advance(4)
    cluster.api.refuse = None
    await cluster.advance(2)
    assert head["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in cluster.pods()}
    assert cluster.status(key)["readyReplicas"] == 1


async def test_a_group_that_is_not_wholly_bound_within_the_limit_goes_as_a_whole() -> None:
    cluster = world(nodes=2)
    key = cluster.add_model(**TWO_NODES)
    await cluster.settle()
    cluster.api.seed(PODS, foreign_pod("thief", "n2"))
    cluster.schedule()
    assert placed(cluster) == {"0-0": "n1", "0-1": None}
    await cluster.advance(58)
    assert set(placed(cluster)) == {"0-0", "0-1"}
    assert cluster.reason(key, "Placed") == ("False", "Reserving")
    await cluster.advance(4)
    assert cluster.pods() == []
    assert cluster.reason(key, "Placed") == ("False", "InsufficientGPU")


async def test_the_schedulers_word_on_a_group_it_cannot_bind_is_shown() -> None:
    cluster = world()
    key = cluster.add_model(**TWO_NODES)
    await cluster.settle()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    cluster.edit_pod(cluster.pod_names()[1], lambda pod: pod["status"].update(conditions=[condition]))
    await cluster.settle()
    assert cluster.reason(key, "Placed") == ("False", "Unschedulable")


# --- failure ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
async def test_one_rank_that_ends_takes_the_whole_group_with_it(rank: int) -> None:
    cluster, key = await serving()
    before = {pod["metadata"]["uid"] for pod in cluster.pods()}
    cluster.exit_engine(cluster.pod_names()[rank], code=134)
    await cluster.settle()
    assert cluster.reason(key, "Warm") == ("False", "EngineFailed")
    assert cluster.status(key)["readyReplicas"] == 0
    await cluster.advance(15)
    assert cluster.status(key)["readyReplicas"] == 1
    assert not before & {pod["metadata"]["uid"] for pod in cluster.pods()}
    assert {pod["metadata"]["name"][-5:] for pod in cluster.pods()} == {"0-1-0", "0-1-1"}


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_that_somebody_deletes_takes_the_whole_group_with_it(rank: int) -> None:
    cluster, key = await serving()
    before = {pod["metadata"]["uid"] for pod in cluster.pods()}
    await cluster.api.delete(PODS, "team", cluster.pod_names()[rank])
    await cluster.settle()
    assert len(deleting(cluster)) >= 2
    await cluster.run()
    assert cluster.status(key)["readyReplicas"] == 1
    assert not before & {pod["metadata"]["uid"] for pod in cluster.pods()}


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_that_vanishes_takes_the_whole_group_with_it(rank: int) -> None:
    cluster, key = await serving()
    before = {pod["metadata"]["uid"] for pod in cluster.pods()}
    cluster.api.remove(PODS, Key("team", cluster.pod_names()[rank]))
    await cluster.run()
    assert cluster.status(key)["readyReplicas"] == 1
    assert not before & {pod["metadata"]["uid"] for pod in cluster.pods()}


# --- loss of a node ---------------------------------------------------------------------------------------------------


async def test_a_lost_node_costs_its_stage_and_the_survivors_node_is_kept() -> None:
    cluster, key = await serving(nodes=4)
    assert placed(cluster) == {"0-0": "n1", "0-1": "n2"}
    cluster.lose_node("n2")
    await cluster.advance(31)
    groups = {group["name"][-3:]: group for group in cluster.status(key)["placement"]["groups"]}
    assert groups["0-0"]["stage"] == "Lost"
    assert groups["0-1"]["nodes"] == ["n1", "n3"]
    assert groups["0-1"]["stage"] == "Ready"
    assert cluster.status(key)["readyReplicas"] == 1
    assert cluster.status(key)["replicas"] == 1
    assert deleting(cluster) == ["0-0-1"], "it stays until its node is heard of again"


async def test_the_successor_waits_on_the_survivors_node_and_goes_on_elsewhere() -> None:
    cluster, _ = await serving(nodes=3)
    cluster.lose_node("n2")
    cluster.dead_nodes.add("n1")  # its kubelet takes its time
    await cluster.advance(31)
    new = {p["metadata"]["name"][-5:]: p for p in cluster.pods() if "-1-" in p["metadata"]["name"][-6:]}
    assert new["0-1-0"]["spec"]["schedulingGates"], "the predecessor still holds n1"
    assert not new["0-1-1"]["spec"]["schedulingGates"], "n3 was free"
    cluster.dead_nodes.discard("n1")
    await cluster.advance(1)
    assert sorted(str(node) for name, node in placed(cluster).items() if name.startswith("1")) == ["n1", "n3"]


async def test_a_group_whose_survivor_cannot_be_completed_moves_as_a_whole() -> None:
    """Two racks of two nodes; the group must stay inside one, and one node of its rack is lost."""
    cluster = World()
    for name, rack in (("k1", "a"), ("k2", "a"), ("m1", "b"), ("m2", "b")):
        cluster.add_node(name, labels={"topology.kubernetes.io/rack": rack})
    key = cluster.add_model(**TWO_NODES, placement={"topology": [{"level": "rack"}]})
    await cluster.run()
    assert placed(cluster) == {"0-0": "k1", "0-1": "k2"}
    cluster.lose_node("k2")
    await cluster.advance(31)
    assert cluster.status(key)["readyReplicas"] == 1
    assert sorted(str(node) for name, node in placed(cluster).items() if name.startswith("1")) == ["m1", "m2"]


async def test_a_node_that_comes_back_ends_the_stale_pod_and_changes_nothing_else() -> None:
    cluster, key = await serving(nodes=3)
    cluster.lose_node("n2")
    await cluster.advance(31)
    serving_pods = {p["metadata"]["name"] for p in cluster.pods() if not p["metadata"].get("deletionTimestamp")}
    cluster.find_node("n2")
    await cluster.advance(5)
    assert set(cluster.pod_names()) == serving_pods
    assert cluster.status(key)["readyReplicas"] == 1
    assert len(cluster.status(key)["placement"]["groups"]) == 1


async def test_what_is_left_of_a_lost_group_is_not_looked_at_again_and_again() -> None:
    """The head stays Terminating on the lost node, without its other rank; only an event can change anything."""
    cluster, key = await serving(nodes=2)
    cluster.lose_node("n1")
    await cluster.advance(240)
    assert [pod["spec"]["nodeName"] for pod in cluster.pods()] == ["n1"]
    wait = cluster.operator.requeue_after[key]
    assert wait is None or wait >= 1
