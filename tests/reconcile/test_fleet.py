"""What the fleet keeps up to date equals what a walk over all nodes and pods would find."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.cluster.resources import Key
from bayplan.planning.placement.inventory import Claim, Free, Inventory
from bayplan.planning.placement.nodes import node_from_api
from bayplan.planning.quantities import quantity
from bayplan.reconcile.fleet import Fleet, FleetLimits, node_store, pod_store, view_node
from bayplan.reconcile.pods import view_pod
from tests.reconcile.world import Json, foreign_pod, node

NOW = datetime(2026, 3, 4, tzinfo=UTC)
NODES = ("n1", "n2", "n3")


def fleet() -> Fleet:
    limits = FleetLimits(lost_node_seconds=30, old_cordon_seconds=60)
    return Fleet(nodes=node_store(), pods=pod_store(), is_ours=lambda _: False, now=lambda: NOW, limits=limits)


def stamped(body: Json, version: int, uid: str = "") -> Json:
    meta = body["metadata"]
    return {**body, "metadata": {**meta, "resourceVersion": str(version), "uid": uid or f"uid-{meta['name']}"}}


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, str | None, int, str]]:
    """(pod name, node, GPUs, phase or "gone"): pods come, are bound, grow up, end, vanish."""
    one = st.tuples(
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from([None, *NODES, "elsewhere"]),
        st.integers(0, 2),
        st.sampled_from(["Running", "Running", "Failed", "gone"]),
    )
    return draw(st.lists(one, max_size=25))


@pytest.mark.property
@settings(deadline=None)
@given(steps())
def test_other_peoples_pods_are_subtracted_whatever_became_of_them(
    changes: list[tuple[str, str | None, int, str]],
) -> None:
    subject = fleet()
    for name in NODES:
        subject.nodes.put(view_node(stamped(node(name, gpus=8), 1)))
    alive: dict[str, Json] = {}
    for version, (name, place, gpus, phase) in enumerate(changes, start=2):
        body = stamped(foreign_pod(name, place, gpus=gpus), version)
        body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "250m"
        body["status"]["phase"] = phase
        if phase == "gone":
            subject.pods.discard(Key("other", name), f"uid-{name}", version)
            alive.pop(name, None)
        else:
            subject.pods.put(view_pod(body))
            alive[name] = body
        claims = [
            Claim(
                node=pod["spec"]["nodeName"],
                gpus=int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]),
                cpu_millis=250,
                owner=f"other/{name}",
            )
            for name, pod in alive.items()
            if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Running"
        ]
        expected = Inventory(nodes=tuple(node_from_api(node(name, gpus=8)) for name in NODES), claims=tuple(claims))
        found = subject.inventory()
        assert found.free == expected.free
        holders = {(claim.owner, claim.node, claim.gpus) for claim in found.claims if claim.gpus}
        assert holders == {(claim.owner, claim.node, claim.gpus) for claim in claims if claim.gpus}


def test_pods_without_gpus_take_cpu_memory_and_a_place() -> None:
    subject = fleet()
    subject.nodes.put(view_node(stamped(node("n1", gpus=8), 1)))
    for number in (1, 2):
        body = stamped(foreign_pod(f"p{number}", "n1", gpus=0), 10 + number)
        body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", "memory": "2Gi"}}
        subject.pods.put(view_pod(body))
    memory = int(quantity("256Gi", "") - 2 * quantity("2Gi", ""))
    expected = {"n1": Free(gpus=8, cpu_millis=30_000, memory_bytes=memory, pods=108)}
    assert subject.inventory().free == expected
    assert memory == Fraction(252) * 2**30


def test_a_heartbeat_makes_no_plan_stale() -> None:
    subject = fleet()
    subject.nodes.put(view_node(stamped(node("n1"), 1)))
    before, version = subject.node_inventory(), subject.nodes_version
    subject.nodes.put(view_node(stamped(node("n1"), 2)))
    assert subject.nodes_version == version
    assert subject.node_inventory() is before
    subject.nodes.put(view_node(stamped(node("n1", gpus=1), 3)))
    assert subject.nodes_version != version
    assert subject.node_inventory() is not before


def test_node_is_lost_after_its_time_and_found_again() -> None:
    subject = fleet()
    for seconds, lost in ((29, False), (30, True), (31, True)):
        silent = node("n1")
        since = (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
        silent["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "lastTransitionTime": since}]
        subject.nodes.put(view_node(stamped(silent, seconds)))
        assert ("n1" in subject.lost_nodes()) == lost
    subject.nodes.put(view_node(stamped(node("n1"), 40)))
    assert not subject.lost_nodes()


def test_leaving_node_moves_its_groups_until_it_stays() -> None:
    subject = fleet()
    leaving = node("n1")
    leaving["metadata"]["annotations"] = {"bayplan.dev/drain": "true"}
    subject.nodes.put(view_node(stamped(leaving, 1)))
    assert subject.moving_nodes() == {"n1"}
    subject.nodes.put(view_node(stamped(node("n1"), 2)))
    assert subject.moving_nodes() == frozenset()
    subject.nodes.put(view_node(stamped(leaving, 3)))
    subject.nodes.discard(Key("", "n1"), "uid-n1", 4)
    assert subject.moving_nodes() == frozenset()
