"""A gateway in the test's own loop, in front of engines on loopback addresses, fed as its watch would feed it."""

import itertools
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp
from aiohttp import web

from bayplan.api import names
from bayplan.cluster.cache import Store
from bayplan.gateway.assembly import Gateway
from bayplan.gateway.directory import head_store, model_store
from bayplan.gateway.endpoints import EngineFacts, HeadView, ModelView, view_head, view_model
from bayplan.gateway.exposition import Identity
from bayplan.gateway.listener import Listener
from bayplan.gateway.promptsize import TextCounter
from bayplan.gateway.rollouts import RolloutView, rollout_store, view_rollout
from bayplan.gateway.settings import GatewaySettings
from bayplan.gateway.tenants import Tenants, anonymous_tenants

SECRET = b"a secret of this very test run"
CREATED = "2026-11-30T00:00:00Z"
FACTS = EngineFacts(kv_blocks=1000, block_size=16, max_num_seqs=64, max_model_len=4096)
_numbers = itertools.count(1)


def loopback() -> str:
    """An address of its own, so that engines of other tests and of other runs are never in the way."""
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"


def raw_model(
    name: str = "tiny",
    *,
    namespace: str = "default",
    served: str = "tiny",
    serving: tuple[str, ...] = ("r1",),
    max_model_len: int = 4096,
    uid: str = "",
) -> dict[str, Any]:
    """An InferenceModel as the API server shows it."""
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": uid or f"model-{namespace}-{name}",
            "resourceVersion": str(next(_numbers)),
            "creationTimestamp": CREATED,
        },
        "spec": {
            "model": {"name": served, "uri": f"hf://org/{served}", "revision": "abc"},
            "engine": {"maxModelLen": max_model_len, "maxNumSeqs": 64},
        },
        "status": {"revisions": {"serving": list(serving)}},
    }


def raw_head(
    name: str,
    address: str,
    *,
    model: str = "tiny",
    namespace: str = "default",
    revision: str = "r1",
    uid: str = "",
    facts: EngineFacts | None = FACTS,
    **changes: Any,
) -> dict[str, Any]:
    """A warm, ready head as the API server shows it; `changes` take parts of that away again."""
    annotations: dict[str, str] = {}
    if facts is not None:
        annotations[names.ANNOTATION_ADMISSION] = json.dumps(
            {
                "kvBlocks": facts.kv_blocks,
                "blockSize": facts.block_size,
                "maxNumSeqs": facts.max_num_seqs,
                "maxModelLen": facts.max_model_len,
            }
        )
    if changes.get("draining"):
        annotations[names.ANNOTATION_DRAINING] = CREATED
    meta: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "uid": uid or f"pod-{name}",
        "resourceVersion": str(next(_numbers)),
        "labels": {names.LABEL_MODEL: model, names.LABEL_RANK: "0", names.LABEL_REVISION: revision},
        "annotations": annotations,
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.INFERENCEMODEL_KIND,
                "name": model,
                "uid": changes.get("owner", f"model-{namespace}-{model}"),
                "controller": changes.get("controller", True),
            }
        ],
    }
    if changes.get("deleting"):
        meta["deletionTimestamp"] = CREATED
    container = f"container-{name}"
    warm = {"type": names.CONDITION_WARM, "status": "True", "message": changes.get("warm_on", container)}
    return {
        "metadata": meta,
        "spec": {"hostNetwork": changes.get("host_network", False)},
        "status": {
            "phase": changes.get("phase", "Running"),
            "podIP": address,
            "conditions": [
                *([warm] if changes.get("warm", True) else []),
                {"type": "Ready", "status": "True" if changes.get("ready", True) else "False"},
            ],
            "containerStatuses": [{"name": names.ENGINE_CONTAINER, "containerID": container}],
        },
    }


