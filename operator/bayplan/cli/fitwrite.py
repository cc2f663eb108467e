"""`bayplan fit --write`: the architecture block of a manifest, from a model's own files or the catalogue."""

import json
from typing import Any

import yaml

from bayplan.cli.fitquestion import ModelFiles
from bayplan.planning.memory.catalogue import catalogue_model
from bayplan.planning.memory.modelconfig import reduced_config
from bayplan.planning.memory.quantconfig import stated_format
from bayplan.planning.memory.safetensors import CheckpointSizes
from bayplan.planning.numbers import InvalidInput

MAX_CONFIG_CHARACTERS = 32768
"""The API's bound of `model.architecture.config`."""


def architecture_block(files: ModelFiles) -> str:
    """YAML that merges into the manifest, with the spec at its root. Raises InvalidInput as reading the model does."""
    files.known()
    block: dict[str, Any] = {}
    stated = files.stated
    if files.config is None:
        block["name"] = catalogue_model(files.name).name
    else:
        block["config"] = json.dumps(reduced_config(files.config), separators=(",", ":"))
        if len(block["config"]) > MAX_CONFIG_CHARACTERS:
            raise InvalidInput(
                "config", f"needs {len(block['config'])} characters; the API takes {MAX_CONFIG_CHARACTERS}"
            )
        if stated is None:
            stated = _stated(files)
    if stated is not None:
        block["weightFormat"] = stated.name
    if files.sizes is not None:
        block["weightBytes"] = _bytes(files.sizes)
    document = {"spec": {"model": {"architecture": block}}}
    return str(yaml.safe_dump(document, sort_keys=False, width=100_000, default_flow_style=None))


def _stated(files: ModelFiles) -> Any:
    try:
        found = stated_format(files.config or {})
    except InvalidInput:
        return None
    return None if found is None else found.weights


def _bytes(sizes: CheckpointSizes) -> dict[str, Any]:
    found: dict[str, Any] = {"embedding": sizes.embedding_bytes}
    if sizes.head_bytes:
        found["head"] = sizes.head_bytes
    found["layers"] = list(sizes.layer_bytes)
    if sizes.mtp_bytes:
        found["prediction"] = sizes.mtp_bytes
    return found
