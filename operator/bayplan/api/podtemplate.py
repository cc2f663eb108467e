"""The closed list of pod details that a user may set: what engines need, and nothing that could undo a placement."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from bayplan.api.meta import LabelKey, ObjectName, Schema, WholeNumber

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128)]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^:\x00]*$", min_length=2, max_length=512)]


def _quantity_text(value: object) -> object:
    """`cpu: 4` and `cpu: "4"` are one quantity in Kubernetes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    BeforeValidator(_quantity_text),
    StringConstraints(
        pattern=r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$", min_length=1, max_length=32
    ),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
"""A non-negative Kubernetes quantity such as `500m`, `4`, `16Gi`."""

ResourceName = Literal["cpu", "memory", "ephemeral-storage"]
ResourceList = Annotated[dict[ResourceName, Quantity], Field(max_length=3)]


def exactly_one(*names: str) -> dict[str, Any]:
    """CEL rule: exactly one of the named optional members is set."""
    terms = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in names)
    return {
        "x-kubernetes-validations": [
            {"rule": f"{terms} == 1", "message": f"exactly one of {', '.join(names)} must be set"}
        ]
    }


class KeySelector(Schema):
    """One key of a Secret or ConfigMap in the model's namespace."""

    name: ObjectName
    key: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)]
    optional: bool = False


class EnvSource(Schema, json_schema_extra=exactly_one("secretKeyRef", "configMapKeyRef")):
    """Where an environment variable's value comes from; the value itself never enters our objects."""

    secret_key_ref: KeySelector | None = None
    config_map_key_ref: KeySelector | None = None


class EnvFrom(Schema):
    """An environment variable taken from a Secret or ConfigMap, such as a model-hub token."""

    name: EnvName
    value_from: EnvSource


class LocalReference(Schema):
    """An object in the model's own namespace."""

    name: ObjectName


class ClaimSource(Schema):
    """A PersistentVolumeClaim in the model's namespace."""

    claim_name: ObjectName


class EmptyDirSource(Schema):
    """Scratch space that goes with the pod."""

    medium: Literal["", "Memory"] = ""
    size_limit: Quantity | None = None


class Volume(Schema, json_schema_extra=exactly_one("persistentVolumeClaim", "configMap", "secret", "emptyDir")):
    """A volume and the one place where it is mounted in the engine container."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=40)]
    mount_path: AbsolutePath
    read_only: bool = True
    persistent_volume_claim: ClaimSource | None = None
    config_map: LocalReference | None = None
    secret: LocalReference | None = None
    empty_dir: EmptyDirSource | None = None


class Resources(Schema):
    """CPU, memory and ephemeral storage of one pod. GPUs come from the layout and are not set here."""

    requests: ResourceList | None = None
    limits: ResourceList | None = None


class PodTemplate(Schema):
    """Pod details beside the engine's own: a change of any of them replaces groups one by one."""

    resources: Resources | None = None
    env: Annotated[tuple[EnvFrom, ...], Field(max_length=64)] = ()
    image_pull_secrets: Annotated[tuple[LocalReference, ...], Field(max_length=8)] = ()
    volumes: Annotated[tuple[Volume, ...], Field(max_length=16)] = ()
    shared_memory: Quantity | None = None
    """Upper bound of the memory-backed /dev/shm; without it the node's memory is the bound."""
    service_account_name: ObjectName | None = None
    priority_class_name: ObjectName | None = None
    runtime_class_name: ObjectName | None = None


class Toleration(Schema):
    """A Kubernetes toleration of a node taint."""

    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Annotated[str, StringConstraints(max_length=63)] = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[WholeNumber, Field(ge=0, le=86400)] | None = None
