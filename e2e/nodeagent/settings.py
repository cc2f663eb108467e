"""How the agent behaves where a kubelet has flags or constants; the defaults are a kubelet's unless said otherwise."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """Times in seconds."""

    lease_interval_seconds: float = 10.0
    lease_duration_seconds: int = 40
    init_container_seconds: float = 0.1
    """How long each init container takes; they are not run, they succeed."""
    restart_backoff_seconds: float = 1.0
    restart_backoff_cap_seconds: float = 10.0
    """A kubelet starts at 10 and goes up to 300."""
    image_backoff_seconds: float = 10.0
    image_backoff_cap_seconds: float = 300.0
    config_retry_seconds: float = 2.0
    """First wait after a missing secret or config map; doubles up to 10."""
    minimum_grace_seconds: float = 2.0
    """What SIGTERM gets at least, even when preStop has used the whole grace period."""
    remove_nodes_on_stop: bool = False
    """Delete the nodes and their pods when the agent stops, as a cloud does with machines that are given back."""


def backoff(first: float, cap: float, attempt: int) -> float:
    """Return the wait before attempt `attempt` + 1 (0 is the first failure): doubling from `first` up to `cap`."""
    return min(cap, first * 2.0 ** min(attempt, 30))
