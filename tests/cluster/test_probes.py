from collections.abc import AsyncIterator

import aiohttp
import pytest

from bayplan.cluster.metrics import Metrics
from bayplan.cluster.probes import ProbeServer


@pytest.fixture
async def state() -> dict[str, str | None]:
    return {"pods": None, "nodes": "not listed yet"}


@pytest.fixture
async def session(state: dict[str, str | None]) -> AsyncIterator[aiohttp.ClientSession]:
    checks = {name: (lambda name=name: state[name]) for name in state}
    server = ProbeServer(
        host="127.0.0.1", port=0, metrics=Metrics(), liveness={"pods": checks["pods"]}, readiness=checks
    )
    port = await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        yield session
    await server.stop()


async def test_readiness_names_what_is_missing(session: aiohttp.ClientSession, state: dict[str, str | None]) -> None:
    async with session.get("/readyz") as response:
        assert response.status == 503
        assert await response.text() == "[+] pods ok\n[-] nodes not listed yet\n"
    state["nodes"] = None
    async with session.get("/readyz") as response:
        assert response.status == 200


async def test_liveness_fails_while_a_kind_makes_no_progress(
    session: aiohttp.ClientSession, state: dict[str, str | None]
) -> None:
    async with session.get("/healthz") as response:
        assert response.status == 200
    state["pods"] = "not heard of for 700 s, limit 600 s"
    async with session.get("/healthz") as response:
        assert (response.status, await response.text()) == (503, "[-] pods not heard of for 700 s, limit 600 s\n")


async def test_a_taken_port_is_an_error_at_the_start() -> None:
    first = ProbeServer(host="127.0.0.1", port=0, metrics=Metrics(), liveness={}, readiness={})
    port = await first.start()
    second = ProbeServer(host="127.0.0.1", port=port, metrics=Metrics(), liveness={}, readiness={})
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
    await second.stop()
    await first.stop()
