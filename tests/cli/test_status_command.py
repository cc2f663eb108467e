"""`bayplan status` against a real API server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from bayplan.cli.main import COMMANDS, app
from e2e.localcluster import Cluster, KubeApi
from tests.api.specs import MINIMAL_SPEC, model

pytestmark = pytest.mark.slow


def bayplan(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bayplan", "status", *arguments],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig_path), "COLUMNS": "160", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_models_are_listed_shown_and_printed_as_json(cluster: Cluster, api: KubeApi, namespace: str) -> None:
    await api.apply([model(MINIMAL_SPEC, "seen")], namespace=namespace)

    listed = bayplan(cluster, "-n", namespace)
    screen = bayplan(cluster, "seen", "-n", namespace)
    printed = bayplan(cluster, "seen", "-n", namespace, "--json")

    assert (listed.returncode, screen.returncode, printed.returncode) == (0, 0, 0)
    assert "seen" in listed.stdout
    assert f"{namespace}/seen serves" in screen.stdout
    (entry,) = json.loads(printed.stdout)
    assert (entry["namespace"], entry["name"], entry["generation"]) == (namespace, "seen", 1)


async def test_a_model_that_is_not_there_is_named(cluster: Cluster, namespace: str) -> None:
    answer = bayplan(cluster, "absent", "-n", namespace)

    assert answer.returncode == 1
    assert f"no InferenceModel absent in namespace {namespace}" in answer.stderr


def test_a_cluster_that_does_not_answer_is_named(cluster: Cluster) -> None:
    answer = bayplan(cluster, "--kubeconfig", "/nonexistent/kubeconfig")

    assert answer.returncode == 1
    assert "/nonexistent/kubeconfig" in answer.stderr


@pytest.mark.parametrize("more", [(), ("--json",), ("--watch",)])
@pytest.mark.parametrize("wrong", [("x", "-A"), ("A/b",), ("",)])
def test_a_wrong_name_is_refused_whatever_is_to_be_shown(wrong: tuple[str, ...], more: tuple[str, ...]) -> None:
    answer = CliRunner().invoke(app, ["status", *wrong, *more])
    assert answer.exit_code == 2
    assert "NAME" in answer.stderr


@pytest.mark.parametrize("name", [(), ("x",)])
def test_json_is_printed_once(name: tuple[str, ...]) -> None:
    answer = CliRunner().invoke(app, ["status", *name, "--json", "-w"])
    assert answer.exit_code == 2
    assert "--json prints once" in answer.stderr


async def test_ctrl_c_ends_a_watch_as_shells_expect_it(cluster: Cluster, api: KubeApi, namespace: str) -> None:
    await api.apply([model(MINIMAL_SPEC, "seen")], namespace=namespace)
    screen, terminal = os.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bayplan", "status", "-n", namespace, "--watch"),
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig_path), "TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(terminal)
    try:
        await asyncio.wait_for(asyncio.to_thread(read_until, screen, b"seen"), timeout=60)
        process.send_signal(signal.SIGINT)
        rest = asyncio.to_thread(read_until, screen, None)
        _, errors = await asyncio.wait_for(process.communicate(), timeout=30)
        assert process.returncode == 130
        assert errors == b""
        assert b"Traceback" not in await rest
    finally:
        if process.returncode is None:
            process.kill()
        os.close(screen)


def read_until(screen: int, mark: bytes | None) -> bytes:
    """Read a terminal until a mark, or its end, and return what it showed."""
    shown = b""
    while mark is None or mark not in shown:
        try:
            part = os.read(screen, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    return shown


def test_the_version_is_that_of_the_package() -> None:
    answer = run("--version")
    assert (answer.returncode, answer.stdout.strip()) == (0, f"bayplan {version('bayplan')}")


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (("--version",), ("bayplan.cli.status", "bayplan.cluster", "kubernetes", "aiohttp", "pydantic")),
        (
            ("status", "--help"),
            (
                "bayplan.reconcile",
                "bayplan.gateway",
                "bayplan.planning",
                "bayplan.telemetry",
                "kopf",
                "numpy",
                "tokenizers",
            ),
        ),
    ],
)
def test_a_command_imports_nothing_that_it_does_not_need(arguments: tuple[str, ...], unneeded: tuple[str, ...]) -> None:
    code = (
        "import sys, atexit; from bayplan.cli.main import main; "
        f"atexit.register(lambda: print(sorted(set({unneeded!r}) & set(sys.modules)))); "
        f"sys.argv[1:] = {list(arguments)!r}; main()"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_is_refused_and_the_known_are_listed() -> None:
    assert run("nonsense").returncode == 2
    shown = run("--help").stdout
    listed = {words[1] for line in shown.splitlines() if len(words := line.split()) > 2 and words[0] == "│"}
    assert set(COMMANDS) <= listed


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bayplan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
