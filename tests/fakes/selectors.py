"""Label and field selectors, as far as the API server's string syntax is used."""

import re
from collections.abc import Mapping
from typing import Any

_SET = re.compile(r"^\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*$")


def _requirements(selector: str) -> list[str]:
    return [part for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def matches_labels(labels: Mapping[str, str], selector: str | None) -> bool:
    """Equality, inequality, `in`, `notin`, presence and absence."""
    return all(_label(labels, part.strip()) for part in _requirements(selector or ""))


def _label(labels: Mapping[str, str], part: str) -> bool:
    if found := _SET.match(part):
        key, operator, values = found.groups()
        member = key in labels and labels[key] in {value.strip() for value in values.split(",")}
        return member if operator == "in" else not member
    if "!=" in part:
        key, value = part.split("!=", 1)
        return labels.get(key.strip()) != value.strip()
    if "=" in part:
        key, value = part.replace("==", "=").split("=", 1)
        return labels.get(key.strip()) == value.strip()
    return part[1:].strip() not in labels if part.startswith("!") else part in labels


def matches_fields(obj: Mapping[str, Any], selector: str | None) -> bool:
    """`=`, `==` and `!=` on any dotted path; an absent field is the empty string."""
    for part in _requirements(selector or ""):
        negative = "!=" in part
        path, value = re.split(r"!=|==|=", part, maxsplit=1)
        found: Any = obj
        for step in path.strip().split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        if ((found or "") == value.strip()) == negative:
            return False
    return True


def selected(obj: Mapping[str, Any], labels: str | None, fields: str | None) -> bool:
    """Whether an object is in the selection of both selectors."""
    return matches_labels(obj["metadata"].get("labels") or {}, labels) and matches_fields(obj, fields)
