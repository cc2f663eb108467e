"""What was observed, at one moment, for one decision."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from bayplan.planning.gates.counts import Window
from bayplan.planning.gates.quality import QualityCounts
from bayplan.planning.gates.records import GateResult
from bayplan.planning.measurements import Measured, Unknown
from bayplan.planning.numbers import InvalidInput, count, exact, named
from bayplan.planning.rollout.paper import PaperVerdict
from bayplan.planning.rollout.proof import GatewayAck
from bayplan.planning.rollout.surge import SurgeAnswer


@dataclass(frozen=True, slots=True)
class Head:
    """The head pod of one replica. Raises InvalidInput for a blank uid."""

    uid: str
    node: str
    ready: bool
    warm: bool
    """Whether a real generation has succeeded on exactly what runs there."""

    def __post_init__(self) -> None:
        named(self.uid, "uid")

    @property
    def serves(self) -> bool:
        """Whether it can take requests: warm, ready and not draining."""
        return self.ready and self.warm


@dataclass(frozen=True, slots=True)
class ArmHeads:
    """The replicas of one revision, and what keeps more of them from being ready."""

    heads: tuple[Head, ...] = ()
    trouble: str = ""
    """Such as a crash loop or a warm-up that was given up, with its numbers."""

    @property
    def serving(self) -> tuple[Head, ...]:
        """Those that can take requests."""
        return tuple(head for head in self.heads if head.serves)


NO_HEADS = ArmHeads()


@dataclass(frozen=True, slots=True)
class World:
    """Raises InvalidInput that names the field. Heads are given by the role that the stored plan gives the revision."""

    now_seconds: Fraction
    wanted: str
    """Revision that the InferenceModel's spec asks for."""
    desired: int
    """Replicas that demand or spec ask for."""
    floor: int
    """Replicas below which serving never falls."""
    served: str | None = None
    """Revision that serves by the InferenceModel's status; asked for once, when nothing is stored yet."""
    serving: ArmHeads = NO_HEADS
    previous: ArmHeads = NO_HEADS
    candidate: ArmHeads = NO_HEADS
    gateways: tuple[GatewayAck, ...] = ()
    window: Window | None = None
    """Evidence since the last decision; None: nothing new."""
    candidate_quality: QualityCounts | None = None
    baseline_quality: QualityCounts | None = None
    paper: PaperVerdict = field(default_factory=PaperVerdict)
    surge: SurgeAnswer | None = None
    """None: not asked yet, or the inventory is not complete."""
    invalid: tuple[GateResult, ...] = ()
    """Gates that nothing can judge (`gates.validity`)."""
    leaving_streams: Measured = field(default=Unknown("not measured"))
    """Requests under way at pods of the revision that is being rolled back."""
    answered_at_seconds: Fraction | None = None
    """When the serving revision last answered a request."""
    deleting: bool = False
    """Whether the Rollout object is being deleted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "now_seconds", exact(self.now_seconds, "now_seconds"))
        named(self.wanted, "wanted")
        for name in ("desired", "floor"):
            object.__setattr__(self, name, count(getattr(self, name), name, least=0))
        _require_distinct((*self.serving.heads, *self.previous.heads, *self.candidate.heads))


def _require_distinct(heads: Iterable[Head]) -> None:
    seen: set[str] = set()
    for head in heads:
        if head.uid in seen:
            raise InvalidInput("heads", f"pod {head.uid} stands in two places")
        seen.add(head.uid)
