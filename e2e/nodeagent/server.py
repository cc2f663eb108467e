"""The control API: JSON over HTTP on a loopback address.

`GET /healthz` answers 200 once nodes are registered and pods are taken up. `GET /state` shows everything; with
`?after=REVISION&timeout=SECONDS` it answers when the revision has moved on, or at the time-out. The rest are POSTs
with a JSON body, one per fault; a mistake answers 400 with `{"error": "..."}`.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from e2e.nodeagent.agent import AgentError, NodeAgent
from e2e.nodeagent.nodecondition import NodeCondition

_MAX_WAIT_SECONDS = 300.0


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, validate_by_name=True)


class LoseNode(_Body):
    """Body of `/lose-node`."""

    node: str
    mode: NodeCondition = NodeCondition.DEAD


class ReturnNode(_Body):
    """Body of `/return-node`."""

    node: str


class LoseGpu(_Body):
    """Body of `/lose-gpu`."""

    node: str
    count: int = Field(default=1, ge=1)
    crash: bool = False


class RestoreGpu(_Body):
    """Body of `/restore-gpu`; without a count all come back."""

    node: str
    count: int | None = Field(default=None, ge=1)


class KillPod(_Body):
    """Body of `/kill-pod`."""

    namespace: str
    name: str
    exit_code: int = Field(default=137, ge=0, le=255)
    reason: str | None = None


class Image(_Body):
    """Body of `/fail-pulls` and `/heal-pulls`."""

    image: str


class ControlServer:
    """Serves the control API of one agent."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen, and return the base URL. Raises AgentError for an address that is not loopback or not free."""
        if not ipaddress.ip_address(host).is_loopback:
            raise AgentError(f"control address {host}: must be a loopback address, it is not protected")
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/state", self._state)
        agent = self._agent
        self._post(app, "/lose-node", LoseNode, lambda body: agent.lose_node(body.node, body.mode))
        self._post(app, "/return-node", ReturnNode, lambda body: agent.return_node(body.node))
        self._post(app, "/lose-gpu", LoseGpu, lambda body: agent.lose_gpus(body.node, body.count, crash=body.crash))
        self._post(app, "/restore-gpu", RestoreGpu, lambda body: agent.restore_gpus(body.node, body.count))
        self._post(app, "/kill-pod", KillPod, self._kill_pod)
        self._post(app, "/fail-pulls", Image, self._fail_pulls)
        self._post(app, "/heal-pulls", Image, self._heal_pulls)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise AgentError(f"control address {host}:{port}: {error.strerror}") from None
        bound = self._runner.addresses[0]
        return f"http://{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _post(
        self, app: web.Application, path: str, schema: type[_Body], act: Callable[[Any], Awaitable[object]]
    ) -> None:
        async def handle(request: web.Request) -> web.Response:
            try:
                body = schema.model_validate_json(await request.text() or "{}")
            except ValidationError as error:
                problems = [
                    f"{'.'.join(str(part) for part in item['loc']) or 'body'}: {item['msg']}" for item in error.errors()
                ]
                return web.json_response({"error": "; ".join(problems)}, status=400)
            try:
                result = await act(body)
            except AgentError as error:
                return web.json_response({"error": str(error)}, status=400)
            return web.json_response({"result": result})

        app.router.add_post(path, handle)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _state(self, request: web.Request) -> web.Response:
        pulse = self._agent.services.pulse
        if (after := request.query.get("after")) is not None:
            try:
                revision, seconds = int(after), float(request.query.get("timeout", 30))
            except ValueError:
                return web.json_response({"error": "after must be a revision, timeout seconds"}, status=400)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(seconds, 0.0), _MAX_WAIT_SECONDS)):
                    await pulse.after(revision)
        return web.Response(text=self._agent.state().model_dump_json(by_alias=True), content_type="application/json")

    async def _kill_pod(self, body: KillPod) -> None:
        self._agent.kill_pod(body.namespace, body.name, exit_code=body.exit_code, reason=body.reason)

    async def _fail_pulls(self, body: Image) -> None:
        self._agent.fail_pulls(body.image)

    async def _heal_pulls(self, body: Image) -> None:
        self._agent.heal_pulls(body.image)
