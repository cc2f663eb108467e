"""The emitter fails loudly on whatever a structural schema cannot say, or should not leave open."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field, StringConstraints

from bayplan.api.crd import INFERENCEMODEL, custom_resource_definition
from bayplan.api.emitter import chart_files, crd_files, differences, main, page_files, to_yaml
from bayplan.api.meta import ATOMIC, Exact, Flag, Keyed, Schema, WholeNumber
from bayplan.api.rules import Rule
from bayplan.api.structural import EmissionError, defaulted, structural_schema
from e2e.specwalk.boundaries import Json

REPOSITORY = Path(__file__).parents[2]
Name = Annotated[str, StringConstraints(max_length=5)]
Level = Annotated[WholeNumber, Field(ge=0, le=9)]


class Inner(Schema):
    """Inner part."""

    level: Level = 3
    """Level."""
    name: Name = ""
    """Name."""


class Entry(Schema):
    """One entry."""

    name: Name
    """Key."""
    level: Level = 1
    """Level."""


class Everything(Schema):
    """All forms that have a structural schema."""

    rules: ClassVar = (Rule(expression="self.text != 'x'", message="not x", holds=lambda self: self.text != "x"),)

    text: Name
    """Text."""
    choice: Literal["a", "b"] = "a"
    """Choice."""
    only: Literal["z"] = "z"
    """Only one."""
    flag: Flag = False
    """Flag."""
    share: Annotated[Decimal, Exact(gt=0, le=1)] = Decimal("0.9")
    """Share."""
    maybe: Level | None = None
    """Absent
    or set."""
    inner: Inner = Inner()
    """Part with defaults."""
    optional: Inner | None = None
    """Part that may be absent."""
    entries: Annotated[tuple[Entry, ...], Field(max_length=3), Keyed("name")] = ()
    """Entries."""
    words: Annotated[dict[Annotated[str, StringConstraints(pattern="^k", max_length=4)], Name], Field(max_length=2)] = (
        Field(default={})
    )
    """Words."""


SCHEMA = structural_schema(Everything, with_defaults=True)


def test_optional_member_is_its_plain_type_and_not_required() -> None:
    assert SCHEMA["properties"]["maybe"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": 9,
        "description": "Absent or set.",
    }
    assert SCHEMA["required"] == ["text"]


def test_parent_of_defaults_has_an_empty_default_so_that_they_apply() -> None:
    assert SCHEMA["properties"]["inner"]["default"] == {}
    assert defaulted(SCHEMA, {"text": "t", "entries": [{"name": "e"}]}) == {
        "text": "t",
        "choice": "a",
        "only": "z",
        "flag": False,
        "share": 0.9,
        "inner": {"level": 3},
        "entries": [{"name": "e", "level": 1}],
    }


def test_optional_part_is_not_made_by_defaulting() -> None:
    assert "default" not in SCHEMA["properties"]["optional"]


def test_constant_and_choice_are_enumerations() -> None:
    assert SCHEMA["properties"]["only"]["enum"] == ["z"]
    assert SCHEMA["properties"]["choice"]["enum"] == ["a", "b"]


def test_exclusive_bound_is_a_boolean_beside_the_bound() -> None:
    share = SCHEMA["properties"]["share"]
    assert (share["minimum"], share["exclusiveMinimum"], share["maximum"]) == (0, True, 1)


def test_keyed_list_says_its_key_and_keys_of_a_map_become_a_rule() -> None:
    assert SCHEMA["properties"]["entries"]["x-kubernetes-list-map-keys"] == ["name"]
    (rule,) = SCHEMA["properties"]["words"]["x-kubernetes-validations"]
    assert rule["rule"] == "self.all(k, k.size() <= 4 && k.matches('^k'))"


def test_rule_of_a_model_is_emitted() -> None:
    assert SCHEMA["x-kubernetes-validations"] == [{"rule": "self.text != 'x'", "message": "not x"}]


def test_status_is_emitted_without_defaults() -> None:
    assert "'default'" not in str(structural_schema(Everything, with_defaults=False))


def test_nothing_is_left_that_a_structural_schema_refuses() -> None:
    def keywords(node: Any) -> set[str]:
        if isinstance(node, list):
            return set().union(*map(keywords, node))
        if not isinstance(node, dict):
            return set()
        return set(node) | set().union(*map(keywords, node.values()))

    assert not keywords(SCHEMA) & {"$ref", "$defs", "anyOf", "title", "const", "patternProperties", "propertyNames"}


def broken(annotation: Any, default: Any = ..., *, doc: str | None = "A field.") -> type[Schema]:
    namespace: Json = {"__annotations__": {"field": annotation}, "__doc__": "Broken.", "__module__": __name__}
    namespace["field"] = Field(default, description=doc)
    return type("Broken", (Schema,), namespace)


Recursive: Any = None


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (broken(str), "Broken.field: unbounded, maxLength missing"),
        (broken(int), "Broken.field: unbounded, minimum and maximum missing"),
        (broken(Annotated[int, Field(ge=0)]), "Broken.field: unbounded, maximum missing"),
        (broken(Annotated[int, Field(le=0)]), "Broken.field: unbounded, minimum missing"),
        (broken(float), "Broken.field: unbounded, minimum missing"),
        (broken(Annotated[tuple[Name, ...], Field(json_schema_extra=ATOMIC)]), "Broken.field: unbounded, maxItems"),
        (broken(Annotated[tuple[Name, ...], Field(max_length=2)]), "Broken.field: x-kubernetes-list-type missing"),
        (
            broken(Annotated[tuple[Inner, ...], Field(max_length=2), Keyed("name")]),
            "Broken.field: list keys ['name'] must be required",
        ),
        (broken(dict[Name, Name]), "Broken.field: unbounded, maxProperties missing"),
        (broken(Annotated[dict[str, Name], Field(max_length=2)]), "Broken.field: unbounded keys"),
        (broken(Annotated[dict[str, Any], Field(max_length=2)]), "Broken.field: an object needs members or a value"),
        (broken(Name | Level), "Broken.field: a union has no structural form"),
        (broken(tuple[Name, Level]), "Broken.field: no structural form for prefixItems"),
        (broken(Annotated[set[Name], Field(max_length=2)]), "Broken.field: no structural form for uniqueItems"),
        (broken(Decimal), "Broken.field: a union has no structural form"),
        (broken(bytes), "Broken.field: no structural form for format"),
        (broken(Any), "Broken.field: no structural form for type None"),
        (broken(Name, doc=None), "Broken.field: a docstring below the field is missing"),
        (broken(Annotated[Level, Field(multiple_of=2)]), "Broken.field: no structural form for multipleOf"),
        (broken(Inner, Inner(level=4)), "Broken.field: default {'level': 4, 'name': ''} differs from"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_bounded_structural_form_is_an_error_that_names_the_field(model: type[Schema], says: str) -> None:
    with pytest.raises(EmissionError, match=re.escape(says)):
        structural_schema(model, with_defaults=True)


class HiddenDefault(Schema):
    """A default that the schema cannot show."""

    inner: Inner = Field(default_factory=Inner)
    """Part."""


class Tree(Schema):
    """A type that contains itself."""

    child: "Tree | None" = None
    """Child."""


@pytest.mark.parametrize(("model", "says"), [(HiddenDefault, "default_factory"), (Tree, "recursive")])
def test_hidden_default_and_recursion_are_errors(model: type[Schema], says: str) -> None:
    with pytest.raises(EmissionError, match=says):
        structural_schema(model, with_defaults=True)


def test_rule_needs_a_predicate_unless_it_is_about_a_change() -> None:
    with pytest.raises(ValueError, match="needs a predicate"):
        Rule(expression="self.a == 1", message="a must be 1")
    with pytest.raises(ValueError, match="needs a predicate"):
        Rule(expression="self == oldSelf", message="immutable", holds=lambda _: True)


def test_generated_files_are_up_to_date() -> None:
    files = crd_files(REPOSITORY / "crds") | page_files(REPOSITORY / "docs")
    files |= chart_files(REPOSITORY / "charts/bayplan")
    assert not differences(files), "run `make crds`"


def test_check_prints_a_diff_and_fails_on_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path / "crds"), "--docs", str(tmp_path / "docs"), "--chart", str(tmp_path / "chart")]
    assert main([*arguments, "--check"]) == 1
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0
    manifest = next((tmp_path / "crds").iterdir())
    manifest.write_text(manifest.read_text().replace("maximum: 10000", "maximum: 10001"))
    capsys.readouterr()
    assert main([*arguments, "--check"]) == 1
    output = capsys.readouterr().out
    assert "-                maximum: 10001" in output
    assert "+                maximum: 10000" in output


def test_generated_text_is_the_same_each_time() -> None:
    first, second = (to_yaml(custom_resource_definition(INFERENCEMODEL)) for _ in range(2))
    assert first == second
