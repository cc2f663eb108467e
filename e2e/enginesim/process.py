"""Start-up, signals and exit codes of an engine process."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from aiohttp import web

from e2e.enginesim.faults import crash
from e2e.enginesim.flags import Flags, parse_flags
from e2e.enginesim.group import GroupError, GroupHead, GroupMember
from e2e.enginesim.server import EngineServer
from e2e.enginesim.settings import Settings, read_settings

log = logging.getLogger("enginesim")

_FLUSH_SECONDS = 5.0
"""How long the last chunks may take to leave once everything was aborted."""


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run an engine until it is told to end or fails; its exit code (2 for wrong flags or variables)."""
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(asctime)s %(message)s", datefmt="%m-%d %H:%M:%S"
    )
    flags = parse_flags(arguments)
    try:
        settings = read_settings(environment)
    except ValueError as error:
        return _refuse(str(error), status=2)
    if flags.ignored:
        log.info("flags without an effect here: %s", " ".join(flags.ignored))
    try:
        return asyncio.run(_run(flags, settings))
    except GroupError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"cannot listen: {error}")
    except ValueError as error:
        return _refuse(f"ValueError: {error}")


def run_logged(arguments: Sequence[str], environment: Mapping[str, str], log_path: str) -> NoReturn:
    """`main` as the target of a forked process, with standard output and error in a file.

    Most of an engine's start is the import of its libraries. A parent that starts many saves it with
    `multiprocessing`'s "forkserver" context and `set_forkserver_preload(["e2e.enginesim.process"])`.
    """
    with Path(log_path).open("ab") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    sys.exit(main(arguments, environment))


def _refuse(message: str, *, status: int = 1) -> int:
    log.error(message)
    return status


async def _run(flags: Flags, settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop)
    life = _headless_life if flags.headless else _head_life
    return await life(flags, settings, stop)


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(1)  # asked twice: now
    stop.set()


async def _cold_start(flags: Flags, settings: Settings) -> bool:
    """The stages before an engine is ready; False when there is no memory for its KV cache."""
    log.info("vLLM look-alike %s: starting to load model %s", settings.version, flags.model)
    await asyncio.sleep(settings.load_seconds)
    if settings.oom_at_start == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    log.info("loading weights took %.2f seconds", settings.load_seconds)
    await asyncio.sleep(settings.compile_seconds)
    log.info("compilation took %.2f seconds", settings.compile_seconds)
    if settings.oom_at_start == "error":
        log.error(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` (%.2f now)",
            flags.gpu_memory_utilization,
        )
        return False
    await asyncio.sleep(settings.cache_seconds)
    log.info("KV cache of %d tokens took %.2f seconds", settings.kv_tokens, settings.cache_seconds)
    return True


async def _until(stop: asyncio.Event, *others: "asyncio.Future[Any]") -> None:
    """Wait for the signal or for the first of the others; the others are left running."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        waiting: set[asyncio.Future[Any]] = {stopped, *others}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()


async def _head_life(flags: Flags, settings: Settings, stop: asyncio.Event) -> int:
    group = GroupHead(flags.nnodes) if flags.nnodes > 1 else None
    lost: list[asyncio.Future[int]] = []
    if group is not None:
        await group.listen(flags.master_addr or flags.host, flags.master_port)
        lost.append(asyncio.ensure_future(group.wait_lost()))
    service = EngineService(flags, settings)
    starting = asyncio.ensure_future(service.start(group))
    await _until(stop, starting, *lost)
    if starting.done() and not starting.result():
        return 1
    if starting.done():
        await _until(stop, service.stepping(), *lost)
    else:
        starting.cancel()
    if not stop.is_set():
        if service.failed:
            raise RuntimeError("the engine core died") from service.stepping().exception()
        raise GroupError(f"rank {lost[0].result()} is gone: the engine cannot go on")
    log.info("shutting down")
    ending = asyncio.ensure_future(service.stop())
    waiting: set[asyncio.Future[Any]] = {ending, *lost}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        raise GroupError(f"rank {lost[0].result()} left during the shutdown")
    if group is not None:
        group.close()
    return 0


class EngineService:
    """The listening part of rank 0: starts it, stops it as a signal would."""

    def __init__(self, flags: Flags, settings: Settings) -> None:
        self._flags = flags
        self._settings = settings
        self._server: EngineServer | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._stepping: asyncio.Future[Any] | None = None

    @property
    def failed(self) -> bool:
        """Whether the engine core ended by itself."""
        return self._stepping is not None and self._stepping.done()

    def stepping(self) -> "asyncio.Future[Any]":
        """Ends only when the engine core fails."""
        if self._stepping is None:
            raise RuntimeError("the engine was not started")
        return self._stepping

    async def start(self, group: GroupHead | None) -> bool:
        """Load, wait for the other ranks, listen. False when there is no memory for the KV cache."""
        if self._settings.listen_early:
            self._server = EngineServer(self._flags, self._settings)
            await self._listen(self._server)
        if not await _cold_start(self._flags, self._settings):
            return False
        if group is not None:
            await group.wait_complete(self._settings.group_join_seconds)
        server = self._server = self._server or EngineServer(self._flags, self._settings)
        server.start()
        if self._site is None:
            await self._listen(server)
        self._stepping = asyncio.ensure_future(_step(server))
        return True

    async def stop(self) -> None:
        """With a shutdown timeout let open requests end first; then abort what is left and send its last words."""
        if self._server is None or self._runner is None or self._site is None:
            return
        server = self._server
        server.draining = True
        if self._flags.shutdown_timeout:
            await server.wait_quiet(self._flags.shutdown_timeout)
        await self._site.stop()
        server.abort_all()
        await server.wait_quiet(_FLUSH_SECONDS)
        await self._runner.cleanup()
        if self._stepping is not None:
            self._stepping.cancel()

    async def _listen(self, server: EngineServer) -> None:
        self._runner = web.AppRunner(
            server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1
        )
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._flags.host, self._flags.port)
        await self._site.start()
        log.info("listening on %s", " ".join(f"http://{host}:{port}" for host, port, *_ in self._runner.addresses))


async def _step(server: EngineServer) -> None:
    async with asyncio.TaskGroup() as tasks:
        for driver in server.drivers:
            tasks.create_task(driver.run())


async def _headless_life(flags: Flags, settings: Settings, stop: asyncio.Event) -> int:
    joining = asyncio.ensure_future(
        GroupMember.join(
            flags.master_addr,
            flags.master_port,
            rank=flags.node_rank,
            nnodes=flags.nnodes,
            timeout_seconds=settings.group_join_seconds,
        )
    )
    await _until(stop, joining)
    if not joining.done():
        joining.cancel()
        return 0
    member = joining.result()
    ending = asyncio.ensure_future(member.wait_end())
    loading = asyncio.ensure_future(_cold_start(flags, settings))
    await _until(stop, ending, loading)
    if loading.done():
        if not loading.result():
            return 1
        member.announce_ready()
        if settings.crash_after_seconds is not None:
            asyncio.get_running_loop().call_later(settings.crash_after_seconds, crash)
        await _until(stop, ending)
    if stop.is_set() and not ending.done():
        # A rank that went at once would cut the streams that rank 0 lets end.
        await asyncio.wait({ending}, timeout=flags.shutdown_timeout)
        return 0
    if not ending.result():
        raise GroupError(f"rank 0 at {flags.master_addr}:{flags.master_port} is gone")
    return 0
