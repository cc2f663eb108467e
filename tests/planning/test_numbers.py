import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.planning.numbers import (
    MAX_DIGITS,
    InvalidInput,
    count,
    divisors,
    exact,
    largest_divisor,
    named,
    not_negative,
    positive,
    share,
    whole,
)


def test_floats_are_read_through_their_text() -> None:
    assert exact(0.1, "x") == Fraction(1, 10)
    assert exact(0.1, "x") + exact(0.2, "x") == exact(0.3, "x")
    assert exact(Decimal("0.85"), "x") == Fraction(17, 20)
    assert exact(7, "x") == 7


@pytest.mark.parametrize(
    "value",
    [True, False, "7", None, [1], math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity")],
)
def test_what_is_no_finite_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        exact(value, "prompt_tokens")

    assert caught.value.field == "prompt_tokens"
    assert str(caught.value).startswith("prompt_tokens: must be a ")


def test_numbers_too_long_to_compute_with_are_refused() -> None:
    assert exact(Decimal(f"1e{MAX_DIGITS}"), "x") == 10**MAX_DIGITS
    for text in (f"1e{MAX_DIGITS + 1}", f"1e-{MAX_DIGITS + 1}", "1e999999999"):
        with pytest.raises(InvalidInput, match="must lie between"):
            exact(Decimal(text), "x")


def test_whole_numbers_may_be_written_with_a_point_but_have_no_fraction() -> None:
    assert whole(8192, "tokens") == 8192
    assert whole(8192.0, "tokens") == 8192
    for value in (8192.5, Decimal("0.1"), True, math.nan):
        with pytest.raises(InvalidInput):
            whole(value, "tokens")


def test_limits_hold_on_both_sides_and_on_them() -> None:
    assert positive(Decimal("1e-9"), "x") > 0
    assert not_negative(0, "x") == 0
    assert share(1, "x") == 1
    assert count(1, "x") == 1
    assert count(0, "x", least=0) == 0
    for check, value in (
        (positive, 0),
        (not_negative, -1e-9),
        (share, 0),
        (share, Decimal("1.000001")),
        (count, 0),
        (count, -1),
    ):
        with pytest.raises(InvalidInput):
            check(value, "x")


def test_blank_names_are_refused() -> None:
    assert named("a", "name") == "a"
    for value in ("", "  ", None):
        with pytest.raises(InvalidInput, match="must not be blank"):
            named(value, "name")


@pytest.mark.property
@given(st.integers(1, 5000), st.integers(1, 6000))
def test_divisors_are_all_and_only_those_that_divide(number: int, bound: int) -> None:
    found = divisors(number)

    assert found == tuple(d for d in range(1, number + 1) if number % d == 0)
    assert largest_divisor(number, up_to=bound) == max(d for d in found if d <= bound)


@pytest.mark.property
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_survives_the_way_to_a_fraction(value: float) -> None:
    assert float(exact(value, "x")) == value
