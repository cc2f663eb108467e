"""The two engines under test, as processes that are started with equal flags and talked to over HTTP."""

import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import psutil

from e2e import realengine
from e2e.conformance.metrics import Scrape, parse
from e2e.localcluster.processes import SupervisedProcess, log_tail

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = "tiny"
BLOCK_SIZE = 32
MAX_MODEL_LEN = 1024
MAX_NUM_SEQS = 4
KV_BYTES_PER_TOKEN = 1024
"""Of the tiny model: 4 layers x keys and values x 2 heads x 32 numbers x 2 bytes."""
READY_SECONDS = 900.0
EXIT_SECONDS = 120.0
POLL_SECONDS = 0.05
METRICS_SECONDS = 10.0

BASE_FLAGS = (
    *("--model", "file:///models/tiny", "--served-model-name", MODEL),
    *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS)),
    *("--block-size", str(BLOCK_SIZE), "--gpu-memory-utilization", "0.9", "--kv-cache-dtype", "auto"),
    *("--tensor-parallel-size", "1"),
)


class EngineError(RuntimeError):
    """An engine did not do what every check needs: start, stay up, update its metrics, end."""


class NotSeenError(EngineError):
    """What a check is about did not come about, by a race inside the engine: it is looked at once more.

    Two are known of the real engine. Its core runs ahead of its server, and may be done before a client that has seen
    one chunk can act. And at some SIGTERMs its server kills its own core, and nobody is left to end the streams.
    """


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """How one of the two is started."""

    name: str
    host: str
    """Loopback address of its own."""
    command: Callable[[str, int, Sequence[str], int], tuple[list[str], dict[str, str]]]
    """(host, port, flags, KV blocks) to command line and environment."""


def _simulator(host: str, port: int, flags: Sequence[str], kv_blocks: int) -> tuple[list[str], dict[str, str]]:
    settings = {
        "ENGINESIM_KV_TOKENS": str(kv_blocks * BLOCK_SIZE),
        "ENGINESIM_KV_BYTES_PER_TOKEN": str(KV_BYTES_PER_TOKEN),
        # About the real engine's pace on two cores, so that streams last equally long.
        "ENGINESIM_STEP_SECONDS": "0.0015",
        "ENGINESIM_LOAD_SECONDS": "0.5",
    }
    command = [sys.executable, "-m", "e2e.enginesim", *flags, "--host", host, "--port", str(port)]
    return command, {**os.environ, **settings}


def _real(host: str, port: int, flags: Sequence[str], kv_blocks: int) -> tuple[list[str], dict[str, str]]:
    override = () if kv_blocks == DEFAULT_KV_BLOCKS else ("--num-gpu-blocks-override", str(kv_blocks))
    return realengine.argv(host=host, port=port, container_args=[*flags, *override], env=os.environ)


