"""A replica spread over several nodes: its ranks find each other, start together and fail together.

Every rank above 0 keeps one TCP connection to rank 0 and says one line each time: `join RANK OF`, then `ready` when its
own part is loaded. Rank 0 answers `leave` before an orderly end. A connection that ends without it is a lost rank.
"""

import asyncio
import contextlib
import logging
from typing import Any

log = logging.getLogger("enginesim")

_RETRY_SECONDS = 0.2


class GroupError(Exception):
    """The group cannot form, or lost a rank."""


class GroupHead:
    """Rank 0's side."""

    def __init__(self, nnodes: int) -> None:
        self._nnodes = nnodes
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._ready: set[int] = set()
        self._complete = asyncio.Event()
        self._lost: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._leaving = False
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """Accept ranks. Raises OSError when the address is taken."""
        self._server = await asyncio.start_server(self._serve_rank, host, port)

    async def wait_complete(self, timeout_seconds: float) -> None:
        """Wait until every rank is ready. Raises GroupError when one is lost or the time is over."""
        complete = asyncio.ensure_future(self._complete.wait())
        waiting: set[asyncio.Future[Any]] = {complete, self._lost}
        try:
            done, _ = await asyncio.wait(waiting, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            complete.cancel()
        if self._lost in done:
            raise GroupError(f"rank {self._lost.result()} was lost before the group was complete")
        if not done:
            missing = sorted(set(range(1, self._nnodes)) - self._ready)
            raise GroupError(f"ranks {missing} were not ready within {timeout_seconds:g} s")

    async def wait_lost(self) -> int:
        """The first rank whose connection ended."""
        return await asyncio.shield(self._lost)

    def close(self) -> None:
        """Let the ranks leave in order."""
        self._leaving = True
        if self._server is not None:
            self._server.close()
        for writer in self._writers.values():
            writer.write(b"leave\n")
            writer.close()

    async def _serve_rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = 0
        try:
            rank = self._admit((await reader.readline()).decode(errors="replace").split())
            self._writers[rank] = writer
            log.info("rank %d of %d joined", rank, self._nnodes)
            while line := await reader.readline():
                if line.strip() == b"ready":
                    self._ready.add(rank)
                    if len(self._ready) == self._nnodes - 1:
                        self._complete.set()
        except (GroupError, ConnectionError, ValueError) as error:
            log.warning("group: %s", error)
        finally:
            writer.close()
            if rank and not self._leaving and not self._lost.done():
                self._lost.set_result(rank)

    def _admit(self, words: list[str]) -> int:
        if len(words) != 3 or words[0] != "join" or not words[1].isdigit() or not words[2].isdigit():
            raise GroupError(f"refused a stranger: {' '.join(words)[:60]!r}")
        rank, of = int(words[1]), int(words[2])
        if of != self._nnodes or not 0 < rank < self._nnodes:
            raise GroupError(f"refused rank {rank} of {of}: this group has {self._nnodes} nodes")
        if rank in self._writers:
            raise GroupError(f"refused a second rank {rank}")
        return rank


class GroupMember:
    """The side of a rank above 0."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def join(cls, host: str, port: int, *, rank: int, nnodes: int, timeout_seconds: float) -> "GroupMember":
        """Connect to rank 0, which may start later. Raises GroupError when it does not answer in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                if loop.time() >= deadline:
                    raise GroupError(f"rank 0 at {host}:{port} did not answer within {timeout_seconds:g} s") from error
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            writer.write(f"join {rank} {nnodes}\n".encode())
            return cls(reader, writer)

    def announce_ready(self) -> None:
        """Tell rank 0 that this part is loaded."""
        self._writer.write(b"ready\n")

    async def wait_end(self) -> bool:
        """Wait for the end of the group; True when rank 0 left in order."""
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                if line.strip() == b"leave":
                    return True
        return False
