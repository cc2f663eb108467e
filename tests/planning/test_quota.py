import pytest

from bayplan.planning.placement.quota import Quota, quota_shortfall
from bayplan.planning.quantities import PodRequest

GPU = "nvidia.com/gpu"
POD = PodRequest(gpus=4, cpu_millis=1500, memory_bytes=2 * 2**30)


def shortfall(*quotas: Quota, pods: int = 2, per_pod: PodRequest = POD) -> str:
    return quota_shortfall(quotas, pods=pods, per_pod=per_pod, gpu_resource=GPU)


def quota(resource: str, hard: str, used: str = "0", **more: bool) -> Quota:
    return Quota(name="team", hard={resource: hard}, used={resource: used}, **more)


@pytest.mark.parametrize(
    ("resource", "enough", "short", "text"),
    [
        ("pods", "2", "1", "pods needs 2 more, 1 of 1 left"),
        ("count/pods", "2", "1", "count/pods needs 2 more, 1 of 1 left"),
        (f"requests.{GPU}", "8", "7", f"requests.{GPU} needs 8 more, 7 of 7 left"),
        ("cpu", "3", "2999m", "cpu needs 3000 millicores more, 2999 of 2999 left"),
        ("requests.cpu", "3", "2.5", "requests.cpu needs 3000 millicores more, 2500 of 2500 left"),
        ("memory", "4Gi", "4294967295", "memory needs 4294967296 more, 4294967295 of 4294967295 left"),
        ("requests.memory", "4Gi", "4G", "requests.memory needs 4294967296 more, 4000000000 of 4000000000 left"),
    ],
)
def test_the_exact_rest_passes_and_one_less_is_short_with_its_numbers(
    resource: str, enough: str, short: str, text: str
) -> None:
    assert shortfall(quota(resource, enough)) == ""
    assert shortfall(quota(resource, short)) == f"quota team: {text}"


def test_what_is_used_counts() -> None:
    assert shortfall(quota("pods", "10", "8")) == ""
    assert shortfall(quota("pods", "10", "9")) == "quota team: pods needs 2 more, 1 of 10 left"


def test_a_quota_below_its_use_leaves_nothing_rather_than_a_negative_rest() -> None:
    assert shortfall(quota("pods", "3", "9")).endswith("0 of 3 left")


def test_a_quota_on_what_is_not_asked_for_is_no_obstacle_even_below_its_use() -> None:
    asked = PodRequest(gpus=4)
    assert shortfall(quota("cpu", "1", "5"), per_pod=asked) == ""
    assert shortfall(quota("requests.amd.com/gpu", "0")) == ""
    assert shortfall(quota("services", "0")) == ""


def test_scoped_quotas_are_admissions_to_judge() -> None:
    assert shortfall(quota("pods", "0", scoped=True)) == ""


def test_unreadable_quotas_are_admissions_to_judge() -> None:
    assert shortfall(quota("pods", "many")) == ""
    assert shortfall(quota("pods", "5", "some")) == ""


def test_every_quota_of_the_namespace_must_have_room() -> None:
    short = Quota(name="other", hard={"pods": "1"}, used={})
    assert shortfall(quota("pods", "5"), short).startswith("quota other:")
    assert shortfall() == ""
