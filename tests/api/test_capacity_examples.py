"""The CapacityPlan of the examples and its model: valid as they stand, and what they say."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from bayplan.api import names
from bayplan.api.capacityplan import CapacityPlanSpec
from bayplan.api.structural import structural_schema
from bayplan.api.validation import parse_plan_spec
from bayplan.cli.main import app
from bayplan.cli.offline.collect import reduce_cluster
from bayplan.cli.offline.document import to_json
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY
from e2e.localcluster import KubeApi
from tests.api.server import COLLECTION, refusal
from tests.api.test_examples import repeated
from tests.cli.test_plan_command import api_node

EXAMPLES = Path(__file__).parents[2] / "examples"
PLANS = f"/apis/{names.API_VERSION}/namespaces/default/{names.CAPACITYPLAN_PLURAL}"


def test_the_plan_parses_and_writes_no_default_down() -> None:
    spec = yaml.safe_load((EXAMPLES / "capacity/plan.yaml").read_text())["spec"]

    assert isinstance(parse_plan_spec(spec), CapacityPlanSpec)
    assert not repeated(structural_schema(CapacityPlanSpec, with_defaults=True), spec, "spec")


async def test_plan_and_model_are_accepted_by_the_api_server(api: KubeApi) -> None:
    for name, path in (("plan", PLANS), ("model", COLLECTION.format("default"))):
        manifest = yaml.safe_load((EXAMPLES / f"capacity/{name}.yaml").read_text())
        assert await refusal(api, "POST", path, manifest) is None


@pytest.mark.parametrize(("zones", "code"), [(3, 1), (1, 1)])
def test_the_folder_can_be_planned_on_a_saved_inventory(tmp_path: Path, zones: int, code: int) -> None:
    l40s = {"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068"}
    document = reduce_cluster(
        nodes=[api_node(f"n{i}", zone=f"z{i % zones}", gpus=8, labels=l40s) for i in range(3)],
        pods=[],
        quotas=[],
        ours={},
        topology=DEFAULT_TOPOLOGY,
        now=datetime.now(UTC) - timedelta(seconds=1),
    )
    (tmp_path / "nodes.json").write_text(to_json(document))

    answer = CliRunner().invoke(
        app,
        ["plan", str(EXAMPLES / "capacity"), "--nodes", str(tmp_path / "nodes.json")],
        env={"COLUMNS": "240", "NO_COLOR": "1"},
    )

    assert answer.exit_code == code, answer.output
    assert ("DomainLossNotCovered" in answer.stdout) is (zones == 1)
    assert "canary-gate" in answer.stdout  # no Rollout has tried the revision


def test_the_pipeline_runs_commands_that_there_are() -> None:
    text = (EXAMPLES / "ci/pull-request.yaml").read_text()

    assert yaml.safe_load(text)["jobs"]["plan"]["steps"]
    for option in ("--nodes", "--junit"):
        assert option in text
        assert option in CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
