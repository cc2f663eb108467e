"""`python -m e2e.conformance [--only NAME …] [--json]`: exit 0 only when every difference is listed with its reason.

Then one start per family of models shows how the engine pages its KV cache, against `bayplan fit` (`--only cache-pages`
alone). Ends with one InferenceModel taken from apply to a streamed answer and a rise in replicas on the real engine
(`--only apply-to-answer` alone), and with the gateway in front of two real engines (`--only gateway` alone).
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated

import aiohttp
import typer
from rich.console import Console
from rich.table import Table

from e2e import realengine
from e2e.conformance.cachepages import CachePages, CachePagesError, cache_pages
from e2e.conformance.checks import check_names
from e2e.conformance.compare import (
    KNOWN_DIFFERENCES,
    Comparison,
    KnownDifferencesError,
    compare,
    read_known,
)
from e2e.conformance.engines import REAL, SIMULATOR, EngineError
from e2e.conformance.gatewaycheck import GatewayCheck, GatewayCheckError, gateway_on_real_engines
from e2e.conformance.records import Json, flatten
from e2e.conformance.run import Observations, observe
from e2e.conformance.scalingcheck import ScalingCheckError
from e2e.conformance.servedmodel import ServedModel, ServedModelError, apply_to_answer
from e2e.localcluster import ClusterError
from e2e.scenarios.stack import StackError

APPLY_TO_ANSWER = "apply-to-answer"
GATEWAY = "gateway"
CACHE_PAGES = "cache-pages"
NAMES = (*check_names(), CACHE_PAGES, APPLY_TO_ANSWER, GATEWAY)
SERVING_FAILURES = (
    ClusterError,
    GatewayCheckError,
    ScalingCheckError,
    ServedModelError,
    StackError,
    TimeoutError,
    aiohttp.ClientError,
)
EXPECTED_FAILURES = (
    EngineError,
    KnownDifferencesError,
    realengine.NotInstalledError,
    realengine.UnsupportedArgumentsError,
)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Side(StrEnum):
    """Which engine to look at alone."""

    SIMULATOR = "simulator"
    REAL = "real"


@dataclass(frozen=True)
class Outcome:
    """Everything that a run found."""

    comparison: Comparison
    simulator: Observations
    real: Observations
    served: ServedModel | None
    served_error: str | None
    """Why the model was not served, where that was tried and failed."""
    gateway: GatewayCheck | None
    gateway_error: str | None
    """What the gateway did wrong in front of real engines."""
    caches: list[CachePages]
    """How the real engine pages the caches of several families, beside what is planned."""
    caches_error: str | None
    """Why that could not be seen."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing is left to explain or repair."""
        errors = (self.served_error, self.gateway_error, self.caches_error)
        return self.comparison.passed and errors == (None, None, None) and all(one.equal for one in self.caches)


def _say(text: str) -> None:
    typer.echo(f"[conformance] {text}", err=True)


