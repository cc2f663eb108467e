"""Kopf as the stream of our own kinds: `on.event` and nothing else of it.

It runs in a thread with an event loop of its own, because at its end it cancels every task of its loop, and it ends
for more reasons than a process should die of (an error in the stream, a middle box's HTML). Then it is started again;
only when it cannot stay up does the host give up, and the process exits. What it delivers is projected in its thread
and handed over to the engine's loop in batches.
"""

import asyncio
import contextlib
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import aiohttp
import kopf

from bayplan.cluster.apitimes import ApiTimes
from bayplan.cluster.clock import Clock, SystemClock, sleep, within
from bayplan.cluster.credentials import Access, Credentials
from bayplan.cluster.listing import PAGE_LIMIT
from bayplan.cluster.loop import run
from bayplan.cluster.resync import Resync
from bayplan.cluster.transport import CONNECT_SECONDS, DEFAULT_HEADERS

logger = logging.getLogger(__name__)

SHORT_LIFE_SECONDS = 30.0
SHORT_LIVES_ACCEPTED = 5
DELIVERIES_PER_TURN = 100
STOP_SECONDS = 3.0
CHECK_SECONDS = 10.0
FIRST_RESTART_SECONDS = 0.2
FIRST_LOGIN_DELAY_SECONDS = 0.1
MAX_LOGIN_DELAY_SECONDS = 30.0
STEADY_LOGIN_SECONDS = 60.0


class HostDied(Exception):  # noqa: N818 - an event of its own kind: the process has to end
    """Kopf cannot stay up."""


class _NoDiffs(kopf.DiffBaseStorage):
    """Kopf compares every event with a stored state before it looks for handlers; for ours there is nothing to find."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:  # noqa: ARG002
        return {}

    def fetch(self, *, body: Any) -> None:  # noqa: ARG002
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:  # noqa: ARG002
        raise AssertionError("Kopf stores nothing on our objects")


class _Life:
    """One run of Kopf: what both threads know of it."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.ended = asyncio.Event()
        self.halted = False
        self.loop: asyncio.AbstractEventLoop | None = None

    def halt(self) -> None:
        """Ask it to end, from the engine's thread, however far its start has got."""
        self.halted = True
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                self.loop.call_soon_threadsafe(self.stop.set)


