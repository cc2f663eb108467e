from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api import names
from bayplan.api.provenance import Provenance
from bayplan.planning.placement.inventory import Node, Sharing, Taint
from bayplan.planning.placement.nodes import MAX_GPUS, node_from_api
from bayplan.planning.placement.topology import domains_of
from tests.planning.fleets import H100, H100_MIB, TIB, api_node


def read(**changes: Any) -> Node:
    return node_from_api(api_node(**changes))


def test_a_gpu_node_is_read_from_labels_and_allocatable() -> None:
    node = read(
        labels={"topology.kubernetes.io/region": "eu", "topology.kubernetes.io/rack": "r7"},
        taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
    )

    assert (node.name, node.gpus, node.gpu_resource, node.gpu_product) == ("gpu-1", 8, "nvidia.com/gpu", H100)
    assert (node.gpu_memory_mib, node.gpu_memory_provenance) == (H100_MIB, Provenance.MEASURED)
    assert (node.cpu_millis, node.memory_bytes, node.pods) == (96_000, TIB, 110)
    assert node.taints == (Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule"),)
    assert node.domains == {"region": "eu", "zone": "zone-a", "rack": "zone-a/r7", "host": "gpu-1"}
    assert (node.ready, node.lost, node.cordoned, node.leaving, node.unplaceable) == (True, False, False, "", "")
    assert node.facts == ()


class TestState:
    @pytest.mark.parametrize(
        ("status", "ready", "lost"), [("True", True, False), ("False", False, False), ("Unknown", False, True)]
    )
    def test_ready_and_lost_follow_the_ready_condition(self, status: str, ready: bool, lost: bool) -> None:
        node = read(ready=status)

        assert (node.ready, node.lost) == (ready, lost)

    def test_an_unreachable_taint_is_a_loss(self) -> None:
        assert read(taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]).lost

    def test_a_node_without_conditions_is_not_ready(self) -> None:
        raw = api_node()
        raw["status"]["conditions"] = []

        assert not node_from_api(raw).ready

    def test_cordon_is_read(self) -> None:
        assert read(unschedulable=True).cordoned

    def test_people_and_autoscalers_make_a_node_leave(self) -> None:
        assert read(annotations={names.ANNOTATION_NODE_DRAIN: "true"}).leaving == "annotation bayplan.dev/drain"
        assert read(annotations={names.ANNOTATION_NODE_DRAIN: "false"}).leaving == ""
        taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
        assert read(taints=[taint]).leaving == "taint ToBeDeletedByClusterAutoscaler"


class TestGpus:
    def test_allocatable_counts_not_the_label(self) -> None:
        node = read(allocatable={"nvidia.com/gpu": "7"})

        assert (node.gpus, node.gpus_expected) == (7, 8)
        assert node.unplaceable == ""

    @pytest.mark.parametrize(
        "labels",
        [
            {"nvidia.com/gpu.count": "8"},
            {"nvidia.com/gpu.count": None, "nvidia.com/gpu.present": "true"},
            {"nvidia.com/gpu.count": None, "cloud.google.com/gke-accelerator": "nvidia-l4"},
            {"nvidia.com/gpu.count": None, "karpenter.k8s.aws/instance-gpu-count": "4"},
        ],
    )
    @pytest.mark.parametrize("allocatable", ["0", None])
    def test_expected_but_absent_gpus_are_warming_up(self, labels: dict[str, str], allocatable: str | None) -> None:
        node = read(labels=labels, allocatable={"nvidia.com/gpu": allocatable})

        assert node.gpus == 0
        assert node.gpus_expected > 0
        assert node.unplaceable.startswith("warming up")

    def test_a_node_without_gpus_is_no_warming_gpu_node(self) -> None:
        labels = {"nvidia.com/gpu.count": None, "nvidia.com/gpu.product": None, "nvidia.com/gpu.memory": None}
        node = read(labels=labels, allocatable={"nvidia.com/gpu": None})

        assert (node.gpus, node.gpus_expected, node.unplaceable) == (0, 0, "")

    def test_amd_gpus_are_read_by_their_own_names(self) -> None:
        node = read(
            labels={
                "nvidia.com/gpu.product": None,
                "nvidia.com/gpu.memory": None,
                "nvidia.com/gpu.count": None,
                "amd.com/gpu.product-name": "Instinct_MI300X",
                "amd.com/gpu.vram": "192G",
            },
            allocatable={"nvidia.com/gpu": None, "amd.com/gpu": "8"},
        )

        assert (node.gpus, node.gpu_resource, node.gpu_product) == (8, "amd.com/gpu", "Instinct_MI300X")
        assert (node.gpu_memory_mib, node.gpu_memory_provenance) == (192 * 1024, Provenance.ESTIMATED)

    def test_missing_memory_label_falls_back_to_the_table_then_to_unknown(self) -> None:
        known = read(labels={"nvidia.com/gpu.memory": None})
        bare = read(labels={"nvidia.com/gpu.memory": None, "nvidia.com/gpu.product": "H100-80GB-HBM3"})
        unknown = read(labels={"nvidia.com/gpu.memory": None, "nvidia.com/gpu.product": "NVIDIA-X9000"})

        assert (known.gpu_memory_mib, known.gpu_memory_provenance) == (H100_MIB, Provenance.ESTIMATED)
        assert bare.gpu_memory_mib == H100_MIB
        assert (unknown.gpu_memory_mib, unknown.gpu_memory_provenance) == (None, Provenance.UNKNOWN)


