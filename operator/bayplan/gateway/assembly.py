"""The request path put together: three caches in, an application for clients and one for the cluster out."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime

from aiohttp import web

from bayplan.cluster.cache import Store
from bayplan.cluster.probes import Check
from bayplan.gateway.administration import administration
from bayplan.gateway.delivery import Services
from bayplan.gateway.directory import Directory
from bayplan.gateway.endpoints import EngineFacts, HeadView, ModelView
from bayplan.gateway.enginefacts import FactFinder
from bayplan.gateway.evidence import Evidence
from bayplan.gateway.exposition import Exposition, Identity
from bayplan.gateway.generations import Generations
from bayplan.gateway.outcomes import Outcomes
from bayplan.gateway.promptsize import TextCounter
from bayplan.gateway.refusals import RefusalCode
from bayplan.gateway.rollouts import RolloutView
from bayplan.gateway.routes import Routes
from bayplan.gateway.salts import Salts
from bayplan.gateway.settings import GatewaySettings
from bayplan.gateway.tenants import Tenants
from bayplan.gateway.upstream import HttpUpstream


class Gateway:
    """Everything between the watch and the sockets. Make it inside the running loop; close it at the end."""

    def __init__(
        self,
        models: Store[ModelView],
        heads: Store[HeadView],
        rollouts: Store[RolloutView],
        settings: GatewaySettings,
        *,
        tenants: Tenants,
        secret: bytes,
        counters: Mapping[str, TextCounter],
        identity: Identity,
        now: Callable[[], datetime],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when anything about replicas, plans or what is under way is different."""
        self.has_lapsed: Callable[[], bool] = lambda: False
        """Whether this gateway's Lease does not stand, so that candidates must get nothing."""
        self._now_ns = now_ns
        self._upstream = HttpUpstream(connect_seconds=settings.connect_seconds)
        self._facts = FactFinder(current=heads.by_uid, learn=self._learn)
        heads.subscribe(self._note_gone)
        self.directory = Directory(
            models,
            heads,
            rollouts,
            settings,
            tenants=tenants.policies,
            ask_facts=self._facts.ask,
            on_change=self._changed,
            lapsed=self._lapsed,
            now_ns=now_ns,
        )
        self.evidence = Evidence(settings.edges)
        self.outcomes = Outcomes()
        self.generations = Generations(
            Services(self.directory, self._upstream, self.evidence, self.outcomes, settings, now_ns),
            tenants=tenants,
            salts=Salts(secret),
            counters=counters,
        )
        self.routes = Routes(
            directory=self.directory,
            generations=self.generations,
            outcomes=self.outcomes,
            most_body_bytes=settings.max_body_bytes,
        )
        self.exposition = Exposition(
            self.directory,
            self.evidence,
            self.outcomes,
            self.generations.copies.counts,
            identity=identity,
            now=now,
            now_ns=now_ns,
        )

    def application(self) -> web.Application:
        """The clients' application."""
        return self.routes.application()

    def administration(self, *, liveness: Mapping[str, Check], readiness: Mapping[str, Check]) -> web.Application:
        """The cluster's application."""
        return administration(self.exposition, liveness=liveness, readiness=readiness)

    def set_tenants(self, tenants: Tenants) -> None:
        """Serve other tenants from now on."""
        self.generations.tenants = tenants
        self.directory.set_tenants(tenants.policies)

    def refuse_new(self) -> None:
        """Take nothing new and send away what waits; what runs goes on."""
        self.routes.draining = True
        self.directory.close()

    def turned_away(self) -> None:
        """Count a connection that was one too many."""
        self.outcomes.refusals[RefusalCode.GATEWAY_BUSY] += 1

    @property
    def held(self) -> int:
        """Requests that hold a place."""
        return sum(pool.held for pool in self.directory)

    def fold_evidence(self) -> None:
        """Forget what nobody asks for any more."""
        known = {(pool.model.key.namespace, pool.model.key.name) for pool in self.directory}
        self.evidence.fold(self._now_ns(), models=known)
        self.outcomes.retain(known)
        self.generations.copies.retain(known)

    async def close(self) -> None:
        """Close connections to engines."""
        await self.generations.copies.close()
        await self._facts.close()
        await self._upstream.close()

    def _changed(self) -> None:
        self.on_change()

    def _lapsed(self) -> bool:
        return self.has_lapsed()

    def _learn(self, head: HeadView, facts: EngineFacts) -> None:
        self.directory.learn(head, facts)

    def _note_gone(self, old: HeadView | None, new: HeadView | None) -> None:
        if old is not None and new is None:
            self.evidence.pod_gone(old.uid, self._now_ns())
