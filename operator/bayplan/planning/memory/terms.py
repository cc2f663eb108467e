"""The words of a memory answer: terms with their origin, and the comparison of their sum with what a GPU gives."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from bayplan.api.provenance import Provenance
from bayplan.planning.numbers import GIB

WEIGHTS = "weights"
KV_CACHE = "KV cache"
OVERHEAD = "overhead"


@dataclass(frozen=True, slots=True)
class Term:
    """One part of the memory that a GPU needs, in GiB."""

    name: str
    gib_per_gpu: Fraction
    provenance: Provenance
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Fit:
    """Terms against usable memory, in GiB per GPU. `usable_gib` is None when nobody knows the GPU's memory."""

    terms: tuple[Term, ...]
    usable_gib: Fraction | None

    @property
    def required_gib(self) -> Fraction:
        """Sum of the terms."""
        return sum((term.gib_per_gpu for term in self.terms), start=Fraction(0))

    @property
    def headroom_gib(self) -> Fraction | None:
        """What is left; negative when it does not fit."""
        return None if self.usable_gib is None else self.usable_gib - self.required_gib

    @property
    def fits(self) -> bool | None:
        """Whether required ≤ usable; equal passes. None when usable is unknown."""
        return None if self.usable_gib is None else self.required_gib <= self.usable_gib


class Source(StrEnum):
    """Where a number of an exact plan comes from, strongest first."""

    MEASURED = "measured"
    """Seen on the engine itself, such as the load size in its log."""
    HEADER_SUM = "header sum"
    """Added up from the checkpoint's tensor headers."""
    DECLARED = "declared"
    """Stated by the user."""
    DERIVED = "derived"
    """Follows exactly from declared numbers."""
    ESTIMATED = "estimated"
    """A published rule or a typical value."""
    UNKNOWN = "unknown"

    @property
    def provenance(self) -> Provenance:
        """The word for it in `status`."""
        return _PROVENANCE[self]


_PROVENANCE = {
    Source.MEASURED: Provenance.MEASURED,
    Source.HEADER_SUM: Provenance.DERIVED,
    Source.DECLARED: Provenance.DECLARED,
    Source.DERIVED: Provenance.DERIVED,
    Source.ESTIMATED: Provenance.ESTIMATED,
    Source.UNKNOWN: Provenance.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class PlanTerm:
    """One part of an exact plan, in bytes per GPU, with the formula and the numbers that went into it."""

    name: str
    bytes_per_gpu: Fraction
    source: Source
    formula: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    """Name and value of each number in the formula, as text."""
    band_bytes: Fraction = Fraction(0)
    """Half-width of what is likely, for an estimate; 0 where nothing is known about it or the number is exact."""

    @property
    def gib(self) -> Fraction:
        """The size in GiB."""
        return self.bytes_per_gpu / GIB

    def as_term(self) -> Term:
        """The term as placement and `status` show it."""
        return Term(self.name, self.gib, self.source.provenance, self.formula)
