"""Why a Rollout decides nothing: one set of conditions for each cause. Pure."""

from collections.abc import Sequence

from bayplan.api.conditions import ConditionType, Reason
from bayplan.reconcile.rollout.describe import Verdict


def invalid(message: str) -> list[Verdict]:
    """What the user asks for cannot be acted on."""
    return [
        (ConditionType.ACCEPTED, "False", Reason.INVALID_SPEC, message),
        (ConditionType.READY, "False", Reason.INVALID_SPEC, f"the spec is not accepted: {message}"),
        (ConditionType.STALLED, "True", Reason.INVALID_SPEC, message),
    ]


def another(name: str) -> list[Verdict]:
    """An older Rollout has the say."""
    message = f"rollouts.bayplan.dev {name} names the same model and is older: it alone decides"
    return [
        (ConditionType.ACCEPTED, "False", Reason.ANOTHER_ROLLOUT, message),
        (ConditionType.READY, "False", Reason.ANOTHER_ROLLOUT, message),
        (ConditionType.STALLED, "True", Reason.ANOTHER_ROLLOUT, message),
    ]


def no_model(name: str) -> list[Verdict]:
    """The model does not exist (yet)."""
    message = f"waiting for InferenceModel {name}, which does not exist"
    return [
        (ConditionType.ACCEPTED, "True", Reason.VALID, "the spec is valid"),
        (ConditionType.READY, "False", Reason.MODEL_NOT_FOUND, message),
        (ConditionType.RECONCILING, "True", Reason.MODEL_NOT_FOUND, message),
    ]


def plain(name: str) -> list[Verdict]:
    """The model does not ask for a Rollout."""
    message = f"InferenceModel {name} has update: Replace, so this Rollout has no say; set update: Rollout there"
    return [
        (ConditionType.ACCEPTED, "True", Reason.VALID, "the spec is valid"),
        (ConditionType.READY, "False", Reason.MODEL_REPLACES_PLAINLY, message),
        (ConditionType.STALLED, "True", Reason.MODEL_REPLACES_PLAINLY, message),
    ]


def replacing(served: Sequence[str]) -> list[Verdict]:
    """Two revisions serve: a plain replacement was under way."""
    message = f"waiting until the replacement that was under way is over: {', '.join(served)} serve"
    return [
        (ConditionType.ACCEPTED, "True", Reason.VALID, "the spec is valid"),
        (ConditionType.READY, "False", Reason.REPLACING, message),
        (ConditionType.RECONCILING, "True", Reason.REPLACING, message),
    ]