class KopfHost:
    """Streams the kinds of `resyncs` into their stores. Run `run()` as a task on the engine's loop."""

    def __init__(
        self,
        credentials: Credentials,
        resyncs: Sequence[Resync[Any]],
        *,
        clock: Clock | None = None,
        times: ApiTimes | None = None,
    ) -> None:
        self.restarts = 0
        """How often Kopf had to be started again."""
        self._credentials = credentials
        self._resyncs: dict[str, Resync[Any]] = {resync.name: resync for resync in resyncs}
        self._clock = clock or SystemClock()
        self._times = times or ApiTimes()
        self._inbox: deque[Callable[[], object]] = deque()
        self._draining = False
        self._listed: set[str] = set()
        self._heard_at: dict[str, float] = {}
        self._access: Access | None = None
        self._logins = 0
        self._login_at = 0.0
        self._main: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Keep Kopf running until cancelled; raises HostDied when it does not stay up."""
        self._main = asyncio.get_running_loop()
        short_lives = 0
        while True:
            started = self._clock.time()
            await self._live()
            lived = self._clock.time() - started
            short_lives = short_lives + 1 if lived < SHORT_LIFE_SECONDS else 0
            if short_lives > SHORT_LIVES_ACCEPTED:
                raise HostDied(f"Kopf ended {short_lives} times within {SHORT_LIFE_SECONDS:g} s of its start")
            self.restarts += 1
            logger.warning("Kopf ended after %.0f s; starting it again", lived)
            await sleep(self._clock, FIRST_RESTART_SECONDS * 2.0**short_lives)
            for resync in self._resyncs.values():
                resync.request()

    # --- on the engine's loop ------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Run Kopf in a thread until it ends, a stream stalls, or we are cancelled."""
        life = _Life()
        self._listed.clear()
        self._access, self._logins = None, 0
        self._heard_at = dict.fromkeys(self._resyncs, self._clock.time())
        threading.Thread(target=self._thread, args=(life,), name="kopf", daemon=True).start()
        try:
            while not life.ended.is_set() and not self._stalled():
                with contextlib.suppress(TimeoutError):
                    await within(self._clock, CHECK_SECONDS, life.ended.wait())
        finally:
            life.halt()
            with contextlib.suppress(TimeoutError):
                # A thread that does not end is left behind: whatever it still delivers is never older news.
                await within(self._clock, STOP_SECONDS, life.ended.wait())

    def _stalled(self) -> bool:
        # A healthy stream is opened anew at least every watch period.
        limit = 2 * self._times.watch + self._times.idle
        now = self._clock.time()
        stalled = [name for name, heard_at in self._heard_at.items() if now - heard_at > limit]
        if stalled:
            logger.error("Kopf's streams of %s stalled", ", ".join(stalled))
        return bool(stalled)

    def _drain(self) -> None:
        for _ in range(min(DELIVERIES_PER_TURN, len(self._inbox))):
            try:
                self._inbox.popleft()()
            except Exception:
                logger.exception("an event could not be taken in")
        self._draining = False
        if self._inbox:
            self._schedule()

    def _hear(self, name: str) -> None:
        self._heard_at[name] = self._clock.time()
        self._resyncs[name].heard()

    # --- in Kopf's thread ----------------------------------------------------------------------------------------

    def _thread(self, life: _Life) -> None:
        try:
            run(self._serve(life))
        except Exception as error:
            logger.warning("Kopf failed: %s: %s", type(error).__name__, error)
        finally:
            with contextlib.suppress(RuntimeError):  # the engine's loop is gone: the process ends
                self._engine().call_soon_threadsafe(life.ended.set)

    async def _serve(self, life: _Life) -> None:
        life.loop = asyncio.get_running_loop()
        life.loop.set_exception_handler(_note_leftover)
        if life.halted:
            return
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, id="bayplan")(self._login)
        for name, resync in self._resyncs.items():
            resource = resync.store.resource
            watch = functools.partial(self._on_event, name)
            kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=name)(watch)
        tasks = await kopf.spawn_tasks(
            registry=registry, settings=_settings(self._times), clusterwide=True, standalone=True
        )
        # Kopf's own ending waits for seconds; the end of this loop cancels what is left, and only of this thread.
        roots = [*tasks, asyncio.create_task(life.stop.wait())]
        done, _ = await asyncio.wait(roots, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _on_event(self, kind: str, /, *, event: Mapping[str, Any], **_: Any) -> None:
        listing, raw = self._resyncs[kind].listing, event["object"]
        take = listing.discard if event["type"] == "DELETED" else listing.put
        self._deliver(functools.partial(self._hear, kind))
        self._deliver(functools.partial(take, raw))

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        refused = self._access
        if refused is not None:
            # Kopf logs in again after every 401; credentials that stay refused must not make it spin.
            self._logins = self._logins + 1 if self._clock.time() - self._login_at < STEADY_LOGIN_SECONDS else 0
            await asyncio.sleep(min(MAX_LOGIN_DELAY_SECONDS, FIRST_LOGIN_DELAY_SECONDS * 2.0 ** min(self._logins, 16)))
        self._login_at = self._clock.time()
        self._access = await self._ask(
            self._credentials.access() if refused is None else self._credentials.reload(refused)
        )
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._access.tls if self._access.tls is not None else True),
            headers=DEFAULT_HEADERS,
            middlewares=(self._send,),
            proxy=self._access.proxy,
        )
        return kopf.AiohttpSession(server=self._access.server, aiohttp_session=session)

    async def _send(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Put the token of the moment on each request, and note what its success means."""
        access = await self._ask(self._credentials.access())
        if access.authorization is not None:
            request.headers["Authorization"] = access.authorization
        request.server_hostname = access.tls_server_name
        response = await handler(request)
        name = request.url.path.rsplit("/", 1)[-1]
        if response.status < 300 and name in self._resyncs:
            self._deliver(functools.partial(self._hear, name))
            if "watch" not in request.url.query:
                if name in self._listed and "continue" not in request.url.query:
                    # Kopf lost its place, and it will not tell what vanished in between.
                    self._deliver(self._resyncs[name].request)
                self._listed.add(name)
        return response

    async def _ask(self, question: Coroutine[Any, Any, Access]) -> Access:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(question, self._engine()))

    def _deliver(self, take: Callable[[], object]) -> None:
        self._inbox.append(take)
        if not self._draining:
            self._schedule()

    def _schedule(self) -> None:
        self._draining = True
        with contextlib.suppress(RuntimeError):
            self._engine().call_soon_threadsafe(self._drain)

    def _engine(self) -> asyncio.AbstractEventLoop:
        if self._main is None:
            raise RuntimeError("the host is not running")
        return self._main


def _note_leftover(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keep what Kopf leaves unfinished at its end out of the log: the end itself is reported."""
    logger.debug("Kopf left behind: %s", context.get("message"))


def _settings(times: ApiTimes) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.queueing.idle_timeout = 0.2  # a task per object lives that long after its last event
    settings.queueing.exit_timeout = 0.5
    settings.networking.request_timeout = times.request
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.error_backoffs = (0.2, 0.5, 1, 2, 5, 10)
    settings.watching.server_timeout = int(times.watch)  # the server reads a whole number
    settings.watching.client_timeout = times.watch + CONNECT_SECONDS
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = times.idle
    settings.watching.chunk_size = PAGE_LIMIT
    return settings
