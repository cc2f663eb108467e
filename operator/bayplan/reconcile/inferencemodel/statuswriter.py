"""The one writer of an InferenceModel's status, and of the events about it.

A change of what people and tools act on (a condition, what is wanted, what serves) is written at once. Mere progress
in between (a stage, a message, from one step of a start to the next) is written when it is a second old, with what
has come by then: a model's start passes through a dozen states, and each write costs the API server as much as a pod.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cached_property

from bayplan.api.conditions import Condition, ConditionType, Reason
from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.cluster.cache import Store
from bayplan.cluster.port import Port
from bayplan.cluster.resources import INFERENCE_MODELS
from bayplan.reconcile.inferencemodel.view import ModelView, view_model
from bayplan.reconcile.ports import EventSink
from bayplan.reconcile.statuses import apply_status

PROGRESS_SECONDS = 1.0


class Standing:
    """A model as it stands. Its status is read when it is first asked for: mostly nobody asks after the last write."""

    def __init__(self, view: ModelView) -> None:
        self.view = view

    @cached_property
    def status(self) -> InferenceModelStatus:
        """The status as stored."""
        return self.view.read_status()


class StatusWriter:
    """Applies statuses that differ from what stands; one field manager owns all of it."""

    def __init__(self, port: Port, models: Store[ModelView], events: EventSink, *, now: Callable[[], datetime]) -> None:
        self._port = port
        self._models = models
        self._events = events
        self._now = now
        self._unwritten_since: dict[str, datetime] = {}
        """Per uid: since when there is progress that is not written yet."""

    async def write(self, standing: Standing, status: InferenceModelStatus) -> Standing:
        """Write a status if it differs; return the model as it then stands. Any refusal but NotFound is raised.

        A 409 need not mean that another model bears the name, and nobody else would bring this one up again.
        """
        view = standing.view
        self._unwritten_since.pop(view.uid, None)
        if status == standing.status:
            return standing
        raw = await apply_status(self._port, INFERENCE_MODELS, view, status)
        if raw is None:
            return standing
        self._tell(standing, status)
        written = view_model(raw)
        self._models.put(written)
        return Standing(written)

    async def write_in_time(self, standing: Standing, status: InferenceModelStatus) -> float | None:
        """Write a status, but mere progress not before it is a second old.

        Returns the seconds after which to try again, None when nothing is left to write.
        """
        if status != standing.status and _decisive(standing.status) == _decisive(status):
            since = self._unwritten_since.setdefault(standing.view.uid, self._now())
            left = (since + timedelta(seconds=PROGRESS_SECONDS) - self._now()).total_seconds()
            if left > 0:
                return min(left, PROGRESS_SECONDS)
        await self.write(standing, status)
        return None

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a model."""
        self._unwritten_since.pop(uid, None)

    def _tell(self, standing: Standing, status: InferenceModelStatus) -> None:
        before = {condition.type: condition for condition in standing.status.conditions}
        told: set[str] = set()
        for condition in status.conditions:
            old = before.get(condition.type)
            if old is not None and (old.status, old.reason) == (condition.status, condition.reason):
                continue
            if condition.type in (ConditionType.RECONCILING, ConditionType.STALLED) or _starts_well(old, condition):
                continue
            if condition.reason in told:
                continue  # Ready repeats what blocks it
            told.add(condition.reason)
            warning = is_warning(condition.reason)
            self._events.emit(standing.view, reason=condition.reason, message=condition.message, warning=warning)


def _decisive(status: InferenceModelStatus) -> tuple[object, ...]:
    """What somebody may act on, and a decision on replicas: the next pass knows it only if it is written."""
    conditions = {(condition.type, condition.status, condition.reason) for condition in status.conditions}
    scaling = status.scaling
    return (
        status.observed_generation,
        status.desired_replicas,
        status.ready_replicas,
        status.revisions,
        status.placement.pending_reason,
        conditions,
        scaling and (scaling.desired_replicas, scaling.reason),
    )


_WARNINGS = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.INSUFFICIENT_MEMORY,
        Reason.NO_LAYOUT,
        Reason.UNSUPPORTED_ON_HARDWARE,
        Reason.INSUFFICIENT_GPU,
        Reason.FRAGMENTED_CAPACITY,
        Reason.NO_NODE_MATCHES,
        Reason.NO_NODE_MATCHES_TOPOLOGY,
        Reason.NO_MATCHING_GPU,
        Reason.QUOTA_EXCEEDED,
        Reason.ADMISSION_DENIED,
        Reason.UNSCHEDULABLE,
        Reason.WARMUP_FAILED,
        Reason.ENGINE_FAILED,
        Reason.IMAGE_PULL_ERROR,
        Reason.CONTAINER_NOT_STARTED,
        Reason.GROUP_BROKEN,
        Reason.OVERRIDDEN,
        Reason.REVISION_REJECTED,
    }
)


def is_warning(reason: str) -> bool:
    """Whether an event of that reason is a warning."""
    return reason in _WARNINGS


def _starts_well(old: Condition | None, condition: Condition) -> bool:
    """A condition that is fine from the first moment is no news."""
    return old is None and condition.status == "True" and condition.reason not in _WARNINGS
