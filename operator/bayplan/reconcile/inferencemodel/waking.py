"""What wakes an InferenceModel up: every change that may lead to another decision about it, and no other."""

from collections.abc import MutableMapping

from bayplan.api.conditions import Reason
from bayplan.cluster.cache import Store
from bayplan.cluster.resources import Key
from bayplan.reconcile.capacityplan.view import PlanView
from bayplan.reconcile.fleet import Fleet, NodeView
from bayplan.reconcile.inferencemodel.children import ChildWriter
from bayplan.reconcile.inferencemodel.tools import Hold
from bayplan.reconcile.inferencemodel.view import ModelView
from bayplan.reconcile.pods import PodView
from bayplan.reconcile.ports import KeyQueue
from bayplan.reconcile.quotas import QuotaView
from bayplan.reconcile.rollout.view import RolloutView

CAPACITY_DELAY_SECONDS = 0.2
"""Freed capacity is looked at once for a burst of events."""


def is_behind(view: ModelView) -> bool:
    """Whether the stored status is about an older spec than the present one, or about none."""
    return view.observed_generation != view.generation


class Waker:
    """Watches the caches and queues the models that a change concerns. Needs `queue` set before anything is woken."""

    def __init__(
        self,
        *,
        models: Store[ModelView],
        fleet: Fleet,
        quotas: Store[QuotaView],
        children: ChildWriter,
        rollouts: Store[RolloutView],
        plans: Store[PlanView],
        holds: MutableMapping[tuple[str, str], Hold],
    ) -> None:
        """`holds` are what keeps models from reserving for a while; a change of quota ends those for a quota."""
        self._models = models
        self._fleet = fleet
        self._holds = holds
        self.queue: KeyQueue | None = None
        self.pending: set[Key] = set()
        """Models with a replica that has no place, or is kept from one: woken when capacity is freed."""
        models.subscribe(self._model_changed)
        fleet.pods.subscribe(self._pod_changed)
        fleet.nodes.subscribe(self._node_changed)
        quotas.subscribe(self._quota_changed)
        children.subscribe(self._child_changed)
        rollouts.subscribe(self._rollout_changed)
        plans.subscribe(self._plan_changed)
        fleet.subscribe_freed(self._wake_pending)

    def enqueue(self, key: Key) -> None:
        """Have a model reconciled soon."""
        if self.queue is not None:
            self.queue.enqueue(key)

    def _wake_pending(self, namespace: str | None = None) -> None:
        if self.queue is not None:
            for key in self.pending:
                if namespace is None or key.namespace == namespace:
                    self.queue.enqueue_after(key, CAPACITY_DELAY_SECONDS)

    def _model_changed(self, old: ModelView | None, new: ModelView | None) -> None:
        if new is None:
            if old is not None:
                self._wake_pending()
            return
        if old is None or old.generation != new.generation or old.deleting != new.deleting or is_behind(new):
            self.enqueue(new.key)

    def _pod_changed(self, old: PodView | None, new: PodView | None) -> None:
        pod = new or old
        if pod is None:
            return
        if pod.member is not None:
            owner = self._models.by_uid(pod.member.owner_uid or "")
            if owner is not None:
                self.enqueue(owner.key)
            elif new is not None and old is None:
                named = Key(pod.key.namespace, pod.member.model)
                if named in self._models:
                    self.enqueue(named)
        inspected = self._models.by_uid(pod.inspection.owner_uid) if pod.inspection is not None else None
        if inspected is not None and (new is None or new.terminal):
            self.enqueue(inspected.key)
        freed = old is not None and not old.terminal and (new is None or new.terminal)
        if freed:
            self._wake_pending()

    def _node_changed(self, old: NodeView | None, new: NodeView | None) -> None:
        if old is not None and new is not None and (old.node, old.not_ready_since) == (new.node, new.not_ready_since):
            return
        name = (new or old).node.name if (new or old) else ""  # type: ignore[union-attr]
        for key in self._models.keys() if new is None or old is None else self._on_node(name):
            self.enqueue(key)
        self._wake_pending()

    def _plan_changed(self, old: PlanView | None, new: PlanView | None) -> None:
        """Wake the models that name a plan, when what it says of them may have changed."""
        plan = new or old
        if plan is None or (old is not None and new is not None and old.status_json == new.status_json):
            return
        for model in self._models.values():
            if model.capacity_plan == plan.key.name and model.key.namespace == plan.key.namespace:
                self.enqueue(model.key)

    def _on_node(self, name: str) -> set[Key]:
        keys = set()
        for pod in self._fleet.pods_on(name):
            owner = self._models.by_uid(pod.member.owner_uid or "") if pod.member else None
            if owner is not None:
                keys.add(owner.key)
        return keys

    def _quota_changed(self, old: QuotaView | None, new: QuotaView | None) -> None:
        quota = new or old
        if quota is None:
            return
        for (uid, revision), hold in list(self._holds.items()):
            owner = self._models.by_uid(uid)
            if hold.blocker.reason is Reason.QUOTA_EXCEEDED and owner and owner.key.namespace == quota.key.namespace:
                del self._holds[uid, revision]
        self._wake_pending(quota.key.namespace)

    def _rollout_changed(self, old: RolloutView | None, new: RolloutView | None) -> None:
        """A Rollout counts what it sees every few seconds; only its plan and its word on revisions matter here."""
        if old is None or new is None or old.generation != new.generation or _asks(old) != _asks(new):
            for view in filter(None, (old, new)):
                if view.model in self._models:
                    self.enqueue(view.model)

    def _child_changed(self, owner_uid: str) -> None:
        """A service or budget was deleted, or a snapshot comes late: what was decided without it is looked at again."""
        owner = self._models.by_uid(owner_uid)
        if owner is not None:
            self.enqueue(owner.key)


def _asks(view: RolloutView) -> tuple[object, ...]:
    status = view.read_status()
    return status.plan, status.phase, status.retained, status.proven, status.rejected, status.model_uid
