"""`python -m e2e.conformance [--only NAME …] [--json]`: exit 0 only when every difference is listed with its reason."""

import asyncio
import json
import sys
import time
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from e2e import realengine
from e2e.conformance.checks import check_names
from e2e.conformance.compare import (
    KNOWN_DIFFERENCES,
    Comparison,
    KnownDifferencesError,
    compare,
    read_known,
)
from e2e.conformance.engines import REAL, SIMULATOR, EngineError, EngineKind
from e2e.conformance.records import Json, flatten
from e2e.conformance.run import Observations, observe

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
EXPECTED_FAILURES = (
    EngineError,
    KnownDifferencesError,
    realengine.NotInstalledError,
    realengine.UnsupportedArgumentsError,
)


class Side(StrEnum):
    """Which engine to look at alone."""

    SIMULATOR = "simulator"
    REAL = "real"


def _say(text: str) -> None:
    typer.echo(f"[conformance] {text}", err=True)


@app.command()
def conformance(
    *,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Run this check alone (repeatable): {', '.join(check_names())}.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    side: Annotated[Side | None, typer.Option(help="Observe one engine alone and print what it showed.")] = None,
) -> None:
    """Send the same requests to the engine simulator and to a real vLLM and compare what comes back."""
    unknown = sorted(set(only or ()) - set(check_names()))
    if unknown:
        raise typer.BadParameter(
            f"no check {', '.join(unknown)}; there are {', '.join(check_names())}", param_hint="--only"
        )
    wanted = tuple(only or check_names())
    if side is not None:
        kind = SIMULATOR if side is Side.SIMULATOR else REAL
        typer.echo(json.dumps(asyncio.run(observe(kind, wanted=wanted, say=_say)).records, indent=2, sort_keys=True))
        return
    known = read_known(KNOWN_DIFFERENCES.read_text())
    started = time.monotonic()
    simulator, real = asyncio.run(_observe_both(wanted))
    result = compare(simulator=simulator.records, real=real.records, known=known)
    seconds = time.monotonic() - started
    if as_json:
        typer.echo(json.dumps(_as_json(result, simulator=simulator, real=real, seconds=seconds), indent=2))
    else:
        _print(result, checks=wanted, simulator=simulator, real=real, seconds=seconds)
    sys.exit(0 if result.passed else 1)


async def _observe_both(wanted: tuple[str, ...]) -> tuple[Observations, Observations]:
    # One after the other: on few cores two busy engines would blur every timing that a check depends on.
    return await _observe(SIMULATOR, wanted), await _observe(REAL, wanted)


async def _observe(kind: EngineKind, wanted: tuple[str, ...]) -> Observations:
    return await observe(kind, wanted=wanted, say=_say)


def _as_json(result: Comparison, *, simulator: Observations, real: Observations, seconds: float) -> dict[str, Json]:
    return {
        "passed": result.passed,
        "values": result.values,
        "differences": [
            {
                "path": difference.path,
                "simulator": difference.simulator,
                "real": difference.real,
                "reason": difference.reason,
            }
            for difference in result.differences
        ],
        "stale": [entry.path for entry in result.stale],
        "seconds": round(seconds, 1),
        "start_seconds": {"simulator": list(simulator.start_seconds), "real": list(real.start_seconds)},
        "resident_gb": {"simulator": round(simulator.resident_gb, 3), "real": round(real.resident_gb, 3)},
    }


def _print(
    result: Comparison, *, checks: tuple[str, ...], simulator: Observations, real: Observations, seconds: float
) -> None:
    console = Console()
    table = Table("check", "values", "listed", "unlisted", title="Engine simulator against a real vLLM")
    for name in checks:
        mine = [difference for difference in result.differences if difference.path.split(".", 1)[0] == name]
        unlisted = sum(difference.reason is None for difference in mine)
        values = len(flatten(simulator.records[name]).keys() | flatten(real.records[name]).keys())
        table.add_row(name, str(values), str(len(mine) - unlisted), f"[red]{unlisted}[/]" if unlisted else "0")
    console.print(table)
    if result.unlisted:
        details = Table("path", "simulator", "real", title="Differences without a reason")
        for difference in result.unlisted:
            details.add_row(difference.path, _shown(difference.simulator), _shown(difference.real))
        console.print(details)
    for entry in result.stale:
        console.print(f"[red]listed but no longer seen:[/] {entry.path} ({entry.reason})")
    console.print(
        f"{result.values} values, {len(result.differences)} differences, {len(result.unlisted)} without a reason, "
        f"{len(result.stale)} stale; {seconds:.0f} s, of which real engine starts "
        f"{', '.join(f'{start:.0f}' for start in real.start_seconds)} s at {real.resident_gb:.1f} GB resident"
    )


def _shown(value: Json) -> str:
    return json.dumps(value)[:400]


def main() -> None:
    """Run the command line; expected failures end with their message alone and exit code 2."""
    try:
        app()
    except EXPECTED_FAILURES as error:
        _say("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]))
        sys.exit(2)


if __name__ == "__main__":
    main()
