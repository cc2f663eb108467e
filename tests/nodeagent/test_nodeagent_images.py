"""From image and command to what is started."""

import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.nodeagent.images import (
    ContainerRequest,
    ImageError,
    ImageRule,
    build_launch,
    build_pause,
    default_rules,
    repository,
    sleep_seconds,
)


def request(image: str = "vllm/vllm-openai:v0.32.0", **fields: Any) -> ContainerRequest:
    defaults = {
        "command": [],
        "args": [],
        "environment": {},
        "pod_ip": "127.20.1.0",
        "hostname": "engine-0",
        "directory": Path("/logs"),
    }
    return ContainerRequest(image=image, **(defaults | fields))


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("pause", "pause"),
        ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause"),
        ("registry:5000/a/b", "registry:5000/a/b"),
        ("registry:5000/a/b:1", "registry:5000/a/b"),
        ("a/b@sha256:00", "a/b"),
        ("a/b:1@sha256:00", "a/b"),
    ],
)
def test_repository_is_the_image_without_tag_and_digest(image: str, expected: str) -> None:
    assert repository(image) == expected


@pytest.mark.parametrize("image", ["pause", "registry.k8s.io/pause:3.10"])
def test_pause_image_waits_for_ever(image: str) -> None:
    launch = build_launch(default_rules(), request(image))
    assert (launch.argv, launch.sleep_seconds) == (None, None)


def test_image_that_only_ends_like_pause_is_an_engine() -> None:
    assert build_launch(default_rules(), request("a/nopause", args=["m"])).argv is not None


@pytest.mark.parametrize("command", [[], ["vllm", "serve"], ["python3", "-m", "vllm.entrypoints.openai.api_server"]])
def test_any_other_image_is_the_simulator_with_the_engines_arguments(command: list[str]) -> None:
    launch = build_launch(default_rules(), request(command=command, args=["m", "--port", "8000"]))
    assert launch.argv == [*(sys.executable, "-m", "e2e.enginesim", "m", "--port", "8000", "--host", "127.20.1.0")]


def test_containers_environment_wins_over_the_agents() -> None:
    launch = build_launch(default_rules(), request(args=["m"], environment={"HOME": "/root", "A": "1"}))
    assert (launch.environment["HOME"], launch.environment["A"]) == ("/root", "1")
    assert launch.environment["HOSTNAME"] == "engine-0"


def test_agents_own_environment_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/secret")
    assert "KUBECONFIG" not in build_launch(default_rules(), request(args=["m"])).environment


def test_unknown_command_is_refused_by_name() -> None:
    with pytest.raises(ImageError, match='"nginx"'):
        build_launch(default_rules(), request(command=["nginx"]))


def test_real_engine_that_cannot_be_what_the_pod_asks_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ImageError, match="make real-engine"):
        build_launch(default_rules(), request("registry.example/vllm-cpu:0.32.0", args=["m"]))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["sleep", "2"], 2.0),
        (["/bin/sleep", "0.5s"], 0.5),
        (["sleep", "infinity"], float("inf")),
        (["sh", "-c", "sleep 3"], 3.0),
        (["/bin/bash", "-c", "exec sleep 3"], 3.0),
        (["sh", "-c", "sleep 3; rm x"], None),
        (["sleep", "-1"], None),
        (["sleep", "long"], None),
        (["sleep"], None),
        ([], None),
    ],
)
def test_sleep_commands_are_understood(command: list[str], expected: float | None) -> None:
    assert sleep_seconds(command) == expected


def test_sleep_command_of_any_image_runs_as_a_wait() -> None:
    launch = build_launch(default_rules(), request("busybox", command=["sleep", "30"]))
    assert (launch.argv, launch.sleep_seconds) == (None, 30.0)


def test_first_rule_that_fits_decides_and_none_is_an_error() -> None:
    rules = (ImageRule("a/*", build_pause),)
    assert build_launch(rules, request("a/b:1")).argv is None
    with pytest.raises(ImageError, match="no rule for image c/d"):
        build_launch(rules, request("c/d"))


@pytest.mark.parametrize("image", ["bayplan", "bayplan/bayplan:0.1.0", "registry:5000/bayplan/bayplan@sha256:00"])
def test_image_of_bayplan_runs_its_command_with_the_pods_environment_alone(
    image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/secret")
    launch = build_launch(default_rules(), request(image, args=["gateway"], environment={"POD_NAME": "g"}))
    assert launch.argv == [sys.executable, "-m", "bayplan", "gateway"]
    assert launch.environment["POD_NAME"] == "g"
    assert "KUBECONFIG" not in launch.environment
