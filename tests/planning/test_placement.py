from dataclasses import replace
from typing import Any

import pytest

from bayplan.api.conditions import Reason
from bayplan.api.podtemplate import Toleration
from bayplan.planning.layout.split import Layout
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.placement.eligibility import Obstacle, admission_problem, tolerates
from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Claim, ClaimState, Inventory, Sharing, Taint
from bayplan.planning.placement.place import MOST_GROUNDS, groups_per_domain, place, place_apart
from tests.planning.fleets import H100, L4, node, request, shape

TAINT = Taint(key="dedicated", value="llm", effect="NoSchedule")


class TestOrderOfCriteria:
    """Each test makes the criterion under test disagree with every later one."""

    def test_spread_goes_before_residency(self) -> None:
        fleet = Inventory((node("a", zone="za"), node("b", zone="zb")))
        decision = place(request(groups_in_domain={"za": 1}, resident_nodes=frozenset({"a"})), fleet)

        assert decision.nodes == ("b",)
        assert decision.runner_up is not None
        assert (decision.runner_up.nodes, decision.runner_up.criterion) == (("a",), "spread")

    def test_residency_goes_before_tightness(self) -> None:
        fleet = Inventory((node("a", 8), node("b", 1)))
        decision = place(request(resident_nodes=frozenset({"a"})), fleet)

        assert (decision.nodes, decision.resident) == (("a",), 1)
        assert decision.runner_up is not None
        assert decision.runner_up.criterion == "resident weights"

    def test_the_tightest_node_goes_before_the_first_name(self) -> None:
        fleet = Inventory((node("a", 8), node("b", 8)), (Claim("b", gpus=4),))
        decision = place(request(shape(4)), fleet)

        assert (decision.nodes, decision.gpus_left) == (("b",), 0)
        assert decision.runner_up is not None
        assert decision.runner_up.criterion == "tightest fit"

    def test_smaller_gpus_are_used_before_larger_ones(self) -> None:
        fleet = Inventory((node("a", memory_mib=81_920), node("b", memory_mib=40_960)))
        decision = place(request(shape(least_gpu_memory_mib=30_000)), fleet)

        assert (decision.nodes, decision.gpu_memory_left_mib) == (("b",), 10_960)

    def test_names_break_the_last_tie(self) -> None:
        decision = place(request(), Inventory((node("b"), node("a"))))

        assert decision.nodes == ("a",)
        assert decision.runner_up is not None
        assert decision.runner_up.criterion == "name"

    def test_a_preferred_domain_goes_before_spread(self) -> None:
        fleet = Inventory(
            (node("a1", zone="za", rack="1"), node("a2", zone="za", rack="1"), node("b", zone="zb", rack="1"))
        )
        wished = place(request(shape(8, 2), preferred=("rack",), groups_in_domain={"za": 5}), fleet)

        assert wished.nodes == ("a1", "a2")
        assert wished.preferred_met == {"rack": True}

    def test_the_users_product_order_goes_before_everything(self) -> None:
        fleet = Inventory((node("a", zone="za", product=L4), node("b", zone="zb", product=H100)))
        shapes = (shape(gpu_product=L4, preference=1), shape(gpu_product=H100, preference=0))

        decision = place(request(*shapes, groups_in_domain={"zb": 3}), fleet)

        assert decision.nodes == ("b",)
        assert decision.runner_up is not None
        assert decision.runner_up.criterion == "GPU product preference"

    def test_without_an_order_of_products_spread_decides_between_them(self) -> None:
        fleet = Inventory((node("a", zone="za", product=L4), node("b", zone="zb", product=H100)))
        decision = place(request(shape(gpu_product=L4), shape(gpu_product=H100), groups_in_domain={"za": 1}), fleet)

        assert decision.nodes == ("b",)
        assert decision.shape is not None
        assert decision.shape.gpu_product == H100

    def test_between_products_fewer_gpus_win_before_tightness(self) -> None:
        fleet = Inventory((node("a", 2, product=L4), node("b", 8, product=H100)))
        decision = place(request(shape(2, gpu_product=L4), shape(1, gpu_product=H100)), fleet)

        assert decision.nodes == ("b",)
        assert decision.runner_up is not None
        assert decision.runner_up.criterion == "fewest GPUs"


