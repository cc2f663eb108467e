"""GPU accounting and pod addresses of a node."""

from ipaddress import IPv4Network
from typing import Any

import pytest

from e2e.nodeagent.devices import AddressPool, AdmissionError, DeviceLedger, requested_devices

GPU = "nvidia.com/gpu"


def container(gpus: int) -> dict[str, Any]:
    return {"resources": {"limits": {GPU: str(gpus), "cpu": "4"}}}


def test_request_is_the_sum_of_containers_or_the_largest_init_container() -> None:
    assert requested_devices({"containers": [container(2), container(1)]}) == {GPU: 3}
    assert requested_devices({"containers": [container(1)], "initContainers": [container(4)]}) == {GPU: 4}
    assert requested_devices({"containers": [{}]}) == {}


@pytest.mark.parametrize(("count", "admitted"), [(3, True), (4, True), (5, False)])
def test_pod_is_admitted_up_to_what_is_free(count: int, admitted: bool) -> None:
    ledger = DeviceLedger(GPU, 8)
    ledger.take("first", 4)
    if admitted:
        ledger.take("second", count)
        assert len(ledger.free()) == 4 - count
    else:
        with pytest.raises(AdmissionError, match=r"Requested: 5, Available: 4, which is unexpected"):
            ledger.take("second", count)
        assert len(ledger.free()) == 4


def test_no_device_is_held_twice_and_released_ones_come_back() -> None:
    ledger = DeviceLedger(GPU, 4)
    ledger.take("a", 2)
    ledger.take("b", 2)
    assert not ledger.held["a"] & ledger.held["b"]
    ledger.release("a")
    ledger.take("c", 2)
    assert ledger.held["c"] == {0, 1}


def test_taking_twice_for_one_pod_changes_nothing() -> None:
    ledger = DeviceLedger(GPU, 4)
    ledger.take("a", 2)
    ledger.take("a", 2)
    assert len(ledger.free()) == 2


def test_lost_devices_lower_allocatable_and_are_not_given_out() -> None:
    ledger = DeviceLedger(GPU, 4)
    assert ledger.lose(1, held_first=False) == []
    assert ledger.allocatable == 3
    with pytest.raises(AdmissionError, match="Available: 3"):
        ledger.take("a", 4)


def test_free_devices_are_lost_before_held_ones_unless_asked_otherwise() -> None:
    spared = DeviceLedger(GPU, 4)
    spared.take("a", 2)
    assert spared.lose(2, held_first=False) == []
    hit = DeviceLedger(GPU, 4)
    hit.take("a", 2)
    assert hit.lose(1, held_first=True) == ["a"]


def test_losing_more_than_the_free_ones_reaches_the_holder() -> None:
    ledger = DeviceLedger(GPU, 4)
    ledger.take("a", 3)
    assert ledger.lose(2, held_first=False) == ["a"]


@pytest.mark.parametrize(("count", "possible"), [(0, False), (1, True), (4, True), (5, False)])
def test_only_healthy_devices_can_be_lost(count: int, possible: bool) -> None:
    ledger = DeviceLedger(GPU, 4)
    if possible:
        ledger.lose(count, held_first=False)
        assert ledger.allocatable == 4 - count
    else:
        with pytest.raises(ValueError, match="between 1 and 4"):
            ledger.lose(count, held_first=False)


def test_restored_devices_are_given_out_again() -> None:
    ledger = DeviceLedger(GPU, 4)
    ledger.lose(3, held_first=False)
    ledger.restore(1)
    assert ledger.allocatable == 2
    with pytest.raises(ValueError, match="2 are lost now"):
        ledger.restore(3)
    ledger.restore()
    ledger.take("a", 4)


BLOCK = IPv4Network("127.20.0.0/22")


def test_addresses_differ_and_are_not_reused_at_once() -> None:
    pool = AddressPool(BLOCK, nodes=1)
    first = pool.take()
    pool.release(first)
    second = pool.take()
    assert first != second
    assert {first, second} <= {str(address) for address in BLOCK}


def test_addresses_of_foreign_pods_are_left_out() -> None:
    pool = AddressPool(BLOCK, nodes=1, in_use=lambda: ["127.20.1.0"])
    assert pool.take() == "127.20.1.1"


def test_full_network_refuses_and_takes_the_first_one_that_comes_back() -> None:
    nodes = 300
    pool = AddressPool(BLOCK, nodes=nodes)
    taken = [pool.take() for _ in range(1024 - 256 - nodes - 1)]
    assert len(set(taken)) == len(taken)
    assert not set(taken) & {pool.node_address(position) for position in range(nodes)}
    with pytest.raises(AdmissionError, match="no free pod address in"):
        pool.take()
    pool.release(taken[7])
    assert pool.take() == taken[7]


@pytest.mark.parametrize(("nodes", "fits"), [(766, True), (767, False)])
def test_network_must_hold_its_nodes_and_one_pod(nodes: int, fits: bool) -> None:
    if fits:
        assert AddressPool(BLOCK, nodes=nodes).take() == "127.20.1.0"
    else:
        with pytest.raises(ValueError, match="too small for 767 nodes"):
            AddressPool(BLOCK, nodes=nodes)
