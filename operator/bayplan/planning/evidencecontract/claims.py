"""The claims of the contract, what each rests on, and the ways in which one is not earned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType

from bayplan.api.capacitywords import ClaimState, Control
from bayplan.planning.numbers import exact, named


def workload_claim(workload_class: str) -> str:
    """The claim that a class was planned for."""
    return f"workload:{named(workload_class, 'name')}"


class InputName(StrEnum):
    """What a claim can rest on."""

    ARTIFACT = "artifact"
    """The model as planned: its revision."""
    INVENTORY = "inventory"
    BENCHMARK = "benchmark"
    PRICE = "price"
    CANARY = "canary"


_MODEL_ON_NODES = (InputName.ARTIFACT, InputName.INVENTORY)
_MEASURED_ON_NODES = (*_MODEL_ON_NODES, InputName.BENCHMARK)
RESTS_ON: Mapping[str, tuple[InputName, ...]] = MappingProxyType(
    {
        Control.MEMORY_FIT: _MODEL_ON_NODES,
        Control.CAPACITY_PLAN: (*_MEASURED_ON_NODES, InputName.PRICE),
        Control.PARALLEL_LAYOUT: _MEASURED_ON_NODES,
        Control.GPU_PLACEMENT: _MEASURED_ON_NODES,
        Control.BENIGN_ADMISSION: _MODEL_ON_NODES,
        Control.OVERSIZE_SHEDDING: _MODEL_ON_NODES,
        Control.QUEUE_SCALING: (InputName.ARTIFACT, InputName.BENCHMARK),
        Control.CANARY_GATE: (InputName.ARTIFACT, InputName.CANARY),
    }
)
WORKLOAD_RESTS_ON = (InputName.ARTIFACT, InputName.BENCHMARK)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one evaluator found."""

    state: ClaimState
    message: str


Evaluator = Callable[[], Finding]


def earned(message: str) -> Finding:
    """The decision was made and says yes."""
    return Finding(ClaimState.EARNED, message)


def failed(message: str) -> Finding:
    """The decision was made and says no."""
    return Finding(ClaimState.FAILED, message)


def missing(message: str) -> Finding:
    """There is nothing to decide on."""
    return Finding(ClaimState.MISSING, message)


@dataclass(frozen=True, slots=True)
class EvidenceInput:
    """One input with its identity and time. Raises InvalidInput for a blank digest."""

    name: InputName
    digest: str
    observed_at_seconds: Fraction | None = None
    """Unix time; None: it does not age."""
    contradiction: str = ""
    """Why it is about something else than the plan; empty when it is not."""

    def __post_init__(self) -> None:
        named(self.digest, "digest")
        if self.observed_at_seconds is not None:
            object.__setattr__(self, "observed_at_seconds", exact(self.observed_at_seconds, "observed_at_seconds"))

    def doubt(self, now_seconds: Fraction, greatest_age_seconds: Fraction | None) -> Finding | None:
        """Why it proves nothing now; None while it does. An age equal to the greatest passes."""
        if self.contradiction:
            return Finding(ClaimState.CONTRADICTED, f"{self.name}: {self.contradiction}")
        if self.observed_at_seconds is None:
            return None
        if self.observed_at_seconds > now_seconds:
            return Finding(ClaimState.CONTRADICTED, f"{self.name}: its time lies in the future")
        if greatest_age_seconds is not None and now_seconds - self.observed_at_seconds > greatest_age_seconds:
            return Finding(ClaimState.STALE, f"{self.name}: older than the {_age(greatest_age_seconds)} that it may be")
        return None


def _age(seconds: Fraction) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length} {unit}"
    return f"{float(seconds):g} s"
