"""The examples are what users apply first: each is valid, as it stands, for the parser and for the API server."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.api.conditions import Reason
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.provenance import Provenance
from bayplan.api.rollout import RolloutSpec
from bayplan.api.structural import defaulted, structural_schema
from bayplan.api.validation import check_name, parse_rollout_spec, parse_spec
from bayplan.planning.layout.decision import plan_layout
from bayplan.planning.layout.pools import GpuPool
from e2e.localcluster import KubeApi
from tests.api.rolloutspecs import COLLECTION as ROLLOUT_COLLECTION
from tests.api.server import COLLECTION, refusal


def read(path: Path) -> dict[str, Any]:
    (manifest,) = yaml.safe_load_all(path.read_text())
    assert isinstance(manifest, dict)
    return manifest


def of_kind(kind: str) -> list[Path]:
    return [
        path for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml")) if read(path)["kind"] == kind
    ]


EXAMPLES = of_kind("InferenceModel")
ROLLOUTS = of_kind("Rollout")


def test_there_is_an_example_for_each_shape_of_a_replica() -> None:
    shapes = {}
    for path in EXAMPLES:
        spec = parse_spec(read(path)["spec"])
        assert isinstance(spec, InferenceModelSpec)
        shapes[path.stem] = (spec.parallelism.tensor, spec.parallelism.pipeline, spec.wanted_replicas)
    assert shapes == {
        "cannot-fit": (1, 1, 1),
        "llama-405b-two-nodes": (8, 2, 1),
        "llama-70b": (4, None, 1),
        "llama-8b": (None, None, 2),
        "llama-8b-autoscaled": (None, None, 1),
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_parses(path: Path) -> None:
    manifest = read(path)
    assert check_name(manifest["metadata"]["name"]) is None
    assert isinstance(parse_spec(manifest["spec"]), InferenceModelSpec)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_writes_no_default_down(path: Path) -> None:
    schema = structural_schema(InferenceModelSpec, with_defaults=True)
    written = read(path)["spec"]
    assert not list(repeated(schema, written, "spec")), defaulted(schema, written)


def repeated(schema: dict[str, Any], value: Any, path: str) -> list[str]:
    """Return the paths at which the value is just the default; the mode of a topology level is worth reading."""
    found = []
    for name, node in schema.get("properties", {}).items():
        if name in value and name != "mode":
            if "default" in node and node["default"] == value[name]:
                found.append(f"{path}.{name}")
            found += repeated(node, value[name], f"{path}.{name}")
    for entry in value if "items" in schema else ():
        found += repeated(schema["items"], entry, f"{path}[]")
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_example_is_accepted_by_the_api_server(api: KubeApi, path: Path) -> None:
    assert await refusal(api, "POST", COLLECTION.format("default"), read(path)) is None


def test_there_is_an_example_of_a_rollout_for_a_model_of_the_examples() -> None:
    (manifest,) = map(read, ROLLOUTS)
    spec = parse_rollout_spec(manifest["spec"])
    assert isinstance(spec, RolloutSpec)
    assert spec.model_ref.name in {read(path)["metadata"]["name"] for path in EXAMPLES}
    assert not repeated(structural_schema(RolloutSpec, with_defaults=True), manifest["spec"], "spec")


@pytest.mark.parametrize("path", ROLLOUTS, ids=lambda path: path.stem)
async def test_a_rollout_of_the_examples_is_accepted_by_the_api_server(api: KubeApi, path: Path) -> None:
    assert await refusal(api, "POST", ROLLOUT_COLLECTION.format("default"), read(path)) is None


L40S = GpuPool("NVIDIA-L40S", (4, 4), 46068, Provenance.MEASURED)
A100 = GpuPool("NVIDIA-A100-SXM4-80GB", (4,), 81920, Provenance.MEASURED)
H100 = GpuPool("NVIDIA-H100-80GB-HBM3", (8, 8), 81559, Provenance.MEASURED)


@pytest.mark.parametrize(
    ("example", "pool", "reason", "split"),
    [
        ("llama-8b", L40S, Reason.FITS, (1, 1)),
        ("llama-70b", A100, Reason.FITS, (4, 1)),
        ("llama-405b-two-nodes", H100, Reason.FITS, (8, 2)),
        ("cannot-fit", L40S, Reason.INSUFFICIENT_MEMORY, None),
    ],
)
def test_example_does_what_it_says(example: str, pool: GpuPool, reason: Reason, split: tuple[int, int] | None) -> None:
    (path,) = (path for path in EXAMPLES if path.stem == example)
    spec = parse_spec(read(path)["spec"])
    assert isinstance(spec, InferenceModelSpec)
    decision = plan_layout(spec, pool)
    assert decision.reason is reason, decision.message
    layout = decision.layout
    assert (None if layout is None else (layout.tensor, layout.pipeline)) == split


def test_two_nodes_are_needed_where_the_example_says_so() -> None:
    (path,) = (path for path in EXAMPLES if path.stem == "llama-405b-two-nodes")
    raw = read(path)["spec"]
    raw["parallelism"] = {"tensor": 8, "pipeline": 1}
    spec = parse_spec(raw)
    assert isinstance(spec, InferenceModelSpec)
    assert plan_layout(spec, H100).reason is Reason.INSUFFICIENT_MEMORY