class TestGroups:
    def test_pods_of_a_group_go_on_distinct_nodes(self) -> None:
        assert place(request(shape(4, 2)), Inventory((node("a", 8), node("b", 4)))).nodes == ("a", "b")
        assert not place(request(shape(4, 2)), Inventory((node("a", 8),))).placed

    def test_a_required_domain_holds_the_whole_group_or_nothing(self) -> None:
        racks = (node("a", zone="z", rack="1"), node("b", zone="z", rack="2"), node("c", zone="z", rack="2"))

        assert place(request(shape(8, 2), required=("rack",)), Inventory(racks)).nodes == ("b", "c")
        refused = place(request(shape(8, 2), required=("rack",)), Inventory(racks[:2]))
        assert refused.reason is Reason.NO_NODE_MATCHES_TOPOLOGY

    def test_equal_rack_names_in_two_zones_are_two_racks(self) -> None:
        fleet = Inventory((node("a", zone="za", rack="1"), node("b", zone="zb", rack="1")))

        assert not place(request(shape(8, 2), required=("rack",)), fleet).placed

    def test_nodes_without_the_label_are_in_no_domain(self) -> None:
        refused = place(request(shape(8, 2), required=("rack",)), Inventory((node("a"), node("b"))))

        assert refused.reason is Reason.NO_NODE_MATCHES_TOPOLOGY
        assert "2 nodes without a rack label" in refused.message

    def test_one_pod_needs_no_domain_label(self) -> None:
        assert place(request(shape(8), required=("rack",)), Inventory((node("a"),))).placed

    def test_several_required_levels_hold_together(self) -> None:
        fleet = Inventory(
            tuple(
                node(name, domains={"host": name, "rack": rack, "clique": clique})
                for name, rack, clique in (("a", "1", "x"), ("b", "1", "y"), ("c", "2", "y"), ("d", "2", "y"))
            )
        )

        assert place(request(shape(8, 2), required=("rack", "clique")), fleet).nodes == ("c", "d")

    def test_a_preferred_domain_that_is_missed_is_reported(self) -> None:
        fleet = Inventory((node("a", zone="z", rack="1"), node("b", zone="z", rack="2")))
        decision = place(request(shape(8, 2), preferred=("rack", "zone")), fleet)

        assert decision.placed
        assert decision.preferred_met == {"rack": False, "zone": True}
        assert "one rack as preferred: not met" in decision.facts
        assert "one zone as preferred: met, z" in decision.facts

    def test_a_group_rather_stays_in_one_failure_domain_than_touches_two(self) -> None:
        fleet = Inventory((node("a1", zone="za"), node("b1", zone="zb"), node("b2", zone="zb")))

        assert place(request(shape(8, 2)), fleet).nodes == ("b1", "b2")

    def test_kept_nodes_are_in_the_group_and_the_rest_joins_their_domain(self) -> None:
        fleet = Inventory((node("a", rack="1"), node("b", rack="1"), node("c", rack="2"), node("d", rack="2")))
        decision = place(request(shape(8, 2), required=("rack",), kept_nodes=frozenset({"d"})), fleet)

        assert decision.nodes == ("c", "d")

    def test_a_kept_node_without_room_is_named(self) -> None:
        fleet = Inventory((node("a"), node("b"), node("c")), (Claim("a", gpus=1),))
        refused = place(request(shape(8, 2), kept_nodes=frozenset({"a"})), fleet)

        assert refused.reason is Reason.NO_NODE_MATCHES_TOPOLOGY
        assert "among them a, which has no room: a" in refused.message


