"""The reference pages that are generated from the models: fields and reasons, in Markdown."""

import json
from collections.abc import Iterator

from bayplan.api import names
from bayplan.api.conditions import ConditionType
from bayplan.api.crd import KINDS, Kind
from bayplan.api.reasons import REASON_HELP
from bayplan.api.rules import VALIDATIONS
from bayplan.api.structural import Json, structural_schema
from bayplan.api.wording import accepted

SUMMARIES = (ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED)
"""Conditions that repeat the reason of whatever blocks."""

MARK = "<!-- Generated from operator/bayplan/api by `make crds`; changes here are overwritten. -->\n"


def reasons_page() -> str:
    """Return `docs/reasons.md`: every reason under the condition types that it appears on.

    Ready, Reconciling and Stalled repeat the reasons of others; only what is theirs first is listed there.
    """
    lines = [
        MARK,
        "# Conditions and reasons\n",
        "Conditions are positive: `True` is good. `Ready` sums up and repeats the reason of whatever blocks. "
        "`Reconciling` and `Stalled` exist only while they are true and repeat a reason of another condition.\n",
    ]
    for kind in ConditionType:
        entries = [
            (reason, entry)
            for reason, entry in REASON_HELP.items()
            if kind is entry.conditions[0] or (kind in entry.conditions and kind not in SUMMARIES)
        ]
        if entries:
            lines += [f"## {kind}\n", "| reason | means | what to do |", "|---|---|---|"]
            lines += [f"| `{reason}` | {entry.meaning} | {entry.action} |" for reason, entry in entries]
            lines.append("")
    return "\n".join(lines)


def api_page() -> str:
    """Return `docs/api.md`: every field of every kind with its type, bounds, default and rules."""
    lines = [
        MARK,
        "# API reference\n",
        f"Group `{names.GROUP}`, version `{names.VERSION}`. A field in **bold** is required. "
        "A value outside the bounds is refused at `kubectl apply`.\n",
    ]
    for kind in KINDS:
        lines += _kind_section(kind)
    return "\n".join(lines)


def _kind_section(kind: Kind) -> Iterator[str]:
    yield f"## {kind.kind} (`{kind.short}`)\n"
    yield f"{kind.description}\n"
    yield f"- {kind.name_rule.message}\n"
    for part, model, with_defaults in (("spec", kind.spec, True), ("status", kind.status, False)):
        schema = structural_schema(model, with_defaults=with_defaults)
        yield f"### {kind.kind} `{part}`\n"
        yield f"{schema['description']}\n"
        yield "| field | accepts | default | meaning |"
        yield "|---|---|---|---|"
        yield from _rows(schema, "")
        yield ""
        rules = list(_rules(schema, part))
        if rules:
            yield "Rules:\n"
            yield from rules
            yield ""


def _rows(schema: Json, prefix: str) -> Iterator[str]:
    for name, member in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        shown = f"**`{path}`**" if name in schema.get("required", ()) else f"`{path}`"
        default = f"`{json.dumps(member['default'])}`" if member.get("default") not in (None, {}) else ""
        yield f"| {shown} | {_cell(member)} | {default} | {member['description']} |"
        yield from _rows(member, f"{path}.")
        inner = member.get("items") or member.get("additionalProperties") or {}
        if "properties" in inner:
            yield from _rows(inner, f"{path}[].")
        elif inner:
            yield f"| `{path}[]` | {_cell(inner)} | | |"


def _cell(schema: Json) -> str:
    """Escape what Markdown would read inside a table; a pattern goes into code."""
    phrase, match, pattern = accepted(schema).partition(" that match ")
    text = f"{phrase}{match}`{pattern}`" if match else phrase
    return text.replace("|", "\\|")


def _rules(schema: Json, path: str) -> Iterator[str]:
    for validation in schema.get(VALIDATIONS, ()):
        yield f"- `{path}`: {validation['message']}"
    for name, member in schema.get("properties", {}).items():
        yield from _rules(member, f"{path}.{name}")
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")
