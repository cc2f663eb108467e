"""How patient the operator is with the API server. One record, because clients, reflectors and Kopf must agree."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiTimes:
    """Seconds."""

    request: float = 30.0
    """For the whole answer to a request that is no watch."""
    watch: float = 300.0
    """After so long the server is asked to end a watch, and a new one begins."""
    idle: float = 70.0
    """A watch without a byte for longer is dead; the server sends a bookmark about every minute."""
    resync: float = 300.0
    """Our own kinds are listed anew this often, whatever their stream said."""

    def __post_init__(self) -> None:
        if not 0 < self.idle <= self.watch:
            raise ValueError(f"times towards the API server need 0 < idle <= watch, got {self}")
