"""The operator's configuration: file, environment, and what is refused."""

import re
import time
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest

from bayplan.cli.configuration import ConfigurationError, load_configuration
from bayplan.cluster.apitimes import ApiTimes
from bayplan.planning.memory.gpucatalogue import Link
from bayplan.planning.memory.terms import Source
from bayplan.telemetry.aliases import VLLM, Signal
from bayplan.telemetry.prometheus import PrometheusSource
from bayplan.telemetry.scrape import ScrapeSource


def written(folder: Path, text: str) -> Path:
    path = folder / "bayplan.yaml"
    path.write_text(text)
    return path


def test_defaults_are_complete_without_a_file() -> None:
    configuration = load_configuration(None)

    assert configuration.limits.confirm_seconds == 60
    assert configuration.leader_election.times().duration == 15
    assert configuration.listen.port == 8080


def test_the_file_is_read_in_camel_case(tmp_path: Path) -> None:
    path = written(tmp_path, "limits: {confirmSeconds: 5, lostNodeSeconds: 7, oldCordonSeconds: 8}")
    configuration = load_configuration(path)

    assert configuration.reconcile_settings().group_limits.confirm_seconds == 5
    assert configuration.fleet_limits().lost_node_seconds == 7
    assert configuration.fleet_limits().old_cordon_seconds == 8


def test_the_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYPLAN_LIMITS__CONFIRM_SECONDS", "9")
    path = written(tmp_path, "limits: {confirmSeconds: 5, incompleteGroupSeconds: 6}")
    limits = load_configuration(path).reconcile_settings().group_limits

    assert (limits.confirm_seconds, limits.incomplete_seconds) == (9, 6)


def test_back_off_is_configured_as_a_whole(tmp_path: Path) -> None:
    path = written(tmp_path, "limits: {firstBackoffSeconds: 1, longestBackoffSeconds: 4, forgivenAfterSeconds: 2}")
    backoff = load_configuration(path).reconcile_settings().backoff

    assert [backoff.delay(failures) for failures in range(4)] == [1, 2, 4, 4]
    assert backoff.forgiven_after_seconds == 2


def test_patience_with_the_api_server_is_configured_as_a_whole(tmp_path: Path) -> None:
    text = "apiServer: {requestSeconds: 3, watchSeconds: 60, idleSeconds: 60, resyncSeconds: 9}"
    times = load_configuration(written(tmp_path, text)).api_server.times()

    assert (times.request, times.watch, times.idle, times.resync) == (3, 60, 60, 9)
    assert load_configuration(None).api_server.times() == ApiTimes()


def test_a_topology_level_replaces_its_default_and_keeps_the_others(tmp_path: Path) -> None:
    topology = (
        load_configuration(written(tmp_path, "topology: {rack: [example.com/rack]}")).reconcile_settings().topology
    )

    assert topology["rack"] == ("example.com/rack",)
    assert topology["zone"] == ("topology.kubernetes.io/zone",)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("limits: {confirmSecond: 5}", "limits.confirmSecond: unknown key"),
        ("limits: {confirmSeconds: 0}", "limits.confirmSeconds"),
        ("limits: {confirmSeconds: .nan}", "limits.confirmSeconds"),
        ("limits: {confirmSeconds: soon}", "limits.confirmSeconds"),
        ("topology: {Rack: [a/b]}", "topology.Rack"),
        ("topology: {rack: []}", "topology.rack"),
        ("listen: {port: 65536}", "listen.port"),
        ("logging: {format: xml}", "logging.format"),
        ("workers: 0", "workers"),
        ("leaderElection: {durationSeconds: 5}", "durationSeconds > renewDeadlineSeconds > retrySeconds"),
        ("apiServer: {watchSeconds: 60, idleSeconds: 61}", "idleSeconds <= watchSeconds"),
        ("nonsense: 1", "nonsense: unknown key"),
    ],
)
def test_wrong_configuration_names_the_key(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named.replace(".", r"\.")):
        load_configuration(written(tmp_path, text))


