"""The machines: a YAML file of node pools, checked, and unrolled into one record per node.

Labels of a GPU kind are those that GPU Feature Discovery (NVIDIA) or the AMD node labeller would set, so what reads
them is tested against the names and values of real clusters.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

NVIDIA_RESOURCE = "nvidia.com/gpu"
AMD_RESOURCE = "amd.com/gpu"
GPU_RESOURCES = (NVIDIA_RESOURCE, AMD_RESOURCE)
MAX_NODES = 5000

_QUANTITY = re.compile(r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")
_NODE_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")


class InventoryError(ValueError):
    """The inventory cannot be used; the message names each field and what it would accept."""


def _quantity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("must be a Kubernetes quantity such as 64, 500m or 512Gi")  # noqa: TRY004
    text = str(value)
    if not _QUANTITY.match(text):
        raise ValueError(f"{text!r} is not a Kubernetes quantity such as 64, 500m or 512Gi")
    return text


Quantity = Annotated[str, BeforeValidator(_quantity)]
LabelKey = Annotated[
    str,
    StringConstraints(pattern=r"^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=317),
]
LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True)


class Taint(_Model):
    """A node taint as in `spec.taints`."""

    key: LabelKey
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class GpuKind(_Model):
    """One kind of GPU, as its vendor's labeller would describe it. Memory is per GPU, in MiB as the driver shows it."""

    vendor: Literal["nvidia", "amd"] = "nvidia"
    product: LabelValue
    memory_mib: Annotated[int, Field(gt=0)]
    family: LabelValue = ""
    compute_capability: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")] | None = None
    driver_version: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+){1,2}$")] = "580.95.05"
    cuda_version: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")] = "13.0"
    machine: LabelValue = ""
    mig_capable: bool = False

    @model_validator(mode="after")
    def _nvidia_states_its_capability(self) -> Self:
        if self.vendor == "nvidia" and self.compute_capability is None:
            raise ValueError("computeCapability is required for vendor nvidia, for example '9.0'")
        return self

    @property
    def resource(self) -> str:
        """The extended resource that counts these GPUs."""
        return NVIDIA_RESOURCE if self.vendor == "nvidia" else AMD_RESOURCE

    def labels(self, count: int) -> dict[str, str]:
        """Return the labels of a node with `count` of these GPUs."""
        if self.vendor == "amd":
            found = {
                "amd.com/gpu.product-name": self.product,
                "amd.com/gpu.vram": f"{round(self.memory_mib / 1024)}G",
                "amd.com/gpu.driver-version": self.driver_version,
            }
            return found | ({"amd.com/gpu.family": self.family} if self.family else {})
        capability_major, capability_minor = str(self.compute_capability).split(".")
        driver = [*self.driver_version.split("."), ""][:3]
        cuda_major, cuda_minor = self.cuda_version.split(".")
        found = {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": self.product,
            "nvidia.com/gpu.memory": str(self.memory_mib),
            "nvidia.com/gpu.count": str(count),
            "nvidia.com/gpu.replicas": "1",
            "nvidia.com/gpu.sharing-strategy": "none",
            "nvidia.com/gpu.mode": "compute",
            "nvidia.com/gpu.compute.major": capability_major,
            "nvidia.com/gpu.compute.minor": capability_minor,
            "nvidia.com/cuda.driver-version.full": self.driver_version,
            "nvidia.com/cuda.driver-version.major": driver[0],
            "nvidia.com/cuda.driver-version.minor": driver[1],
            "nvidia.com/cuda.driver-version.revision": driver[2],
            "nvidia.com/cuda.runtime-version.full": self.cuda_version,
            "nvidia.com/cuda.runtime-version.major": cuda_major,
            "nvidia.com/cuda.runtime-version.minor": cuda_minor,
            "nvidia.com/mig.capable": "true" if self.mig_capable else "false",
        }
        optional = {"nvidia.com/gpu.family": self.family, "nvidia.com/gpu.machine": self.machine}
        return found | {key: value for key, value in optional.items() if value}


class Fabric(_Model):
    """Network position above the rack: `tiers` from tier 1 outwards, `accelerator` the multi-node NVLink domain."""

    tiers: tuple[LabelValue, ...] = ()
    accelerator: LabelValue | None = None


