"""What may differ between two lives, and what may not."""

import copy
import json
from typing import Any

import pytest

from e2e.chaos.normalise import Normaliser, difference

Json = dict[str, Any]


def uid_of(mark: str) -> str:
    return f"0ea1b8ac-0b19-496b-86ed-5acad96dbc{mark}"


def world(mark: str, *, node: str, ordinal: int = 0, attempt: int = 0) -> list[Json]:
    """A model and its pod as one life shows them."""
    group = f"small-1a2b3-{ordinal}-{attempt}"
    owner = {"kind": "InferenceModel", "name": "small", "uid": uid_of(mark), "controller": True}
    return [
        {
            "kind": "InferenceModel",
            "metadata": {"name": "small", "namespace": f"ns-{mark}", "uid": uid_of(mark), "resourceVersion": mark},
            "status": {
                "readyReplicas": 1,
                "selector": f"bayplan.dev/model=small,bayplan.dev/model-uid={uid_of(mark)}",
                "conditions": [{"type": "Ready", "message": f"group {group} on {node}"}],
            },
        },
        {
            "kind": "Pod",
            "metadata": {
                "name": f"{group}-0",
                "uid": f"pod-{mark}",
                "creationTimestamp": f"2026-11-29T00:00:{mark}Z",
                "ownerReferences": [owner],
                "labels": {"topology.kubernetes.io/zone": f"zone-{mark}", "bayplan.dev/group": group},
                "annotations": {"bayplan.dev/plan-id": mark},
            },
            "spec": {"nodeName": node, "containers": [{"name": "engine", "image": "vllm"}]},
            "status": {"podIP": f"10.0.0.{mark}", "containerStatuses": [{"containerID": f"hollow://{mark}"}]},
        },
    ]


def state(mark: str, objects: list[Json], *, attempts: bool = False) -> list[str]:
    return Normaliser(f"ns-{mark}", frozenset({"n1", "n2"}), attempts).state(objects)


def test_two_lives_that_differ_in_what_the_cluster_hands_out_are_equal() -> None:
    one = state("11", world("11", node="n1"))
    two = state("22", list(reversed(world("22", node="n2", ordinal=3))))

    assert one == two
    assert difference(one, two) == ""


@pytest.mark.parametrize(
    ("seen", "decides"),
    [
        ({"plan": {"cohortSalt": "a", "weight": 50}}, {"plan": {"cohortSalt": "a", "weight": 5}}),
        ({"evidence": {"windows": 3, "candidateRequests": 0}}, {"evidence": {"windows": 3, "candidateRequests": 1}}),
        ({"reportDigest": "a", "inputs": [{"digest": "a"}], "floor": 1}, {"floor": 2}),
    ],
)
def test_looks_salts_and_digests_are_each_worlds_own_and_what_was_decided_is_not(seen: Json, decides: Json) -> None:
    def status(found: Json) -> list[str]:
        return state("11", [{"kind": "Rollout", "metadata": {"name": "small", "uid": uid_of("11")}, "status": found}])

    text = json.dumps(seen).replace('"a"', '"b"').replace('"windows": 3', '"windows": 4')
    assert status(seen) == status(json.loads(text))
    assert status(seen) != status(decides)


def test_attempts_count_unless_blanked() -> None:
    first, second = world("11", node="n1"), world("11", node="n1", attempt=2)

    assert state("11", first) != state("11", second)
    assert state("11", first, attempts=True) == state("11", second, attempts=True)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("status", "readyReplicas"), 2, "InferenceModel small.status.readyReplicas: 2 instead of 1"),
        (("metadata", "labels"), {"x": "y"}, "InferenceModel small.metadata.labels"),
    ],
)
def test_a_difference_is_named_with_its_path(path: tuple[str, str], value: object, named: str) -> None:
    objects = world("11", node="n1")
    changed = copy.deepcopy(objects)
    changed[0][path[0]][path[1]] = value

    assert named in difference(state("11", objects), state("11", changed))


def test_a_pod_of_a_stranger_is_not_ours() -> None:
    objects = world("11", node="n1")
    stolen = copy.deepcopy(objects)
    stolen[1]["metadata"]["ownerReferences"][0]["uid"] = "somebody-else"

    assert state("11", objects) != state("11", stolen)


def test_missing_and_unexpected_objects_are_named() -> None:
    objects = world("11", node="n1")
    model, pod = state("11", objects[:1]), state("11", objects)

    assert difference(pod, model) == "missing Pod small-1a2b3-N-0-0"
    assert difference(model, pod) == "unexpected Pod small-1a2b3-N-0-0"


def test_long_differences_are_cut() -> None:
    many = [world("11", node="n1", ordinal=n)[1] for n in range(30)]
    for number, pod in enumerate(many):
        pod["metadata"]["name"] = f"pod{number}"

    assert difference(state("11", many), [], limit=3).endswith("; and 27 more")
