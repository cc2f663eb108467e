"""Right, wrong or Unknown: the checks of a prompt set, and what their counts say."""

import re
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.gates.jsonschema import MAX_DEPTH, compile_schema, parse_answer
from bayplan.planning.gates.patterns import MAX_PATTERN_CHARACTERS, MAX_REPEATS, compile_pattern
from bayplan.planning.gates.quality import (
    MAX_ANSWER_CHARACTERS,
    Check,
    CheckKind,
    QualityCounts,
    count_scores,
    current_quality,
    read_check,
)
from bayplan.planning.measurements import Unknown
from bayplan.planning.numbers import InvalidInput

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


class TestChecks:
    @pytest.mark.parametrize(("answer", "right"), [("Paris", True), (" Paris\n", True), ("paris", False), ("", False)])
    def test_exact_ignores_white_space_around_and_nothing_else(self, answer: str, right: bool) -> None:
        assert Check(CheckKind.EXACT, "Paris").score(answer) is right

    @pytest.mark.parametrize(("answer", "right"), [("about 42 km", True), ("4 km", False)])
    def test_regex_is_found_anywhere(self, answer: str, right: bool) -> None:
        assert Check(CheckKind.REGEX, r"\d{2}").score(answer) is right

    @pytest.mark.parametrize(
        ("answer", "right"),
        [
            ('{"name": "Ada", "age": 36}', True),
            ('{"name": "Ada", "age": 36.0}', True),
            ('{"name": "Ada", "age": 36.5}', False),
            ('{"name": "Ada", "age": true}', False),
            ('{"name": "Ada", "age": -1}', False),
            ('{"name": ""}', False),
            ('{"age": 3}', False),
            ('{"name": "Ada", "role": "x"}', False),
            ('```json\n{"name": "Ada"}\n```', False),
            ('{"name": "Ada", "age": NaN}', False),
            ('{"name": "Ada", "name": "Bob"}', False),
            ("", False),
            ("[" * 9000, False),
        ],
    )
    def test_a_schema_wants_json_of_that_form_and_nothing_around_it(self, answer: str, right: bool) -> None:
        assert Check(CheckKind.JSON_SCHEMA, PERSON).score(answer) is right

    def test_without_an_answer_nothing_is_wrong(self) -> None:
        assert Check(CheckKind.EXACT, "Paris").score(None) == Unknown("no answer")

    @pytest.mark.parametrize("kind", list(CheckKind))
    def test_an_answer_too_long_to_check_is_unknown(self, kind: CheckKind) -> None:
        check = Check(kind, {} if kind is CheckKind.JSON_SCHEMA else "1")

        assert check.score("1" * MAX_ANSWER_CHARACTERS) is (kind is CheckKind.REGEX)
        assert isinstance(check.score("1" * (MAX_ANSWER_CHARACTERS + 1)), Unknown)

    @pytest.mark.parametrize("raw", [{}, {"exact": "a", "regex": "b"}, {"exact": "a", "else": 1}, "a", {"like": "a"}])
    def test_a_check_is_exactly_one_of_the_kinds(self, raw: Any) -> None:
        with pytest.raises(InvalidInput, match=re.escape("prompts[3]: must have exactly one of exact, regex")):
            read_check(raw, "prompts[3]")

    def test_what_is_wrong_with_a_check_is_named_with_its_place(self) -> None:
        with pytest.raises(InvalidInput) as error:
            read_check({"jsonSchema": {"properties": {"a": {"format": "uuid"}}}}, "prompts[3]")

        assert error.value.field == "prompts[3].jsonSchema.properties.a.format"
        assert read_check({"regex": "^a"}, "prompts[3]").score("ab") is True


class TestPatterns:
    @pytest.mark.parametrize(
        "pattern",
        [
            r"(a+)+$",
            r"(a|a)*$",
            r"((a*)b?)*",
            r"(a?a)*$",
            r"(a{1,2})+",
            r"(\w+\s*){2,}",
            r"(?:x+){1,40}y",
            r"(a)\1",
            r"(?P<q>.)(?P=q)",
            r"(?x)( a+ ) +",
            r"(?#(*)a",
            r"(([a)]+))*",
        ],
    )
    def test_patterns_that_may_take_for_ever_are_refused(self, pattern: str) -> None:
        with pytest.raises(InvalidInput, match="regex: must not"):
            compile_pattern(pattern, "regex")

    @pytest.mark.parametrize(
        ("pattern", "answer"),
        [
            (r"(ab)+c", "ababc"),
            (r"\b(yes|no)\b", "say yes"),
            (r"(yes|no)?!", "no!"),
            (r"[(a+)]+", "(("),
            (r"\(a\)+", "(a))"),
            (r"(?i:paris)", "PARIS"),
            (r"(a+)b?", "aab"),
            (r"^\d{1,3}(,\d{3})*$", "1,000,000"),
            (r"[]a]+x", "]x"),
        ],
    )
    def test_patterns_that_people_write_are_taken(self, pattern: str, answer: str) -> None:
        assert compile_pattern(pattern, "regex").search(answer)

    @pytest.mark.parametrize("pattern", ["(", "", "a" * (MAX_PATTERN_CHARACTERS + 1), None, "a*" * (MAX_REPEATS + 1)])
    def test_what_is_no_pattern_is_refused(self, pattern: Any) -> None:
        with pytest.raises(InvalidInput, match="regex"):
            compile_pattern(pattern, "regex")

    def test_a_class_of_repeats_counts_none(self) -> None:
        assert compile_pattern("a*" * MAX_REPEATS + "[*+]", "regex").search("+")

    @given(st.text(alphabet="ab()|*+?{}2,[]\\", max_size=10))
    def test_what_is_taken_answers_quickly(self, pattern: str) -> None:
        try:
            compiled = compile_pattern(pattern, "regex")
        except InvalidInput:
            return
        started = time.process_time()
        compiled.search("a" * 60 + "c")
        assert time.process_time() - started < 1


