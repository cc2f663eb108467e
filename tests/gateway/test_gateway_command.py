"""The command line and the configuration's section of the gateway."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from bayplan.api.names import GATEWAY_CLIENT_PORT, GATEWAY_PORT
from bayplan.cli.configuration import load_configuration
from bayplan.cli.main import app
from bayplan.gateway.settings import GatewaySettings, WorkloadClass


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("bayplan")
    before = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:], root.level, ours.level = before


def write(tmp_path: Path, section: dict[str, Any]) -> Path:
    path = tmp_path / "bayplan.yaml"
    path.write_text(yaml.safe_dump({"gateway": section}))
    return path


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"limits": {"queuedRequests": -1}}, "gateway.limits.queuedRequests"),
        ({"limits": {"bodyMebibytes": 300}}, "bodyMebibytes <= bufferedMebibytes"),
        ({"limits": {"defaultMaxTokens": 0}}, "gateway.limits.defaultMaxTokens"),
        ({"times": {"silenceSeconds": 0}}, "gateway.times.silenceSeconds"),
        ({"times": {"leaseSeconds": 61}}, "gateway.times.leaseSeconds"),
        ({"times": {"waitSeconds": 1.5}}, "gateway.times.waitSeconds"),
        ({"listen": {"port": 65536}}, "gateway.listen.port"),
        ({"classes": {"Fast": {}}}, "gateway.classes"),
        ({"classes": {"fast": {"firstTokenSeconds": -1}}}, "firstTokenSeconds"),
        ({"histogramEdges": {"ttftSeconds": [1, 1]}}, "ttft: edges must be above 0 and ascend"),
        ({"histogramEdges": {"tpotSeconds": []}}, "tpotSeconds"),
        ({"tokenizers": {"tiny": "/a"}}, "gateway.tokenizers"),
        ({"surprise": 1}, "gateway.surprise: unknown key"),
        ({"tenantsFile": "/no/such/file"}, "/no/such/file"),
        ({"secretFile": "/no/such/file"}, "/no/such/file"),
        ({"tokenizers": {"default/tiny": "/no/such/file"}}, "/no/such/file"),
    ],
    ids=json.dumps,
)
def test_wrong_section_ends_with_2_and_names_the_field(tmp_path: Path, section: dict[str, Any], problem: str) -> None:
    result = CliRunner().invoke(app, ["gateway", "--config", str(write(tmp_path, section)), "--kubeconfig", "/none"])
    assert result.exit_code == 2
    assert problem in result.output


def test_absent_section_is_the_default() -> None:
    section = load_configuration(None).gateway
    assert section.settings() == GatewaySettings()
    assert (section.sockets().port, section.sockets().admin_port) == (GATEWAY_CLIENT_PORT, GATEWAY_PORT)


def test_every_value_reaches_the_settings(tmp_path: Path) -> None:
    section = {
        "listen": {"address": "127.0.0.1", "port": 1, "adminPort": 2},
        "limits": {
            "connections": 6,
            "bodyMebibytes": 1,
            "bufferedMebibytes": 2,
            "replayMebibytes": 3,
            "queuedRequests": 4,
            "defaultMaxTokens": 5,
        },
        "times": {
            "bodySeconds": 1,
            "idleConnectionSeconds": 2,
            "connectSeconds": 3,
            "silenceSeconds": 4,
            "wholeAnswerSeconds": 5,
            "waitSeconds": 6,
            "rememberSeconds": 7,
            "drainSeconds": 8,
            "leaseSeconds": 9,
        },
        "classes": {"fast": {"firstTokenSeconds": 1.5, "completeSeconds": 10}},
        "histogramEdges": {"ttftSeconds": [1], "tpotSeconds": [2], "endToEndSeconds": [3, 4]},
        "tokenizers": {"default/tiny": "/tokenizers/tiny.json"},
    }
    gateway = load_configuration(write(tmp_path, section)).gateway
    settings = gateway.settings()
    assert settings.classes["fast"] == WorkloadClass(1.5, 10.0)
    assert "default" in settings.classes
    given = [
        settings.max_body_bytes >> 20, settings.max_buffered_bytes >> 20, settings.max_replay_bytes >> 20,
        settings.max_queued_requests, settings.default_max_tokens,
        settings.body_seconds, settings.idle_connection_seconds, settings.connect_seconds, settings.silence_seconds,
        settings.whole_answer_seconds, settings.max_wait_seconds, settings.remember_seconds, settings.drain_seconds,
        settings.lease_seconds, settings.max_connections,
    ]  # fmt: skip
    assert given == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 6]
    assert (settings.edges.ttft, settings.edges.tpot, settings.edges.e2e) == ((1.0,), (2.0,), (3.0, 4.0))
    assert settings.tokenizers == {"default/tiny": Path("/tokenizers/tiny.json")}
    assert gateway.sockets().address == "127.0.0.1"


def test_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYPLAN_GATEWAY__LISTEN__ADDRESS", "127.0.0.9")
    monkeypatch.setenv("BAYPLAN_GATEWAY__TENANTS_FILE", "/keys")
    section = load_configuration(write(tmp_path, {"listen": {"address": "0.0.0.0", "port": 9}})).gateway
    assert (section.listen.address, section.listen.port) == ("127.0.0.9", 9)
    assert section.tenants_file == Path("/keys")
