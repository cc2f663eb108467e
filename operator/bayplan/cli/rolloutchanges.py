"""What a person may say about a trial, as changes of a Rollout's spec: printed, or applied on request. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bayplan.api.meta import rfc3339
from bayplan.api.rollout import MAX_APPROVALS
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.rolloutwords import Phase, StageKind

_UNDOABLE = (Phase.REPLACING, Phase.RETAINED)


class ChangeRefusedError(Exception):
    """There is nothing that the change could be about; the message says what there is."""


@dataclass(frozen=True, slots=True)
class Change:
    """`spec` is merged into the object's (RFC 7386); empty when it says so already."""

    what: str
    spec: Mapping[str, Any]


def approve(rollout: Mapping[str, Any], *, revision: str | None, stage: str | None) -> Change:
    """Let the candidate enter the next stage, or those that are named. Raises ChangeRefusedError."""
    spec, status = _parts(rollout)
    revision = revision or _candidate(status)
    stage = stage or _next_stage(spec, status)
    asking = [stage_name(one) for one in spec["stages"] if one.get("approval")]
    if stage not in asking:
        known = f"those that do are {', '.join(asking)}" if asking else "none does"
        raise ChangeRefusedError(f"stage {stage} asks for no approval: {known}")
    entry = {"revision": revision, "stage": stage}
    approvals = list(spec.get("approvals") or ())
    if entry in approvals:
        return Change(f"{revision} may enter {stage} already", {})
    return Change(f"{revision} may enter {stage}", {"approvals": [*approvals, entry][-MAX_APPROVALS:]})


def pause(rollout: Mapping[str, Any], *, resume: bool) -> Change:
    """Stop the clock and the way on, or let them run again; the way back stays open."""
    spec, _ = _parts(rollout)
    wanted = not resume
    word = "paused" if wanted else "not paused"
    if bool(spec.get("paused")) is wanted:
        return Change(f"it is {word} already", {})
    return Change(f"it is {word}", {"paused": wanted})


def abort(rollout: Mapping[str, Any], *, revision: str | None) -> Change:
    """Take the traffic from the candidate, or from what was just promoted, at once. Raises ChangeRefusedError."""
    spec, status = _parts(rollout)
    if revision is None:
        promoted = status.plan.serving if status.plan is not None and status.phase in _UNDOABLE else None
        revision = promoted or _candidate(status)
    if spec.get("abort") == revision:
        return Change(f"{revision} is aborted already", {})
    return Change(f"{revision} loses its traffic and is not tried again until a retry", {"abort": revision})


def retry(rollout: Mapping[str, Any], *, token: str | None, now: datetime) -> Change:
    """Let a rejected revision, or a stage that stopped, start again."""
    spec, _ = _parts(rollout)
    token = token or rfc3339(now)
    if spec.get("retry") == token:
        return Change(f"retry {token} was asked for already", {})
    change: dict[str, Any] = {"retry": token}
    if spec.get("abort") is not None:
        change["abort"] = None  # else it would end what begins
    return Change("what was rejected or has stopped starts again", change)


def stage_name(stage: Mapping[str, Any]) -> str:
    """What approvals call a stage of `spec.stages`."""
    kind = str(stage.get("kind"))
    return f"canary-{stage.get('weight')}" if kind == StageKind.CANARY else kind.lower()


def _parts(rollout: Mapping[str, Any]) -> tuple[Mapping[str, Any], RolloutStatus]:
    return rollout["spec"], RolloutStatus.read(rollout.get("status"))


def _candidate(status: RolloutStatus) -> str:
    if status.trial is None or status.phase in (None, Phase.STEADY, Phase.RETAINED, Phase.ROLLED_BACK):
        raise ChangeRefusedError("nothing is on trial; name a revision with --revision")
    return status.trial.candidate


def _next_stage(spec: Mapping[str, Any], status: RolloutStatus) -> str:
    """The stage that would be entered next."""
    stages: Sequence[Mapping[str, Any]] = spec["stages"]
    if status.phase is Phase.PAPER or status.stage is None:
        return stage_name(stages[0])
    if status.stage.index + 1 >= len(stages):
        raise ChangeRefusedError("no stage is left to enter; name one with --stage")
    return stage_name(stages[status.stage.index + 1])
