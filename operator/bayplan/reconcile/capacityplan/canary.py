"""What a Rollout's status says of the trial of one revision, as the claim `canary-gate` takes it."""

from bayplan.api.rollout import RolloutSpec
from bayplan.api.rollout_status import RolloutStatus
from bayplan.api.rolloutwords import Outcome
from bayplan.planning.capacity.inputs import unix_seconds
from bayplan.planning.evidencecontract.canary import CanaryEnd, CanaryGate, CanaryResult
from bayplan.planning.numbers import InvalidInput

ABORTED = "Aborted"


def canary_of(spec: RolloutSpec, status: RolloutStatus, revision: str) -> CanaryResult | None:
    """How the trial of `revision` ended; None while it has not, or where nobody tried it.

    A proven revision has passed every gate that was enforced; a gate whose last outcome stands in the status counts as
    it stands there.
    """
    times = [entry.time for entry in status.history if entry.revision == revision]
    rejected = next((entry for entry in reversed(status.rejected) if entry.revision == revision), None)
    frozen = status.stage is not None and status.trial is not None and status.trial.candidate == revision
    if rejected is not None:
        end, time = CanaryEnd.ABORTED if rejected.reason == ABORTED else CanaryEnd.ROLLED_BACK, rejected.time
    elif frozen and status.stage is not None and status.stage.frozen_by:
        end, time = CanaryEnd.FROZEN, status.stage.started_time
    elif revision in status.proven and times:
        end, time = CanaryEnd.PROMOTED, times[-1]
    else:
        return None
    known = {(gate.name, gate.workload_class): gate.outcome for gate in status.gates}
    passed = Outcome.PASSED if end is CanaryEnd.PROMOTED else Outcome.UNKNOWN
    gates = tuple(
        CanaryGate(
            f"{gate.name}[{gate.workload_class}]" if gate.workload_class else gate.name.value,
            gate.enforce,
            known.get((gate.name, gate.workload_class), passed),
        )
        for gate in spec.gates
    )
    try:
        return CanaryResult(revision, end, unix_seconds(time, "time"), gates)
    except InvalidInput:
        return None  # an unreadable time proves nothing
