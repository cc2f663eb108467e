"""How far the memory planner is off on published start logs: `python -m bench.memory_accuracy --rows FILE [--json]`.

FILE is a CSV of observations (`bench.memoryrows` names its columns). Strata: `layout` (the cache's GiB are given, its
tokens are predicted), `nvidia` and `amd` (weights from the log; budget and overheads predicted), `nvidia_estimated`
(weights by format), `hybrid` (layers with states), `weights` (class estimates against the log), `verdict` (fits or not
against what happened, outside the ±3 % band). Exit code 1 when a bar is missed.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bayplan.planning.numbers import InvalidInput
from bench.memorycolumns import read_rows
from bench.memoryrows import Observation, observations
from bench.memorystrata import (
    Case,
    VerdictCase,
    WeightCase,
    budget_cases,
    figures,
    layout_cases,
    quantile,
    verdict_cases,
    weight_cases,
)

BARS: dict[str, dict[str, float]] = {
    "layout": {"tokens_median": 0.001, "tokens_p90": 0.015},
    "nvidia": {"tokens_median": 0.01, "tokens_p90": 0.06, "kv_gib_median": 0.10, "kv_gib_p90": 0.6},
    "nvidia_estimated": {"tokens_median": 0.025, "tokens_p90": 0.12},
    "hybrid": {"tokens_p90": 0.05},
    "amd": {"kv_gib_median": 0.5},
    "weights": {"class_median": 0.02},
}
LEAST_RIGHT = 0.95
WORST_SHOWN = 5


def measure(rows: list[Observation]) -> dict[str, Any]:
    """All strata with their figures, cases and missed bars."""
    plain = [row for row in rows if not row.hybrid]
    cases: dict[str, list[Case]] = {
        "layout": layout_cases(rows, hybrid=False),
        "nvidia": budget_cases(plain, vendor="nvidia", weights_known=True),
        "nvidia_estimated": budget_cases(plain, vendor="nvidia", weights_known=False),
        "hybrid": layout_cases(rows, hybrid=True),
        "amd": budget_cases(rows, vendor="amd", weights_known=True),
    }
    strata: dict[str, dict[str, Any]] = {name: figures(found) for name, found in cases.items()}
    hybrids = [row for row in rows if row.hybrid and row.cache_type_known]
    pools = [case for case in budget_cases(hybrids, vendor="nvidia", weights_known=True) if case.kv_gib is not None]
    strata["hybrid"].update({key: figures(pools)[key] for key in ("kv_gib_median", "kv_gib_p90", "n_kv_gib")})
    weights, verdicts = weight_cases(rows), verdict_cases(rows)
    strata["weights"] = weight_figures(weights)
    strata["verdict"] = verdict_figures(verdicts)
    return {"strata": strata, "cases": cases, "weights": weights, "verdicts": verdicts, "missed": missed(strata)}


def weight_figures(cases: list[WeightCase]) -> dict[str, Any]:
    """Median error over all rows, and by class."""
    by_class: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        by_class[case.format].append(case.error)
    return {
        "n": len(cases),
        "class_median": quantile((case.error for case in cases), 50),
        "by_class": {
            name: {"n": len(found), "median": quantile(found, 50)} for name, found in sorted(by_class.items())
        },
    }


def verdict_figures(cases: list[VerdictCase]) -> dict[str, Any]:
    """Counts outside the band: `right`, `false_fit` (unwarned), `warned` (did not start, and the warning said so)."""
    outside = [case for case in cases if not case.verdict.marginal]
    return {
        "n": len(outside),
        "right": sum(case.right for case in outside),
        "false_fit": sum(case.false_fit for case in outside),
        "warned": sum(case.verdict.fits and not case.started and case.warned for case in outside),
        "marginal": len(cases) - len(outside),
    }


def missed(strata: dict[str, dict[str, Any]]) -> list[str]:
    """The bars that are not met; a figure without a row misses nothing."""
    found = [
        f"{name}.{key} is {strata[name][key]:.4f}, the bar is {bar:g}"
        for name, bars in BARS.items()
        for key, bar in bars.items()
        if strata[name][key] is not None and strata[name][key] > bar
    ]
    verdict = strata["verdict"]
    if verdict["n"] and verdict["right"] < LEAST_RIGHT * verdict["n"]:
        found.append(f"verdict: {verdict['right']} of {verdict['n']} right, the bar is {LEAST_RIGHT:.0%}")
    if verdict["false_fit"]:
        found.append(f"verdict: {verdict['false_fit']} false fits, the bar is none")
    return found


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def show(measured: dict[str, Any], rows: list[Observation], console: Console) -> None:
    """Print the strata, the peers beside them, the worst rows with their terms, and what was left out."""
    strata, cases = measured["strata"], measured["cases"]
    table = Table("stratum", "n", "tokens median", "p90", "KV GiB median", "p90", title="Error on published start logs")
    for name in cases:
        row = strata[name]
        values = (_percent(row["tokens_median"]), _percent(row["tokens_p90"]))
        table.add_row(name, str(row["n"]), *values, _gib(row["kv_gib_median"]), _gib(row["kv_gib_p90"]))
    console.print(table)
    weights, verdict = strata["weights"], strata["verdict"]
    classes = ", ".join(
        f"{name} {_percent(item['median'])} (n={item['n']})" for name, item in weights["by_class"].items()
    )
    console.print(f"weights by class: median {_percent(weights['class_median'])} (n={weights['n']}): {classes}")
    console.print(
        f"verdict outside ±3 %: {verdict['right']} of {verdict['n']} right, {verdict['false_fit']} false fits, "
        f"{verdict['warned']} died in graph capture as warned, {verdict['marginal']} marginal"
    )
    _show_peers(cases, console)
    _show_worst(measured, console)
    left_out = [f"{row.identifier} ({'; '.join(row.reasons)})" for row in rows if row.reasons]
    console.print(f"not asked for a budget: {len(left_out)} of {len(rows)} rows: " + ", ".join(left_out))
    console.print("; ".join(measured["missed"]) or "every bar is met")


def _show_peers(cases: dict[str, list[Case]], console: Console) -> None:
    table = Table("rule", "nvidia KV GiB median", "p90", "amd KV GiB median", "p90", title="Other rules, same rows")
    ours: list[str] = []
    columns: dict[str, list[str]] = defaultdict(list)
    for name in ("nvidia", "amd"):
        found: dict[str, list[float]] = defaultdict(list)
        for case in cases[name]:
            for peer, error in case.peers:
                found[peer].append(error)
        own = figures(cases[name])
        ours += [_gib(own["kv_gib_median"]), _gib(own["kv_gib_p90"])]
        for peer, errors in found.items():
            columns[peer] += [_gib(quantile(errors, 50)), _gib(quantile(errors, 90))]
    table.add_row("Bayplan", *ours)
    for peer, values in columns.items():
        table.add_row(peer, *values)
    console.print(table)
    for name in ("layout", "hybrid"):
        errors = [error for case in cases[name] for _, error in case.peers]
        if errors:
            text = f"tokens by the founding text's formula, {name}: median {_percent(quantile(errors, 50))}"
            console.print(f"{text}, p90 {_percent(quantile(errors, 90))} (n={len(errors)})")


def _show_worst(measured: dict[str, Any], console: Console) -> None:
    table = Table("stratum", "row", "model", "error", "terms and note", title="Worst rows")
    for name, found in measured["cases"].items():
        for case in sorted(found, key=lambda case: case.badness, reverse=True)[:WORST_SHOWN]:
            row = case.observation.row
            cache = "" if case.kv_gib is None else f"{case.kv_gib:+.2f} GiB"
            tokens = "" if case.tokens is None else f"{case.tokens:+.1%} "
            note = row.get("note", "")[:60]
            table.add_row(name, row["id"], row["model"][-32:], tokens + cache, f"{case.terms}; {note}".strip("; "))
    for verdict in measured["verdicts"]:
        if not verdict.right and not verdict.verdict.marginal:
            row = verdict.observation.row
            said = "fits, with a warning" if verdict.warned else "fits" if verdict.verdict.fits else "does not fit"
            text = f"{said}; {row['outcome']}; {row.get('note', '')[:70]}"
            table.add_row("verdict", row["id"], row["model"][-32:], "", text)
    console.print(table)


def report(measured: dict[str, Any]) -> dict[str, Any]:
    """The JSON form: figures of all strata, and the bars that were missed."""
    strata = measured["strata"]
    return {"strata": strata, "weights": strata["weights"], "verdict": strata["verdict"], "missed": measured["missed"]}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory_accuracy", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=Path, required=True, help="CSV of observations")
    parser.add_argument("--json", action="store_true", help="print figures as JSON instead of tables")
    chosen = parser.parse_args(arguments)
    try:
        rows = observations(read_rows(chosen.rows))
    except (InvalidInput, OSError) as error:
        print(f"{chosen.rows}: {error}", file=sys.stderr)
        return 2
    measured = measure(rows)
    if chosen.json:
        print(json.dumps(report(measured), indent=2))
    else:
        show(measured, rows, Console(width=160))
    return 1 if measured["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
