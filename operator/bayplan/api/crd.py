"""The CustomResourceDefinition of each kind: schema, scale, columns, names."""

from dataclasses import dataclass
from typing import Any

from bayplan.api import names
from bayplan.api.capacityplan import NAME_RULE as CAPACITYPLAN_NAME_RULE
from bayplan.api.capacityplan import CapacityPlanSpec
from bayplan.api.capacityplan_status import CapacityPlanStatus
from bayplan.api.inferencemodel import NAME_RULE, InferenceModelSpec
from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.api.meta import Schema, StatusSchema
from bayplan.api.rollout import NAME_RULE as ROLLOUT_NAME_RULE
from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.rules import VALIDATIONS, Rule
from bayplan.api.structural import structural_schema


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of `kubectl get`; priority 1 shows it with `-o wide` only."""

    name: str
    type: str
    path: str
    description: str
    priority: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `additionalPrinterColumns`."""
        wide = {"priority": self.priority} if self.priority else {}
        return {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.description, **wide}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One of our kinds: models of its spec and status, names, columns."""

    kind: str
    plural: str
    singular: str
    short: str
    description: str
    spec: type[Schema]
    status: type[StatusSchema]
    name_rule: Rule
    columns: tuple[Column, ...]
    scale: bool = False

    @property
    def crd_name(self) -> str:
        """Name of the CustomResourceDefinition."""
        return f"{self.plural}.{names.GROUP}"


def _condition(kind: str, member: str) -> str:
    return f".status.conditions[?(@.type=='{kind}')].{member}"


AGE = Column(name="AGE", type="date", path=".metadata.creationTimestamp", description="Time since creation.")

INFERENCEMODEL = Kind(
    kind=names.INFERENCEMODEL_KIND,
    plural=names.INFERENCEMODEL_PLURAL,
    singular="inferencemodel",
    short="imodel",
    description="One model served by engine replicas, each placed as a whole GPU group and warmed before it serves.",
    spec=InferenceModelSpec,
    status=InferenceModelStatus,
    name_rule=NAME_RULE,
    scale=True,
    columns=(
        Column(name="READY", type="string", path=_condition("Ready", "status"), description="Whether it serves."),
        Column(name="REASON", type="string", path=_condition("Ready", "reason"), description="Why, as one word."),
        Column(name="DESIRED", type="integer", path=".status.desiredReplicas", description="Replicas that are wanted."),
        Column(name="WARMING", type="integer", path=".status.warmingReplicas", description="Replicas that warm up."),
        Column(name="READY-REPLICAS", type="integer", path=".status.readyReplicas", description="Replicas that serve."),
        Column(name="GPUS", type="integer", path=".status.gpus", description="GPUs that the replicas hold."),
        AGE,
        Column(
            name="MESSAGE", type="string", path=_condition("Ready", "message"), description="Why, in full.", priority=1
        ),
        Column(name="MODEL", type="string", path=".spec.model.name", description="Served name.", priority=1),
        Column(
            name="PRODUCT",
            type="string",
            path=".status.placement.groups[0].gpuProduct",
            description="GPU product of the first group.",
            priority=1,
        ),
    ),
)

ROLLOUT = Kind(
    kind=names.ROLLOUT_KIND,
    plural=names.ROLLOUT_PLURAL,
    singular="rollout",
    short="irollout",
    description="How new revisions of an InferenceModel earn their traffic in stages, and lose it when they are worse.",
    spec=RolloutSpec,
    status=RolloutStatus,
    name_rule=ROLLOUT_NAME_RULE,
    columns=(
        Column(name="MODEL", type="string", path=".spec.modelRef.name", description="InferenceModel."),
        Column(name="PHASE", type="string", path=".status.phase", description="Where it stands."),
        Column(name="STAGE", type="string", path=".status.stage.name", description="Stage of the candidate."),
        Column(name="WEIGHT", type="integer", path=".status.plan.weight", description="Percent to the candidate."),
        Column(name="READY", type="string", path=_condition("Ready", "status"), description="Whether it is at rest."),
        Column(name="REASON", type="string", path=_condition("Ready", "reason"), description="Why, as one word."),
        AGE,
        Column(name="SERVING", type="string", path=".status.plan.serving", description="What serves.", priority=1),
        Column(
            name="CANDIDATE", type="string", path=".status.trial.candidate", description="What is tried.", priority=1
        ),
        Column(
            name="MESSAGE", type="string", path=_condition("Ready", "message"), description="Why, in full.", priority=1
        ),
    ),
)

CAPACITYPLAN = Kind(
    kind=names.CAPACITYPLAN_KIND,
    plural=names.CAPACITYPLAN_PLURAL,
    singular="capacityplan",
    short="capplan",
    description="Replicas, GPUs and cost that workload classes need, what binds, and which proof of it is current.",
    spec=CapacityPlanSpec,
    status=CapacityPlanStatus,
    name_rule=CAPACITYPLAN_NAME_RULE,
    columns=(
        Column(name="READY", type="string", path=_condition("Ready", "status"), description="Whether all of it holds."),
        Column(name="REASON", type="string", path=_condition("Ready", "reason"), description="Why, as one word."),
        Column(name="REPLICAS", type="integer", path=".status.replicas", description="Replicas that are needed."),
        Column(name="PLACEABLE", type="integer", path=".status.placeableReplicas", description="Those with a place."),
        Column(name="GPUS", type="integer", path=".status.gpus", description="GPUs of all replicas."),
        Column(name="COST/H", type="number", path=".status.cost.perHour", description="Cost per hour."),
        Column(
            name="EVIDENCE",
            type="string",
            path=_condition("EvidenceCurrent", "reason"),
            description="Whether every required claim is earned.",
        ),
        AGE,
        Column(name="MODEL", type="string", path=".status.model", description="InferenceModel.", priority=1),
        Column(
            name="MESSAGE", type="string", path=_condition("Ready", "message"), description="Why, in full.", priority=1
        ),
    ),
)

KINDS = (INFERENCEMODEL, ROLLOUT, CAPACITYPLAN)
"""All kinds that have a CRD."""


def custom_resource_definition(kind: Kind) -> dict[str, Any]:
    """Return the manifest of one kind, ready for YAML. Raises EmissionError when a model has no structural form."""
    schema = {
        "type": "object",
        "description": kind.description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(kind.spec, with_defaults=True),
            "status": structural_schema(kind.status, with_defaults=False),
        },
        VALIDATIONS: [kind.name_rule.as_validation()],
    }
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": kind.crd_name,
            "labels": {names.APP_NAME: "bayplan", names.APP_PART_OF: "bayplan"},
        },
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short],
                "categories": [names.CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [column.as_json() for column in kind.columns],
                    "subresources": {"status": {}} | ({"scale": scale} if kind.scale else {}),
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
