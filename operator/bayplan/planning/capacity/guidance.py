"""What a plan gives to the autoscaling of its InferenceModel: a floor, and the rates that demand is divided by."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction

from bayplan.api.autoscaling import Autoscaling

_UP = Context(prec=15, rounding=ROUND_CEILING)


@dataclass(frozen=True, slots=True)
class Guidance:
    """Numbers of one plan, or the last ones that it stood by."""

    floor: int
    service_tokens_per_second: Fraction
    target_utilization: Decimal


def guided(autoscaling: Autoscaling, guidance: Guidance) -> Autoscaling:
    """The user's autoscaling with the plan's floor and rates. A floor above maxReplicas stops there."""
    floor = min(autoscaling.max_replicas, max(autoscaling.min_replicas, guidance.floor))
    return autoscaling.model_copy(
        update={
            "min_replicas": floor,
            "service_tokens_per_second": rate(guidance.service_tokens_per_second),
            "target_utilization": guidance.target_utilization,
        }
    )


def rate(number: Fraction) -> Decimal:
    """A rate to the 15 digits that JSON keeps, rounded up.

    Rounded down, a load that fills its replicas exactly would ask for one more.
    """
    return _UP.divide(Decimal(number.numerator), Decimal(number.denominator))
