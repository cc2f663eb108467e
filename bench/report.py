"""A run's figures as JSON under fixed names, and as a table for people."""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

KEYS = (
    "objects_per_second",
    "apply_to_status_p50_seconds",
    "apply_to_status_p99_seconds",
    "steady_apply_to_status_p50_seconds",
    "steady_apply_to_status_p99_seconds",
    "writes_per_object",
    "event_loop_lag_p99_ms",
    "writes_per_placed_model",
    "apply_to_bound_p99_seconds",
    "start_barrier_seconds",
    "rss_mb_after",
    "soak_mb_per_10_minutes",
    "restart_writes",
    "quiet_writes",
    "failover_seconds",
    "handover_seconds",
)
"""Names of the figures; one that a run did not measure is null."""


@dataclass(frozen=True)
class Machine:
    """Where it ran, and how busy that was."""

    processors: int
    load_1m_before: float
    load_1m_after: float
    python: str = field(default_factory=platform.python_version)


def load_1m() -> float:
    """Return the machine's load average over a minute."""
    return round(os.getloadavg()[0], 2)


def machine(*, load_before: float) -> Machine:
    """Describe this machine."""
    return Machine(processors=psutil.cpu_count() or 1, load_1m_before=load_before, load_1m_after=load_1m())


def as_json(
    *, command: str, columns: Mapping[str, Mapping[str, Any]], ran_on: Machine, main: str = "bayplan"
) -> dict[str, Any]:
    """Return the report. `columns` maps who was measured to values, writes and details; `main`'s values are on top."""
    values = columns[main]["values"]
    return {
        **{key: _rounded(values.get(key)) for key in KEYS},
        "baseline": {name: _column(column) for name, column in columns.items() if name != main},
        "details": {name: _rounded(value) for name, value in columns[main]["details"].items()},
        "writes": columns[main]["writes"],
        "command": command,
        "machine": asdict(ran_on),
    }


def _column(column: Mapping[str, Any]) -> dict[str, float | None]:
    both = column["values"] | column["details"]
    return {name: _rounded(value) for name, value in both.items() if value is not None}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print the report for people."""
    baselines: Mapping[str, Mapping[str, float | None]] = report["baseline"]
    table = Table(title=report["command"], title_justify="left", show_edge=False)
    table.add_column("figure")
    table.add_column("bayplan", justify="right")
    for name in baselines:
        table.add_column(name, justify="right")
    rows = {key: report[key] for key in KEYS if report[key] is not None} | report["details"]
    for name, value in rows.items():
        table.add_row(name, _text(value), *(_text(column.get(name)) for column in baselines.values()))
    console.print(table)
    for phase, counts in report["writes"].items():
        console.print(f"writes, {phase}: " + (", ".join(f"{n} x {what}" for what, n in counts.items()) or "none"))
    ran_on = report["machine"]
    loads = f"{ran_on['load_1m_before']} to {ran_on['load_1m_after']}"
    console.print(f"{ran_on['processors']} processors, load {loads}, Python {ran_on['python']}")


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
