"""`model.inspect`: a pod without a GPU reads a model's files once, and the plan goes by what it said."""

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bayplan.api import names
from bayplan.api.inferencemodel import InferenceModelSpec
from bayplan.api.meta import rfc3339
from bayplan.cluster.resources import CONTROLLER_REVISIONS, Key
from bayplan.planning.layout.inspected import read_report, with_architecture
from bayplan.planning.layout.knownmodel import KnownModel
from bayplan.planning.layout.modelnumbers import read_model
from bayplan.planning.memory.safetensors import CheckpointSizes
from bayplan.reconcile.inferencemodel import inspectscript
from bayplan.reconcile.inferencemodel.inspection import SCRIPT
from tests.reconcile.world import World, model_spec

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "eos_token_id": [1, 2],
    "quantization_config": {"quant_method": "fp8", "ignored_layers": ["x" * 100] * 100},
}
MODEL = {**model_spec()["model"], "inspect": True}
del MODEL["architecture"]


def save(folder: Path, config: object = CONFIG) -> Path:
    """A model's folder: config.json, and two files of tensors whose data is a hole."""
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": 2**19, "lm_head.weight": 2**19, "model.norm.weight": 512}
    layers = {f"model.layers.{layer}.mlp.up_proj.weight": 2**18 for layer in range(2)}
    for number, tensors in enumerate((shapes, layers)):
        entries, end = {}, 0
        for name, size in tensors.items():
            entries[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(entries).encode()
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
    return folder


def said(location: object, folder: Path) -> tuple[int, str]:
    """Exit code and report of the script as the pod runs it."""
    command = [sys.executable, "-c", SCRIPT, str(location), "abc", str(folder / "said")]
    code = subprocess.run(command, check=False, timeout=60).returncode
    return code, (folder / "said").read_text()


def test_a_folder_is_read_without_its_weights(tmp_path: Path) -> None:
    code, text = said(save(tmp_path), tmp_path)
    found = read_report(text)

    assert code == 0
    assert len(text) < inspectscript.MAX_BYTES
    assert "ignored_layers" not in text
    spec = with_architecture(InferenceModelSpec.model_validate({**model_spec(), "model": MODEL}), found)
    known = read_model(spec)
    assert isinstance(known, KnownModel)
    assert (known.architecture.hidden_size, len(known.architecture.layers)) == (256, 2)
    assert known.weights == CheckpointSizes(2**19 + 512, 2**19, (2**18, 2**18), 0)


LIBRARY = """
class HfApi:
    def get_safetensors_metadata(self, name, revision):
        from huggingface_hub.errors import NotASafetensorsRepoError
        raise NotASafetensorsRepoError(name)

def hf_hub_download(name, file, revision):
    return CONFIG
"""
"""Of a hub that has the model's config.json, and its weights in another format."""


def test_a_model_on_the_hub_without_safetensors_is_read_by_its_config_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    library = tmp_path / "huggingface_hub"
    library.mkdir()
    (library / "__init__.py").write_text(f"CONFIG = {str(config)!r}\n{LIBRARY}")
    (library / "errors.py").write_text("class NotASafetensorsRepoError(Exception): ...\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    code, text = said("acme/boat", tmp_path)

    assert code == 0
    assert set(json.loads(text)) == {"config"}
    assert json.loads(text)["config"]["hidden_size"] == CONFIG["hidden_size"]


def _cut(folder: Path) -> None:
    (folder / "model-0.safetensors").write_bytes(b"\x10")


def _boundless(folder: Path) -> None:
    (folder / "model-0.safetensors").write_bytes(struct.pack("<Q", 10**18) + b"{}")


def _huge(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(2 * 10**9)


def _wordy(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "layer_types": ["full_attention"] * 400}))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(_cut, "header of 0"), (_boundless, "header of 1000000000000000000"), (_huge, "longer than"), (_wordy, "4096")],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, spoil: Any, says: str) -> None:
    spoil(save(tmp_path))
    code, text = said(tmp_path, tmp_path)

    assert code == 1
    assert says in read_report(text).error


