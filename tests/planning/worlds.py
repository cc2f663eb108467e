"""Random small fleets and requests, made from a seed: Hypothesis draws the seed, the rest is cheap."""

from random import Random
from typing import Any

from bayplan.api.inferencemodel import TopologyRule
from bayplan.api.podtemplate import Toleration
from bayplan.planning.placement.group import GroupRequest, GroupShape
from bayplan.planning.placement.inventory import Claim, Inventory, Node, Sharing, Taint
from tests.planning.fleets import H100, L4, node, shape

NAMES = [f"n{i}" for i in range(7)]
SELECTED = {"pool": "llm"}
TAINT = Taint(key="dedicated", value="llm", effect="NoSchedule")
DOMAINS = ["a", "b", "", "a/1", "b/1", "n0", "n1"]


def random_node(random: Random, name: str) -> Node:
    def rarely(value: Any, otherwise: Any, *, once_in: int = 10) -> Any:
        return value if random.randrange(once_in) == 0 else otherwise

    return node(
        name,
        random.choice([1, 2, 4]),
        zone=random.choice(["a", "a", "b", ""]),
        rack=random.choice(["1", "1", "2", ""]),
        product=rarely(L4, H100, once_in=4),
        memory_mib=random.choice([20_000, 40_000, None]),
        cpu_millis=random.choice([1000, 8000]),
        memory_bytes=random.choice([10, 80]),
        pods=rarely(1, 110),
        ready=rarely(False, True),
        cordoned=rarely(True, False),
        leaving=rarely("drain", ""),
        lost=rarely(True, False, once_in=20),
        unplaceable=rarely("MIG", "", once_in=20),
        sharing=rarely(Sharing.SHARED, Sharing.NONE),
        labels=rarely({}, SELECTED),
        taints=rarely((TAINT,), ()),
    )


def random_inventory(random: Random) -> Inventory:
    names = random.sample(NAMES, random.randint(0, len(NAMES)))
    claims = [
        Claim(
            node=random.choice(NAMES),
            gpus=random.randint(0, 2),
            cpu_millis=random.choice([0, 500]),
            memory_bytes=random.choice([0, 5]),
            owner=random.choice("xy"),
        )
        for _ in range(random.randint(0, 5))
    ]
    return Inventory(nodes=tuple(random_node(random, name) for name in names), claims=tuple(claims))


def random_shape(random: Random) -> GroupShape:
    return shape(
        random.choice([1, 1, 2]),
        random.choice([1, 1, 2, 2, 3]),
        gpu_product=random.choice([None, H100, H100, L4]),
        least_gpu_memory_mib=random.choice([None, 20_000, 30_000]),
        cpu_millis=random.choice([0, 0, 800]),
        memory_bytes=random.choice([0, 0, 8]),
        preference=random.choice([0, 0, 1]),
    )


def random_request(random: Random, *, most_shapes: int = 2) -> GroupRequest:
    levels = random.sample(["zone", "rack"], random.randint(0, 2))
    return GroupRequest(
        name="ml/g",
        revision="r",
        shapes=tuple(random_shape(random) for _ in range(random.randint(1, most_shapes))),
        node_selector=random.choice([{}, SELECTED]),
        tolerations=random.choice([(), (Toleration(key="dedicated", operator="Exists"),)]),
        topology=tuple(TopologyRule(level=level, mode=random.choice(["Required", "Preferred"])) for level in levels),
        spread_level=random.choice(["zone", "rack", "host"]),
        groups_in_domain={domain: random.randint(0, 3) for domain in random.sample(DOMAINS, random.randint(0, 4))},
        resident_nodes=frozenset(random.sample(NAMES, random.randint(0, 3))),
        kept_nodes=frozenset(random.sample(NAMES, random.choice([0, 0, 0, 1, 2]))),
        excluded_nodes=dict.fromkeys(random.sample(NAMES, random.choice([0, 0, 1])), "refused a pod"),
    )
