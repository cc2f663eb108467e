"""How ages, verdicts and conditions are shown, the same on every screen."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from bayplan.api.conditions import Condition, ConditionType
from bayplan.api.meta import parse_rfc3339


def verdict(condition: Condition | None) -> str:
    """A condition's status, coloured by whether it is good."""
    if condition is None:
        return "[dim]-[/dim]"
    progress = condition.type in (ConditionType.RECONCILING, ConditionType.STALLED)
    colour = {"True": "yellow" if progress else "green", "False": "red", "Unknown": "yellow"}[condition.status]
    return f"[{colour}]{condition.status}[/{colour}]"


def ago(moment: str, now: datetime) -> str:
    """Age in the two largest units, as kubectl prints it."""
    seconds = max(0, int((now - parse_rfc3339(moment)).total_seconds()))
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), 3)
    return "".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count) or "0s"


def conditions_panel(conditions: Sequence[Condition], now: datetime) -> RenderableType:
    """All conditions with their reasons, one a line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"):
        table.add_column(column, no_wrap=column != "MESSAGE")
    for position, one in enumerate(conditions):
        since, said = ago(one.last_transition_time, now), _said_once(conditions, position)
        table.add_row(escape(one.type), verdict(one), escape(one.reason), since, escape(said))
    return Panel(table, title="conditions", title_align="left")


def _said_once(conditions: Sequence[Condition], position: int) -> str:
    """A condition's message, where it ends with a whole message of another one with that one's name instead.

    Sums repeat what blocks them, so that each can be read alone; on one screen the numbers need be there once.
    """
    own = conditions[position]
    repeated = [
        other
        for place, other in enumerate(conditions)
        if other.message
        and other.reason == own.reason
        and own.message.endswith(other.message)
        and (len(other.message) < len(own.message) or place < position)
    ]
    if not repeated:
        return own.message
    longest = max(repeated, key=lambda other: len(other.message))
    return f"{own.message.removesuffix(longest.message)}see {longest.type}"