def test_an_object_store_is_no_place_to_read_from(tmp_path: Path) -> None:
    code, text = said("s3://bucket/model", tmp_path)

    assert code == 1
    assert "state model.architecture" in read_report(text).error


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"config": 7', "x" * 10_000, '{"config": {}, "weightBytes": 1}'),
        '{"config": {}, "weightBytes": {"embedding": 1, "layers": [[100000, 1]]}}',
        '{"config": {}, "weightBytes": {"embedding": -1, "layers": [[1, 1]]}}',
    ],
)
def test_whatever_the_pod_says_is_no_more_than_an_error(text: str) -> None:
    found = read_report(text)

    assert found.architecture is None
    assert found.error


# --- the operator -----------------------------------------------------------------------------------------------------


def world() -> World:
    found = World()
    found.add_node("n1", gpus=2)
    return found


def inspector(cluster: World) -> Any:
    (pod,) = [p for p in cluster.pods() if p["metadata"]["labels"][names.APP_COMPONENT] == "inspection"]
    return pod


def engines(cluster: World) -> list[Any]:
    return [p for p in cluster.pods() if p["metadata"]["labels"][names.APP_COMPONENT] == "engine"]


def end(cluster: World, text: str, *, code: int = 0) -> None:
    ended = {"exitCode": code, "message": text, "finishedAt": rfc3339(cluster.now())}

    def change(pod: Any) -> None:
        pod["status"]["phase"] = "Failed" if code else "Succeeded"
        pod["status"]["containerStatuses"] = [{"name": names.INSPECTION_CONTAINER, "state": {"terminated": ended}}]

    cluster.edit_pod(inspector(cluster)["metadata"]["name"], change)


def message(cluster: World, key: Key) -> str:
    found = cluster.condition(key, "MemoryFit")
    return "" if found is None else str(found["message"])


async def test_nothing_is_placed_until_the_files_are_read() -> None:
    cluster = world()
    key = cluster.add_model(model=MODEL, template={"imagePullSecrets": [{"name": "pull"}]})
    await cluster.settle()

    pod = inspector(cluster)
    assert engines(cluster) == []
    assert cluster.reason(key, "MemoryFit") == ("Unknown", "Inspecting")
    assert cluster.reason(key, "Placed") == ("False", "Inspecting")
    assert cluster.condition(key, "Stalled") is None
    (container,) = pod["spec"]["containers"]
    assert "nvidia.com/gpu" not in json.dumps(container["resources"])
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert "schedulingGates" not in pod["spec"]
    assert pod["metadata"]["name"] in message(cluster, key)


async def test_what_was_read_decides_and_is_read_once(tmp_path: Path) -> None:
    cluster = world()
    key = cluster.add_model(model=MODEL)
    await cluster.settle()
    end(cluster, said(save(tmp_path), tmp_path)[1])
    await cluster.run()
    await cluster.advance(5)

    assert cluster.reason(key, "MemoryFit") == ("True", "Fits")
    assert cluster.reason(key, "Ready") == ("True", "Ready")
    (memory,) = cluster.status(key)["memory"]
    assert memory["terms"][0]["provenance"] == "Derived"
    assert len(engines(cluster)) == len(cluster.pods()) == 1
    (revision,) = cluster.objects(CONTROLLER_REVISIONS)
    assert json.loads(revision["metadata"]["annotations"][names.ANNOTATION_INSPECTED])["config"]["hidden_size"] == 256

    await cluster.restart()
    await cluster.run()
    assert len(cluster.pods()) == 1
    assert cluster.reason(key, "MemoryFit") == ("True", "Fits")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"error":"FileNotFoundError: config.json"}', "FileNotFoundError: config.json"),
        ("", "without a word"),
        (json.dumps({"config": {**inspectscript.reduced(CONFIG), "num_attention_heads": 0}}), "num_attention_heads"),
    ],
)
async def test_files_that_cannot_be_read_place_the_model_as_unknown(text: str, says: str) -> None:
    cluster = world()
    key = cluster.add_model(model=MODEL)
    await cluster.settle()
    end(cluster, text, code=1)
    await cluster.run()

    assert cluster.reason(key, "MemoryFit") == ("Unknown", "UnknownArchitecture")
    assert says in message(cluster, key)
    assert len(engines(cluster)) == 1


async def test_a_restart_finds_the_pod_that_is_reading() -> None:
    cluster = world()
    cluster.add_model(model=MODEL)
    await cluster.settle()
    before = inspector(cluster)["metadata"]["uid"]
    await cluster.restart()
    await cluster.settle()

    assert inspector(cluster)["metadata"]["uid"] == before
