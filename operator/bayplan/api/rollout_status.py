"""`Rollout.status`: the plan that others obey, where the trial stands, what was counted, and why. Written whole by one.

Everything that the next decision needs stands here: a restarted operator goes on where the status says. Times are
RFC 3339 with up to microseconds, so that a window of evidence is never taken for an earlier one.
"""

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from bayplan.api.conditions import MAX_CONDITIONS, Condition
from bayplan.api.meta import (
    ATOMIC,
    MAX_SAFE_INTEGER,
    Count,
    Exact,
    Flag,
    Generation,
    Keyed,
    LongText,
    ShortText,
    StatusSchema,
    TimeText,
    WholeNumber,
)
from bayplan.api.rolloutwords import GateName, Handling, Outcome, Phase

MAX_CANDIDATES = 64
"""Most candidate replicas, and so uids of the baseline."""
MAX_GATES = 32
MAX_TALLIES = 2 * (MAX_GATES + 1)
"""Both arms, each class that a gate protects, and all classes together."""
MAX_REMEMBERED = 20
"""Proven and rejected revisions, and entries of the history."""
MAX_HOLDS = 16

RevisionText = Annotated[str, StringConstraints(min_length=1, max_length=63)]
"""A revision hash."""
Percent = Annotated[WholeNumber, Field(ge=0, le=100)]
Total = Annotated[WholeNumber, Field(ge=0, le=MAX_SAFE_INTEGER)]
"""A sum of counts."""
Seconds = Annotated[Decimal, Exact(ge=0, le=10**12)]
Ratio = Annotated[Decimal, Exact(ge=-(10**9), le=10**9)]


class RolloutPlan(StatusSchema):
    """Which revision gets what. Gateways route by it and acknowledge its epoch; groups are kept as it says.

    Requests go to `serving` and `previous` as one pool, and `weight` percent of them to `candidate`; nothing goes to
    pods of any other revision.
    """

    epoch: Annotated[WholeNumber, Field(ge=1, le=MAX_SAFE_INTEGER)]
    """Rises with every change of anything below."""
    serving: RevisionText
    """Revision that serves."""
    previous: RevisionText | None = None
    """Revision that serves beside it until it is at full size."""
    candidate: RevisionText | None = None
    """Revision on trial, while it may have pods."""
    weight: Percent = 0
    """Percent of the requests that the candidate gets."""
    shadow_share: Percent = 0
    """Percent of the requests that are copied to the candidate, whose answers are dropped."""
    cohort_salt: Annotated[str, StringConstraints(max_length=64)] = ""
    """Decides with a request's key who belongs to which cohort; another one for each attempt."""
    stable_min: Count = 0
    """Serving replicas that must stay, whatever demand says."""
    candidate_replicas: Annotated[WholeNumber, Field(ge=0, le=MAX_CANDIDATES)] = 0
    """Replicas of the candidate."""
    baseline: Annotated[tuple[ShortText, ...], Field(max_length=MAX_CANDIDATES, json_schema_extra=ATOMIC)] = ()
    """Uids of the serving head pods that carry the cohort which the candidate is compared with."""


class StageStatus(StatusSchema):
    """The stage that the candidate is in, with its clock."""

    name: ShortText
    """Name of the stage, such as canary-10."""
    index: Annotated[WholeNumber, Field(ge=0, le=MAX_REMEMBERED)]
    """Its place in `spec.stages`, from 0."""
    started_time: TimeText
    """When it began, or began again."""
    paused_time: TimeText | None = None
    """Since when it is paused; absent while it is not."""
    paused_seconds: Seconds = Decimal(0)
    """Earlier pauses, which its deadline leaves out."""
    passed_time: TimeText | None = None
    """Since when nothing but an approval is missing."""
    frozen_by: LongText = ""
    """Gates that froze it."""
    late: Flag = False
    """Whether it has outlasted its deadline and waits for somebody."""