@pytest.mark.parametrize(
    ("obstacle", "changes"),
    [
        (Obstacle.NO_GPU, {"gpus": 0, "gpus_expected": 0}),
        (Obstacle.PRODUCT, {"gpu_product": L4}),
        (Obstacle.SELECTOR, {"labels": {"pool": "other"}}),
        (Obstacle.LOST, {"lost": True, "ready": False}),
        (Obstacle.NOT_READY, {"ready": False}),
        (Obstacle.CORDONED, {"cordoned": True}),
        (Obstacle.LEAVING, {"leaving": "taint x"}),
        (Obstacle.UNPLACEABLE, {"gpus": 0, "unplaceable": "warming up"}),
        (Obstacle.SHARING, {"sharing": Sharing.SHARED}),
        (Obstacle.SHARING, {"sharing": Sharing.PARTITIONED}),
        (Obstacle.TOO_FEW_GPUS, {"gpus": 1}),
        (Obstacle.TOO_LITTLE_CPU, {"cpu_millis": 999}),
        (Obstacle.TOO_LITTLE_MEMORY, {"memory_bytes": 99}),
        (Obstacle.GPU_MEMORY, {"gpu_memory_mib": 39_999}),
        (Obstacle.TAINTED, {"taints": (TAINT,)}),
        (Obstacle.EXCLUDED, {"name": "bad"}),
    ],
)
def test_every_obstacle_keeps_a_node_out_under_its_own_name(obstacle: Obstacle, changes: dict[str, Any]) -> None:
    asked = request(
        shape(2, gpu_product=H100, cpu_millis=1000, memory_bytes=100, least_gpu_memory_mib=40_000),
        node_selector={"pool": "llm"},
        excluded_nodes={"bad": "refused a pod"},
    )
    well = node("good", labels={"pool": "llm"}, cpu_millis=1000, memory_bytes=100, gpus=2, memory_mib=40_000)

    assert place(asked, Inventory((well,))).placed
    refused = place(asked, Inventory((replace(well, **changes),)))
    assert refused.reason is Reason.NO_NODE_MATCHES
    assert refused.obstacles == {obstacle: 1}
    assert f"1 {obstacle.value}" in refused.message
    assert admission_problem(well, asked, asked.shapes[0]) == ""
    assert admission_problem(replace(well, **changes), asked, asked.shapes[0]).startswith(obstacle.value)


@pytest.mark.parametrize(
    ("obstacle", "claim", "pods"),
    [
        (Obstacle.GPUS_BUSY, Claim("a", gpus=7), 110),
        (Obstacle.CPU_BUSY, Claim("a", cpu_millis=95_001), 110),
        (Obstacle.MEMORY_BUSY, Claim("a", memory_bytes=2**40 - 99), 110),
        (Obstacle.PODS_FULL, Claim("a"), 1),
    ],
)
def test_room_is_counted_for_every_resource(obstacle: Obstacle, claim: Claim, pods: int) -> None:
    asked = request(shape(2, cpu_millis=1000, memory_bytes=100))

    assert place(asked, Inventory((node("a", pods=pods),))).placed
    refused = place(asked, Inventory((node("a", pods=pods),), (claim,)))
    assert refused.obstacles == {obstacle: 1}
    assert obstacle.is_room


def test_exactly_enough_room_is_enough() -> None:
    asked = request(shape(2, cpu_millis=1000, memory_bytes=100))
    claims = (Claim("a", gpus=6, cpu_millis=95_000, memory_bytes=2**40 - 100),)

    assert place(asked, Inventory((node("a", pods=2),), claims)).placed


