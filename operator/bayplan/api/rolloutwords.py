"""Words that a Rollout's spec and status share with the decisions: stages, gates, phases, outcomes."""

from enum import StrEnum


class StageKind(StrEnum):
    """The kinds, in the order in which they stand: one warm, at most one shadow, canaries, one promote."""

    WARM = "Warm"
    SHADOW = "Shadow"
    CANARY = "Canary"
    PROMOTE = "Promote"


class OnDeadline(StrEnum):
    """What a stage does that lasts too long. It never goes on."""

    PAUSE = "Pause"
    ROLLBACK = "Rollback"


class CapacityMode(StrEnum):
    """Where the candidate's GPUs come from."""

    SURGE = "Surge"
    """Beside all serving replicas."""
    DRAIN_FIRST = "DrainFirst"
    """In place of serving replicas, down to the floor."""
    AUTO = "Auto"
    """Beside them if it fits, else in place of as few as possible."""


class Waiver(StrEnum):
    """What the user does without, knowingly."""

    SINGLE_REPLICA = "SingleReplica"
    """One candidate pod, or all on one node: a slow node looks like a slow revision."""
    NO_BASELINE = "NoBaseline"
    """No serving pod to compare with, as where the floor is 0."""


class GateName(StrEnum):
    """What is protected; the order breaks ties between equally bad results."""

    QUALITY_FLOOR = "quality-floor"
    QUALITY_DROP = "quality-drop"
    TTFT = "ttft"
    TPOT = "tpot"
    THROUGHPUT = "throughput"
    ERROR_RATE = "error-rate"


class OnRegression(StrEnum):
    """What a failing gate does to the rollout."""

    ROLLBACK = "Rollback"
    FREEZE = "Freeze"


class Outcome(StrEnum):
    """What is known of a gate. Only PASSED lets a candidate go on."""

    PASSED = "Passed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    INVALID = "Invalid"
    """It can never be judged as it stands: its limit is no edge, or nothing measures it."""


class Handling(StrEnum):
    """What to do about it, the most urgent first."""

    ROLL_BACK = "RollBack"
    TUNE_SERVING = "TuneServing"
    COLLECT = "Collect"
    WAIT = "Wait"


class Phase(StrEnum):
    """Where the rollout stands."""

    STEADY = "Steady"
    """Nothing is rolled out."""
    PAPER = "Paper"
    """Measurements and room are checked; no GPU is touched."""
    WARM = "Warm"
    SHADOW = "Shadow"
    CANARY = "Canary"
    REPLACING = "Replacing"
    """Promoted: two revisions serve as one pool until the rest is replaced."""
    RETAINED = "Retained"
    """The rest is replaced; the old revision is kept without traffic."""
    ROLLING_BACK = "RollingBack"
    """The candidate has lost its traffic; it is being proven."""
    ROLLED_BACK = "RolledBack"
    """Proven, and the spec still asks for what was rejected."""
