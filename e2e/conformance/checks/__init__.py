"""The checks, in the order in which one started engine goes through them.

A session is one start of an engine with its own flags; a check that ends the engine is its last.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from e2e.conformance.checks import answers, counting, errors, shutdown, surface
from e2e.conformance.engines import DEFAULT_KV_BLOCKS, Engine
from e2e.conformance.records import Record


@dataclass(frozen=True)
class Check:
    """One thing to observe: `observe` drives an engine and returns what it saw, without what may differ by chance."""

    name: str
    observe: Callable[[Engine], Awaitable[Record]]


@dataclass(frozen=True)
class Session:
    """Checks that share a start of the engine."""

    checks: tuple[Check, ...]
    flags: tuple[str, ...] = ()
    kv_blocks: int = DEFAULT_KV_BLOCKS


SESSIONS = (
    Session(
        checks=(
            Check("start", surface.observe_start),
            Check("models", surface.observe_models),
            Check("metric-families", surface.observe_families),
            Check("cache-config", surface.observe_cache_config),
            Check("cache-salt", counting.observe_salts),
            Check("counters", counting.observe_counters),
            Check("bodies", answers.observe_bodies),
            Check("streams", answers.observe_streams),
            Check("usage", answers.observe_usage),
            Check("errors", errors.observe_errors),
            Check("waiting", counting.observe_waiting),
        )
    ),
    Session(
        checks=(
            Check("disconnect", counting.observe_disconnect),
            Check("sigterm", shutdown.observe_cut),
        ),
        flags=shutdown.LONG_FLAGS,
    ),
    Session(
        checks=(Check("preemption", counting.observe_preemption),),
        flags=("--max-num-seqs", "2"),
        kv_blocks=counting.TIGHT_KV_BLOCKS,
    ),
    Session(checks=(Check("sigterm-drain", shutdown.observe_drain),), flags=shutdown.DRAIN_FLAGS),
)


def check_names() -> tuple[str, ...]:
    """Names of all checks, in order."""
    return tuple(check.name for session in SESSIONS for check in session.checks)
