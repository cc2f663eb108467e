"""One HTTP server for all engines: at every node's address it answers what warm-up, drain and scaling ask."""

import errno
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from ipaddress import IPv4Address

from aiohttp import web

PORT = 8000
"""Where an engine's pod serves HTTP."""
BLOCKS = range(130, 250)
"""Second octets of 127.0.0.0/8 to choose from; the node agent takes lower ones."""
ATTEMPTS = 20
IDLE = "".join(
    f'vllm:{name}{{engine="0"}} 0.0\n'
    for name in ("num_requests_running", "num_requests_waiting", "prompt_tokens_total", "generation_tokens_total")
)


class HollowEngines:
    """Engines by address. An address lists the models of the pods that run there; it is idle at every scrape."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.generations = 0
        """Completions answered."""
        self._served: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._runner: web.AppRunner | None = None

    async def start(self, count: int) -> None:
        """Listen at `count` loopback addresses, at most 65,000, in a block that nobody else listens in."""
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        blocks = random.sample(BLOCKS, ATTEMPTS)
        for number, block in enumerate(blocks, start=1):
            addresses = [str(IPv4Address(f"127.{block}.1.0") + index) for index in range(count)]
            if await self._listen(self._runner, addresses):
                self.addresses = tuple(addresses)
                return
            if number == ATTEMPTS:
                raise OSError(errno.EADDRINUSE, f"port {PORT} is taken in {ATTEMPTS} blocks of 127.0.0.0/8")

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def serve(self, address: str, uid: str, model: str) -> None:
        """Let the address list a pod's model."""
        self._served[address][uid] = model

    def end(self, address: str, uid: str) -> None:
        """Drop the pod's model; unknown pods are ignored."""
        self._served[address].pop(uid, None)

    async def _listen(self, runner: web.AppRunner, addresses: Sequence[str]) -> bool:
        sites = [web.TCPSite(runner, address, PORT, backlog=64) for address in addresses]
        started = []
        try:
            for site in sites:
                await site.start()
                started.append(site)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            for site in started:
                await site.stop()
            return False
        return True

    async def _models(self, request: web.Request) -> web.Response:
        served = sorted(set(self._served[_address(request)].values()))
        return _json({"object": "list", "data": [{"id": name, "object": "model"} for name in served]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["model"] not in self._served[_address(request)].values():
            return _json({"message": f"no model {body['model']}"}, status=404)
        self.generations += 1
        tokens = int(body["max_tokens"])
        choice = {"index": 0, "text": " ok" * tokens, "finish_reason": "length"}
        return _json({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=IDLE)


def _address(request: web.Request) -> str:
    assert request.transport is not None
    return str(request.transport.get_extra_info("sockname")[0])


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(body).encode(), status=status, content_type="application/json")
