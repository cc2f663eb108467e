"""The image that the chart runs, as far as a parser can see it: there is no container engine in the tests."""

import json
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "bayplan"


@dataclass
class Stage:
    """One FROM and what follows."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [body for name, body in self.steps if name == instruction]


def parse() -> tuple[dict[str, str], list[Stage]]:
    """Return the arguments before the first stage, and the stages."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in filter(None, text.splitlines()):
        instruction, _, body = line.partition(" ")
        if instruction == "ARG" and not stages:
            name, _, default = body.partition("=")
            arguments[name] = default
        elif instruction == "FROM":
            base, _, name = body.partition(" AS ")
            stages.append(Stage(base, name))
        else:
            stages[-1].steps.append((instruction, body.strip()))
    return arguments, stages


ARGUMENTS, STAGES = parse()
BUILD, FINAL = STAGES


def test_both_stages_start_from_one_python_and_name_no_registry() -> None:
    assert {stage.base for stage in STAGES} == {"${PYTHON}"}
    name, _, tag = ARGUMENTS["PYTHON"].partition(":")
    assert name == "python"
    assert re.fullmatch(r"3\.\d+-slim", tag)
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"index-url|find-links|https?://|latest", text)


def test_every_package_is_installed_by_hash_or_built_here() -> None:
    installs = [command for body in BUILD.all("RUN") for command in body.split("&&") if "pip install" in command]
    assert len(installs) == 3
    for command in installs:
        words = shlex.split(command)
        assert "--require-hashes" in words or words[-2:] == ["--no-deps", "/wheels/*.whl"], command
    assert any("requirements.lock" in command for command in installs)
    assert all("--no-build-isolation" in body for body in BUILD.all("RUN") if "pip wheel" in body)


def test_what_builds_the_wheel_is_pinned_whole() -> None:
    (body,) = (body for body in BUILD.all("RUN") if "awk" in body)
    program = shlex.split(body)[1]
    cut = subprocess.run(
        ["awk", program, str(ROOT / "requirements-dev.lock")], capture_output=True, text=True, check=True
    ).stdout
    pinned = set(re.findall(r"^([a-z-]+)==", cut, flags=re.MULTILINE))
    assert pinned == closure("hatchling")
    assert cut.count("--hash=sha256:") >= len(pinned)


def closure(name: str) -> set[str]:
    """Return a package and all that the lock file says it needs."""
    entries = re.split(r"^(?=[a-z0-9])", (ROOT / "requirements-dev.lock").read_text(), flags=re.MULTILINE)
    users = {entry.partition("==")[0]: set(entry.partition("# via")[2].replace("#", "").split()) for entry in entries}
    found = {name}
    while more := {package for package, needed_by in users.items() if needed_by & found} - found:
        found |= more
    return found


def test_the_image_runs_what_the_chart_runs_it_as() -> None:
    template = (CHART / "templates" / "deployment.yaml").read_text()
    user = re.search(r"runAsUser: (\d+)", template)
    group = re.search(r"runAsGroup: (\d+)", template)
    assert user
    assert group
    assert FINAL.all("USER") == [f"{user[1]}:{group[1]}"]
    assert "args: [operator," in template  # the command itself is the image's
    assert json.loads(FINAL.all("ENTRYPOINT")[0]) == ["bayplan"]
    assert FINAL.all("RUN") == []
    assert FINAL.all("COPY") == ["--from=build /opt/bayplan /opt/bayplan"]


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for body in BUILD.all("COPY") for source in body.split()[:-1]}
    assert copied == sent
    assert all((ROOT / source).exists() for source in copied)


def test_the_chart_says_which_image_it_wants() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["image"]["repository"] == "bayplan/bayplan"
    assert "docker build" in (ROOT / "README.md").read_text()