class TestSchema:
    @pytest.mark.parametrize(
        ("schema", "good", "bad"),
        [
            ({"type": ["string", "null"]}, "null", "1"),
            ({"enum": [1, "a", None, [1, {"b": 2}]]}, '[1.0, {"b": 2}]', "true"),
            ({"const": 0.1}, "0.10", "0.1000000000000000055511151231257827"),
            ({"const": {"a": True}}, '{"a": true}', '{"a": 1}'),
            ({"minimum": 0.3}, "0.3", "0.29999999999999999"),
            ({"maximum": 2}, "2", "2.1"),
            ({"exclusiveMinimum": 0}, "0.1", "0"),
            ({"exclusiveMaximum": 1}, "0.9", "1.0"),
            ({"items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, "[1, 2]", "[]"),
            ({"items": {"type": "integer"}, "maxItems": 2}, "[]", "[1, 2, 3]"),
            ({"items": {"type": "integer"}}, "[1]", '["1"]'),
            ({"minLength": 2, "maxLength": 3}, '"abc"', '"abcd"'),
            ({"pattern": "^a"}, '"ab"', '"ba"'),
            ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "1e999999999", "[]"),
            ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, "2", "4"),
            ({"type": "integer"}, "1e999999999", "1e-999999999"),
            ({"additionalProperties": {"type": "string"}}, '{"x": "y"}', '{"x": 1}'),
            ({"properties": {"a": False}}, '{"b": 1}', '{"a": 1}'),
            (True, "[]", None),
        ],
    )
    def test_every_keyword_has_a_side_that_fits_and_one_that_does_not(
        self, schema: Any, good: str, bad: str | None
    ) -> None:
        test = compile_schema(schema)

        assert test(parse_answer(good))
        assert bad is None or not test(parse_answer(bad))

    @pytest.mark.parametrize(
        ("schema", "field"),
        [
            ({"$ref": "#/x"}, "schema.$ref"),
            ({"properties": {"a": {"oneOf": []}}}, "schema.properties.a.oneOf"),
            ({"type": "text"}, "schema.type"),
            ({"minimum": float("nan")}, "schema.minimum"),
            ({"minimum": True}, "schema.minimum"),
            ({"minLength": -1}, "schema.minLength"),
            ({"enum": []}, "schema.enum"),
            ({"required": [1]}, "schema.required"),
            ({"anyOf": [{"pattern": "(a+)+"}]}, "schema.anyOf[0].pattern"),
            ({"items": [1]}, "schema.items"),
            ("{}", "schema"),
        ],
    )
    def test_what_is_not_supported_is_refused_by_its_keyword(self, schema: Any, field: str) -> None:
        with pytest.raises(InvalidInput) as error:
            compile_schema(schema)

        assert error.value.field == field

    def test_it_nests_so_deep_and_no_deeper(self) -> None:
        def nested(depth: int) -> Any:
            return {"items": nested(depth - 1)} if depth else {}

        compile_schema(nested(MAX_DEPTH))
        with pytest.raises(InvalidInput, match="must not nest deeper"):
            compile_schema(nested(MAX_DEPTH + 1))

    def test_annotations_decide_nothing(self) -> None:
        assert compile_schema({"title": "x", "$schema": "https://json-schema.org/draft/2020-12/schema"})(1)


COUNTS = QualityCounts("r2", "set1", passed=9, failed=1, unknown=0, observed_at_seconds=Fraction(100))


class TestCounts:
    def quality(self, counts: QualityCounts | None = COUNTS, **of: Any) -> Any:
        given: dict[str, Any] = {"revision": "r2", "prompt_set": "set1", "since_seconds": 50}
        return current_quality(counts, **(given | {"oldest_seconds": 60, "now_seconds": 120} | of))

    def test_the_score_is_the_share_of_right_answers(self) -> None:
        counts = count_scores([True, True, False], revision="r2", prompt_set="set1", observed_at_seconds=Fraction(1))

        assert (counts.prompts, counts.score) == (3, Fraction(2, 3))

    def test_one_unknown_answer_makes_the_score_unknown(self) -> None:
        scores = [True, Unknown("timed out"), True]
        counts = count_scores(scores, revision="r2", prompt_set="set1", observed_at_seconds=Fraction(1))

        assert counts.score == Unknown("1 of 3 answers not scored: timed out")

    def test_no_answer_is_no_score(self) -> None:
        counts = count_scores([], revision="r2", prompt_set="set1", observed_at_seconds=Fraction(1))

        assert isinstance(counts.score, Unknown)

    @pytest.mark.parametrize(
        ("change", "known"),
        [
            ({}, True),
            ({"counts": None}, False),
            ({"revision": "r3"}, False),
            ({"prompt_set": "set2"}, False),
            ({"since_seconds": 100}, True),
            ({"since_seconds": Fraction(10001, 100)}, False),
            ({"now_seconds": 160}, True),
            ({"now_seconds": Fraction(16001, 100)}, False),
            ({"now_seconds": 99}, False),
        ],
    )
    def test_only_answers_of_this_revision_prompt_set_and_time_count(self, change: dict[str, Any], known: bool) -> None:
        found = self.quality(**change)

        assert found == Fraction(9, 10) if known else isinstance(found, Unknown)

    @pytest.mark.parametrize("value", [-1, 1.5, float("nan"), True])
    def test_counts_that_are_none_are_refused(self, value: Any) -> None:
        with pytest.raises(InvalidInput, match="passed"):
            QualityCounts("r", "s", passed=value, failed=0, unknown=0, observed_at_seconds=Fraction(1))
