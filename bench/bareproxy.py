"""The least that a proxy can be on aiohttp, as a baseline: `python -m bench.bareproxy ENGINE_HOST`.

It reads the body as JSON, sends it on and relays what comes: no admission, no accounts, no reading beside.
"""

import asyncio
import json
import sys

import aiohttp
import uvloop
from aiohttp import web
from yarl import URL

from bayplan.api.names import ENGINE_PORT


async def _serve(host: str) -> None:
    target = URL(f"http://{host}:{ENGINE_PORT}/v1/completions")
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
    )

    async def relay(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        stream = json.loads(body).get("stream", False)
        async with session.post(target, data=body, headers={"Content-Type": "application/json"}) as answer:
            if not stream:
                return web.Response(body=await answer.read(), content_type="application/json")
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            while chunk := await answer.content.readany():
                await response.write(chunk)
            await response.write_eof()
            return response

    app = web.Application()
    app.router.add_post("/v1/completions", relay)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"listening on http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
