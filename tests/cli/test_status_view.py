"""What `bayplan status` shows for the states that the on-call meets."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console, RenderableType

from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.cli.statusview import ShownModel, model_screen, models_table

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


def condition(
    kind: str, status: str, reason: str, message: str = "", *, at: str = "2026-11-29T11:58:50Z"
) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def shown(status: dict[str, Any], *, generation: int = 1) -> ShownModel:
    parsed = InferenceModelStatus.model_validate({"observedGeneration": 1, **status})
    return ShownModel("team", "llama", "llama-8b", generation, parsed)


def text(renderable: RenderableType, *, width: int = 140) -> str:
    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


FITS = {
    "gpuProduct": "NVIDIA-L40S",
    "fits": True,
    "requiredGib": 26,
    "usableGib": 40,
    "maxConcurrency": 22,
    "terms": [{"name": "weights", "gibPerGpu": 15, "provenance": "Derived", "detail": "8e9 parameters"}],
}


def test_the_table_has_a_line_with_counts_reason_and_age_per_model() -> None:
    status = {
        "desiredReplicas": 3,
        "pendingReplicas": 1,
        "readyReplicas": 2,
        "gpus": 8,
        "conditions": [condition("Ready", "False", "FragmentedCapacity")],
    }
    line = text(models_table([shown(status)], now=NOW)).splitlines()[1].split()

    assert line == ["team", "llama", "False", "FragmentedCapacity", "3", "1", "0", "2", "0", "8", "1m10s"]


def test_no_models_say_how_to_make_one() -> None:
    assert "kubectl apply" in text(models_table([], now=NOW))


def test_a_screen_shows_terms_groups_and_the_reason_for_what_is_pending() -> None:
    status = {
        "memory": [FITS],
        "placement": {
            "pendingReason": "needs 4 free GPUs on one node, the largest free block is 3",
            "groups": [
                {
                    "name": "llama-abcde-0-0",
                    "revision": "abc",
                    "stage": "Warming",
                    "since": "2026-11-29T11:59:30Z",
                    "warmupStage": "Generating",
                    "nodes": ["a1", "a2"],
                    "gpuProduct": "NVIDIA-L40S",
                    "facts": ["one rack as required"],
                }
            ],
        },
        "conditions": [condition("Ready", "False", "WarmupRunning", "0 of 1 replicas ready")],
    }
    screen = text(model_screen(shown(status), now=NOW))

    assert "26.0 of 40.0 GiB usable" in screen
    assert "room for 22 requests" in screen
    assert "Warming (Generating)" in screen
    assert "a1, a2" in screen
    assert "one rack as required" in screen
    assert "the largest free block is 3" in screen
    assert "0 of 1 replicas ready" in screen


def test_what_does_not_fit_reaches_beyond_the_usable_memory() -> None:
    big = FITS | {"fits": False, "requiredGib": 60, "terms": [FITS["terms"][0] | {"gibPerGpu": 60}]}
    screen = text(model_screen(shown({"memory": [big]}), now=NOW))

    assert "does not fit" in screen
    assert "█" * 60 in screen
    assert "░" not in screen


def test_unknown_memory_has_terms_but_no_bar() -> None:
    unknown = {key: value for key, value in FITS.items() if key not in ("usableGib", "fits")}
    screen = text(model_screen(shown({"memory": [unknown]}), now=NOW))

    assert "unknown" in screen
    assert "weights" in screen
    assert "█" not in screen


def test_only_products_in_use_are_shown_once_something_runs() -> None:
    other = FITS | {"gpuProduct": "NVIDIA-H200"}
    group = {
        "name": "g",
        "revision": "r",
        "stage": "Ready",
        "since": "2026-11-29T11:00:00Z",
        "gpuProduct": "NVIDIA-L40S",
    }
    idle = text(model_screen(shown({"memory": [FITS, other]}), now=NOW))
    running = text(model_screen(shown({"memory": [FITS, other], "placement": {"groups": [group]}}), now=NOW))

    assert "NVIDIA-H200" in idle
    assert "NVIDIA-H200" not in running


def test_terms_are_shown_of_one_product_and_the_others_have_a_line_each() -> None:
    others = [
        FITS | {"gpuProduct": "NVIDIA-H200", "requiredGib": 27, "usableGib": 130, "maxConcurrency": 90},
        FITS | {"gpuProduct": "ODD", "fits": None, "usableGib": None, "maxConcurrency": None},
    ]
    lines = text(model_screen(shown({"memory": [FITS, *others]}), now=NOW)).splitlines()
    assert sum("weights" in line for line in lines) == 1
    assert [line.strip("│ ") for line in lines if line.startswith("│ on ")] == [
        "on NVIDIA-H200: fits, room for 90 requests of full length, 27.0 of 130.0 GiB usable",
        "on ODD: unknown",
    ]


def test_layouts_are_those_of_products_in_use_once_something_runs() -> None:
    layout = {"tensor": 1, "pipeline": 1, "gpusPerReplica": 1, "nodesPerReplica": 1, "provenance": "Derived"}
    layouts = [{**layout, "gpuProduct": name, "reason": "one is enough"} for name in ("NVIDIA-L40S", "NVIDIA-H200")]
    group = {"name": "g", "revision": "r", "stage": "Ready", "since": "2026-11-29T11:00:00Z"}
    running = {"parallelism": layouts, "placement": {"groups": [group | {"gpuProduct": "NVIDIA-L40S"}]}}
    assert "NVIDIA-H200" in text(model_screen(shown({"parallelism": layouts}), now=NOW))
    assert "NVIDIA-H200" not in text(model_screen(shown(running), now=NOW))


def test_a_model_that_nobody_looked_at_says_so() -> None:
    assert "has not looked at it yet" in text(model_screen(shown({}), now=NOW))


def test_a_status_about_an_older_spec_says_so() -> None:
    status = {"conditions": [condition("Ready", "True", "Ready")]}

    assert "generation 1; the spec is at 2" in text(model_screen(shown(status, generation=2), now=NOW))
    assert "the spec is at" not in text(model_screen(shown(status), now=NOW))


@pytest.mark.parametrize(
    ("since", "age"),
    [
        ("2026-11-29T12:00:00Z", "0s"),
        ("2026-11-29T11:59:59Z", "1s"),
        ("2026-11-29T11:00:00Z", "1h"),
        ("2026-11-27T10:59:00Z", "2d1h"),
        ("2026-11-29T12:00:05Z", "0s"),
    ],
)
def test_ages_read_like_kubectls(since: str, age: str) -> None:
    status = {"conditions": [condition("Ready", "True", "Ready", at=since)]}

    assert text(models_table([shown(status)], now=NOW)).splitlines()[1].split()[-1] == age


def test_markup_in_messages_is_text() -> None:
    status = {"conditions": [condition("Ready", "False", "NotReady", "needs [bold]4[/bold] GPUs")]}

    assert "needs [bold]4[/bold] GPUs" in text(model_screen(shown(status), now=NOW))


def test_a_screen_shows_what_autoscaling_decided_last_and_where_the_model_answers() -> None:
    scaling = {
        "desiredReplicas": 3,
        "reason": "ScaleUp",
        "message": "demand 3 (rate 2 + queue 1) within 1 to 4; 2 to 3",
        "decidedTime": "2026-11-29T11:58:50Z",
        "observedTime": "2026-11-29T11:58:49Z",
    }
    screen = text(model_screen(shown({"scaling": scaling, "endpoint": "http://llama.team.svc:8000/v1"}), now=NOW))

    assert "scaling: ScaleUp for 1m10s: demand 3 (rate 2 + queue 1) within 1 to 4; 2 to 3" in screen
    assert "endpoint http://llama.team.svc:8000/v1" in screen


def narrow_table(width: int, *, namespaces: tuple[str, ...] = ("team", "team")) -> list[list[str]]:
    status = {"desiredReplicas": 3, "readyReplicas": 2, "gpus": 8}
    reasons = ("FragmentedCapacity", "NoNodeMatchesTopology")
    models = [
        replace(
            shown(status | {"conditions": [condition("Ready", "False", reason)]}),
            namespace=namespace,
            name=f"llama-{n}",
        )
        for n, (reason, namespace) in enumerate(zip(reasons, namespaces, strict=True))
    ]
    lines = text(models_table(models, now=NOW), width=width).splitlines()
    assert all(len(line) <= width for line in lines)
    return [line.split() for line in lines]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_name_readiness_and_reason_stay_whole_on_a_narrow_terminal(width: int) -> None:
    header, first, second = narrow_table(width)
    at = {title: header.index(title) for title in ("NAME", "READY", "REASON")}
    assert [[row[i] for i in at.values()] for row in (first, second)] == [
        ["llama-0", "False", "FragmentedCapacity"],
        ["llama-1", "False", "NoNodeMatchesTopology"],
    ]
    assert {len(row) for row in (first, second)} == {len(header)}


def test_columns_go_in_the_order_of_what_they_are_worth() -> None:
    headers = [narrow_table(width)[0] for width in range(120, 30, -1)]
    lost = [title for wide, narrow in pairwise(headers) for title in wide if title not in narrow]
    assert lost == ["SINCE", "DRAINING", "GPUS", "PENDING", "WARMING", "NAMESPACE", "DESIRED", "SERVING"]


def test_namespaces_stay_where_there_are_several() -> None:
    assert "NAMESPACE" in narrow_table(60, namespaces=("team", "other"))[0]


def test_a_terminal_too_narrow_for_a_reason_folds_it() -> None:
    rows = narrow_table(30)
    assert len(rows) > 3
    assert "…" not in str(rows)


def test_what_decided_about_a_group_is_whole_on_80_columns() -> None:
    status = {
        "placement": {
            "groups": [
                {
                    "name": "llama-0123456789-0-0",
                    "revision": "0123456789",
                    "stage": "Warming",
                    "since": "2026-11-29T11:59:30Z",
                    "warmupStage": "Generating",
                    "nodes": ["node-a1", "node-a2"],
                    "gpuProduct": "NVIDIA-L40S",
                    "facts": ["one rack as required"],
                }
            ]
        }
    }
    for width in (80, 140):
        screen = text(model_screen(shown(status), now=NOW), width=width)
        for word in (
            "llama-0123456789-0-0",
            "Warming (Generating)",
            "node-a1, node-a2",
            "NVIDIA-L40S",
            "rack as required",
        ):
            assert word in screen, (width, screen)


def test_a_message_that_several_conditions_share_is_on_the_screen_once_beside_the_head() -> None:
    why = "needs 1 node with 4 free NVIDIA-L40S GPUs: 3 free on 2 matching nodes, 1 more needed"
    placed = f"1 of 1 replicas pending: {why}"
    status = {
        "placement": {"pendingReason": why},
        "conditions": [
            condition("Accepted", "True", "Valid", "the spec is valid"),
            condition("Placed", "False", "InsufficientGPU", placed),
            condition("Warm", "False", "NothingToWarm", "no replica is placed"),
            condition("Ready", "False", "InsufficientGPU", f"0 of 1 replicas ready; {placed}"),
            condition("Reconciling", "True", "InsufficientGPU", placed),
        ],
    }
    screen = text(model_screen(shown(status), now=NOW), width=400)
    assert [line.split("  ")[0] for line in screen.splitlines() if why in line] == [
        f"│ 0 of 1 replicas ready; {placed}",
        "│ Placed",
    ]
    by_name = {line.split()[1]: line for line in screen.splitlines() if line.startswith("│ ")}
    assert by_name["Reconciling"].rstrip(" │").endswith(" see Placed")
    assert by_name["Ready"].rstrip(" │").endswith("0 of 1 replicas ready; see Placed")


def test_messages_of_different_reasons_are_never_shortened() -> None:
    status = {
        "conditions": [
            condition("Placed", "True", "NothingToPlace", "no replicas are asked for"),
            condition("Warm", "True", "NothingToWarm", "no replicas are asked for"),
        ]
    }
    assert text(model_screen(shown(status), now=NOW)).count("no replicas are asked for") == 2
