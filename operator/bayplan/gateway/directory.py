"""Which models there are under which names, and a pool for each, kept equal to what is watched: heads and plans.

Names: `namespace/served-name`, and the served name alone where no other model could be meant. The path form
`/models/NAMESPACE/NAME/v1/…` names the object itself.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping

from bayplan.cluster.cache import Store
from bayplan.cluster.resources import INFERENCE_MODELS, PODS, Key
from bayplan.gateway.endpoints import EngineFacts, HeadView, ModelView
from bayplan.gateway.enginefacts import smaller
from bayplan.gateway.pools import Pool
from bayplan.gateway.refusals import RefusalCode, Refused
from bayplan.gateway.rollouts import Plans, RolloutView, RoutedPlan
from bayplan.gateway.settings import GatewaySettings
from bayplan.planning.admission.records import TenantPolicy

logger = logging.getLogger(__name__)

BY_OWNER = "owner"
AskFacts = Callable[[HeadView, ModelView], None]
"""Begins to find out what an engine has; `Directory.learn` gets the answer."""


def model_store() -> Store[ModelView]:
    """Return an empty cache of models."""
    return Store(INFERENCE_MODELS)


def head_store() -> Store[HeadView]:
    """Return an empty cache of head pods."""
    return Store(PODS, indexes={BY_OWNER: lambda head: (head.owner,)})


class Directory:
    """Pools by model. Feed the three stores; everything else follows."""

    def __init__(
        self,
        models: Store[ModelView],
        heads: Store[HeadView],
        rollouts: Store[RolloutView],
        settings: GatewaySettings,
        *,
        tenants: Mapping[str, TenantPolicy],
        ask_facts: AskFacts = lambda _head, _model: None,
        on_change: Callable[[], None] = lambda: None,
        lapsed: Callable[[], bool] = lambda: False,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`lapsed` tells whether this gateway's Lease does not stand: then candidates get nothing."""
        self._models = models
        self._heads = heads
        self._settings = settings
        self._tenants = tenants
        self._ask_facts = ask_facts
        self._on_change = on_change
        self._lapsed = lapsed
        self._now_ns = now_ns
        self._pools: dict[str, Pool] = {}
        self._keys: dict[Key, str] = {}
        self._names: dict[str, set[str]] = {}
        self._facts: dict[str, tuple[str, EngineFacts]] = {}
        self._closed = False
        self._plans = Plans(rollouts, on_change=self._plan_changed)
        models.subscribe(self._model_changed)
        heads.subscribe(self._head_changed)

    # -- reads

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def head(self, uid: str) -> HeadView | None:
        """Return a watched head. Requests go to the address of what this returns and nowhere else."""
        return self._heads.by_uid(uid)

    def at(self, namespace: str, name: str) -> Pool:
        """Return the pool of a named object; raises Refused (404)."""
        pool = self._pools.get(self._keys.get(Key(namespace, name), ""))
        if pool is None:
            raise Refused(RefusalCode.MODEL_NOT_FOUND, "there is no such model; GET /v1/models lists them")
        return pool

    def named(self, name: str | None) -> Pool:
        """Return the pool that a body's `model` means; raises Refused (404)."""
        if name is None:
            raise Refused(RefusalCode.INVALID_REQUEST, "model: must be given; GET /v1/models lists them", param="model")
        meant = self._names.get(name, ())
        if len(meant) > 1:
            raise Refused(
                RefusalCode.MODEL_AMBIGUOUS,
                "several models have this name: put the namespace before it, or use /models/NAMESPACE/NAME/v1",
                param="model",
            )
        for uid in meant:
            return self._pools[uid]
        raise Refused(
            RefusalCode.MODEL_NOT_FOUND, "there is no model of this name; GET /v1/models lists them", param="model"
        )

    def check_name(self, pool: Pool, name: str | None) -> None:
        """Refuse a body whose `model` is not the one that its path names."""
        if name is not None and name not in _names_of(pool.model):
            raise Refused(
                RefusalCode.MODEL_NOT_FOUND,
                f"model: this path serves {pool.model.served_name}; leave the member out or name it",
                param="model",
            )

    def draining(self) -> dict[str, bool]:
        """Return the uids of draining heads → whether requests may still be under way to it unseen."""
        return {
            head.uid: any(pool.unanswered(head.uid) for pool in self._owner(head))
            for head in self._heads.values()
            if head.draining
        }

    def epochs(self) -> dict[str, int]:
        """Return the epochs of the plans by which everything goes from now on, by uid of the Rollout."""
        return {routed.rollout: routed.plan.epoch for routed in self._plans}

    # -- what changes

    def learn(self, head: HeadView, facts: EngineFacts) -> None:
        """Take in what an engine said about itself."""
        self._facts[head.uid] = (head.container, facts)
        current = self._heads.by_uid(head.uid)
        if current is not None:
            self._head_changed(None, current)

    def set_tenants(self, tenants: Mapping[str, TenantPolicy]) -> None:
        """Judge from now on by other tenants' policies."""
        self._tenants = tenants
        for pool in self:
            pool.set_tenants(tenants)

    def close(self) -> None:
        """Admit nothing more anywhere."""
        self._closed = True
        for pool in self:
            pool.close()

    # -- inside

    def _owner(self, head: HeadView) -> tuple[Pool, ...]:
        pool = self._pools.get(head.owner)
        return (pool,) if pool is not None and pool.model.key.namespace == head.key.namespace else ()

    def _model_changed(self, old: ModelView | None, new: ModelView | None) -> None:
        if new is None:
            if old is not None:
                self._forget(old)
            return
        if old is not None and old.uid != new.uid:
            self._forget(old)
        pool = self._pools.get(new.uid)
        if pool is None:
            pool = Pool(
                new,
                self._settings,
                self._tenants,
                now_ns=self._now_ns,
                on_answered=self._on_change,
                lapsed=self._lapsed,
            )
            pool.set_plan(self._plan_of(new))
            self._pools[new.uid] = pool
            self._keys[new.key] = new.uid
            for name in _names_of(new):
                self._names.setdefault(name, set()).add(new.uid)
            if self._closed:
                pool.close()
        else:
            pool.set_model(new)
        self._retell(pool)

    def _plan_changed(self, model: Key) -> None:
        pool = self._pools.get(self._keys.get(model, ""))
        if pool is not None:
            pool.set_plan(self._plan_of(pool.model))
            self._retell(pool)
        self._on_change()

    def _plan_of(self, model: ModelView) -> RoutedPlan | None:
        """The plan in force; one that was made for an earlier model of this name is about other pods."""
        routed = self._plans.of(model.key)
        return routed if routed is not None and routed.model_uid in ("", model.uid) else None

    def _retell(self, pool: Pool) -> None:
        """Tell a pool of its heads: they may be something else to it now."""
        for head in self._heads.by_index(BY_OWNER, pool.model.uid):
            self._head_changed(None, head)

    def _forget(self, model: ModelView) -> None:
        pool = self._pools.pop(model.uid, None)
        if pool is None:
            return
        if self._keys.get(model.key) == model.uid:
            del self._keys[model.key]
        for name in _names_of(pool.model):
            self._names[name].discard(model.uid)
            if not self._names[name]:
                del self._names[name]
        pool.close()
        for uid in list(pool.replicas):
            pool.remove_replica(uid)

    def _head_changed(self, old: HeadView | None, new: HeadView | None) -> None:
        if new is None:
            if old is not None:
                self._facts.pop(old.uid, None)
                for pool in self._owner(old):
                    pool.remove_replica(old.uid)
            self._on_change()
            return
        for pool in self._owner(new):
            reported = self._known_facts(new)
            facts = smaller(new.facts, reported)
            if facts is not None:
                pool.set_replica(new, facts)
            elif new.uid in pool.replicas:
                pool.set_replica(new, pool.replicas[new.uid].facts)
            if reported is None and new.routable:
                self._ask_facts(new, pool.model)
        self._on_change()

    def _known_facts(self, head: HeadView) -> EngineFacts | None:
        container, facts = self._facts.get(head.uid, ("", None))
        return facts if container == head.container else None


def _names_of(model: ModelView) -> tuple[str, str]:
    return (model.served_name, f"{model.key.namespace}/{model.served_name}")
