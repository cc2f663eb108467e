"""The plan: which revision gets what. One object, one writer; the InferenceModel's reconciler and gateways obey it."""

from dataclasses import dataclass, replace
from typing import Any, Self

from bayplan.api.rollout_status import RolloutPlan
from bayplan.planning.numbers import InvalidInput, count, named


@dataclass(frozen=True, slots=True)
class Plan:
    """Raises InvalidInput that names the field for a plan that nobody could carry out.

    Requests go to `serving` and `previous` as one pool by ready capacity, and `weight` percent of them to `candidate`.
    A revision that is kept without traffic (`RolloutState.retained`) is not in the plan.
    """

    epoch: int
    """Rises with every change of anything below; gateways acknowledge it."""
    serving: str
    previous: str | None = None
    """Still in the pool with `serving` until that is at full size."""
    candidate: str | None = None
    weight: int = 0
    """Percent of the requests that the candidate gets."""
    shadow_share: int = 0
    """Percent of the requests that are copied to the candidate."""
    cohort_salt: str = ""
    stable_min: int = 0
    """Serving groups that must stay, whatever demand says."""
    candidate_replicas: int = 0
    baseline: tuple[str, ...] = ()
    """uids of the serving heads that carry the cohort which the candidate is compared with."""

    def __post_init__(self) -> None:
        count(self.epoch, "epoch")
        named(self.serving, "serving")
        for name in ("stable_min", "candidate_replicas"):
            count(getattr(self, name), name, least=0)
        for name in ("weight", "shadow_share"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= 100:
                raise InvalidInput(name, f"must be a whole percentage from 0 to 100, not {value!r}")
            if value and self.candidate is None:
                raise InvalidInput(name, "must be 0 without a candidate")
        if self.candidate is None and (self.candidate_replicas or self.cohort_salt or self.baseline):
            raise InvalidInput("candidate", "must be named while it has replicas, a salt or a baseline")
        if self.candidate is not None and not self.cohort_salt:
            raise InvalidInput("cohort_salt", "must not be blank while there is a candidate")
        revisions = [name for name in (self.serving, self.previous, self.candidate) if name is not None]
        if len(set(revisions)) != len(revisions):
            raise InvalidInput("candidate", "must differ from serving and previous, and they from each other")
        if self.weight and self.shadow_share:
            raise InvalidInput("shadow_share", "must be 0 while the candidate has requests of its own")

    @property
    def routed(self) -> tuple[str, ...]:
        """Revisions whose pods may get a request; nothing goes to any other."""
        found = [self.serving]
        if self.previous is not None:
            found.append(self.previous)
        if self.candidate is not None and (self.weight or self.shadow_share):
            found.append(self.candidate)
        return tuple(found)

    @classmethod
    def of(cls, wire: RolloutPlan) -> Self:
        """The plan that a status holds; raises InvalidInput for one that nobody could carry out."""
        return cls(**{name: getattr(wire, name) for name in cls.__slots__})

    def to_status(self) -> RolloutPlan:
        """The form in which a status holds it."""
        return RolloutPlan(**{name: getattr(self, name) for name in self.__slots__})

    def change(self, **fields: Any) -> "Plan":
        """The plan with these fields: itself if that changes nothing, else of the next epoch."""
        changed = replace(self, **fields)
        return self if changed == self else replace(changed, epoch=self.epoch + 1)


def serving_groups(plan: Plan, *, desired: int, drain_first: bool) -> int:
    """Groups that the serving revision is to have.

    max(stableMin, desired); where the candidate takes the place of serving groups (`DrainFirst`), as many fewer as it
    has, but never below stableMin.
    """
    count(desired, "desired", least=0)
    return max(plan.stable_min, desired - plan.candidate_replicas if drain_first else desired)
