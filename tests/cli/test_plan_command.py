"""`bayplan plan` on saved inventories: exit codes, forms of output, input that is wrong."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner, Result

from bayplan.api import names
from bayplan.api.meta import rfc3339
from bayplan.cli.main import app
from bayplan.cli.offline.collect import reduce_cluster
from bayplan.cli.offline.document import ClusterDocument, from_json, to_json
from bayplan.cluster.resources import INFERENCE_MODELS
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY
from tests.api.specs import MINIMAL_SPEC
from tests.planning.capacity.plans import PLAN, changed
from tests.reconcile.world import foreign_pod, node

Json = dict[str, Any]
CONTROLS = ["memory-fit", "capacity-plan", "parallel-layout", "gpu-placement", "queue-scaling"]
AUTOSCALING = {"maxReplicas": 8, "serviceTokensPerSecond": 100}


def api_node(name: str, **details: Any) -> Json:
    raw = node(name, **details)
    return {**raw, "metadata": raw["metadata"] | {"uid": name, "resourceVersion": "1"}}


def manifest(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def model(name: str = "llama", **changes: Any) -> Json:
    return manifest("InferenceModel", name, {**MINIMAL_SPEC, **changes})


def planned_model() -> Json:
    return model(autoscaling=AUTOSCALING, capacityPlanRef={"name": "peak"})


def plan_of(**changes: Any) -> Json:
    now = rfc3339(datetime.now(UTC) - timedelta(hours=1))
    dated = {"benchmark.observedTime": now, "price.date": now, "evidence.controls": CONTROLS}
    every = dated | {path.replace("__", "."): value for path, value in changes.items()}
    return manifest("CapacityPlan", "peak", changed(PLAN, every))


def saved(tmp_path: Path, *, pods: Sequence[Json] = (), models: Sequence[Json] = (), age_seconds: int = 5) -> Path:
    document = reduce_cluster(
        nodes=[api_node(f"n{i}", zone=f"z{i}", gpus=4) for i in range(2)],
        pods=pods,
        quotas=[],
        ours={INFERENCE_MODELS: models},
        topology=DEFAULT_TOPOLOGY,
        now=datetime.now(UTC) - timedelta(seconds=age_seconds),
    )
    file = tmp_path / "nodes.json"
    file.write_text(to_json(document))
    return file


def write(tmp_path: Path, *manifests: Json) -> str:
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    return str(file)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], env={"COLUMNS": "240", "NO_COLOR": "1"})


def conditions(result: Result, kind: str = "CapacityPlan") -> dict[str, tuple[str, str]]:
    (found,) = (o for o in json.loads(result.stdout)["objects"] if o["kind"] == kind)
    return {c["type"]: (c["status"], c["reason"]) for c in found["conditions"]}


def test_what_is_ready_ends_with_0_and_says_so_per_condition(tmp_path: Path) -> None:
    files = write(tmp_path, plan_of(), planned_model())
    result = run(files, "--nodes", saved(tmp_path))

    assert result.exit_code == 0, result.output
    for word in ("Sized", "Placeable", "WithinBudget", "EvidenceCurrent", "MemoryFit", "Placed"):
        assert word in result.stdout
    assert "a new InferenceModel: 4 replicas, 4 GPUs" in result.stdout


def test_a_conflict_ends_with_1_and_names_it(tmp_path: Path) -> None:
    files = write(tmp_path, plan_of(limits__maxHourlyCost=1), planned_model())

    result = run(files, "--nodes", saved(tmp_path), "--json")

    assert result.exit_code == 1
    assert conditions(result)["WithinBudget"] == ("False", "BudgetExceeded")
    (found,) = (o for o in json.loads(result.stdout)["objects"] if o["kind"] == "CapacityPlan")
    assert found["numbers"]["replicas"] == 4


def test_replicas_that_have_no_place_are_a_conflict_with_placements_own_reason(tmp_path: Path) -> None:
    result = run(write(tmp_path, model(replicas=9)), "--nodes", saved(tmp_path), "--json")

    assert result.exit_code == 1
    assert conditions(result, "InferenceModel")["Placed"] == ("False", "InsufficientGPU")
    (found,) = json.loads(result.stdout)["objects"]
    assert len(found["numbers"]["nodes"]) == 8


def test_models_of_one_run_do_not_get_the_same_gpu(tmp_path: Path) -> None:
    files = write(tmp_path, model("a", replicas=5), model("b", replicas=4))

    result = run(files, "--nodes", saved(tmp_path), "--json")

    assert result.exit_code == 1
    objects = {o["name"]: o for o in json.loads(result.stdout)["objects"]}
    assert objects["a"]["ready"]
    assert len(objects["b"]["numbers"]["nodes"]) == 3


def test_an_invalid_spec_ends_with_2_and_names_the_field(tmp_path: Path) -> None:
    result = run(write(tmp_path, model(concurrency=0), model("fine")), "--nodes", saved(tmp_path), "--json")

    assert result.exit_code == 2
    objects = {o["name"]: o for o in json.loads(result.stdout)["objects"]}
    assert objects["fine"]["ready"]
    (condition,) = objects["llama"]["conditions"]
    assert condition["reason"] == "InvalidSpec"
    assert "spec.concurrency" in condition["message"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"benchmark__prefillTokensPerSecond": 0}, "spec.benchmark.prefillTokensPerSecond"),
        ({"price__date": None}, "spec.price.date: required"),
        ({"benchmark__observedTime": "2026-99-01T00:00:00Z"}, "spec.benchmark.observedTime"),
        ({"workloadClasses__1__name": "interactive"}, "'interactive' is there twice"),
        ({"resilience__surviveLossOf": "hall"}, "unknown level 'hall'"),
    ],
)
def test_bad_input_of_a_plan_is_named_and_disturbs_nothing_else(tmp_path: Path, changes: Json, says: str) -> None:
    result = run(write(tmp_path, plan_of(**changes), model("fine")), "--nodes", saved(tmp_path), "--json")

    assert result.exit_code == 2
    objects = {o["name"]: o for o in json.loads(result.stdout)["objects"]}
    assert objects["fine"]["ready"]
    assert any(says in condition["message"] for condition in objects["peak"]["conditions"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"benchmark__observedTime": "2199-01-01T00:00:00Z"}, "EvidenceContradicted"),
        ({"benchmark__modelRevision": "other"}, "EvidenceContradicted"),
        ({"benchmark__observedTime": "2020-01-01T00:00:00Z"}, "EvidenceStale"),
        ({"workloadClasses__1": None}, "EvidenceMissing"),
    ],
)
def test_evidence_that_proves_nothing_is_told_by_its_kind(tmp_path: Path, changes: Json, reason: str) -> None:
    files = write(tmp_path, plan_of(**changes), planned_model())

    result = run(files, "--nodes", saved(tmp_path), "--json")

    assert result.exit_code == 1
    assert conditions(result)["EvidenceCurrent"] == ("False", reason)


def test_an_old_inventory_proves_nothing_of_a_plan(tmp_path: Path) -> None:
    files = write(tmp_path, plan_of(), planned_model())

    result = run(files, "--nodes", saved(tmp_path, age_seconds=3600), "--json")

    assert conditions(result)["EvidenceCurrent"] == ("False", "EvidenceStale")


def test_equal_inputs_give_equal_bytes_and_a_changed_one_another_digest(tmp_path: Path) -> None:
    nodes = saved(tmp_path)
    files = write(tmp_path, plan_of(), planned_model())

    one, two = run(files, "--nodes", nodes, "--json"), run(files, "--nodes", nodes, "--json")
    assert one.stdout == two.stdout
    write(tmp_path, plan_of(price__hourlyCost=4.26), planned_model())
    other = run(files, "--nodes", nodes, "--json")
    assert json.loads(other.stdout)["digest"] != json.loads(one.stdout)["digest"]


def test_what_runs_is_compared_with_what_is_asked_for(tmp_path: Path) -> None:
    running = {**model(replicas=1), "status": {"desiredReplicas": 1}}
    running["metadata"] |= {"namespace": "default", "uid": "m1", "resourceVersion": "5", "generation": 1}
    nodes = saved(tmp_path, models=[running])
    spec = {**MINIMAL_SPEC, "engine": {**MINIMAL_SPEC["engine"], "maxModelLen": 4096}}

    result = run(write(tmp_path, manifest("InferenceModel", "llama", {**spec, "replicas": 3})), "--nodes", nodes)

    assert "replicas: 1 → 3" in result.stdout
    assert "replaced one by one" in result.stdout


def test_junit_has_a_case_per_condition_and_fails_for_what_is_not_true(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    result = run(write(tmp_path, model(replicas=9)), "--nodes", saved(tmp_path), "--junit", junit)

    assert result.exit_code == 1
    (suite,) = ElementTree.fromstring(junit.read_text()).iter("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    (failure,) = suite.iter("failure")
    assert failure.get("type") == "InsufficientGPU"


def test_folders_and_standard_input_are_read_and_other_kinds_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = saved(tmp_path)
    folder = tmp_path / "k" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text(yaml.safe_dump_all([model("a"), {"apiVersion": "v1", "kind": "Secret"}, None]))
    (folder / "notes.txt").write_text("no manifest")
    assert [o["name"] for o in json.loads(run(tmp_path / "k", "--nodes", nodes, "--json").stdout)["objects"]] == ["a"]

    listed = {"apiVersion": "v1", "kind": "List", "items": [model("b"), model("c")]}
    found = CliRunner().invoke(app, ["plan", "-", "--nodes", str(nodes), "--json"], input=yaml.safe_dump(listed))
    assert [o["name"] for o in json.loads(found.stdout)["objects"]] == ["b", "c"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "is no YAML"),
        ("apiVersion: bayplan.dev/v9\nkind: InferenceModel\nmetadata: {name: a}", "apiVersion must be"),
        ("apiVersion: bayplan.dev/v1alpha1\nkind: InferenceModel\nspec: {}", "metadata.name is missing"),
        ("kind: ConfigMap", "holds no InferenceModel, Rollout or CapacityPlan"),
        (yaml.safe_dump_all([model("a"), model("a")]), "is in"),
    ],
)
def test_files_that_cannot_be_planned_are_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)

    result = run(file, "--nodes", saved(tmp_path))

    assert result.exit_code == 2
    assert says in result.stderr
    assert "bad.yaml" in result.stderr


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"kind": "BayplanInventory", "format": 99}', '{"kind": "BayplanInventory", "format": 1}']
)
def test_a_file_that_is_no_inventory_is_named(tmp_path: Path, text: str) -> None:
    nodes = tmp_path / "nodes.json"
    nodes.write_text(text)

    result = run(write(tmp_path, model()), "--nodes", nodes)

    assert result.exit_code == 2
    assert "nodes.json" in result.stderr


def test_missing_files_are_named(tmp_path: Path) -> None:
    assert run(tmp_path / "none.yaml", "--nodes", saved(tmp_path)).exit_code == 2
    assert run(write(tmp_path, model()), "--nodes", tmp_path / "none.json").exit_code == 2


class TestInventoryFile:
    def document(self) -> ClusterDocument:
        spec = {**MINIMAL_SPEC, "engine": {**MINIMAL_SPEC["engine"], "env": [{"name": "TOKEN", "value": "hunter2"}]}}
        stored = {"metadata": {"namespace": "a", "name": "m", "uid": "u", "resourceVersion": "1", "generation": 3}}
        busy = foreign_pod("busy", "n0", gpus=2)
        busy["metadata"] |= {"uid": "p", "resourceVersion": "1"}
        busy["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
        noisy = api_node("n0")
        noisy["metadata"]["annotations"] = {"secret": "hunter2", names.ANNOTATION_NODE_DRAIN: "true"}
        return reduce_cluster(
            nodes=[noisy],
            pods=[busy],
            quotas=[],
            ours={INFERENCE_MODELS: [{**stored, "spec": spec}]},
            topology=DEFAULT_TOPOLOGY,
            now=datetime(2026, 3, 4, tzinfo=UTC),
        )

    def test_what_is_saved_comes_back_and_holds_no_secret(self) -> None:
        text = to_json(self.document())

        assert from_json(text.encode(), "f") == self.document()
        assert "hunter2" not in text

    def test_what_is_taken_and_what_leaves_is_in_it(self) -> None:
        inventory = self.document().inventory(DEFAULT_TOPOLOGY)

        assert inventory.free["n0"].gpus == 0
        assert inventory.nodes[0].leaving

    def test_the_revision_counts_the_values_that_the_file_leaves_out(self) -> None:
        (known,) = self.document().objects

        assert known.revision
        assert known.spec["engine"]["env"] == [{"name": "TOKEN"}]


class TestConfiguration:
    def test_levels_of_the_operators_configuration_are_known(self, tmp_path: Path) -> None:
        files = write(tmp_path, plan_of(resilience__surviveLossOf="hall", limits=None, price=None), planned_model())
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump({"topology": {"hall": ["topology.kubernetes.io/zone"]}}))

        without = run(files, "--nodes", saved(tmp_path), "--json")
        found = run(files, "--nodes", saved(tmp_path), "--json", "--config", config)

        assert (without.exit_code, found.exit_code) == (2, 0), found.output
        (plan,) = (o for o in json.loads(found.stdout)["objects"] if o["kind"] == "CapacityPlan")
        assert plan["numbers"]["replicas"] == 8

    def test_figures_of_gpus_that_it_states_count(self, tmp_path: Path) -> None:
        files = write(tmp_path, model(replicas=1, placement={"gpuProducts": ["Own-GPU"]}))
        own = {"nvidia.com/gpu.product": "Own-GPU", "nvidia.com/gpu.memory": "0"}
        document = reduce_cluster(
            nodes=[api_node("n0", labels=own)],
            pods=[],
            quotas=[],
            ours={},
            topology=DEFAULT_TOPOLOGY,
            now=datetime.now(UTC),
        )
        nodes, config = tmp_path / "own.json", tmp_path / "config.yaml"
        nodes.write_text(to_json(document))
        config.write_text(yaml.safe_dump({"gpus": {"Own-GPU": {"visibleGib": 80}}}))

        without = run(files, "--nodes", nodes, "--json")
        found = run(files, "--nodes", nodes, "--json", "--config", config)

        assert conditions(without, "InferenceModel")["MemoryFit"] == ("Unknown", "UnknownGPUMemory")
        assert conditions(found, "InferenceModel")["MemoryFit"] == ("True", "Fits")

    def test_a_configuration_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        config = tmp_path / "config.yaml"
        config.write_text("limit: 3")

        result = run(write(tmp_path, model()), "--nodes", saved(tmp_path), "--config", config)

        assert result.exit_code == 2
        assert "config.yaml: limit: unknown key" in result.stderr