class NodePool(_Model):
    """Nodes that differ only by name. `nodeNames` is a pattern with `{index}` (from 1) when there are several."""

    node_names: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    count: Annotated[int, Field(ge=1, le=MAX_NODES)] = 1
    gpu: str | None = None
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    zone: LabelValue | None = None
    region: LabelValue | None = None
    rack: LabelValue | None = None
    fabric: Fabric = Fabric()
    labels: Mapping[LabelKey, LabelValue] = {}
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[LabelKey, Quantity] = {}

    @field_validator("node_names")
    @classmethod
    def _pattern_is_usable(cls, pattern: str) -> str:
        try:
            example = pattern.format(index=1)
        except (KeyError, IndexError, ValueError):
            raise ValueError(f"{pattern!r} may contain no other placeholder than {{index}}") from None
        if not _NODE_NAME.match(example):
            raise ValueError(f"{example!r} is not a node name: lower-case letters, digits, '-' and '.'")
        return pattern

    @model_validator(mode="after")
    def _names_differ_and_gpus_agree(self) -> Self:
        if self.count > 1 and self.node_names.format(index=1) == self.node_names.format(index=2):
            raise ValueError("nodeNames needs {index} when count is above 1")
        if (self.gpu is None) != (self.gpus_per_node is None):
            raise ValueError("gpu and gpusPerNode belong together: give both or neither")
        for resource in GPU_RESOURCES:
            if not self.allocatable.get(resource, "0").isdigit():
                raise ValueError(f"allocatable.{resource} must be a whole number")
        return self


class Inventory(_Model):
    """The whole file: GPU kinds by a short name, and the pools that use them."""

    gpu_kinds: Mapping[str, GpuKind] = {}
    pools: Annotated[tuple[NodePool, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _references_resolve_and_names_are_unique(self) -> Self:
        for position, pool in enumerate(self.pools):
            if pool.gpu is not None and pool.gpu not in self.gpu_kinds:
                known = ", ".join(sorted(self.gpu_kinds)) or "none"
                raise ValueError(f"pools.{position}.gpu: unknown GPU kind {pool.gpu!r}; gpuKinds has: {known}")
        total = sum(pool.count for pool in self.pools)
        if total > MAX_NODES:
            raise ValueError(f"pools: {total} nodes in all; at most {MAX_NODES} are supported")
        seen: set[str] = set()
        for node in self.nodes():
            if node.name in seen:
                raise ValueError(f"pools: node name {node.name!r} occurs twice")
            seen.add(node.name)
        return self

    def nodes(self) -> tuple["NodeSpec", ...]:
        """Unroll the pools, in file order."""
        return tuple(self._node(pool, index) for pool in self.pools for index in range(1, pool.count + 1))

    def _node(self, pool: NodePool, index: int) -> "NodeSpec":
        name = pool.node_names.format(index=index)
        allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        if pool.gpu is not None and pool.gpus_per_node is not None:
            kind = self.gpu_kinds[pool.gpu]
            labels |= kind.labels(pool.gpus_per_node)
            allocatable[kind.resource] = str(pool.gpus_per_node)
        domains = {
            "topology.kubernetes.io/region": pool.region,
            "topology.kubernetes.io/zone": pool.zone,
            # The rack is its leaf switch, the one nearest the node.
            "fabric.topograph.run/tier-0": pool.rack,
            "accelerator.topograph.run/domain": pool.fabric.accelerator,
        }
        domains |= {f"fabric.topograph.run/tier-{n}": value for n, value in enumerate(pool.fabric.tiers, start=1)}
        labels |= {key: value for key, value in domains.items() if value is not None}
        return NodeSpec(
            name=name,
            labels=labels | dict(pool.labels),
            taints=pool.taints,
            allocatable=allocatable | dict(pool.allocatable),
        )


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node as its kubelet would announce it; quantities are Kubernetes quantity strings."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, str]

    @property
    def devices(self) -> dict[str, int]:
        """Extended resources that a device plugin counts, such as `nvidia.com/gpu`, with their number."""
        return {key: int(value) for key, value in self.allocatable.items() if "/" in key and value.isdigit()}


def parse_inventory(data: Any) -> Inventory:
    """Check parsed YAML. Raises InventoryError with one line per problem."""
    if not isinstance(data, dict):
        raise InventoryError("the inventory must be a mapping with the keys gpuKinds and pools")
    try:
        return Inventory.model_validate(data)
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False):
            where = ".".join(str(part) for part in problem["loc"])
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {message}" if where else message)
        raise InventoryError("\n".join(lines)) from None


def load_inventory(path: Path) -> Inventory:
    """Read an inventory file. Raises InventoryError, also for a file that is missing or no YAML."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InventoryError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise InventoryError(f"{path}: not YAML: {error}") from None
    try:
        return parse_inventory(data)
    except InventoryError as error:
        raise InventoryError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None
