"""`bayplan gate …`: the paper gates on a file, without a cluster.

Exit code 0: it may be staged; 1: a gate failed; 2: the file is not usable, or its measurements are not current.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayplan.planning.numbers import InvalidInput
from bayplan.planning.rollout.paper import Paper, read_quantization, read_speculation
from bayplan.planning.rollout.quantization import QuantizationDecision, QuantizationGate
from bayplan.planning.rollout.speculation import SpeculationDecision
from bayplan.reconcile.plainyaml import read_plain_yaml

PASSED = 0
FAILED = 1
INVALID = 2

gate = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Judge the measurements of a candidate before a GPU is touched."
)
File = Annotated[Path, typer.Argument(help="YAML or JSON, as under spec.measurements of a Rollout.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the decision as JSON.")]


@gate.command()
def quantization(file: File, *, as_json: AsJson = False) -> None:
    """Six gates on {baseline, candidate, requirements}."""
    _judge(file, read_quantization, as_json=as_json)


@gate.command()
def speculation(file: File, *, as_json: AsJson = False) -> None:
    """The speed-up over {baseline, candidate, rounds, minimumSpeedup}."""
    _judge(file, read_speculation, as_json=as_json)


def _judge(file: Path, read: Callable[[object], Paper], *, as_json: bool) -> None:
    try:
        paper = read(read_plain_yaml(file.read_text(), "file"))
    except (OSError, UnicodeDecodeError) as error:
        _invalid(f"{file}: {error}", as_json=as_json)
    except InvalidInput as error:
        _invalid(f"{file}: {error}", as_json=as_json)
    now = Fraction(round(datetime.now(UTC).timestamp() * 1000), 1000)
    found = (record.doubt(now) for record in paper.records)
    doubts = [doubt.reason for doubt in found if doubt is not None]
    if as_json:
        typer.echo(json.dumps(_document(paper, doubts), indent=2))
    else:
        for doubt in doubts:
            typer.echo(f"bayplan gate: {doubt}", err=True)
        Console().print(_table(paper))
    if doubts:
        raise typer.Exit(INVALID)
    raise typer.Exit(FAILED if paper.failures else PASSED)


def _invalid(message: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"outcome": "Invalid", "messages": [message]}, indent=2))
    else:
        typer.echo(f"bayplan gate: {message}", err=True)
    raise typer.Exit(INVALID)


def _document(paper: Paper, doubts: list[str]) -> dict[str, Any]:
    """The decision as JSON: `outcome` is Staged, StagingRejected or Invalid."""
    decision = paper.decision
    outcome = "Invalid" if doubts else "StagingRejected" if paper.failures else "Staged"
    found: dict[str, Any] = {"outcome": outcome, "messages": [*doubts, *paper.failures]}
    if isinstance(decision, QuantizationDecision):
        return found | {
            "failedGates": [failed.value for failed in decision.failed],
            "qualityDrop": float(decision.quality_drop),
            "relativeThroughput": float(decision.relative_throughput),
        }
    return found | {
        "speedup": float(decision.speedup),
        "acceptanceRate": float(decision.acceptance_rate),
        "acceptedTokens": decision.accepted_tokens,
        "draftedTokens": decision.drafted_tokens,
        "emittedTokens": decision.emitted_tokens,
        "byPosition": [{"drafted": one.drafted, "accepted": one.accepted} for one in decision.by_position],
    }


def _table(paper: Paper) -> Table:
    decision = paper.decision
    if isinstance(decision, QuantizationDecision):
        return _gates(decision)
    return _speculation(decision)


def _gates(decision: QuantizationDecision) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("GATE")
    table.add_column("OUTCOME")
    table.add_column("WHY")
    whys = dict(message.split(": ", 1) for message in decision.messages)
    for one in QuantizationGate:
        failed = one in decision.failed
        outcome = "[red]Failed[/red]" if failed else "[green]Passed[/green]"
        table.add_row(one.value, outcome, escape(whys.get(one.value, "")))
    return table


def _speculation(decision: SpeculationDecision) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("POSITION", "DRAFTED", "ACCEPTED", "SHARE"):
        table.add_column(column, justify="right")
    for at, one in enumerate(decision.by_position, start=1):
        table.add_row(str(at), str(one.drafted), str(one.accepted), f"{one.accepted / one.drafted:.0%}")
    outcome = "[green]Passed[/green]" if decision.enable else "[red]Failed[/red]"
    table.caption = f"{outcome}: {escape(decision.message)}; {decision.emitted_tokens} tokens emitted"
    table.caption_justify = "left"
    return table
