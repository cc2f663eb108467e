"""Write what is generated from the models, or check that the files in the repository are what would be written.

`python -m bayplan.api.emitter crds/` writes the CRDs; `--docs DIR` adds the reference pages, `--chart DIR` the chart's
CRD templates. `--check` writes nothing, prints a diff for each file that differs and exits with 1.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bayplan.api.crd import KINDS, Kind, custom_resource_definition
from bayplan.api.reference import api_page, reasons_page

MARK = "# Generated from operator/bayplan/api by `make crds`; changes here are overwritten.\n"


def to_yaml(manifest: dict[str, Any]) -> str:
    """Return YAML that is the same on every machine: keys in the given order, two spaces, one line per short value."""
    return yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=110)


def crd_files(directory: Path) -> dict[Path, str]:
    """Return path and text of the CRD manifest of each kind."""
    return {directory / _file_name(kind): MARK + _manifest(kind) for kind in KINDS}


def page_files(directory: Path) -> dict[Path, str]:
    """Return path and text of the reference pages."""
    return {directory / "reasons.md": reasons_page(), directory / "api.md": api_page()}


def chart_files(directory: Path) -> dict[Path, str]:
    """Return path and text of the chart's CRD templates, which `crds.enabled` and `crds.keep` switch.

    Text is added around the manifest and nothing is parsed by Helm, whose YAML turns large numbers into floats.
    """
    files = {}
    for kind in KINDS:
        head, marker, tail = _manifest(kind).partition("metadata:\n")
        if "{{" in head + tail:
            raise ValueError(f"{kind.crd_name}: text holds '{{{{', which Helm would take for a template")
        text = f"{MARK}{{{{- if .Values.crds.enabled }}}}\n{head}{marker}{_KEEP}{tail}{{{{- end }}}}\n"
        files[directory / "templates" / "crds" / _file_name(kind)] = text
    return files


_KEEP = """  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


@cache
def _manifest(kind: Kind) -> str:
    return to_yaml(custom_resource_definition(kind))


def _file_name(kind: Kind) -> str:
    return f"{kind.crd_name.split('.', 1)[1]}_{kind.plural}.yaml"


def differences(files: dict[Path, str]) -> list[str]:
    """Return a unified diff for each file whose text on disk is not the generated one; a missing file is empty."""
    found = []
    for path, text in files.items():
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        if present != text:
            lines = difflib.unified_diff(
                present.splitlines(keepends=True), text.splitlines(keepends=True), f"{path}", f"{path} (generated)"
            )
            found.append("".join(lines))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m bayplan.api.emitter", description=__doc__)
    parser.add_argument("crds", type=Path, help="directory of the CRD manifests")
    parser.add_argument("--docs", type=Path, help="directory of the reference pages")
    parser.add_argument("--chart", type=Path, help="directory of the Helm chart")
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit 1 on a difference")
    options = parser.parse_args(arguments)
    files = crd_files(options.crds)
    files |= page_files(options.docs) if options.docs else {}
    files |= chart_files(options.chart) if options.chart else {}
    if options.check:
        found = differences(files)
        sys.stdout.writelines(found)
        return 1 if found else 0
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
