"""Words that a CapacityPlan's spec and status share with the decisions: claims and their states, dimensions, needs."""

from enum import StrEnum


class Control(StrEnum):
    """The eight control claims; beside them there is one per required workload class."""

    MEMORY_FIT = "memory-fit"
    CAPACITY_PLAN = "capacity-plan"
    PARALLEL_LAYOUT = "parallel-layout"
    GPU_PLACEMENT = "gpu-placement"
    BENIGN_ADMISSION = "benign-admission"
    OVERSIZE_SHEDDING = "oversize-shedding"
    QUEUE_SCALING = "queue-scaling"
    CANARY_GATE = "canary-gate"


class ClaimState(StrEnum):
    """What became of a claim. Only EARNED proves anything; the rest stands in the order in which it is told."""

    EARNED = "Earned"
    EVALUATOR_FAILED = "EvaluatorFailed"
    """What should have decided raised: a fault of ours, and no proof of anything."""
    CONTRADICTED = "Contradicted"
    """An input is about something else, or two of them cannot both be true."""
    FAILED = "Failed"
    """The decision was made, and says no."""
    STALE = "Stale"
    """An input is older than it may be."""
    MISSING = "Missing"
    """There is no input, or nothing that decides."""


class PricedUnit(StrEnum):
    """What a price is for."""

    GPU = "GPU"
    REPLICA = "Replica"


class Dimension(StrEnum):
    """What can call for replicas."""

    PREFILL = "prefill"
    DECODE = "decode"
    CONCURRENCY = "concurrency"
    KV_TOKENS = "kv-tokens"
    FLOOR = "replica-floor"


class Need(StrEnum):
    """What replicas are for. Each stands for itself; together they are counted where the replicas really are."""

    LOAD = "load"
    DOMAIN_LOSS = "domain-loss"
    MAINTENANCE = "maintenance"
