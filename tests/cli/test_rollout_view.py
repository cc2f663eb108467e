"""What `bayplan rollout status` and `explain` show."""

import io
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, RenderableType

from bayplan.api.rollout_status import RolloutStatus
from bayplan.cli.rolloutview import ShownRollout, explanation, rollout_screen, rollouts_table
from tests.cli.rollouts import AT, rollout

NOW = datetime(2026, 11, 30, 6, 2, 3, tzinfo=UTC)
CONDITION = {"type": "Ready", "status": "False", "reason": "GateFailed", "message": "tpot", "lastTransitionTime": AT}


def shown(**fields: Any) -> ShownRollout:
    raw = rollout(**fields)
    return ShownRollout("team", "chat", "chat", raw["spec"], RolloutStatus.read(raw["status"]))


def text(what: RenderableType, width: int = 160) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()


def test_every_rollout_has_a_line_with_what_keeps_it_first() -> None:
    holds = [
        {"reason": "InsufficientEvidence", "handling": "Collect", "message": "candidate: 3 of 100 requests"},
        {"reason": "Baking", "handling": "Wait", "message": ""},
    ]
    line = text(rollouts_table([shown(holds=holds)], now=NOW)).splitlines()[1].split()
    assert line == ["team", "chat", "chat", "s1", "c1", "canary-10", "10", "%", "InsufficientEvidence", "2m3s"]
    assert "kubectl apply" in text(rollouts_table([], now=NOW))


def test_screen_tells_where_it_stands_and_what_happened() -> None:
    history = [
        {"time": AT, "revision": "c0", "to": "RollingBack", "reason": "GateFailed", "message": "tpot: 2 of 10"},
        {"time": AT, "revision": "c1", "to": "canary-10"},
    ]
    screen = text(rollout_screen(shown(history=history, conditions=[CONDITION], spec={"paused": True}), now=NOW))
    assert "rollouts.bayplan.dev team/chat of chat" in screen
    assert "canary-10 (paused) for 2m3s" in screen
    assert "candidate c1: 2 replicas, 10 % of the requests, compared with 2 serving pods" in screen
    assert "plan 4, not acknowledged by every gateway yet" in screen
    assert screen.index("c1 → canary-10") < screen.index("c0 → RollingBack (GateFailed: tpot: 2 of 10)")
    assert "Ready=False GateFailed: tpot" in screen


def test_explanation_has_every_number_that_decides() -> None:
    gates = [
        {
            "name": "tpot",
            "outcome": "Failed",
            "handling": "RollBack",
            "measured": 0.3,
            "samples": 200,
            "message": "60 of 200 above 0.05 s",
        },
        {"name": "error-rate", "outcome": "Unknown", "handling": "Collect", "message": "no request"},
    ]
    tallies = [
        {"arm": "baseline", "requests": 190, "outputTokens": 1900, "loadedSeconds": 19, "tpotTotal": 190},
        {"arm": "candidate", "requests": 200, "errors": 3, "tpotWithin": 140, "tpotTotal": 200},
    ]
    evidence = {
        "windows": 7,
        "dropped": 2,
        "problem": "gateway g started anew",
        "throughTime": AT,
        "routedRequests": 2000,
        "candidateRequests": 200,
        "tallies": tallies,
    }
    status: dict[str, Any] = {
        "gates": gates,
        "evidence": evidence,
        "quality": [
            {"revision": "c1", "promptSet": "p", "passed": 8, "failed": 2, "observedTime": AT},
            {"revision": "s1", "promptSet": "p", "unknown": 10, "reason": "no answer", "observedTime": AT},
        ],
        "surge": {
            "outcome": "SurgeDoesNotFit",
            "peakReplicas": 2,
            "message": "1 replica is missing",
            "choices": ["maxSurge: 1"],
        },
        "holds": [{"reason": "EvidenceInDoubt", "handling": "Collect", "message": "unlike load"}],
        "rejected": [{"revision": "c0", "reason": "GateFailed", "message": "ttft", "time": AT}],
        "proof": {"sinceTime": AT, "acknowledgedTime": AT, "missing": ["requests at the candidate: 2"]},
        "cause": {"revision": "c0", "reason": "GateFailed", "message": "ttft", "time": AT},
        "conditions": [CONDITION],
    }
    screen = text(explanation(shown(**status), now=NOW))
    for part in (
        "60 of 200 above 0.05 s",
        "roll back",
        "200 of 2000 requests went to the candidate",
        "7 windows counted, 2 dropped, the last one 2m3s ago",
        "the last window was dropped: gateway g started anew",
        "140/200",
        "100.0",
        "c1: 8 of 10 right (2m3s ago)",
        "s1: no answer, 10 not scored: no answer",
        "SurgeDoesNotFit: 1 replica is missing",
        "choose: maxSurge: 1",
        "EvidenceInDoubt",
        "c0: GateFailed 2m3s ago: ttft",
        "✓ every gateway has let go of it since 2m3s",
        "… no request is under way at it",
        "missing: requests at the candidate: 2",
    ):
        assert part in screen, part
    assert screen.index("tpot") < screen.index("error-rate")


def test_texts_of_the_cluster_are_no_markup() -> None:
    holds = [{"reason": "[red]", "handling": "Wait", "message": "[/nonsense]"}]
    assert "[/nonsense]" in text(explanation(shown(holds=holds), now=NOW))


def test_object_that_nobody_has_looked_at_says_so() -> None:
    bare = ShownRollout("team", "chat", "chat", {}, RolloutStatus.read(None))
    for screen in (rollout_screen(bare, now=NOW), explanation(bare, now=NOW)):
        assert "is it running?" in text(screen)