DEFAULT_KV_BLOCKS = 2**30 // (KV_BYTES_PER_TOKEN * BLOCK_SIZE)
"""What the real engine makes of its 1 GiB."""
SIMULATOR = EngineKind(name="simulator", host="127.0.71.1", command=_simulator)
REAL = EngineKind(name="real", host="127.0.71.2", command=_real)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One whole HTTP answer."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        """The body as JSON, None when it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass
class Engine:
    """A running engine. `states` are the distinct consecutive answers seen while it started."""

    kind: EngineKind
    host: str
    port: int
    process: SupervisedProcess
    client: aiohttp.ClientSession
    states: list[list[str]] = field(default_factory=list)
    start_seconds: float = 0.0

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return f"http://{self.host}:{self.port}"

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request; `json` is sent as JSON, `data` as it is (then with no content type but the one in headers)."""
        skip = ("Content-Type",) if data is not None and not (headers and "Content-Type" in headers) else ()
        async with self.client.request(
            method,
            self.url + path,
            json=json,
            data=data,
            headers=headers,
            skip_auto_headers=skip,
            allow_redirects=False,
        ) as response:
            return Answer(
                status=response.status,
                content_type=response.headers.get("Content-Type", ""),
                body=await response.read(),
            )

    async def scrape(self) -> Scrape:
        """/metrics now."""
        answer = await self.call("GET", "/metrics")
        return parse(answer.body.decode())

    async def scrape_when(self, condition: Callable[[Scrape], bool], *, what: str) -> Scrape:
        """/metrics once it shows what is expected: engines report their counters some time after the answer.

        Raises:
            EngineError: not within `METRICS_SECONDS`.
        """
        deadline = time.monotonic() + METRICS_SECONDS
        while True:
            scrape = await self.scrape()
            if condition(scrape):
                return scrape
            if time.monotonic() > deadline:
                raise EngineError(f"{self.kind.name}: /metrics does not show {what} after {METRICS_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)

    def main_process(self) -> psutil.Process:
        """The engine's first process, which a kubelet would signal."""
        return psutil.Process(self.process.identity.pid).children()[0]

    def resident_gb(self) -> float:
        """Resident memory of all its processes in GB."""
        tree = [self.main_process(), *self.main_process().children(recursive=True)]
        return sum(process.memory_info().rss for process in tree) / 1e9

    async def wait_exit(self) -> int:
        """Exit code once it has ended by itself (128 + signal when one ended it).

        Raises:
            EngineError: still running after `EXIT_SECONDS`.
        """
        try:
            return await asyncio.wait_for(self.process.wait(), EXIT_SECONDS)
        except TimeoutError:
            raise EngineError(f"{self.kind.name}: still running {EXIT_SECONDS:g} s after SIGTERM") from None

    async def watch_start(self) -> None:
        """Poll until it serves, noting what it answered on the way.

        Raises:
            EngineError: it ended, or is not ready in time; with the end of its log.
        """
        started = time.monotonic()
        while True:
            state = [await self._probe("/health"), await self._probe("/v1/models")]
            if await self._probe("/health") != state[0]:
                continue  # it changed between the two questions: they are not about the same moment
            if not self.states or self.states[-1] != state:
                self.states.append(state)
            if state == ["200", "200"]:
                break
            code = self.process.exit_code()
            if code is not None or time.monotonic() - started > READY_SECONDS:
                what = "is not ready in time" if code is None else f"ended with {code}"
                raise EngineError(f"{self.kind.name} {what}:\n{log_tail(self.process.log_path, lines=40)}")
            await asyncio.sleep(POLL_SECONDS)
        self.start_seconds = time.monotonic() - started

    async def _probe(self, path: str) -> str:
        try:
            return str((await self.call("GET", path)).status)
        except aiohttp.ClientConnectorError:
            return "refused"
        except aiohttp.ClientError as error:
            return type(error).__name__

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.close()
        await self.process.stop()


def free_port(host: str) -> int:
    """A port that was free on `host` a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def running(
    kind: EngineKind, *, extra_flags: Sequence[str] = (), kv_blocks: int = DEFAULT_KV_BLOCKS
) -> AsyncIterator[Engine]:
    """A started engine, ended with everything it started when the block is left."""
    port = free_port(kind.host)
    command, environment = kind.command(kind.host, port, [*BASE_FLAGS, *extra_flags], kv_blocks)
    with tempfile.TemporaryDirectory(prefix=f"bayplan-{kind.name}-") as folder:
        process = SupervisedProcess.start(
            command,
            name=kind.name,
            log_path=Path(folder, "engine.log"),
            environment={**environment, "PYTHONPATH": str(REPOSITORY)} if kind is SIMULATOR else environment,
            folder=Path(folder),
        )
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(total=120)
        )
        async with Engine(kind=kind, host=kind.host, port=port, process=process, client=session) as engine:
            await engine.watch_start()
            try:
                yield engine
            except (aiohttp.ClientError, EngineError, TimeoutError) as error:
                with suppress(AttributeError):
                    error.add_note(f"end of the {kind.name} log:\n{log_tail(process.log_path, lines=30)}")
                raise
