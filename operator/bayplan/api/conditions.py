"""Conditions: positive types, a closed set of reasons, and a merge that moves times only with the status.

A reason appears here only with the code that sets it. `docs/reasons.md` is generated from the descriptions below.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import StringConstraints

from bayplan.api.meta import Generation, LongText, StatusSchema, TimeText, rfc3339

Status = Literal["True", "False", "Unknown"]
MAX_CONDITIONS = 16


class ConditionType(StrEnum):
    """Condition types. All are positive (True is good) but the two that kstatus defines, present only while true."""

    ACCEPTED = "Accepted"
    MEMORY_FIT = "MemoryFit"
    PLACED = "Placed"
    WARM = "Warm"
    SCALING_ACTIVE = "ScalingActive"
    CURRENT = "Current"
    SURGE_FITS = "SurgeFits"
    CANDIDATE_WARM = "CandidateWarm"
    EVIDENCE_COMPARABLE = "EvidenceComparable"
    GATES_PASSED = "GatesPassed"
    PROGRESSING = "Progressing"
    ROLLBACK_PROVEN = "RollbackProven"
    INPUTS_COMPLETE = "InputsComplete"
    SIZED = "Sized"
    PLACEABLE = "Placeable"
    WITHIN_QUOTA = "WithinQuota"
    WITHIN_BUDGET = "WithinBudget"
    EVIDENCE_CURRENT = "EvidenceCurrent"
    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class Reason(StrEnum):
    """Closed set of reasons. The value is what `kubectl` shows; `REASON_HELP` says what it means and what to do."""

    # Accepted
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    # MemoryFit
    FITS = "Fits"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    OVERRIDDEN = "OverriddenByPolicy"
    NO_LAYOUT = "NoLayout"
    NO_MATCHING_GPU = "NoMatchingGPU"
    UNKNOWN_GPU_MEMORY = "UnknownGPUMemory"
    UNKNOWN_ARCHITECTURE = "UnknownArchitecture"
    UNSUPPORTED_ON_HARDWARE = "UnsupportedOnHardware"
    LAYOUT_KEPT = "LayoutKept"
    INSPECTING = "Inspecting"
    # Placed
    PLACED = "Placed"
    NOTHING_TO_PLACE = "NothingToPlace"
    INSUFFICIENT_GPU = "InsufficientGPU"
    FRAGMENTED_CAPACITY = "FragmentedCapacity"
    NO_NODE_MATCHES = "NoNodeMatches"
    NO_NODE_MATCHES_TOPOLOGY = "NoNodeMatchesTopology"
    QUOTA_EXCEEDED = "QuotaExceeded"
    ADMISSION_DENIED = "AdmissionDenied"
    RESERVING = "Reserving"
    UNSCHEDULABLE = "Unschedulable"
    GROUP_BROKEN = "GroupBroken"
    BLOCKED = "Blocked"
    # Warm
    WARM = "Warm"
    WARMUP_RUNNING = "WarmupRunning"
    WARMUP_FAILED = "WarmupFailed"
    ENGINE_FAILED = "EngineFailed"
    IMAGE_PULL_ERROR = "ImagePullError"
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    NOTHING_TO_WARM = "NothingToWarm"
    # ScalingActive
    DEMAND_KNOWN = "DemandKnown"
    COLLECTING_METRICS = "CollectingMetrics"
    METRICS_MISSING = "MetricsMissing"
    METRICS_INVALID = "MetricsInvalid"
    METRICS_UNREACHABLE = "MetricsUnreachable"
    METRICS_STALE = "MetricsStale"
    METRICS_INCOMPLETE = "MetricsIncomplete"
    NO_READY_REPLICA = "NoReadyReplica"
    # Current
    CURRENT = "Current"
    REPLACING = "Replacing"
    WAITING_FOR_ROLLOUT = "WaitingForRollout"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    REVISION_REJECTED = "RevisionRejected"
    # A Rollout: Accepted, SurgeFits, CandidateWarm
    ANOTHER_ROLLOUT = "AnotherRollout"
    DRAINS_FIRST = "DrainsFirst"
    SURGE_DOES_NOT_FIT = "SurgeDoesNotFit"
    SURGE_UNKNOWN = "SurgeUnknown"
    CANDIDATE_NOT_WARM = "CandidateNotWarm"
    CANDIDATE_TROUBLE = "CandidateTrouble"
    # EvidenceComparable, GatesPassed
    COMPARABLE = "Comparable"
    EVIDENCE_IN_DOUBT = "EvidenceInDoubt"
    NOTHING_COUNTED = "NothingCounted"
    ALL_PASSED = "AllPassed"
    INSUFFICIENT_EVIDENCE = "InsufficientEvidence"
    GATE_FAILED = "GateFailed"
    GATE_INVALID = "GateInvalid"
    GATE_SHARED = "GateMissedByBoth"
    # Progressing
    ADVANCED = "Advanced"
    PAPER_MISSING = "PaperMissing"
    PAUSED = "Paused"
    FROZEN = "Frozen"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    CAPACITY_NOT_READY = "CapacityNotReady"
    SINGLE_REPLICA = "SingleReplica"
    NO_BASELINE = "NoBaseline"
    PLAN_NOT_ACKNOWLEDGED = "PlanNotAcknowledged"
    SHARE_EXCEEDED = "ShareExceeded"
    EVIDENCE_STALE = "EvidenceStale"
    BAKING = "Baking"
    AWAITING_APPROVAL = "AwaitingApproval"
    RETAINING = "Retaining"
    # RollbackProven
    PROVEN = "Proven"
    PROVING = "ProvingRollback"
    # Ready of a Rollout: why the last candidate lost its traffic
    STAGING_REJECTED = "StagingRejected"
    ABORTED = "Aborted"
    ROLLOUT_DELETED = "RolloutDeleted"
    REVERTED = "Reverted"
    SUPERSEDED = "Superseded"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_REPLACES_PLAINLY = "ModelReplacesPlainly"
    # A CapacityPlan: InputsComplete, Sized, Placeable, WithinQuota, WithinBudget
    COMPLETE = "Complete"
    MODEL_MISSING = "ModelMissing"
    MODEL_CONFLICT = "ModelConflict"
    CONTRADICTION = "Contradiction"
    SIZED = "Sized"
    ABOVE_MAX_REPLICAS = "AboveMaxReplicas"
    PLAN_EXCEEDS_MODEL = "PlanExceedsModel"
    PLACEABLE = "Placeable"
    DOMAIN_LOSS_NOT_COVERED = "DomainLossNotCovered"
    TOO_MANY_TO_PLACE = "TooManyToPlace"
    WITHIN_QUOTA = "WithinQuota"
    WITHIN_BUDGET = "WithinBudget"
    NO_BUDGET = "NoBudget"
    BUDGET_EXCEEDED = "BudgetExceeded"
    # EvidenceCurrent
    EVIDENCE_CURRENT = "EvidenceCurrent"
    EVALUATOR_FAILED = "EvaluatorFailed"
    EVIDENCE_CONTRADICTED = "EvidenceContradicted"
    EVIDENCE_FAILED = "EvidenceFailed"
    EVIDENCE_MISSING = "EvidenceMissing"
    PLAN_MISSING = "PlanMissing"
    # Ready
    READY = "Ready"
    NOT_READY = "NotReady"
    SUSPENDED = "Suspended"
    DRAINING = "Draining"
    SCALED_TO_ZERO = "ScaledToZero"


class Condition(StatusSchema):
    """One entry of `status.conditions`, in the form of the Kubernetes API conventions."""

    type: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9]*$", min_length=1, max_length=63)]
    """Type of the condition."""
    status: Status
    """Whether it holds."""
    reason: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9]*$", min_length=1, max_length=63)]
    """Why, as one word of a closed list: docs/reasons.md."""
    message: LongText = ""
    """Why, with the numbers that decided."""
    last_transition_time: TimeText
    """When the status last changed."""
    observed_generation: Generation = 0
    """Generation of the spec that the condition is about."""


def merge_conditions(
    previous: Sequence[Condition],
    current: Iterable[tuple[ConditionType, Status, Reason, str]],
    *,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """Return the conditions that `current` states, in its order; types it does not name are dropped.

    `lastTransitionTime` is kept while the status of a type is unchanged, so an unchanged world writes nothing.
    Messages over 1024 characters are cut with a mark, never refused.
    """
    before = {condition.type: condition for condition in previous}
    merged = []
    for kind, status, reason, message in current:
        old = before.get(kind.value)
        moved = old is None or old.status != status
        merged.append(
            Condition(
                type=kind.value,
                status=status,
                reason=reason.value,
                message=message,
                last_transition_time=rfc3339(now) if moved or old is None else old.last_transition_time,
                observed_generation=generation,
            )
        )
    return tuple(merged)
