"""Injects faults into requests: which request is hit follows from the seed and the order of arrival."""

import asyncio
import logging
import os
import random
from typing import Any

from pydantic import ValidationError

from e2e.enginesim.generation import Pace
from e2e.enginesim.replies import ApiError
from e2e.enginesim.settings import Faults, describe

log = logging.getLogger("enginesim")


class FaultInjector:
    """The faults of one engine, as they are now."""

    def __init__(self, faults: Faults, *, seed: int) -> None:
        self.faults = faults
        self._lottery = random.Random(seed)
        self._hang_left = faults.hang_requests
        self._crash_left = faults.crash_after_requests
        self._crash_timer: asyncio.TimerHandle | None = None
        self._closing = asyncio.Event()

    def start(self) -> None:
        """The engine is ready: a crash set by time counts from here."""
        self._arm_crash_timer()

    def close(self) -> None:
        """The engine ends: let go of the requests that hang."""
        self._closing.set()

    def update(self, data: Any) -> None:
        """Change the faults named in `data`. Raises ApiError (400) that names what is wrong with it."""
        if not isinstance(data, dict):
            raise ApiError("body: an object of fault names and values is expected")
        try:
            self.faults = Faults.model_validate({**self.faults.model_dump(), **data})
        except ValidationError as error:
            raise ApiError(describe(error)) from None
        if "hang_requests" in data:
            self._hang_left = self.faults.hang_requests
        if "crash_after_requests" in data:
            self._crash_left = self.faults.crash_after_requests
        if "crash_after_seconds" in data:
            self._arm_crash_timer()
        log.info("faults are now %s", self.faults)

    def remaining(self) -> dict[str, Any]:
        """The faults; counts say what is left of them."""
        return {
            **self.faults.model_dump(),
            "hang_requests": self._hang_left,
            "crash_after_requests": self._crash_left,
        }

    async def meet(self) -> Pace:
        """Let the faults have one more request; how late its tokens will be if it survives them.

        Raises ApiError for an injected error. Every request draws the same number of lots, so that changing one fault
        does not change whom another hits.
        """
        failing, late_first, late_gaps = (self._lottery.random() for _ in range(3))
        faults = self.faults
        if self._crash_left is not None:
            self._crash_left -= 1
            if self._crash_left <= 0:
                crash()
        if self._hang_left > 0:
            self._hang_left -= 1
            await self._closing.wait()
            raise ApiError("the engine is shutting down", status=500, error_type="InternalServerError")
        if failing < faults.error_share:
            raise ApiError("injected fault", status=faults.error_status, error_type="InternalServerError")
        return Pace(
            faults.slow_ttft_factor if late_first < faults.slow_ttft_share else 1,
            faults.slow_tpot_factor if late_gaps < faults.slow_tpot_share else 1,
        )

    def _arm_crash_timer(self) -> None:
        if self._crash_timer is not None:
            self._crash_timer.cancel()
            self._crash_timer = None
        if self.faults.crash_after_seconds is not None:
            self._crash_timer = asyncio.get_running_loop().call_later(self.faults.crash_after_seconds, crash)


def crash() -> None:
    """End the process as a fault does: at once, with status 1."""
    log.error("injected fault: crash")
    os._exit(1)
