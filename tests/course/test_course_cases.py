import json
from fractions import Fraction
from pathlib import Path

import pytest

from tests.course.cases import BUNDLED, Case, count_by_area, differences, load, source
from tests.course.runners import RUNNERS, run

CASES = load(source())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_planner_decides_as_the_course_case_expects(case: Case) -> None:
    found = run(case.area, case.input, production=case.production)

    if case.for_information:
        return
    if "error" in case.expect:
        assert found.get("error") == "invalid-input", f"accepted an invalid {case.expect.get('field')}: {found}"
        if source() == BUNDLED:  # elsewhere the field is a hint
            assert found["field"] == case.expect["field"]
        return
    assert differences(case.expect, found, to_the_bit="float-boundary" in case.tags) == []


def test_every_area_of_the_file_is_known() -> None:
    unknown = {case.area for case in CASES} - set(RUNNERS)

    assert not unknown, f"areas that nobody knows: {sorted(unknown)}"


def test_bundled_file_has_cases_of_all_thirteen_areas() -> None:
    assert set(RUNNERS) == set(count_by_area(load(BUNDLED)))
    assert len(RUNNERS) == 13


class TestComparison:
    def test_real_numbers_may_differ_by_a_billionth(self) -> None:
        expected = {"gib": 2.0}

        assert differences(expected, {"gib": Fraction(2) + Fraction(1, 10**9)}, to_the_bit=False) == []
        assert differences(expected, {"gib": Fraction(2) + Fraction(3, 10**9)}, to_the_bit=False) != []

    def test_float_boundary_allows_no_difference(self) -> None:
        assert differences({"gib": 0.3}, {"gib": Fraction(3, 10)}, to_the_bit=True) == []
        assert differences({"gib": 0.3}, {"gib": Fraction(3, 10) + Fraction(1, 10**15)}, to_the_bit=True) != []

    def test_counts_are_equal_or_wrong(self) -> None:
        assert differences({"replicas": 4}, {"replicas": 4}, to_the_bit=False) == []
        assert differences({"replicas": 4}, {"replicas": 5}, to_the_bit=False) != []

    def test_a_verdict_is_no_number(self) -> None:
        assert differences({"fits": True}, {"fits": 1}, to_the_bit=False) != []
        assert differences({"fits": 1}, {"fits": True}, to_the_bit=False) != []

    def test_numbers_inside_an_answer_are_compared_like_others(self) -> None:
        expected = {"replicas": {"decode": 2.0}}

        assert differences(expected, {"replicas": {"decode": Fraction(2) + Fraction(1, 10**9)}}, to_the_bit=False) == []
        assert differences(expected, {"replicas": {"decode": Fraction(3)}}, to_the_bit=False) != []
        assert differences(expected, {"replicas": {"decode": Fraction(2), "more": 1}}, to_the_bit=False) != []

    def test_a_missing_answer_is_a_difference(self) -> None:
        assert differences({"fits": True}, {}, to_the_bit=False) != []


class TestLoading:
    def write(self, path: Path, **case: object) -> Case:
        path.write_text(json.dumps([{"area": "memory", "name": "x", "input": {}, "expect": {}, **case}]))
        return load(path)[0]

    def test_non_finite_texts_become_numbers_only_where_tagged(self, tmp_path: Path) -> None:
        file = tmp_path / "cases.json"

        tagged = self.write(file, input={"a": ["Infinity"]}, tags=["non-finite"])
        plain = self.write(file, input={"a": ["Infinity"]}, tags=[])

        assert tagged.input == {"a": [float("inf")]}
        assert plain.input == {"a": ["Infinity"]}

    def test_production_behaviour_replaces_the_courses_simplification(self, tmp_path: Path) -> None:
        file = tmp_path / "cases.json"

        simplified = self.write(
            file, expect={"a": 1, "b": 2}, production_expect={"a": 3}, tags=["course-simplification"]
        )
        information = self.write(
            file, expect={"a": 1}, production_expect={"unspecified": True}, tags=["course-simplification"]
        )

        assert simplified.expect == {"a": 3}
        assert information.for_information