def raw_rollout(
    model: str = "tiny",
    *,
    name: str = "trial",
    namespace: str = "default",
    created: str = CREATED,
    model_uid: str = "",
    **plan: Any,
) -> dict[str, Any]:
    """A Rollout as the API server shows it; without any part of a plan it has none yet."""
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"rollout-{namespace}-{name}",
            "resourceVersion": str(next(_numbers)),
            "creationTimestamp": created,
        },
        "spec": {"modelRef": {"name": model}},
        "status": {"plan": plan, "modelUid": model_uid or f"model-{namespace}-{model}"} if plan else {},
    }


class Town:
    """One gateway with what it watches. `url` answers clients, `admin_url` the cluster."""

    def __init__(
        self,
        *,
        settings: GatewaySettings | None = None,
        tenants: Tenants | None = None,
        counters: Mapping[str, TextCounter] | None = None,
    ) -> None:
        self.models: Store[ModelView] = model_store()
        self.heads: Store[HeadView] = head_store()
        self.rollouts: Store[RolloutView] = rollout_store()
        self.settings = settings or GatewaySettings()
        self.gateway = Gateway(
            self.models,
            self.heads,
            self.rollouts,
            self.settings,
            tenants=tenants or anonymous_tenants(),
            secret=SECRET,
            counters=counters or {},
            identity=Identity("gateway-uid", datetime.now(UTC)),
            now=lambda: datetime.now(UTC),
        )
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        self._listeners: list[Listener] = []

    async def start(self) -> "Town":
        self.url = await self._listen(self.gateway.application())
        self.admin_url = await self._listen(self.gateway.administration(liveness={}, readiness={}))
        return self

    async def _listen(self, application: web.Application) -> str:
        listener = Listener(
            application,
            host="127.0.0.1",
            port=0,
            most_connections=self.settings.max_connections,
            idle_connection_seconds=self.settings.idle_connection_seconds,
            work=self.gateway.routes.work,
            on_turned_away=self.gateway.turned_away,
        )
        port = await listener.start()
        self._listeners.append(listener)
        return f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        await self.session.close()
        for listener in self._listeners:
            await listener.close()
        await self.gateway.close()

    # -- what the watch shows

    def model(self, name: str = "tiny", **fields: Any) -> ModelView:
        view = view_model(raw_model(name, **fields))
        self.models.put(view)
        return view

    def head(self, name: str, address: str, **fields: Any) -> HeadView:
        view = view_head(raw_head(name, address, **fields))
        self.heads.put(view)
        return view

    def plan(self, model: str = "tiny", *, name: str = "trial", created: str = CREATED, **plan: Any) -> RolloutView:
        view = view_rollout(raw_rollout(model, name=name, created=created, **plan))
        self.rollouts.put(view)
        return view

    def gone(self, view: HeadView) -> None:
        self.heads.discard(view.key, view.uid, next(_numbers))

    # -- what is there

    @property
    def held(self) -> int:
        return self.gateway.held

    def reserved_tokens(self) -> int:
        return sum(pool.readings().live_tokens for pool in self.gateway.directory)

    def queued(self) -> int:
        return sum(pool.readings().queued_requests for pool in self.gateway.directory)

    # -- clients

    async def post(self, path: str = "/v1/completions", **fields: Any) -> tuple[int, Any, Mapping[str, str]]:
        headers = fields.pop("headers", None)
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 8, **fields}
        async with self.session.post(self.url + path, json=body, headers=headers) as response:
            return response.status, await response.json(), response.headers

    def open_stream(self, path: str = "/v1/completions", **fields: Any) -> Any:
        """A stream, to be read or torn by the test."""
        headers = fields.pop("headers", None)
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 200, "ignore_eos": True, "stream": True, **fields}
        return self.session.post(self.url + path, json=body, headers=headers)

    async def metrics(self) -> str:
        async with self.session.get(self.admin_url + "/metrics") as response:
            return await response.text()

    async def evidence(self) -> Any:
        async with self.session.get(self.admin_url + "/evidence") as response:
            return await response.json()
