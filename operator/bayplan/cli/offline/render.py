"""Reports as a table, as JSON, and as JUnit. Equal reports give equal bytes; no time is written."""

import json
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from rich.table import Table

from bayplan.cli.offline.evaluate import ObjectReport
from bayplan.planning.evidencecontract.canonical import digest_of

READY, CONFLICT, INVALID = 0, 1, 2


def exit_code(reports: Sequence[ObjectReport]) -> int:
    """0 when all are ready, 1 for a conflict, 2 when something is invalid."""
    if any(report.invalid for report in reports):
        return INVALID
    return READY if all(report.ready for report in reports) else CONFLICT


def as_table(reports: Sequence[ObjectReport]) -> Table:
    """One row per condition; what is fine is short."""
    table = Table(box=None, pad_edge=False)
    for column in ("OBJECT", "CONDITION", "STATUS", "REASON"):
        table.add_column(column, no_wrap=True)
    table.add_column("MESSAGE", overflow="fold")
    for report in reports:
        manifest = report.manifest
        name = f"{manifest.kind} {manifest.namespace}/{manifest.name}"
        for kind, status, reason, message in report.conditions:
            style = {"True": "green", "False": "red"}.get(status, "yellow")
            table.add_row(name, kind.value, f"[{style}]{status}[/]", reason.value, _plain(message))
            name = ""
        for change in report.changes:
            table.add_row("", "(change)", "", "", _plain(change))
    return table


def _plain(text: str) -> str:
    """Brackets in a message are no markup."""
    return text.replace("[", r"\[")


def as_json(reports: Sequence[ObjectReport]) -> str:
    """Everything, with a digest of it."""
    objects = [_object(report) for report in reports]
    body = {"exitCode": exit_code(reports), "objects": objects}
    digest = digest_of(json.loads(json.dumps(body), parse_float=str))
    return json.dumps({**body, "digest": digest}, indent=2, sort_keys=True, ensure_ascii=False)


def _object(report: ObjectReport) -> dict[str, Any]:
    manifest = report.manifest
    return {
        "kind": manifest.kind,
        "namespace": manifest.namespace,
        "name": manifest.name,
        "source": manifest.source,
        "ready": report.ready,
        "invalid": report.invalid,
        "conditions": [
            {"type": kind.value, "status": status, "reason": reason.value, "message": message}
            for kind, status, reason, message in report.conditions
        ],
        "numbers": dict(report.numbers),
        "changes": list(report.changes),
    }


def as_junit(reports: Sequence[ObjectReport]) -> str:
    """A suite per object and a case per condition; what is not True fails, or is an error where it is invalid."""
    root = ElementTree.Element("testsuites", name="bayplan plan")
    for report in reports:
        manifest = report.manifest
        name = f"{manifest.kind}.{manifest.namespace}.{manifest.name}"
        bad = [entry for entry in report.conditions if _is_bad(report, entry)]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(report.conditions)),
            failures=str(0 if report.invalid else len(bad)),
            errors=str(len(bad) if report.invalid else 0),
        )
        for entry in report.conditions:
            kind, _, reason, message = entry
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=kind.value)
            if _is_bad(report, entry):
                tag = "error" if report.invalid else "failure"
                ElementTree.SubElement(case, tag, type=reason.value, message=_xml(message))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _is_bad(report: ObjectReport, entry: tuple[Any, ...]) -> bool:
    alone = ObjectReport(report.manifest, (entry,), invalid=report.invalid)
    return not alone.ready


def _xml(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return "".join(char for char in text if char >= " " or char in "\t\n")
