"""The comparison of a real engine's KV cache with `bayplan fit`, with an engine that is made up."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bayplan.cli.main import app
from bayplan.planning.memory.modelconfig import parse_config
from e2e import realengine
from e2e.conformance import cachepages
from e2e.conformance.cachepages import (
    CachePages,
    CachePagesError,
    Family,
    Pages,
    cache_pages,
    fit_arguments,
    planned_pages,
    read_families,
    read_fit,
    started_pages,
)
from e2e.realengine.environment import Installation

STARTED = Pages(10922, 349504)
"""What vLLM 0.32's CPU build reported for this configuration and 1 GiB."""
LLAMA = Family(
    "llama",
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 512,
        "vocab_size": 1024,
        "max_position_embeddings": 8192,
    },
    block_size=32,
    max_model_len=4096,
    flags={},
    reported=STARTED,
)


def said(_: str) -> None:
    """Nobody listens."""


async def test_the_command_line_plans_what_a_started_engine_reported(tmp_path: Path) -> None:
    seen = []

    async def started(_: Family, folder: Path) -> Pages:
        seen.append((folder / "config.json").is_file())
        return STARTED

    (found,) = await cache_pages(say=said, started=started, families=[LLAMA])

    assert seen == [True]
    assert (found.planned, found.tolerance) == (STARTED, 32)
    assert found.equal


@pytest.mark.parametrize(
    ("engine", "equal"),
    [
        (STARTED, True),
        (replace(STARTED, tokens=STARTED.tokens + 32), True),
        (replace(STARTED, tokens=STARTED.tokens - 33), False),
        (replace(STARTED, blocks=STARTED.blocks + 1), False),
    ],
)
def test_blocks_are_exact_and_tokens_within_a_block_of_each_group(engine: Pages, equal: bool) -> None:
    assert CachePages("llama", engine, STARTED, 32).equal is equal


async def test_a_configuration_without_an_answer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(CachePagesError, match=r"llama: bayplan fit has no answer: .*architectures"):
        await planned_pages(LLAMA, tmp_path)


async def test_modules_beside_the_starter_do_not_stand_for_the_engines_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = tmp_path / "starter.py"
    starter.write_text('import colorsys\nprint(\'{"blocks": 7, "tokens": 224}\')\n')
    (tmp_path / "colorsys.py").write_text("raise AttributeError\n")
    found = Installation(environment=Path(sys.prefix), model=tmp_path)
    monkeypatch.setattr(cachepages, "STARTER", starter)
    monkeypatch.setattr(realengine, "installed", lambda: found)

    assert await started_pages(LLAMA, tmp_path) == Pages(blocks=7, tokens=224)


def test_six_families_and_more_are_known_configurations() -> None:
    families = read_families()

    assert len({family.config["architectures"][0] for family in families}) >= 6
    for family in families:
        assert parse_config(family.config).layers


@pytest.mark.parametrize("family", read_families(), ids=lambda family: family.name)
def test_what_is_planned_is_what_a_real_engine_reported(family: Family, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(family.config))

    answer = CliRunner().invoke(app, fit_arguments(family, tmp_path))

    planned, tolerance = read_fit(answer.stdout)
    assert CachePages(family.name, family.reported, planned, tolerance).equal


async def test_a_family_that_does_not_start_is_told_when_the_others_had_their_turn() -> None:
    first, second = read_families()[:2]
    said: list[str] = []

    async def started(family: Family, folder: Path) -> Pages:
        if family.name == first.name:
            raise CachePagesError(f"{family.name} did not start")
        return STARTED

    with pytest.raises(CachePagesError, match=re.escape(f"{first.name} did not start")):
        await cache_pages(say=said.append, started=started, families=[first, second])
    assert [line.split(":")[0] for line in said] == [first.name, second.name]
