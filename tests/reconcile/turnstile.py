"""A port at which every call waits until the test lets it through, and may be made to lose it or its answer."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from bayplan.cluster.errors import Unreachable
from bayplan.cluster.port import Json
from bayplan.cluster.resources import Resource
from tests.fakes.api import FakeApi


class Fate(Enum):
    DONE = "done"
    CUT = "never arrived"
    LOST = "done, and the answer was lost"


@dataclass(eq=False)
class Call:
    who: int
    verb: str
    future: "asyncio.Future[Fate]" = field(repr=False)


class Turnstile:
    """The queue of calls of all operators."""

    def __init__(self) -> None:
        self.waiting: list[Call] = []

    async def enter(self, who: int, verb: str) -> Fate:
        call = Call(who, verb, asyncio.get_running_loop().create_future())
        self.waiting.append(call)
        try:
            return await call.future
        finally:
            if call in self.waiting:
                self.waiting.remove(call)

    def let_through(self, index: int, fate: Fate) -> None:
        """Give one waiting call its fate; nothing happens when none waits."""
        if self.waiting:
            call = self.waiting.pop(index % len(self.waiting))
            if not call.future.done():
                call.future.set_result(fate)


class TurnstilePort:
    """One operator's way to the API. `node_reads` remembers when pods of a node were listed: (node, version)."""

    def __init__(self, api: FakeApi, turnstile: Turnstile, who: int) -> None:
        self.node_reads: list[tuple[str, int]] = []
        self._api = api
        self._turnstile = turnstile
        self._who = who

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._api, verb)

        async def passing(*args: Any, **kwargs: Any) -> Any:
            fate = await self._turnstile.enter(self._who, verb)
            if fate is Fate.CUT:
                raise Unreachable("the connection was cut")
            done = await call(*args, **kwargs)
            if fate is Fate.LOST:
                raise Unreachable("the answer was lost")
            return done

        return passing

    async def list_pages(self, resource: Resource, **selectors: Any) -> AsyncGenerator[tuple[list[Json], str], None]:
        if await self._turnstile.enter(self._who, "list") is not Fate.DONE:
            raise Unreachable("the connection was cut")
        field_selector = selectors.get("field_selector") or ""
        if field_selector.startswith("spec.nodeName=") and field_selector != "spec.nodeName=":
            self.node_reads.append((field_selector.removeprefix("spec.nodeName="), self._api.version))
        async for page in self._api.list_pages(resource, **selectors):
            yield page
