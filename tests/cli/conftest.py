"""Files that several tests of the command line read."""

from pathlib import Path

import pytest

from tests.cli.fitcalls import CONFIG, header, tensors, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with a config and one file of tensors, whose data is a hole in the file."""
    write(tmp_path / "config.json", CONFIG)
    head, size = header(tensors())
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return tmp_path