class TestSharing:
    def test_time_slicing_is_seen_by_suffix_or_strategy(self) -> None:
        assert read(labels={"nvidia.com/gpu.product": f"{H100}-SHARED"}).sharing is Sharing.SHARED
        assert read(labels={"nvidia.com/gpu.sharing-strategy": "mps"}).sharing is Sharing.SHARED
        assert read(labels={"nvidia.com/gpu.sharing-strategy": "none"}).sharing is Sharing.NONE

    def test_mig_slices_are_partitions(self) -> None:
        assert read(labels={"nvidia.com/gpu.product": f"{H100}-MIG-1g.10gb"}).sharing is Sharing.PARTITIONED

    def test_invalid_or_changing_mig_keeps_a_node_out(self) -> None:
        assert "MIG layout is invalid" in read(labels={"nvidia.com/gpu.product": f"{H100}-MIG-INVALID"}).unplaceable
        assert "MIG change" in read(labels={"nvidia.com/mig.config.state": "pending"}).unplaceable
        assert read(labels={"nvidia.com/mig.config.state": "success"}).unplaceable == ""


class TestNonsense:
    @pytest.mark.parametrize("value", ["-1", "many", "1.5", "", str(MAX_GPUS + 1), "1e9", {}, None.__class__])
    def test_garbage_gpu_counts_are_nothing_and_a_fact(self, value: object) -> None:
        node = read(allocatable={"nvidia.com/gpu": value})

        assert node.gpus == 0
        assert len(node.facts) == 1
        assert node.facts[0].startswith("allocatable nvidia.com/gpu is ")

    def test_garbage_labels_are_ignored_with_a_fact(self) -> None:
        node = read(labels={"nvidia.com/gpu.memory": "80GB", "nvidia.com/gpu.count": "-8"})

        assert node.gpu_memory_mib == H100_MIB
        assert node.gpu_memory_provenance is Provenance.ESTIMATED
        assert node.gpus_expected == 8
        assert sorted(node.facts) == [
            "label nvidia.com/gpu.count is '-8': ignored",
            "label nvidia.com/gpu.memory is '80GB': ignored",
        ]

    @pytest.mark.parametrize(
        ("labels", "fact"),
        [
            ({"nvidia.com/gpu.memory": "0"}, "label nvidia.com/gpu.memory is 0: ignored"),
            ({"amd.com/gpu.vram": "lots"}, "label amd.com/gpu.vram is 'lots': ignored"),
            ({"beta.amd.com/gpu.vram": "0G"}, "label beta.amd.com/gpu.vram is '0G': ignored"),
            ({"nvidia.com/gpu.count": str(MAX_GPUS + 1)}, f"{MAX_GPUS + 1} GPUs by label: counted as {MAX_GPUS}"),
        ],
    )
    def test_readable_nonsense_is_a_fact_too(self, labels: dict[str, str], fact: str) -> None:
        assert node_from_api({"metadata": {"name": "n", "labels": labels}}).facts == (fact,)

    def test_an_empty_object_is_an_empty_node(self) -> None:
        node = node_from_api({"metadata": {"name": "bare"}})

        assert (node.gpus, node.ready, node.domains) == (0, False, {"host": "bare"})


class TestDomains:
    def test_the_first_label_that_a_node_carries_names_the_domain(self) -> None:
        labels = {"cloud.google.com/gce-topology-subblock": "sb", "fabric.topograph.run/tier-0": "leaf"}

        assert domains_of("n", labels)["rack"] == "leaf"

    def test_racks_numbered_per_zone_stay_different(self) -> None:
        racks = {
            domains_of("n", {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/rack": "1"})["rack"]
            for zone in ("a", "b")
        }

        assert len(racks) == 2

    def test_a_host_is_the_node_whatever_its_hostname_label_says(self) -> None:
        assert domains_of("node-1", {"kubernetes.io/hostname": "other"})["host"] == "node-1"

    def test_the_table_can_be_replaced(self) -> None:
        domains = domains_of("n", {"example.com/row": "7"}, {"row": ("example.com/row",)})

        assert domains == {"row": "7", "host": "n"}


NASTY = (
    *(None, True, False, 0, -3, 7, 10**40, 1.5, float("nan")),
    *("", "8", "-8", "many", "1e99", "9" * 60, "Unknown"),
    *([], {}, ["x"], [None], [[]], [{}], {"a": {"b": []}}, {"": 1}),
    *([{"key": 3}], [{"key": "a", "effect": None, "value": []}]),
    *([{"type": "Ready", "status": {}}], [{"type": "Ready"}], [{"type": []}]),
)
json_values = st.sampled_from(NASTY)
label_keys = st.sampled_from(
    [
        "nvidia.com/gpu.product",
        "nvidia.com/gpu.memory",
        "nvidia.com/gpu.count",
        "nvidia.com/gpu.sharing-strategy",
        "nvidia.com/mig.config.state",
        "amd.com/gpu.vram",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/rack",
    ]
)


@pytest.mark.property
@given(
    labels=st.dictionaries(label_keys, json_values, max_size=6) | json_values,
    allocatable=st.dictionaries(st.sampled_from(["nvidia.com/gpu", "cpu", "memory", "pods"]), json_values)
    | json_values,
    taints=json_values,
    conditions=json_values,
    annotations=json_values,
)
def test_no_node_makes_reading_fail(**parts: Any) -> None:
    node = node_from_api(
        {
            "metadata": {"name": "n", "labels": parts["labels"], "annotations": parts["annotations"]},
            "spec": {"taints": parts["taints"], "unschedulable": parts["conditions"]},
            "status": {"allocatable": parts["allocatable"], "conditions": parts["conditions"]},
        }
    )

    assert node.gpus >= 0
    assert node.gpus_expected >= node.gpus
    assert node.domains["host"] == "n"
