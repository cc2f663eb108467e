"""Probe rules with a clock of the test's own."""

from typing import Any

import pytest

from e2e.nodeagent.probes import ContainerProbes, ProbeKind, UnsupportedProbeError, container_probes, parse_probe

STARTUP, READINESS, LIVENESS = ProbeKind.STARTUP, ProbeKind.READINESS, ProbeKind.LIVENESS


def http(**fields: Any) -> dict[str, Any]:
    return {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 10, **fields}


def probes(started_at: float = 0.0, **specs: dict[str, Any]) -> ContainerProbes:
    return ContainerProbes(container_probes({f"{kind}Probe": spec for kind, spec in specs.items()}), started_at)


def answer(found: ContainerProbes, kind: ProbeKind, success: bool, now: float) -> None:
    """Let time pass until `now`, when the probe must be due, and answer it at once."""
    assert kind in found.begin(now), f"{kind} is not due at {now}"
    found.record(kind, success=success, now=now)


def test_container_without_probes_is_started_and_ready() -> None:
    found = probes()
    assert (found.started, found.ready, found.next_due()) == (True, True, None)


def test_defaults_are_the_apis() -> None:
    spec = parse_probe({"httpGet": {"port": "http"}})
    assert (spec.period, spec.timeout, spec.success_threshold, spec.failure_threshold) == (10, 1, 1, 3)
    assert (spec.path, spec.scheme, spec.initial_delay) == ("/", "http", 0)


@pytest.mark.parametrize(("probe", "named"), [({"exec": {"command": ["x"]}}, "exec"), ({"grpc": {"port": 1}}, "grpc")])
def test_other_handlers_are_refused_by_name(probe: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedProbeError, match=named):
        parse_probe(probe)


@pytest.mark.parametrize("origin", [0.0, 1_000_000.0])
def test_first_probe_comes_after_the_initial_delay_and_then_each_period(origin: float) -> None:
    found = probes(origin, readiness=http(initialDelaySeconds=5))
    assert found.next_due() == origin + 5
    assert found.begin(origin + 4.9) == []
    assert found.begin(origin + 5) == [READINESS]
    found.record(READINESS, success=False, now=origin + 5.2)
    assert found.next_due() == origin + 15


def test_probe_in_flight_is_not_sent_again_and_delays_the_next() -> None:
    found = probes(readiness=http())
    assert found.begin(0) == [READINESS]
    assert found.begin(25) == []
    assert found.next_due() is None
    found.record(READINESS, success=False, now=25)
    assert found.next_due() == 25


def test_startup_holds_the_others_until_it_succeeds() -> None:
    found = probes(startup=http(periodSeconds=1), readiness=http(), liveness=http())
    assert found.begin(0) == [STARTUP]
    found.record(STARTUP, success=False, now=0)
    assert (found.started, found.ready) == (False, False)
    assert found.begin(1) == [STARTUP]
    found.record(STARTUP, success=True, now=1)
    assert (found.started, found.ready) == (True, False)
    # Readiness is probed at once, not a period later, and startup never again.
    assert set(found.begin(1)) == {READINESS, LIVENESS}


@pytest.mark.parametrize(("failures", "unhealthy"), [(2, None), (3, STARTUP)])
def test_startup_fails_the_container_at_its_threshold(failures: int, unhealthy: ProbeKind | None) -> None:
    found = probes(startup=http(failureThreshold=3), liveness=http())
    for number in range(failures):
        answer(found, STARTUP, success=False, now=10.0 * number)
    assert found.unhealthy is unhealthy
    assert (found.next_due() is None) is (unhealthy is not None)


@pytest.mark.parametrize(("failures", "unhealthy"), [(1, None), (2, LIVENESS)])
def test_liveness_fails_the_container_at_its_threshold(failures: int, unhealthy: ProbeKind | None) -> None:
    found = probes(liveness=http(failureThreshold=2))
    for number in range(failures):
        answer(found, LIVENESS, success=False, now=10.0 * number)
    assert found.unhealthy is unhealthy


def test_one_success_starts_the_count_of_failures_anew() -> None:
    found = probes(liveness=http(failureThreshold=2))
    for number, success in enumerate([False, True, False, True, False]):
        answer(found, LIVENESS, success=success, now=10.0 * number)
    assert found.unhealthy is None


def test_readiness_needs_its_run_of_successes_and_of_failures() -> None:
    found = probes(readiness=http(successThreshold=2, failureThreshold=2))
    seen = []
    for number, success in enumerate([True, True, False, True, False, False]):
        answer(found, READINESS, success=success, now=10.0 * number)
        seen.append(found.ready)
    assert seen == [False, True, True, True, True, False]


def test_readiness_failure_never_kills() -> None:
    found = probes(readiness=http(failureThreshold=1))
    for number in range(5):
        answer(found, READINESS, success=False, now=10.0 * number)
    assert found.unhealthy is None


def test_leaving_container_is_probed_for_readiness_only() -> None:
    found = probes(readiness=http(), liveness=http(failureThreshold=1))
    assert set(found.begin(0)) == {READINESS, LIVENESS}
    found.leave()
    found.record(LIVENESS, success=False, now=0)
    found.record(READINESS, success=True, now=0)
    assert found.unhealthy is None
    assert found.begin(10) == [READINESS]


def test_leaving_container_that_has_not_started_is_not_probed() -> None:
    found = probes(startup=http(), readiness=http())
    found.leave()
    assert found.next_due() is None
