"""Write what is generated from the models, or check that the files in the repository are what would be written.

`python -m bayplan.api.emitter crds/` writes the CRDs; `--docs DIR` adds the reference pages, `--chart DIR` the chart's
copies of the CRDs. `--check` writes nothing, prints a diff for each file that differs and exits with 1.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from bayplan.api.crd import KINDS, Kind, custom_resource_definition

MARK = "# Generated from operator/bayplan/api by `make crds`; changes here are overwritten.\n"


def to_yaml(manifest: dict[str, Any]) -> str:
    """Return YAML that is the same on every machine: keys in the given order, two spaces, one line per short value."""
    return yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=110)


def crd_files(directory: Path) -> dict[Path, str]:
    """Return path and text of the CRD manifest of each kind."""
    return {directory / _file_name(kind): MARK + to_yaml(custom_resource_definition(kind)) for kind in KINDS}


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
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit 1 on a difference")
    options = parser.parse_args(arguments)
    files = crd_files(options.crds)
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
