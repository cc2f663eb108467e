"""Resolve `requirements.lock` anew: only needed when the recipe's versions change, and only here is a resolver used."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e.realengine.recipe import (
    ENGINE_DISTRIBUTION,
    ENGINE_VERSION,
    ENVIRONMENT_MARKER,
    EXCLUDES,
    LOCK,
    OVERRIDES,
    PYTHON_RANGE,
)

HEADER = "# Resolved by `python -m e2e.realengine lock` from e2e/realengine/recipe.py; install with --no-deps.\n"


class LockError(RuntimeError):
    """The resolver is missing or found no solution."""


def project_text() -> str:
    """The pyproject that describes the engine's environment to the resolver."""

    def listed(items: tuple[str, ...]) -> str:
        return ", ".join(f'"{item}"' for item in items)

    return f"""[project]
name = "realengine"
version = "0"
requires-python = "{PYTHON_RANGE}"
dependencies = ["{ENGINE_DISTRIBUTION}=={ENGINE_VERSION}"]

[tool.uv]
package = false
environments = ["{ENVIRONMENT_MARKER}"]
override-dependencies = [{listed(OVERRIDES)}]
exclude-dependencies = [{listed(EXCLUDES)}]
"""


def drop_constant_markers(exported: str) -> str:
    """Remove the markers that always hold where the environment may be made, and keep those on Python's version."""
    constant = {clause.strip() for clause in ENVIRONMENT_MARKER.split(" and ")}
    constant.add("platform_python_implementation != 'PyPy'")

    def kept(match: re.Match[str]) -> str:
        clauses = [clause for clause in match[1].split(" and ") if clause.strip() not in constant]
        return f" ; {' and '.join(clauses)}" if clauses else ""

    return re.sub(r" ; ([^\\\n]*?)(?= *(?:\\)?$)", kept, exported, flags=re.MULTILINE)


def resolve() -> str:
    """Return the text of a new lock file.

    Raises:
        LockError: no `uv` beside this interpreter or on PATH, or no solution.
    """
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise LockError("`uv` is needed to resolve a new lock: install it into this environment or put it on PATH")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(project_text())
        export = ["export", "--format", "requirements.txt", "--no-header", "--no-annotate", "--no-emit-project"]
        for arguments in (["lock"], export):
            run = subprocess.run(
                [uv, *arguments, "--quiet", "--python", sys.executable],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            if run.returncode != 0:
                raise LockError(f"uv {arguments[0]} failed: {run.stderr.strip()}")
    return HEADER + drop_constant_markers(run.stdout)


def write() -> int:
    """Replace the lock file; return how many distributions it pins."""
    text = resolve()
    LOCK.write_text(text)
    return len(re.findall(r"^[A-Za-z0-9]", text, re.MULTILINE))