@pytest.mark.parametrize(
    ("toleration", "accepted"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"key": "dedicated", "value": "llm"}, True),
        ({"key": "dedicated", "value": "llm", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "value": "llm", "effect": "NoExecute"}, False),
        ({"key": "dedicated", "value": "other"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations_match_by_kubernetes_rules(toleration: dict[str, str], accepted: bool) -> None:
    asked = request(tolerations=(Toleration(**toleration),))

    assert tolerates(asked.tolerations, TAINT) == accepted
    assert place(asked, Inventory((node("a", taints=(TAINT,)),))).placed == accepted


def test_a_soft_taint_keeps_nobody_out() -> None:
    soft = replace(TAINT, effect="PreferNoSchedule")

    assert place(request(), Inventory((node("a", taints=(soft,)),))).placed


def test_products_match_with_and_without_the_vendor_prefix() -> None:
    assert place(request(shape(gpu_product="H100-80GB-HBM3")), Inventory((node("a"),))).placed
    assert not place(request(shape(gpu_product="H100-80GB")), Inventory((node("a"),))).placed


def test_one_shared_gpu_may_serve_a_replica_of_one_gpu() -> None:
    fleet = Inventory((node("a", sharing=Sharing.SHARED),))

    assert place(request(shape(1)), fleet).placed
    assert not place(request(shape(2)), fleet).placed


class TestRefusals:
    def test_too_few_free_gpus_in_sum(self) -> None:
        fleet = Inventory(
            (node("a", 4), node("b", 4)), (Claim("a", gpus=3, owner="ml/x"), Claim("b", gpus=2, owner="ml/y"))
        )
        refused = place(request(shape(4, gpu_product=H100)), fleet)

        assert refused.reason is Reason.INSUFFICIENT_GPU
        assert refused.message == (
            f"needs 1 node with 4 free {H100} GPUs: 3 free on 2 matching nodes, 1 more needed; held by ml/x (3), "
            "ml/y (2); free GPUs or add nodes; nodes left out: 2 short of free GPUs"
        )
        assert (refused.needed_gpus, refused.free_gpus, refused.largest_free_gpus) == (4, 3, 2)

    def test_enough_in_sum_but_no_whole_group(self) -> None:
        fleet = Inventory(
            (node("a", 4), node("b", 4)), (Claim("a", gpus=2, owner="ml/x"), Claim("b", gpus=2, owner="ml/y"))
        )
        refused = place(request(shape(4)), fleet)

        assert refused.reason is Reason.FRAGMENTED_CAPACITY
        assert refused.message == (
            "needs 1 node with 4 free GPUs: 4 GPUs are free in sum on 2 matching nodes, but 0 of them have room for "
            "one pod, 1 more needed; the largest free block is 2 on a, 2 short; held by ml/x (2), ml/y (2); free GPUs "
            "on one node, or let pods be smaller (spec.parallelism, spec.template.resources); nodes left out: 2 short "
            "of free GPUs"
        )

    def test_free_gpus_without_cpu_are_fragmented_too_and_the_message_says_cpu(self) -> None:
        fleet = Inventory((node("a"),), (Claim("a", cpu_millis=90_000, owner="web/api"),))
        refused = place(request(shape(4, cpu_millis=8000)), fleet)

        assert refused.reason is Reason.FRAGMENTED_CAPACITY
        assert "a pod asks for 8 CPU, the most that a node has free is 6" in refused.message

    def test_no_domain_holds_the_group(self) -> None:
        fleet = Inventory((node("a", zone="z", rack="1"), node("b", zone="z", rack="2")))
        refused = place(request(shape(8, 2), required=("rack",)), fleet)

        assert refused.message == (
            "needs 2 nodes with 8 free GPUs each in one rack: 2 nodes could take a pod, but no rack holds 2 of them; "
            "the best, z/1, holds 1, 1 more needed there; free nodes in one rack, or make the rule Preferred in "
            "spec.placement.topology"
        )

    def test_too_few_nodes_match(self) -> None:
        fleet = Inventory((node("a", cordoned=True), node("b", product=L4), node("c", product=L4), node("d")))
        refused = place(request(shape(8, 2, gpu_product=H100)), fleet)

        assert refused.reason is Reason.NO_NODE_MATCHES
        assert refused.message == (
            f"needs 2 nodes with 8 free {H100} GPUs each: 1 of 4 nodes matches, 1 more needed; nodes left out: 2 of "
            "another GPU product, 1 cordoned; add or repair nodes, or widen spec.placement"
        )

    def test_an_empty_cluster_says_so(self) -> None:
        assert "the cluster has no nodes" in place(request(), Inventory()).message

    def test_the_shape_that_came_closest_explains_and_the_others_are_named(self) -> None:
        fleet = Inventory((node("a", 4), node("b", 4)), (Claim("a", gpus=1), Claim("b", gpus=1)))
        refused = place(request(shape(8, gpu_product=L4), shape(4, gpu_product=H100)), fleet)

        assert refused.reason is Reason.FRAGMENTED_CAPACITY
        assert refused.message.endswith(f"(also tried 8 {L4} GPUs: NoNodeMatches)")

    def test_a_refusal_claims_nothing(self) -> None:
        assert place(request(), Inventory()).claims("ml/x") == ()


class TestDecisions:
    def test_facts_tell_every_criterion_and_who_was_left_out(self) -> None:
        fleet = Inventory(
            (node("a", zone="za"), node("b", zone="zb"), node("c", zone="zb", cordoned=True)), version="41"
        )
        decision = place(request(shape(4), groups_in_domain={"za": 1}, resident_nodes=frozenset({"b"})), fleet)

        assert decision.reason is Reason.PLACED
        assert decision.message == "4 GPUs on b"
        assert decision.inventory_version == "41"
        assert decision.facts == (
            "spread over zone: zb holds 0 of the model's other groups",
            "weights resident on 1 of 1 node",
            "leaves 4 GPUs free on it",
            "runner-up a lost on spread",
            "nodes left out: 1 cordoned",
        )

    def test_claims_take_what_each_pod_requests(self) -> None:
        asked = request(shape(4, 2, cpu_millis=100, memory_bytes=7))
        decision = place(asked, Inventory((node("a"), node("b"))))

        assert decision.claims("ml/x") == tuple(
            Claim(node=name, gpus=4, cpu_millis=100, memory_bytes=7, owner="ml/x", state=ClaimState.ASSUMED)
            for name in ("a", "b")
        )

    def test_a_second_group_finds_what_the_first_left(self) -> None:
        inventory = Inventory((node("a"), node("b")))
        first = place(request(shape(8)), inventory)
        second = place(request(shape(8)), inventory.with_claims(first.claims("ml/x")))
        third = place(request(shape(8)), inventory.with_claims((*first.claims("ml/x"), *second.claims("ml/y"))))

        assert (first.nodes, second.nodes) == (("a",), ("b",))
        assert third.reason is Reason.INSUFFICIENT_GPU

    def test_groups_are_counted_once_per_domain_that_they_touch(self) -> None:
        fleet = Inventory((node("a1", zone="a"), node("a2", zone="a"), node("b1", zone="b"), node("bare")))
        groups = [["a1", "a2"], ["a1", "b1"], ["bare"], ["gone"]]

        assert groups_per_domain(fleet, groups, "zone") == {"a": 2, "b": 1, "": 1}


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("name", lambda: GroupRequest(name=" ", revision="r", shapes=(shape(),))),
        ("revision", lambda: GroupRequest(name="g", revision="", shapes=(shape(),))),
        ("shapes", lambda: GroupRequest(name="g", revision="r", shapes=())),
        ("cpu_millis", lambda: shape(cpu_millis=-1)),
        ("memory_bytes", lambda: shape(memory_bytes=-1)),
        ("least_gpu_memory_mib", lambda: shape(least_gpu_memory_mib=0)),
        ("tensor", lambda: GroupShape(layout=Layout(tensor=0, pipeline=1, gpus_per_node=1, nodes=1))),
    ],
)
def test_invalid_requests_name_their_field(field: str, make: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()

    assert caught.value.field == field


def test_what_is_remembered_of_the_nodes_never_outlives_them() -> None:
    """Snapshots of the same nodes share what was worked out from them; other nodes are looked at anew."""
    first = Inventory(nodes=(node("a", 4), node("b", 4)))
    assert place(request(shape(4)), first).placed
    crowded = first.with_claims([Claim("a", gpus=4), Claim("b", gpus=4)])
    assert place(request(shape(4)), crowded).reason is Reason.INSUFFICIENT_GPU
    assert crowded.of_nodes is first.of_nodes
    cordoned = Inventory(nodes=(node("a", 4, cordoned=True), node("b", 4, cordoned=True)))
    assert not place(request(shape(4)), cordoned).placed


def test_what_is_remembered_of_the_nodes_is_bounded() -> None:
    inventory = Inventory(nodes=(node("a", 4),))
    for millis in range(200):
        place(request(shape(1, cpu_millis=millis)), inventory)
    assert len(inventory.of_nodes) <= MOST_GROUNDS


def test_without_a_runner_up_the_decision_is_the_same() -> None:
    fleet = Inventory((node("a", 4, zone="za"), node("b", 8, zone="zb"), node("c", 4, zone="zb")))
    for wanted in (request(shape(4)), request(shape(2), groups_in_domain={"za": 2}), request(shape(16))):
        full, counted = place(wanted, fleet), place(wanted, fleet, with_runner_up=False)
        assert counted.runner_up is None
        assert (counted.nodes, counted.reason, counted.message) == (full.nodes, full.reason, full.message)


def test_a_group_goes_apart_from_taken_nodes_where_it_can_and_beside_them_where_it_must() -> None:
    fleet = Inventory((node("a", 4, zone="za"), node("b", 8, zone="za")))
    wanted = request(shape(2))
    assert place(wanted, fleet).nodes == ("a",)
    assert place_apart(wanted, fleet, taken={"a"}).nodes == ("b",)
    assert place_apart(wanted, fleet, taken={"a", "b"}).nodes == ("a",)
    assert place_apart(request(shape(4)), fleet, taken={"b"}).nodes == ("a",)
    assert place_apart(request(shape(8)), fleet, taken={"b"}).nodes == ("b",)
    assert place_apart(request(shape(16)), fleet, taken={"a"}).message == place(request(shape(16)), fleet).message