class TrialStatus(StatusSchema):
    """The candidate's attempt."""

    candidate: RevisionText
    """Revision on trial, or the one that is being rolled back."""
    digest: ShortText
    """Of the stages and gates that it was first seen under; another one starts its stage again."""
    judged_since_time: TimeText
    """Answers to prompts that are older say nothing about this attempt."""
    drain_first: Flag = False
    """Whether it takes the place of serving replicas."""


class TallyStatus(StatusSchema):
    """What one arm has counted of one workload class in this stage."""

    arm: Literal["baseline", "candidate"]
    """Arm of the comparison."""
    workload_class: ShortText = ""
    """Workload class; empty stands for all requests."""
    requests: Total = 0
    """Requests."""
    errors: Total = 0
    """Those that the engine failed."""
    output_tokens: Total = 0
    """Output tokens."""
    loaded_seconds: Seconds = Decimal(0)
    """Time under load, summed over the pods."""
    ttft_within: Total = 0
    """Requests with a time to first token of at most the gate's limit."""
    ttft_total: Total = 0
    """Requests whose time to first token was taken."""
    tpot_within: Total = 0
    """Requests with a time per output token of at most the gate's limit."""
    tpot_total: Total = 0
    """Requests whose time per output token was taken."""


class EvidenceStatus(StatusSchema):
    """What the stage has counted so far, window by window."""

    through_time: TimeText | None = None
    """End of the last window that was counted."""
    windows: Total = 0
    """Windows that were counted."""
    dropped: Total = 0
    """Windows in which something was in doubt, and which count nothing."""
    problem: LongText = ""
    """Why the last window was dropped; empty when it was counted."""
    routed_requests: Total = 0
    """Requests to any pod of the model."""
    candidate_requests: Total = 0
    """Those of them that went to the candidate."""
    tallies: Annotated[tuple[TallyStatus, ...], Field(max_length=MAX_TALLIES, json_schema_extra=ATOMIC)] = ()
    """Counts by arm and class."""


class QualityStatus(StatusSchema):
    """One revision's answers to the prompt set."""

    revision: RevisionText
    """Revision that answered."""
    prompt_set: ShortText
    """Digest of prompts and checks."""
    passed: Count = 0
    """Right answers."""
    failed: Count = 0
    """Wrong answers."""
    unknown: Count = 0
    """Answers that could not be scored."""
    observed_time: TimeText
    """When the last answer was given."""
    reason: LongText = ""
    """Why the first of the unknown ones is."""


class GateStatus(StatusSchema):
    """What became of one gate."""

    name: GateName
    """What is protected."""
    workload_class: ShortText = ""
    """Workload class; empty stands for all requests."""
    outcome: Outcome
    """What is known of it."""
    handling: Handling
    """What to do about it."""
    measured: Ratio | None = None
    """p95 in seconds or the share of requests beyond the edge; error rate; relative throughput; quality or its drop."""
    samples: Total = 0
    """Requests or prompts of the candidate that it rests on."""
    message: LongText = ""
    """The numbers that decided, or why there are none."""


class HoldStatus(StatusSchema):
    """One thing that keeps the candidate where it is."""

    reason: ShortText
    """Why, as one word of docs/reasons.md."""
    handling: Handling
    """What to do about it."""
    message: LongText = ""
    """Why, with the numbers."""


class SurgeStatus(StatusSchema):
    """Whether the candidate fits, when that was asked last."""

    outcome: ShortText
    """Fits, DrainsFirst or SurgeDoesNotFit."""
    peak_replicas: Count
    """Most candidate replicas at once, before promotion."""
    drain_replicas: Count = 0
    """Serving replicas that make room."""
    message: LongText = ""
    """The numbers, and what is missing."""
    choices: Annotated[tuple[LongText, ...], Field(max_length=8, json_schema_extra=ATOMIC)] = ()
    """What could be done about it."""


