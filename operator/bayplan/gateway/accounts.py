"""What one exchange with an engine adds to the evidence, whoever it was for."""

from dataclasses import dataclass

from bayplan.gateway.evidence import Cause, Row
from bayplan.gateway.relay import Relayed


@dataclass(frozen=True, slots=True)
class Job:
    """One admitted request."""

    path: str
    stream: bool
    sequences: int
    prompt_tokens: int
    workload_class: str
    arrived_ns: int
    request_id: str
    keep_bytes: int = 0
    """Keep the answer for a replay if it has at most so many bytes."""


def account(row: Row, job: Job, relayed: Relayed, cause: Cause | None, *, now_ns: int) -> bool:
    """Count the end of an exchange: times, tokens, and without a cause that it ended well.

    Returns whether the engine found more tokens in the prompts than were reserved.
    """
    progress = relayed.progress
    tokens = progress.output_tokens if progress.produced else 0
    row.end(now_ns, cause=cause, output_tokens=tokens)
    if relayed.first_token_ns is not None:
        row.ttft.observe(relayed.first_token_ns - job.arrived_ns)
    if cause is not None:
        return False
    row.e2e.observe(now_ns - job.arrived_ns)
    later = tokens // job.sequences - 1
    if relayed.first_token_ns is not None and relayed.last_token_ns is not None and later > 0:
        row.tpot.observe((relayed.last_token_ns - relayed.first_token_ns) // later)
    return progress.prompt_tokens is not None and progress.prompt_tokens > job.prompt_tokens * job.sequences
