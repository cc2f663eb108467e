"""Reading a Kubernetes Node into the planner's record.

Labels are written by people and by several generations of tools, so nothing here fails: what cannot be read counts as
nothing and is kept as a fact that status and CLI can show.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from bayplan.api import names
from bayplan.api.provenance import Provenance
from bayplan.planning.numbers import InvalidInput
from bayplan.planning.placement.gpus import MIG_INVALID, table_memory_mib
from bayplan.planning.placement.inventory import Node, Sharing, Taint
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY, Topology, domains_of
from bayplan.planning.quantities import GPU_RESOURCES, quantity

PRODUCT_KEYS: Final = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "gpu.intel.com/product",
)
COUNT_KEYS: Final = ("nvidia.com/gpu.count", "karpenter.k8s.aws/instance-gpu-count", "gpu.intel.com/device.count")
GPU_NODE_KEYS: Final = ("nvidia.com/gpu.present", "cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator")
"""Labels that say "there is a GPU in here" before any driver runs."""
MEMORY_KEY: Final = "nvidia.com/gpu.memory"
AMD_MEMORY_KEYS: Final = ("amd.com/gpu.vram", "beta.amd.com/gpu.vram")
SHARING_KEY: Final = "nvidia.com/gpu.sharing-strategy"
MIG_STATE_KEY: Final = "nvidia.com/mig.config.state"

LEAVING_TAINTS: Final = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/rebalance-recommendation",
    "node.cloudprovider.kubernetes.io/shutdown",
)
"""Taints by which autoscalers and clouds announce that a node is going away."""
LOST_TAINTS: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service")

MAX_GPUS: Final = 100_000
"""More than this on one node is a slip of the pen, even with time slicing."""
_MAX_FACTS: Final = 8


def node_from_api(raw: Mapping[str, Any], *, topology: Topology = DEFAULT_TOPOLOGY) -> Node:
    """Return the planner's record of an API node (camelCase, as JSON); only `metadata.name` must be there."""
    meta, spec, status = _map(raw.get("metadata")), _map(raw.get("spec")), _map(raw.get("status"))
    name = str(meta.get("name", ""))
    labels = {str(key): value for key, value in _map(meta.get("labels")).items() if isinstance(value, str)}
    facts: list[str] = []
    allocatable = _map(status.get("allocatable"))
    resource = next((r for r in GPU_RESOURCES if allocatable.get(r) not in (None, "0", 0)), "") or next(
        (r for r in GPU_RESOURCES if r in allocatable), ""
    )
    gpus = _amount(allocatable, resource, facts, most=MAX_GPUS) if resource else 0
    product = next((labels[key] for key in PRODUCT_KEYS if labels.get(key)), "")
    memory, provenance = _gpu_memory(labels, product, facts)
    expected = _expected(labels, facts)
    taints = _taints(spec.get("taints"))
    ready = _ready(status.get("conditions"))
    return Node(
        name=name,
        gpus=gpus,
        cpu_millis=_amount(allocatable, "cpu", facts, scale=1000),
        memory_bytes=_amount(allocatable, "memory", facts),
        pods=_amount(allocatable, "pods", facts),
        gpu_resource=resource,
        gpu_product=product,
        gpu_memory_mib=memory,
        gpu_memory_provenance=provenance,
        gpus_expected=max(gpus, expected),
        sharing=_sharing(labels, product),
        ready=ready == "True",
        cordoned=spec.get("unschedulable") is True,
        lost=ready == "Unknown" or any(taint.key in LOST_TAINTS for taint in taints),
        leaving=_leaving(_map(meta.get("annotations")), taints),
        unplaceable=_unplaceable(labels, product, gpus=gpus, expected=expected),
        labels=labels,
        taints=taints,
        domains=domains_of(name, labels, topology),
        facts=tuple(facts[:_MAX_FACTS]),
    )


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _amount(amounts: Mapping[str, Any], name: str, facts: list[str], *, scale: int = 1, most: int | None = None) -> int:
    """Whole units of a resource, rounded down; nonsense counts as 0 and leaves a fact. Absent is 0 without a fact."""
    if name not in amounts:
        return 0
    try:
        number = quantity(amounts[name], name)
    except InvalidInput:
        number = Fraction(-1)
    if number < 0 or (most is not None and (number > most or number.denominator != 1)):
        facts.append(f"allocatable {name} is {_shown(amounts[name])}: counted as 0")
        return 0
    return int(number * scale)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _label_count(labels: Mapping[str, str], key: str, facts: list[str]) -> int | None:
    """A label's whole number of at least 0, or None where it is missing or nonsense (which leaves a fact)."""
    text = labels.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}", text):
        facts.append(f"label {key} is {_shown(text)}: ignored")
        return None
    return int(text)


