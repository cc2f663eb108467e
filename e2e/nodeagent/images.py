"""From a container image to the command that stands in for it on this machine.

A rule is a pattern over the repository name (registry and tag removed) and a builder; the first match wins. Builders
get the request and return what to launch, or raise ImageError with the message for the pod's status.
"""

import fnmatch
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bayplan.api.names import ENGINE_PORT
from e2e.nodeagent.processes import Launch
from e2e.realengine.arguments import IMAGE_SUFFIX, UnsupportedArgumentsError
from e2e.realengine.arguments import argv as real_engine_argv
from e2e.realengine.environment import NotInstalledError, installed

_ROOT = Path(__file__).resolve().parents[2]
_ENGINE_COMMANDS = (
    ("vllm", "serve"),
    ("python3", "-m", "vllm.entrypoints.openai.api_server"),
    ("python", "-m", "vllm.entrypoints.openai.api_server"),
)
_SHELL_SLEEP = re.compile(r"^\s*(?:exec\s+)?sleep\s+(\S+)\s*$")


class ImageError(Exception):
    """No container can be made of this image and command."""


@dataclass(frozen=True, kw_only=True)
class ContainerRequest:
    """A container that is ready to start: `command` and `args` are expanded, `environment` is complete."""

    image: str
    command: Sequence[str]
    args: Sequence[str]
    environment: Mapping[str, str]
    pod_ip: str
    hostname: str
    directory: Path


Builder = Callable[[ContainerRequest], Launch]


@dataclass(frozen=True)
class ImageRule:
    """`pattern` is a shell pattern over the repository name, such as `*/vllm-cpu`."""

    pattern: str
    build: Builder


def repository(image: str) -> str:
    """Return an image reference without tag and digest: `registry:5000/a/b:1` gives `registry:5000/a/b`."""
    name = image.split("@", 1)[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.split(":", 1)[0]


def sleep_seconds(command: Sequence[str]) -> float | None:
    """Return how long a `sleep N` command lasts, plain or through a shell; None when it is no such command.

    `sleep infinity` gives infinity.
    """
    if len(command) == 3 and command[0].rpartition("/")[2] in {"sh", "bash"} and command[1] == "-c":
        match = _SHELL_SLEEP.match(command[2])
        command = ["sleep", match.group(1)] if match else command
    if len(command) != 2 or command[0].rpartition("/")[2] != "sleep":
        return None
    try:
        seconds = float(command[1].removesuffix("s"))
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def base_environment(request: ContainerRequest) -> dict[str, str]:
    """Return a container's environment over the little that a process needs to run here."""
    inherited = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL", "TMPDIR") if key in os.environ}
    return inherited | {"HOME": str(request.directory), "HOSTNAME": request.hostname} | dict(request.environment)


def engine_arguments(request: ContainerRequest) -> list[str]:
    """Return the engine's arguments, whether the pod gives them as args or after the engine's own command.

    Raises ImageError for a command that is no engine's.
    """
    command = list(request.command)
    if not command:
        return list(request.args)
    for known in _ENGINE_COMMANDS:
        if tuple(command[: len(known)]) == known:
            return [*command[len(known) :], *request.args]
    raise ImageError(f'exec: "{command[0]}": this node runs only engine commands, sleep and pause images')


def build_pause(_request: ContainerRequest) -> Launch:
    """Wait for ever."""
    return Launch(argv=None)


def build_simulator(request: ContainerRequest) -> Launch:
    """Run the engine simulator on the pod's address, or a plain `sleep`."""
    if (seconds := sleep_seconds([*request.command, *request.args])) is not None:
        return Launch(argv=None, sleep_seconds=None if seconds == float("inf") else seconds)
    arguments = engine_arguments(request)
    environment = base_environment(request)
    paths = [str(_ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    # Last, so that it wins over a --host of the pod's own: 0.0.0.0 would take the port on every pod's address.
    argv = [sys.executable, "-m", "e2e.enginesim", *arguments, "--host", request.pod_ip]
    return Launch(argv=argv, environment=environment)


def build_real_engine(request: ContainerRequest) -> Launch:
    """Run the installed CPU build of the real engine on the pod's address."""
    try:
        argv, environment = real_engine_argv(
            host=request.pod_ip,
            port=ENGINE_PORT,
            container_args=[*request.command, *request.args],
            # The engine keeps what it has found out about model classes under HOME; looking again takes half a minute.
            env=base_environment(request) | {"HOME": str(Path.home())} | dict(request.environment),
            installation=installed(),
        )
    except (NotInstalledError, UnsupportedArgumentsError) as error:
        raise ImageError(str(error)) from None
    return Launch(argv=argv, environment=environment)


def build_bayplan(request: ContainerRequest) -> Launch:
    """Run the `bayplan` command of this checkout, such as `gateway`, as a pod of its own image would."""
    return Launch(
        argv=[sys.executable, "-m", "bayplan", *request.command, *request.args],
        environment=base_environment(request) | {"PYTHONUNBUFFERED": "1"},
    )


def default_rules() -> tuple[ImageRule, ...]:
    """Return the rules of the command line: pause, Bayplan itself, the real engine, the simulator for all others."""
    return (
        ImageRule("pause", build_pause),
        ImageRule("*/pause", build_pause),
        ImageRule("bayplan", build_bayplan),
        ImageRule("*/bayplan", build_bayplan),
        ImageRule(f"*{IMAGE_SUFFIX}", build_real_engine),
        ImageRule("*", build_simulator),
    )


def build_launch(rules: Sequence[ImageRule], request: ContainerRequest) -> Launch:
    """Return what to launch for a request. Raises ImageError when no rule fits or its builder refuses."""
    name = repository(request.image)
    for rule in rules:
        if fnmatch.fnmatchcase(name, rule.pattern):
            return rule.build(request)
    raise ImageError(f"no rule for image {request.image}")
