"""How a node fares. Apart from the rest so that the control command starts quickly."""

from enum import StrEnum


class NodeCondition(StrEnum):
    """How a node fares.

    `dead`: no power, its processes are gone. `partitioned`: they run on, nothing is reported. `frozen`: like
    partitioned, and its processes stand still, so that connections to them hang.
    """

    LIVE = "live"
    DEAD = "dead"
    PARTITIONED = "partitioned"
    FROZEN = "frozen"
