"""`python -m e2e.conformance [--only NAME …] [--json]`: exit 0 only when every difference is listed with its reason.

After the comparison of requests come the parts that only a real engine can show (`parts`); each is a name for `--only`.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from e2e.conformance.engines import REAL, SIMULATOR, EngineError
from e2e.conformance.parts import PARTS, Finding, find
from e2e.conformance.records import Json, flatten
from e2e.conformance.run import Observations, observe

NAMES = (*check_names(), *PARTS)
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
    findings: Mapping[str, Finding]
    """By the name of the part."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing is left to explain or repair."""
        return self.comparison.passed and all(finding.passed for finding in self.findings.values())


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
    findings = {name: await find(name, say=_say) for name in PARTS if name in wanted}
    return Outcome(
        comparison=compare(simulator=simulator.records, real=real.records, known=known),
        simulator=simulator,
        real=real,
        findings=findings,
        seconds=time.monotonic() - started,
    )


def _as_json(outcome: Outcome) -> dict[str, Json]:
    result = outcome.comparison
    return {
        "passed": outcome.passed,
        "values": result.values,
        "differences": [asdict(difference) for difference in result.differences],
        "stale": [entry.path for entry in result.stale],
        "parts": {name: finding.as_json() for name, finding in outcome.findings.items()},
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
    for name, finding in outcome.findings.items():
        console.print(f"[red]{name} failed:[/] {finding.error}" if finding.error else PARTS[name].show(finding.result))
    console.print(f"{outcome.seconds:.0f} s in all")


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
