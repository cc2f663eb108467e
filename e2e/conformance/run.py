"""Drive one engine through the sessions that hold the wanted checks."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass

from e2e.conformance.checks import SESSIONS, Check, Session
from e2e.conformance.engines import EngineKind, NotSeenError, running
from e2e.conformance.records import Record

STARTS = 3
"""At most, of a session in which a race kept a check from seeing what it is about."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Observations:
    """What one engine showed."""

    records: dict[str, Record]
    start_seconds: tuple[float, ...]
    resident_gb: float
    """Largest resident memory of its processes, in GB, seen between checks."""


async def observe(kind: EngineKind, *, wanted: Collection[str], say: Say) -> Observations:
    """Run the wanted checks on one engine; a session without any is not started.

    Raises:
        EngineError: the engine did not start, or did not do what a check needs.
    """
    records: dict[str, Record] = {}
    starts: list[float] = []
    resident_gb = 0.0
    for session in SESSIONS:
        checks = [check for check in session.checks if check.name in wanted]
        if checks:
            seen = await _with_new_starts(kind, session, checks, say=say)
            records |= seen.records
            starts += seen.start_seconds
            resident_gb = max(resident_gb, seen.resident_gb)
    return Observations(records=records, start_seconds=tuple(starts), resident_gb=resident_gb)


async def _with_new_starts(kind: EngineKind, session: Session, checks: Collection[Check], *, say: Say) -> Observations:
    for _ in range(STARTS - 1):
        try:
            return await _observe_session(kind, session, checks, say=say)
        except NotSeenError as error:
            say(f"{error}; once more with a new engine")
    return await _observe_session(kind, session, checks, say=say)


async def _observe_session(kind: EngineKind, session: Session, checks: Collection[Check], *, say: Say) -> Observations:
    records: dict[str, Record] = {}
    resident_gb = 0.0
    say(f"{kind.name}: starting")
    async with running(kind, extra_flags=session.flags, kv_blocks=session.kv_blocks) as engine:
        say(f"{kind.name}: ready after {engine.start_seconds:.1f} s")
        for check in checks:
            resident_gb = max(resident_gb, engine.resident_gb())
            say(f"{kind.name}: {check.name}")
            # Through JSON and back, so that tuples and lists are one thing and nothing else gets in.
            records[check.name] = json.loads(json.dumps(await check.observe(engine)))
    return Observations(records=records, start_seconds=(engine.start_seconds,), resident_gb=resident_gb)
