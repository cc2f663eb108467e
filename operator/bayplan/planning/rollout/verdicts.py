"""What is decided: go on, hold, roll back, or rest, each with its reason."""

from dataclasses import dataclass
from enum import StrEnum

from bayplan.api.rolloutwords import Handling
from bayplan.planning.gates.records import GateResult
from bayplan.planning.rollout.state import RolloutState
from bayplan.planning.rollout.surge import SurgeDecision


class HoldReason(StrEnum):
    """Why it stays where it is."""

    PAPER_MISSING = "PaperMissing"
    SURGE_UNKNOWN = "SurgeUnknown"
    SURGE_DOES_NOT_FIT = "SurgeDoesNotFit"
    GATE_INVALID = "GateInvalid"
    PAUSED = "Paused"
    FROZEN = "Frozen"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    CANDIDATE_TROUBLE = "CandidateTrouble"
    CANDIDATE_NOT_WARM = "CandidateNotWarm"
    CAPACITY_NOT_READY = "CapacityNotReady"
    SINGLE_REPLICA = "SingleReplica"
    NO_BASELINE = "NoBaseline"
    PLAN_NOT_ACKNOWLEDGED = "PlanNotAcknowledged"
    SHARE_EXCEEDED = "ShareExceeded"
    GATE_SHARED = "GateMissedByBoth"
    NOT_COMPARABLE = "EvidenceInDoubt"
    INSUFFICIENT_EVIDENCE = "InsufficientEvidence"
    EVIDENCE_STALE = "EvidenceStale"
    BAKING = "Baking"
    AWAITING_APPROVAL = "AwaitingApproval"
    REPLACING = "Replacing"
    RETAINING = "Retaining"
    PROVING = "ProvingRollback"


HANDLING: dict[HoldReason, Handling] = dict.fromkeys(HoldReason, Handling.WAIT) | {
    HoldReason.PAPER_MISSING: Handling.COLLECT,
    HoldReason.NOT_COMPARABLE: Handling.COLLECT,
    HoldReason.INSUFFICIENT_EVIDENCE: Handling.COLLECT,
    HoldReason.EVIDENCE_STALE: Handling.COLLECT,
    HoldReason.SURGE_DOES_NOT_FIT: Handling.TUNE_SERVING,
    HoldReason.GATE_INVALID: Handling.TUNE_SERVING,
    HoldReason.FROZEN: Handling.TUNE_SERVING,
    HoldReason.DEADLINE_EXCEEDED: Handling.TUNE_SERVING,
    HoldReason.CANDIDATE_TROUBLE: Handling.TUNE_SERVING,
    HoldReason.SHARE_EXCEEDED: Handling.TUNE_SERVING,
    HoldReason.GATE_SHARED: Handling.TUNE_SERVING,
}


class RollbackReason(StrEnum):
    """Why the candidate loses its traffic."""

    GATE_FAILED = "GateFailed"
    STAGING_REJECTED = "StagingRejected"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    ABORTED = "Aborted"
    DELETED = "RolloutDeleted"
    REVERTED = "Reverted"
    """The spec went back to the serving revision."""
    SUPERSEDED = "Superseded"
    """The spec went on to a third revision."""


REJECTING = frozenset(RollbackReason) - {RollbackReason.REVERTED, RollbackReason.SUPERSEDED}
"""Reasons that lie in the candidate, or in somebody's will: it is not tried again by itself."""


class RestReason(StrEnum):
    """Why there is nothing to do."""

    CURRENT = "Current"
    REJECTED = "Rejected"
    DELETED = "RolloutDeleted"


@dataclass(frozen=True, slots=True)
class Hold:
    """One thing that keeps it where it is."""

    reason: HoldReason
    message: str

    @property
    def handling(self) -> Handling:
        """What to do about it."""
        return HANDLING[self.reason]


@dataclass(frozen=True, slots=True)
class Advance:
    """It goes on: to a stage by its name, or to a phase."""

    to: str


@dataclass(frozen=True, slots=True)
class Holding:
    """It stays: everything that keeps it, the first thing to look at first."""

    holds: tuple[Hold, ...]

    @property
    def reason(self) -> HoldReason:
        """The first one's."""
        return self.holds[0].reason


@dataclass(frozen=True, slots=True)
class Rollback:
    """The candidate has lost its traffic with this decision."""

    reason: RollbackReason
    message: str


@dataclass(frozen=True, slots=True)
class Rest:
    """There is nothing to do."""

    reason: RestReason
    message: str = ""


Verdict = Advance | Holding | Rollback | Rest


@dataclass(frozen=True, slots=True)
class Decision:
    """What to store, the plan in it included, and why."""

    state: RolloutState
    verdict: Verdict
    gates: tuple[GateResult, ...] = ()
    """Every gate that was judged, worst first."""
    surge: SurgeDecision | None = None
    """Whether the candidate fits, where that was asked."""


def hold(state: RolloutState, *holds: Hold, gates: tuple[GateResult, ...] = ()) -> Decision:
    """Stay, for these reasons."""
    return Decision(state, Holding(holds), gates)