def _expected(labels: Mapping[str, str], facts: list[str]) -> int:
    counts = [_label_count(labels, key, facts) for key in COUNT_KEYS]
    known = next((found for found in counts if found is not None), None)
    if known is not None:
        if known > MAX_GPUS:
            facts.append(f"{known} GPUs by label: counted as {MAX_GPUS}")
        return min(known, MAX_GPUS)
    return 1 if any(labels.get(key) not in (None, "", "false") for key in GPU_NODE_KEYS) else 0


def _gpu_memory(labels: Mapping[str, str], product: str, facts: list[str]) -> tuple[int | None, Provenance]:
    label = _label_count(labels, MEMORY_KEY, facts)
    if label:
        return label, Provenance.MEASURED
    if label == 0:
        facts.append(f"label {MEMORY_KEY} is 0: ignored")
    for key in AMD_MEMORY_KEYS:
        vram = re.fullmatch(r"([0-9]{1,6})Gi?", labels.get(key, ""))
        if vram and int(vram[1]):
            return int(vram[1]) * 1024, Provenance.ESTIMATED
        if key in labels:
            facts.append(f"label {key} is {_shown(labels[key])}: ignored")
    table = table_memory_mib(product)
    if table is not None:
        return table, Provenance.ESTIMATED
    return None, Provenance.UNKNOWN


def _sharing(labels: Mapping[str, str], product: str) -> Sharing:
    if "-MIG-" in product:
        return Sharing.PARTITIONED
    if product.endswith("-SHARED") or labels.get(SHARING_KEY, "none") not in ("", "none"):
        return Sharing.SHARED
    return Sharing.NONE


def _taints(raw: object) -> tuple[Taint, ...]:
    found = [taint for taint in _list(raw) if isinstance(taint, Mapping) and taint.get("key")]
    return tuple(
        Taint(key=str(t["key"]), value=str(t.get("value") or ""), effect=str(t.get("effect") or "")) for t in found
    )


def _ready(conditions: object) -> str:
    for condition in _list(conditions):
        if isinstance(condition, Mapping) and condition.get("type") == "Ready":
            return str(condition.get("status"))
    return "False"


def _leaving(annotations: Mapping[str, Any], taints: tuple[Taint, ...]) -> str:
    if annotations.get(names.ANNOTATION_NODE_DRAIN) not in (None, "", "false"):
        return f"annotation {names.ANNOTATION_NODE_DRAIN}"
    return next((f"taint {taint.key}" for taint in taints if taint.key in LEAVING_TAINTS), "")


def _unplaceable(labels: Mapping[str, str], product: str, *, gpus: int, expected: int) -> str:
    if MIG_INVALID in product:
        return f"its MIG layout is invalid (product {product})"
    if labels.get(MIG_STATE_KEY) in ("pending", "rebooting"):
        return f"a MIG change is under way ({MIG_STATE_KEY}={labels[MIG_STATE_KEY]})"
    if gpus == 0 and expected > 0:
        return "warming up: it has GPUs but none is allocatable yet"
    return ""
