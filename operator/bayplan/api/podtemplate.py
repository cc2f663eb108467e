"""The closed list of pod details that a user may set: what engines need, and nothing that could undo a placement."""

from decimal import Decimal
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from bayplan.api.engineargs import EnvName
from bayplan.api.meta import ATOMIC, Flag, Keyed, LabelKey, LabelValue, ObjectName, Schema, WholeNumber
from bayplan.api.rules import Rule

OWN_VOLUME_PREFIX = "bayplan-"
"""Volumes that Bayplan adds to a pod have names with this prefix, so a user's volume cannot clash with one."""
SHARED_MEMORY_PATH = "/dev/shm"
"""Where the memory-backed scratch volume of each pod is mounted."""
MODEL_PATH = "/mnt/model"
"""Where the claim of a `pvc://` model is mounted."""
OWN_MOUNT_PATHS = (SHARED_MEMORY_PATH, MODEL_PATH)


def _quantity_text(value: object) -> object:
    """`cpu: 4` and `cpu: "4"` are one quantity in Kubernetes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


MAX_WHOLE_QUANTITY = 10**15 - 1

Quantity = Annotated[
    str,
    StringConstraints(
        pattern=r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$", min_length=1, max_length=27
    ),
    BeforeValidator(_quantity_text),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "minimum": 0, "maximum": MAX_WHOLE_QUANTITY}),
]
"""A non-negative Kubernetes quantity such as `500m`, `4`, `16Gi`."""

_SCALE = {"": Decimal(1), "m": Decimal("0.001")}
_SCALE |= {suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTP", start=1)}
_SCALE |= {f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTP", start=1)}


def quantity_value(text: str) -> Decimal:
    """Return the exact value of a `Quantity`, in its base unit (cores, bytes)."""
    digits = text.rstrip("mkMGTPKi")
    return Decimal(digits) * _SCALE[text[len(digits) :]]


ResourceName = Literal["cpu", "memory", "ephemeral-storage"]
ResourceList = Annotated[dict[ResourceName, Quantity], Field(max_length=3)]


def exactly_one(**members: str) -> Rule:
    """Rule: exactly one of the optional members is set. Arguments are Python names, values their wire names."""
    terms = " + ".join(f"(has(self.{wire}) ? 1 : 0)" for wire in members.values())
    return Rule(
        expression=f"{terms} == 1",
        message=f"exactly one of {', '.join(members.values())} must be set",
        holds=lambda self: sum(getattr(self, name) is not None for name in members) == 1,
    )


class KeySelector(Schema):
    """One key of a Secret or ConfigMap in the model's namespace."""

    name: ObjectName
    """Name of the Secret or ConfigMap."""
    key: Annotated[str, StringConstraints(pattern=r"^\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$", min_length=1, max_length=253)]
    """Key whose value is taken."""
    optional: Flag = False
    """Start the engine also when the object or the key does not exist."""


class EnvSource(Schema):
    """Where an environment variable's value comes from; the value itself never enters Bayplan's objects."""

    rules: ClassVar = (exactly_one(secret_key_ref="secretKeyRef", config_map_key_ref="configMapKeyRef"),)

    secret_key_ref: KeySelector | None = None
    """Key of a Secret."""
    config_map_key_ref: KeySelector | None = None
    """Key of a ConfigMap."""


class EnvFrom(Schema):
    """An environment variable taken from a Secret or ConfigMap, such as a model-hub token."""

    name: EnvName
    """Name of the variable."""
    value_from: EnvSource
    """Where its value comes from."""


class LocalReference(Schema):
    """An object in the model's own namespace."""

    name: ObjectName
    """Name of the object."""


class ClaimSource(Schema):
    """A PersistentVolumeClaim in the model's namespace."""

    claim_name: ObjectName
    """Name of the claim."""


class EmptyDirSource(Schema):
    """Scratch space that goes with the pod."""

    medium: Literal["", "Memory"] = ""
    """Empty for the node's disk, Memory for a tmpfs."""
    size_limit: Quantity | None = None
    """Upper bound; a pod that passes it is evicted."""


