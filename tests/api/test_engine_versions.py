"""One engine is what users are shown, what the look-alike copies and what the real engine is: version and flags."""

import re
from pathlib import Path

from bayplan.api.engineargs import RESERVED_FLAGS, reserved_flag
from bayplan.api.engineimage import LEAST_ENGINE_VERSION, is_too_old
from e2e.enginesim.flags import engine_parser
from e2e.enginesim.settings import Settings
from e2e.realengine.recipe import ENGINE_VERSION

ROOT = Path(__file__).parents[2]
SHOWN = (
    ROOT / "README.md",
    *(path for folder in ("docs", "examples", "e2e") for path in sorted((ROOT / folder).rglob("*"))),
)
IMAGE = re.compile(r"vllm-(?:openai|cpu):v?([0-9][0-9.]*[0-9])")


def named_versions() -> dict[str, set[str]]:
    """Return the engine versions in image references, by file."""
    found = {}
    for path in SHOWN:
        if path.suffix in (".md", ".yaml", ".py"):
            versions = set(IMAGE.findall(path.read_text()))
            if versions:
                found[str(path.relative_to(ROOT))] = versions
    return found


def test_examples_readme_and_docs_name_the_version_that_is_tested() -> None:
    found = named_versions()
    models = [path for path in (ROOT / "examples").glob("*.yaml") if "kind: InferenceModel" in path.read_text()]
    assert {"README.md", *(f"examples/{path.name}" for path in models)} <= set(found)
    assert {name: versions for name, versions in found.items() if versions != {ENGINE_VERSION}} == {}
    assert Settings().version == ENGINE_VERSION


def test_the_readme_names_the_least_version_that_the_api_accepts() -> None:
    major, minor = LEAST_ENGINE_VERSION
    assert f"vLLM {major}.{minor} or newer" in (ROOT / "README.md").read_text()
    assert is_too_old(f"vllm/vllm-openai:v{major}.{minor - 1}.99")
    assert not is_too_old(f"vllm/vllm-openai:v{major}.{minor}.0")
    assert not is_too_old(f"vllm/vllm-openai:v{ENGINE_VERSION}")


def test_no_second_name_of_a_reserved_flag_is_free() -> None:
    """Both lists together are the engine's command line: no spelling of a reserved flag may pass under another name."""
    actions = engine_parser()._option_string_actions
    reserved = {id(actions[flag]) for flag in RESERVED_FLAGS if flag in actions}
    assert len(reserved) > 20
    free = {name for name, action in actions.items() if id(action) in reserved and reserved_flag(name) is None}
    assert free == set()


def test_the_flags_of_the_operator_exist_on_the_engine() -> None:
    assert set(RESERVED_FLAGS) - set(engine_parser()._option_string_actions) == set()