def test_a_file_that_is_not_there_is_an_error_not_the_defaults(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        load_configuration(tmp_path / "absent.yaml")


@pytest.mark.parametrize("text", ["limits: [", "- a list", "just text"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError):
        load_configuration(written(tmp_path, text))


async def test_demand_is_scraped_unless_a_prometheus_is_named(tmp_path: Path) -> None:
    plain = load_configuration(None).telemetry.source(clock=time.monotonic, now=lambda: datetime.now(UTC))
    path = written(tmp_path, "telemetry: {prometheusUrl: 'http://prometheus.monitoring:9090', scrapeSeconds: 3}")
    named = load_configuration(path).telemetry.source(clock=time.monotonic, now=lambda: datetime.now(UTC))

    assert isinstance(plain, ScrapeSource)
    assert isinstance(named, PrometheusSource)
    await plain.close()
    await named.close()


@pytest.mark.parametrize(
    "text",
    [
        "prometheusUrl: prometheus:9090",
        "prometheusUrl: 'file:///etc/passwd'",
        "prometheusUrl: 'http://user:secret@prometheus'",
        "scrapeSeconds: 0",
        "scrapesAtOnce: 0",
        "prometheus: http://a",
        "metricAliases: {waitingRequests: [a]}",
        "metricAliases: {waiting: []}",
        "metricAliases: {waiting: ['a{b}']}",
        "metricAliases: {waiting: ['vllm:num_requests_running']}",
    ],
)
def test_a_telemetry_that_cannot_work_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text.split(":", maxsplit=1)[0]):
        load_configuration(written(tmp_path, f"telemetry: {{{text}}}"))


def test_names_of_metrics_are_configured_per_signal_and_stand_before_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "telemetry: {metricAliases: {waiting: ['fork:queued'], outputTokens: [fork_generated]}}"
    aliases = load_configuration(written(tmp_path, text)).telemetry.aliases()

    assert aliases.by_signal[Signal.WAITING] == ("fork:queued", *VLLM.by_signal[Signal.WAITING])
    assert aliases.by_signal[Signal.OUTPUT_TOKENS][0] == "fork_generated"
    assert aliases.by_signal[Signal.RUNNING] == VLLM.by_signal[Signal.RUNNING]
    assert load_configuration(None).telemetry.aliases() == VLLM
    monkeypatch.setenv("BAYPLAN_TELEMETRY__METRIC_ALIASES", '{"running": ["fork:running"]}')
    assert load_configuration(None).telemetry.aliases().by_signal[Signal.RUNNING][0] == "fork:running"


def test_an_unknown_signal_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="waitingRequests: no such signal; there are running, waiting, prompt"):
        load_configuration(written(tmp_path, "telemetry: {metricAliases: {waitingRequests: [a]}}"))


def test_gpu_figures_are_added_to_the_catalogue_or_replace_its_own(tmp_path: Path) -> None:
    text = """
gpus:
  Abacus-9: {visibleGib: 30.5, link: NVLink, linkGbS: 100, fastDomainGpus: 4, computeCapability: "9.0"}
  NVIDIA-L40S: {bandwidthTbS: 0.9}
"""
    abacus, l40s = load_configuration(written(tmp_path, text)).stated_gpus()

    assert (abacus.name, abacus.visible_gib, abacus.fast_domain_gpus) == ("Abacus-9", Fraction("30.5"), 4)
    assert (abacus.link, abacus.compute_capability) == (Link.NVLINK, (9, 0))
    assert l40s.bandwidth_tb_s == Fraction("0.9")
    assert l40s.visible_source is not Source.DECLARED
    assert load_configuration(None).stated_gpus() == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus: {Abacus-9: {link: NVLink}}", "Abacus-9 is not in the catalogue: state visibleGib"),
        ("gpus: {Abacus-9: {visibleGib: 0}}", "greater than 0"),
        ("gpus: {Abacus-9: {visibleGib: 1, link: rope}}", "link"),
        ("gpus: {Abacus-9: {visibleGib: 1, computeCapability: new}}", "computeCapability"),
        ("gpus: {NVIDIA-L4: {}}", "states no figure"),
        ("gpus: {NVIDIA-L4: {colour: red}}", "unknown key"),
    ],
)
def test_wrong_gpu_figures_are_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        load_configuration(written(tmp_path, text))
