"""Where a number comes from. A module of its own, so that plans can say it without the API's schemas."""

from enum import StrEnum


class Provenance(StrEnum):
    """Where a number comes from, strongest first."""

    MEASURED = "Measured"
    DECLARED = "Declared"
    DERIVED = "Derived"
    ESTIMATED = "Estimated"
    UNKNOWN = "Unknown"
