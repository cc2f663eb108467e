"""Engines for the tests: inside the test's loop for what HTTP shows, as a process for signals and exit codes."""

import asyncio
import json
import multiprocessing
import os
import secrets
from dataclasses import dataclass

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.enginesim.flags import parse_flags
from e2e.enginesim.process import EngineService, run_logged
from e2e.enginesim.settings import read_settings

DEADLINE_SECONDS = 60
FAST = {"ENGINESIM_STEP_SECONDS": "0.002", "ENGINESIM_SEQUENCE_SECONDS": "0"}


def loopback():
    """An address of its own, so that engines of other tests and of other runs are never in the way."""
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"


async def eventually(condition, what):
    """Wait until the (async) condition holds; its value."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            value = await condition()
            if value:
                return value
            await asyncio.sleep(0.01)
    raise AssertionError(what)


def parse_events(raw: bytes):
    """Server-sent events of a whole stream: their JSON, and the text `[DONE]` last."""
    parts = raw.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [part[6:] if part[6:] == "[DONE]" else json.loads(part[6:]) for part in parts]


@dataclass
class Client:
    """HTTP to one engine."""

    url: str
    session: aiohttp.ClientSession

    async def get(self, path):
        async with self.session.get(self.url + path) as response:
            body = await response.read()
            return response.status, json.loads(body) if body and response.content_type == "application/json" else body

    async def post(self, path, body, **arguments):
        async with self.session.post(self.url + path, json=body, **arguments) as response:
            return response.status, await response.json()

    async def complete(self, prompt="hello", **fields):
        status, body = await self.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, **fields})
        assert status == 200, body
        return body

    async def events(self, path="/v1/completions", **fields):
        body = {"prompt": "hello", "max_tokens": 8, **fields}
        async with self.session.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            return parse_events(await response.read())

    def open_stream(self, **fields):
        """A long stream, to be read or torn by the test."""
        body = {"prompt": "hello", "max_tokens": 4000, "ignore_eos": True, "stream": True, **fields}
        return self.session.post(self.url + "/v1/completions", json=body)

    async def families(self):
        async with self.session.get(self.url + "/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            return {family.name: family for family in text_string_to_metric_families(await response.text())}

    async def value(self, name, **labels):
        """One sample's value, whatever its other labels are."""
        for family in (await self.families()).values():
            for sample in family.samples:
                if sample.name == f"vllm:{name}" and labels.items() <= sample.labels.items():
                    return sample.value
        raise AssertionError(f"no sample vllm:{name} {labels}")

    async def faults(self, **fields):
        status, body = await self.post("/_enginesim/faults", fields)
        assert status == 200, body
        return body


@pytest.fixture
async def session():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS)) as session:
        yield session


@pytest.fixture
async def service(session):
    """Builds an engine service in this loop: `service("--block-size 32", SEED="1")`; (service, client), not started."""
    services = []

    def build(flags="", **environment):
        host = loopback()
        prefixed = {f"ENGINESIM_{name}": value for name, value in environment.items()}
        built = EngineService(
            parse_flags(["serve", "tiny", "--host", host, *flags.split()]), read_settings({**FAST, **prefixed})
        )
        services.append(built)
        return built, Client(f"http://{host}:8000", session)

    yield build
    for built in services:
        await built.stop()


@pytest.fixture
async def engine(service):
    """Starts an engine in this loop and hands out its client."""

    async def start(flags="", **environment):
        built, client = service(flags, **environment)
        assert await built.start(None)
        return client

    return start


class Spawned:
    """An engine process."""

    def __init__(self, process, client, log):
        self.process = process
        self.client = client
        self._log = log

    @property
    def log(self):
        return self._log.read_text() if self._log.exists() else ""

    def send_signal(self, number):
        os.kill(self.process.pid, number)

    async def ready(self):
        """Wait until it listens; fails when it ended instead."""

        async def listens():
            assert self.process.exitcode is None, self.log
            try:
                status, _ = await self.client.get("/health")
            except aiohttp.ClientConnectionError:
                return False
            return status == 200

        await eventually(listens, "the engine did not listen")
        return self

    async def ended(self):
        """Wait for its exit code."""

        async def gone():
            return self.process.exitcode is not None

        await eventually(gone, "the engine did not end")
        return self.process.exitcode


@pytest.fixture(scope="session")
def forks():
    """Forks engines off one process that has imported them: an import costs more than most tests."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "e2e.enginesim.process"])
    return context


@pytest.fixture
async def spawn(session, tmp_path, forks):
    """Starts an engine process; whatever of it still runs at the end is killed."""
    processes = []

    async def start(flags="", *, host=None, **environment):
        host = host or loopback()
        variables = {**FAST, **{f"ENGINESIM_{name}": value for name, value in environment.items()}}
        log = tmp_path / f"{len(processes)}.log"
        arguments = ["serve", "tiny", "--host", host, *flags.split()]
        process = forks.Process(target=run_logged, args=(arguments, variables, str(log)), daemon=True)
        process.start()
        processes.append(process)
        return Spawned(process, Client(f"http://{host}:8000", session), log)

    yield start
    for process in processes:
        process.kill()
        process.join()
