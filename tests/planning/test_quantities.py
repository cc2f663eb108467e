from fractions import Fraction
from typing import Any

import pytest

from bayplan.planning.numbers import InvalidInput
from bayplan.planning.quantities import PodRequest, pod_request, quantity, requested_bytes, requested_cpu_millis


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        (4, 4),
        ("500m", Fraction(1, 2)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("100u", Fraction(1, 10_000)),
        ("1n", Fraction(1, 10**9)),
        ("1k", 1000),
        ("1Ki", 1024),
        ("16Gi", 16 * 2**30),
        ("2M", 2_000_000),
        ("1Ei", 2**60),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-1", Fraction(6, 5)),
        ("-3", -3),
        ("128974848000m", 128974848),
    ],
)
def test_quantities_are_read_exactly(text: object, value: Fraction | int) -> None:
    assert quantity(text, "cpu") == value


@pytest.mark.parametrize("text", ["", "4 ", "Gi", "4GiB", "1e999", "4x", None, True, 1.5, "1" * 31, "NaN"])
def test_what_kubernetes_would_not_accept_is_refused(text: object) -> None:
    with pytest.raises(InvalidInput, match="must be a Kubernetes quantity"):
        quantity(text, "cpu")


def test_requests_round_up() -> None:
    assert requested_cpu_millis("1500u", "cpu") == 2
    assert requested_bytes("1500m", "memory") == 2


def container(
    requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def test_a_pod_takes_the_sum_of_its_containers_and_its_overhead() -> None:
    spec = {
        "containers": [container({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2"}), container({"cpu": "250m"})],
        "overhead": {"cpu": "250m", "memory": "1Mi"},
    }

    assert pod_request(spec) == PodRequest(gpus=2, cpu_millis=1500, memory_bytes=2**30 + 2**20)


def test_a_limit_stands_in_for_a_missing_request() -> None:
    assert pod_request({"containers": [container(limits={"nvidia.com/gpu": 4, "cpu": "2"})]}).gpus == 4
    assert pod_request({"containers": [container({"cpu": "1"}, {"cpu": "2"})]}).cpu_millis == 1000


def test_init_containers_count_where_they_need_more_than_the_rest() -> None:
    small, large = container({"cpu": "1"}), container({"cpu": "9"})
    sidecar = container({"cpu": "2"}, restartPolicy="Always")

    assert pod_request({"containers": [small], "initContainers": [large]}).cpu_millis == 9000
    assert pod_request({"containers": [small], "initContainers": [sidecar]}).cpu_millis == 3000
    assert pod_request({"containers": [small], "initContainers": [sidecar, large]}).cpu_millis == 11_000
    assert pod_request({"containers": [small], "initContainers": [large, sidecar]}).cpu_millis == 9000


def test_pod_level_requests_stand_in_for_the_containers() -> None:
    spec = {"containers": [container({"cpu": "1", "nvidia.com/gpu": "1"})], "resources": {"requests": {"cpu": "8"}}}

    assert pod_request(spec) == PodRequest(gpus=1, cpu_millis=8000, memory_bytes=0)


def test_gpus_of_every_vendor_count() -> None:
    assert pod_request({"containers": [container({"amd.com/gpu": "3"})]}).gpus == 3


def test_unreadable_requests_count_as_nothing() -> None:
    assert pod_request({"containers": [container({"cpu": "lots", "memory": "-1Gi"})]}) == PodRequest()
    assert pod_request({}) == PodRequest()
