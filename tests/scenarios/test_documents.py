"""What README and docs/ name is there: files, commands, targets."""

import re
from pathlib import Path

import pytest

from bayplan.cli.main import COMMANDS

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
PACKAGE = REPOSITORY / "operator" / "bayplan"


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def code_of(document: Path) -> str:
    """Blocks of code and what stands between backticks, a piece a line."""
    text = text_of(document)
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL) + re.findall(r"^    (.*)$", text, re.M)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "x", text_of(document), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([\w./-]+)(?:#[^)]*)?\)", prose)
    local = [link for link in found if "://" not in link]
    assert [link for link in local if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_and_folders_that_are_named_exist(document: Path) -> None:
    path = r"(?:^|[\s`(])((?:[a-z][a-z0-9_]*/)+[a-z0-9_]*(?:\.py|\.yaml|(?=[`\s])))"
    named = re.findall(path, code_of(document), re.MULTILINE)
    roots = (REPOSITORY, PACKAGE)
    ours = [path for path in named if any((root / path.split("/")[0]).is_dir() for root in roots)]
    assert [path for path in ours if not any((root / path).exists() for root in roots)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_are_shown_exist(document: Path) -> None:
    code = code_of(document)
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(re.findall(r"(?:^|[`(])make ([a-z-]+)", code, re.M)) <= targets
    assert set(re.findall(r"(?:^|/)(?:kubectl )?bayplan ([a-z]+)", code, re.M)) <= set(COMMANDS)
    modules = re.findall(r"python -m ((?:e2e|bench|bayplan)[a-z0-9_.]*)", code)
    places = [REPOSITORY / module.replace(".", "/") for module in modules]
    assert [p for p in places if not (p / "__main__.py").exists() and not p.with_suffix(".py").exists()] == []


def test_the_patterns_find_what_they_are_for() -> None:
    readme = code_of(REPOSITORY / "README.md")
    assert "make demo" in readme
    assert "reconcile/inferencemodel/reconciler.py" in readme
    assert "bayplan status llama-8b" in readme