@app.command()
def conformance(
    *,
    only: Annotated[list[str] | None, typer.Option(help=f"Run this alone (repeatable): {', '.join(NAMES)}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    side: Annotated[Side | None, typer.Option(help="Observe one engine alone and print what it showed.")] = None,
) -> None:
    """Send the same requests to the engine simulator and to a real vLLM and compare what comes back."""
    unknown = sorted(set(only or ()) - set(NAMES))
    if unknown:
        raise typer.BadParameter(f"no check {', '.join(unknown)}; there are {', '.join(NAMES)}", param_hint="--only")
    wanted = [name for name in NAMES if not only or name in only]
    if side is not None:
        kind = SIMULATOR if side is Side.SIMULATOR else REAL
        typer.echo(json.dumps(asyncio.run(observe(kind, wanted=wanted, say=_say)).records, indent=2, sort_keys=True))
        return
    outcome = asyncio.run(_run(wanted))
    if as_json:
        typer.echo(json.dumps(_as_json(outcome), indent=2))
    else:
        _print(outcome)
    sys.exit(0 if outcome.passed else 1)


async def _run(wanted: Sequence[str]) -> Outcome:
    known = read_known(KNOWN_DIFFERENCES.read_text())
    realengine.installed()
    started = time.monotonic()
    # One after the other: on few cores two busy engines would blur every timing that a check depends on.
    simulator = await observe(SIMULATOR, wanted=wanted, say=_say)
    real = await observe(REAL, wanted=wanted, say=_say)
    caches: list[CachePages] = []
    caches_error = None
    if CACHE_PAGES in wanted:
        try:
            caches = await cache_pages(say=_say)
        except CachePagesError as error:
            caches_error = str(error)
    served: ServedModel | None = None
    served_error = None
    if APPLY_TO_ANSWER in wanted:
        try:
            served = await apply_to_answer(say=_say)
        except SERVING_FAILURES as error:
            served_error = str(error)
    gateway: GatewayCheck | None = None
    gateway_error = None
    if GATEWAY in wanted:
        try:
            gateway = await gateway_on_real_engines(say=_say)
        except SERVING_FAILURES as error:
            gateway_error = str(error) or type(error).__name__
    return Outcome(
        comparison=compare(simulator=simulator.records, real=real.records, known=known),
        simulator=simulator,
        real=real,
        served=served,
        served_error=served_error,
        gateway=gateway,
        gateway_error=gateway_error,
        caches=caches,
        caches_error=caches_error,
        seconds=time.monotonic() - started,
    )


def _as_json(outcome: Outcome) -> dict[str, Json]:
    result = outcome.comparison
    return {
        "passed": outcome.passed,
        "values": result.values,
        "differences": [asdict(difference) for difference in result.differences],
        "stale": [entry.path for entry in result.stale],
        "apply_to_answer": None if outcome.served is None else asdict(outcome.served),
        "apply_to_answer_error": outcome.served_error,
        "gateway": None if outcome.gateway is None else asdict(outcome.gateway),
        "gateway_error": outcome.gateway_error,
        "cache_pages": [{**asdict(one), "equal": one.equal} for one in outcome.caches],
        "cache_pages_error": outcome.caches_error,
        "seconds": round(outcome.seconds, 1),
        "start_seconds": {
            "simulator": list(outcome.simulator.start_seconds),
            "real": list(outcome.real.start_seconds),
        },
        "resident_gb": {
            "simulator": round(outcome.simulator.resident_gb, 3),
            "real": round(outcome.real.resident_gb, 3),
        },
    }


def _print(outcome: Outcome) -> None:
    console = Console()
    result = outcome.comparison
    table = Table("check", "values", "listed", "unlisted", title="Engine simulator against a real vLLM")
    for name, record in outcome.simulator.records.items():
        mine = [difference for difference in result.differences if difference.path.split(".", 1)[0] == name]
        unlisted = sum(difference.reason is None for difference in mine)
        values = len(flatten(record).keys() | flatten(outcome.real.records[name]).keys())
        table.add_row(name, str(values), str(len(mine) - unlisted), f"[red]{unlisted}[/]" if unlisted else "0")
    if result.values:
        console.print(table)
    if result.unlisted:
        details = Table("path", "simulator", "real", title="Differences without a reason")
        for difference in result.unlisted:
            details.add_row(difference.path, _shown(difference.simulator), _shown(difference.real))
        console.print(details)
    for entry in result.stale:
        console.print(f"[red]listed but no longer seen:[/] {entry.path} ({entry.reason})")
    if result.values:
        starts = ", ".join(f"{start:.0f} s" for start in outcome.real.start_seconds)
        console.print(
            f"{result.values} values, {len(result.differences)} differences, {len(result.unlisted)} without a reason, "
            f"{len(result.stale)} stale; real engine: starts of {starts}, {outcome.real.resident_gb:.1f} GB resident"
        )
    _print_caches(console, outcome)
    if outcome.served is not None:
        served = outcome.served
        console.print(
            f"apply to answer on vLLM {served.engine_version}: Ready after {served.ready_seconds:.0f} s, "
            f"{served.tokens} tokens streamed from {served.address}, gone {served.gone_seconds:.0f} s after delete"
        )
        console.print(
            f"scaling read {served.scaling.read_by_operator:.0f} tokens/s from it, clients got "
            f"{served.scaling.seen_by_clients:.0f}: {served.scaling.desired_replicas} replicas desired"
        )
    if outcome.served_error is not None:
        console.print(f"[red]apply to answer failed:[/] {outcome.served_error}")
    if outcome.gateway is not None:
        console.print(f"gateway on real engines: {outcome.gateway.summary()}")
    if outcome.gateway_error is not None:
        console.print(f"[red]gateway on real engines failed:[/] {outcome.gateway_error}")
    console.print(f"{outcome.seconds:.0f} s in all")


def _print_caches(console: Console, outcome: Outcome) -> None:
    if outcome.caches:
        pages = Table(
            "family", "blocks", "planned", "tokens", "planned", "", title="KV cache of 1 GiB, real and planned"
        )
        for one in outcome.caches:
            row = (one.engine.blocks, one.planned.blocks, one.engine.tokens, one.planned.tokens)
            pages.add_row(one.family, *map(str, row), "" if one.equal else "[red]differs[/]")
        console.print(pages)
    if outcome.caches_error is not None:
        console.print(f"[red]cache pages failed:[/] {outcome.caches_error}")


def _shown(value: Json) -> str:
    return json.dumps(value)[:400]


def main() -> None:
    """Run the command line; expected failures end with their message alone and exit code 2."""
    # A terminated run leaves through its blocks like an interrupted one: engines end, temporary folders go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        app()
    except EXPECTED_FAILURES as error:
        _say("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]))
        sys.exit(2)


if __name__ == "__main__":
    main()
