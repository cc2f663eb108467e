"""A gateway without requests: it announces itself, tells a demand that a test has set, and acknowledges what drains,
and the plan of each Rollout.

It exists while a Pod of its name does. What the Pod's annotations say is what it tells: tokens that arrive per second,
and tokens that wait. Queued tokens are exact at every reading; a rate is as exact as the reader's clock.
"""

import asyncio
import errno
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Self

import aiohttp
from aiohttp import web

from bayplan.api import names
from bayplan.api.acknowledgements import write_epochs, write_uids
from e2e.localcluster.client import APPLY_PATCH, ApiError, KubeApi

Json = dict[str, Any]
POD = "gateway"
RATE = "hollow.bayplan.dev/tokens-per-second"
QUEUED = "hollow.bayplan.dev/queued-tokens"
LEASE_SECONDS = 15
POLL_SECONDS = 0.2
BLOCKS = range(130, 250)
ATTEMPTS = 20


def gateway_pod(*, tokens_per_second: float = 0, queued_tokens: int = 0) -> Json:
    """Return the Pod; nothing schedules it."""
    annotations = {RATE: str(tokens_per_second), QUEUED: str(queued_tokens)}
    spec = {
        "containers": [{"name": "gateway", "image": "gateway"}],
        "schedulingGates": [{"name": "hollow.bayplan.dev/never"}],
        "automountServiceAccountToken": False,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "annotations": annotations}, "spec": spec}


class HollowGateway:
    """The gateway of one namespace. Use `HollowGateway.on(api, namespace)`."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._address = ""
        self._uid = ""
        self._models: dict[str, str] = {}
        """Uids by name."""
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{POD}"
        self._rate, self._queued = 0.0, 0
        self._counted, self._counted_at = 0.0, time.monotonic()

    @classmethod
    @asynccontextmanager
    async def on(cls, api: KubeApi, namespace: str) -> AsyncIterator[Self]:
        """Play the gateway of a namespace for the length of the block."""
        gateway = cls(api, namespace)
        app = web.Application()
        app.router.add_get("/evidence", gateway._evidence)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await gateway._listen(runner)
        task = asyncio.create_task(gateway._run(), name=f"hollow gateway of {namespace}")
        try:
            yield gateway
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner) -> None:
        for block in random.sample(BLOCKS, ATTEMPTS):
            self._address = f"127.{block}.3.{random.randint(1, 254)}"
            try:
                await web.TCPSite(runner, self._address, names.GATEWAY_PORT).start()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return
        raise OSError(errno.EADDRINUSE, f"port {names.GATEWAY_PORT} is taken in {ATTEMPTS} blocks of 127.0.0.0/8")

    async def _evidence(self, _: web.Request) -> web.Response:
        self._count()
        entry = {
            "demandPromptTokens": self._counted,
            "demandOutputTokens": 0,
            "queuedTokens": self._queued,
            "reservedTokens": 0,
            "pods": {},
        }
        document = {
            "gateway": {"uid": self._uid, "startedAt": "2026-01-01T00:00:00Z"},
            "observedAt": datetime.now(UTC).isoformat(),
            "edgesSeconds": {"ttft": [1], "tpot": [1]},
            "rows": [],
            "models": {f"{self._namespace}/{name}": entry | {"uid": uid} for name, uid in self._models.items()},
        }
        return web.Response(text=json.dumps(document), content_type="application/json")

    def _count(self) -> None:
        now = time.monotonic()
        self._counted += self._rate * (now - self._counted_at)
        self._counted_at = now

    async def _run(self) -> None:
        while True:
            with suppress(ApiError, aiohttp.ClientError, TimeoutError):
                await self._step()
            await asyncio.sleep(POLL_SECONDS)

    async def _step(self) -> None:
        pods = (await self._api.get(self._pods))["items"]
        pod = next((pod for pod in pods if pod["metadata"]["name"] == POD), None)
        if pod is None:
            if self._uid:
                await self._api.delete(self._lease)
                self._uid = ""
            return
        self._count()
        annotations = pod["metadata"].get("annotations") or {}
        self._rate, self._queued = float(annotations.get(RATE, 0)), int(annotations.get(QUEUED, 0))
        self._uid = pod["metadata"]["uid"]
        if not pod.get("status", {}).get("podIP"):
            status = {"phase": "Running", "podIP": self._address, "podIPs": [{"ip": self._address}]}
            await self._api.patch(f"{self._pods}/{POD}/status", {"status": status})
        models = await self._items(names.INFERENCEMODEL_PLURAL)
        self._models = {model["metadata"]["name"]: model["metadata"]["uid"] for model in models}
        plans = {
            rollout["metadata"]["uid"]: plan["epoch"]
            for rollout in await self._items(names.ROLLOUT_PLURAL)
            if (plan := (rollout.get("status") or {}).get("plan"))
        }
        await self._renew([p["metadata"]["uid"] for p in pods if _drains(p)], plans)

    async def _items(self, plural: str) -> list[Json]:
        found: list[Json] = (await self._api.get(f"/apis/{names.API_VERSION}/namespaces/{self._namespace}/{plural}"))[
            "items"
        ]
        return found

    async def _renew(self, acknowledged: list[str], plans: dict[str, int]) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": POD,
                "labels": {names.LABEL_GATEWAY: self._uid},
                "annotations": {
                    names.ANNOTATION_DRAINING_PODS: write_uids(acknowledged),
                    names.ANNOTATION_PLAN_EPOCHS: write_epochs(plans),
                },
            },
            "spec": {
                "holderIdentity": POD,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        await self._api.patch(self._lease, body, content_type=APPLY_PATCH, fieldManager=POD, force="true")


def _drains(pod: Json) -> bool:
    return names.ANNOTATION_DRAINING in (pod["metadata"].get("annotations") or {})