class RejectionStatus(StatusSchema):
    """A revision that lost its traffic, and why."""

    revision: RevisionText
    """The revision."""
    reason: ShortText
    """Why, as one word."""
    message: LongText = ""
    """Why, in full: the gates by name, with their numbers."""
    time: TimeText
    """When."""


class ProofStatus(StatusSchema):
    """The proof of a rollback: when each part was first true and stayed so."""

    since_time: TimeText
    """When the traffic was taken away."""
    acknowledged_time: TimeText | None = None
    """Every live gateway had acknowledged the plan without the candidate."""
    drained_time: TimeText | None = None
    """No request was under way at the candidate's pods."""
    restored_time: TimeText | None = None
    """Serving was ready at full size."""
    answered_time: TimeText | None = None
    """Serving had answered a request."""
    missing: Annotated[tuple[LongText, ...], Field(max_length=8, json_schema_extra=ATOMIC)] = ()
    """What is not true yet."""


class HistoryEntry(StatusSchema):
    """One change of stage or phase."""

    time: TimeText
    """When."""
    revision: RevisionText
    """Revision on trial."""
    to: ShortText
    """Stage or phase that was entered."""
    reason: ShortText = ""
    """Why it was rolled back; empty when it went on."""
    message: LongText = ""
    """Why, in full."""


class RolloutStatus(StatusSchema):
    """Everything that decides and explains. Holds times, never ages; equal worlds give equal bytes."""

    observed_generation: Generation = 0
    """Generation of the spec that this status is about."""
    observed_model_generation: Generation = 0
    """Generation of the InferenceModel that was looked at."""
    model_uid: ShortText = ""
    """Uid of the InferenceModel that all this is about."""
    plan: RolloutPlan | None = None
    """Which revision gets what; absent until the model is there."""
    phase: Phase | None = None
    """Where the rollout stands."""
    stage: StageStatus | None = None
    """The stage, and its clock."""
    trial: TrialStatus | None = None
    """The candidate's attempt; absent while nothing is on trial."""
    attempt: Count = 0
    """How many candidates were tried."""
    settled_time: TimeText | None = None
    """Since when every live gateway carries out the plan's epoch."""
    evidence: EvidenceStatus = EvidenceStatus()
    """What the stage has counted."""
    quality: Annotated[tuple[QualityStatus, ...], Field(max_length=2, json_schema_extra=ATOMIC)] = ()
    """Answers to the prompt set, by revision."""
    gates: Annotated[tuple[GateStatus, ...], Field(max_length=MAX_GATES, json_schema_extra=ATOMIC)] = ()
    """Every gate as it was judged last, worst first."""
    holds: Annotated[tuple[HoldStatus, ...], Field(max_length=MAX_HOLDS, json_schema_extra=ATOMIC)] = ()
    """What keeps the candidate where it is, the first thing to look at first."""
    surge: SurgeStatus | None = None
    """Whether the candidate fits."""
    retained: RevisionText | None = None
    """Revision that is kept without traffic."""
    retained_time: TimeText | None = None
    """Since when."""
    cause: RejectionStatus | None = None
    """Why the last rollback began; kept until the next candidate."""
    proof: ProofStatus | None = None
    """Its proof."""
    proven: Annotated[tuple[RevisionText, ...], Field(max_length=MAX_REMEMBERED, json_schema_extra=ATOMIC)] = ()
    """Revisions that have passed all stages."""
    rejected: Annotated[tuple[RejectionStatus, ...], Field(max_length=MAX_REMEMBERED, json_schema_extra=ATOMIC)] = ()
    """Revisions that are not tried again until a retry asks for it."""
    retry_seen: ShortText = ""
    """The last `spec.retry` that was acted on."""
    history: Annotated[tuple[HistoryEntry, ...], Field(max_length=MAX_REMEMBERED, json_schema_extra=ATOMIC)] = ()
    """The last changes, the latest last."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=MAX_CONDITIONS), Keyed("type")] = ()
    """Conditions by type."""
