"""How ages and verdicts are shown, the same on every screen."""

from datetime import datetime

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