class Volume(Schema):
    """A volume and the one place where it is mounted in the engine container."""

    rules: ClassVar = (
        exactly_one(
            persistent_volume_claim="persistentVolumeClaim",
            config_map="configMap",
            secret="secret",
            empty_dir="emptyDir",
        ),
    )

    name: Annotated[
        str,
        StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=40),
        Rule(
            expression=f"!self.startsWith('{OWN_VOLUME_PREFIX}')",
            message=f"must not start with {OWN_VOLUME_PREFIX}, which marks Bayplan's own volumes",
            holds=lambda name: not name.startswith(OWN_VOLUME_PREFIX),
        ),
    ]
    """Name of the volume, unique in the pod."""
    mount_path: Annotated[
        str,
        StringConstraints(pattern=r"^(/\.?[A-Za-z0-9_][-A-Za-z0-9._]*)+$", min_length=2, max_length=512),
        Rule(
            expression="!["
            + ", ".join(f"'{path}/'" for path in OWN_MOUNT_PATHS)
            + "].exists(p, (self + '/').startsWith(p))",
            message=f"must not be one of Bayplan's own mounts or below it: {', '.join(OWN_MOUNT_PATHS)}",
            holds=lambda path: not f"{path}/".startswith(tuple(f"{own}/" for own in OWN_MOUNT_PATHS)),
        ),
    ]
    """Absolute path in the engine container, without empty, `.` or `..` parts."""
    read_only: Flag = False
    """Mount without the right to write."""
    persistent_volume_claim: ClaimSource | None = None
    """A claim in the model's namespace, for example with the weights."""
    config_map: LocalReference | None = None
    """A ConfigMap in the model's namespace."""
    secret: LocalReference | None = None
    """A Secret in the model's namespace."""
    empty_dir: EmptyDirSource | None = None
    """Scratch space."""


def _requests_within_limits(resources: "Resources") -> bool:
    requests, limits = resources.requests or {}, resources.limits or {}
    return all(quantity_value(requests[name]) <= quantity_value(limits[name]) for name in requests.keys() & limits)


class Resources(Schema):
    """CPU, memory and ephemeral storage of one pod. GPUs come from the layout and are not set here."""

    rules: ClassVar = (
        Rule(
            expression="!has(self.requests) || !has(self.limits) || self.requests.all(r, !(r in self.limits) || "
            "quantity(string(self.requests[r])).compareTo(quantity(string(self.limits[r]))) <= 0)",
            message="requests must not exceed limits",
            holds=_requests_within_limits,
            field="requests",
        ),
    )

    requests: ResourceList | None = None
    """What the scheduler sets aside for each pod."""
    limits: ResourceList | None = None
    """What each pod may use at most."""


class PodTemplate(Schema):
    """Pod details beside the engine's own: a change of any of them replaces groups one by one."""

    resources: Resources | None = None
    """CPU, memory and ephemeral storage of each pod."""
    env: Annotated[tuple[EnvFrom, ...], Field(max_length=64), Keyed("name")] = ()
    """Environment variables from Secrets and ConfigMaps; literal ones belong to `engine.env`."""
    image_pull_secrets: Annotated[tuple[LocalReference, ...], Field(max_length=8), Keyed("name")] = ()
    """Secrets for pulling the engine image."""
    volumes: Annotated[
        tuple[Volume, ...],
        Field(max_length=16),
        Keyed("name"),
        Rule(
            expression="self.all(v, self.exists_one(w, w.mountPath == v.mountPath))",
            message="mountPath must be different in each volume",
            holds=lambda volumes: len({volume.mount_path for volume in volumes}) == len(volumes),
        ),
    ] = ()
    """Volumes of the engine container, each with its mount."""
    shared_memory: Quantity | None = None
    """Upper bound of the memory-backed /dev/shm; without it the node's memory is the bound."""
    service_account_name: ObjectName | None = None
    """ServiceAccount of the pods; without it the namespace's default."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, such as `nvidia`."""


class Toleration(Schema):
    """A Kubernetes toleration of a node taint."""

    rules: ClassVar = (
        Rule(
            expression="has(self.key) || self.operator == 'Exists'",
            message="operator must be Exists when key is absent",
            holds=lambda self: self.key is not None or self.operator == "Exists",
            field="operator",
        ),
        Rule(
            expression="self.operator != 'Exists' || !has(self.value) || self.value == ''",
            message="value must be empty when operator is Exists",
            holds=lambda self: self.operator != "Exists" or not self.value,
            field="value",
        ),
        Rule(
            expression="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            message="effect must be NoExecute when tolerationSeconds is set",
            holds=lambda self: self.toleration_seconds is None or self.effect == "NoExecute",
            field="tolerationSeconds",
        ),
    )

    key: LabelKey | None = None
    """Taint key; absent matches every key."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal compares the value, Exists accepts any."""
    value: LabelValue = ""
    """Taint value to compare."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; absent matches every effect."""
    toleration_seconds: Annotated[WholeNumber, Field(ge=0, le=86400)] | None = None
    """How long a pod stays after a NoExecute taint appears."""


TolerationList = Annotated[tuple[Toleration, ...], Field(max_length=32, json_schema_extra=ATOMIC)]
"""Tolerations, replaced as a whole."""
