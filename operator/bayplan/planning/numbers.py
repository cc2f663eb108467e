"""Exact numbers at the decision boundary.

Binary floats cannot state 0.1, so a plan that fits exactly can come out as "short by 1e-16". Every number that enters
a decision passes through here: it must be finite, it is read through its text, and it is a `Fraction` from then on.
"""

from decimal import Decimal
from fractions import Fraction

GIB = 2**30
"""Bytes of one GiB. All `_gib` names count these, never 10^9."""
MIB_PER_GIB = 1024
MAX_DIGITS = 400
"""Numbers beyond 10^400, or finer than 10^-400, are refused: their exact form would only waste memory."""


class InvalidInput(ValueError):  # noqa: N818 - it names what happened to the input, as the decisions' results do
    """An input that no decision can be made from: names the field and what would be accepted."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def exact(value: object, name: str) -> Fraction:
    """Return the number `value` as written: 0.1 becomes 1/10.

    Accepts int, float, Decimal and Fraction. Raises InvalidInput for booleans, text, NaN and infinities.
    """
    if type(value) is Fraction:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        raise InvalidInput(name, f"must be a number, not {value!r}")
    if isinstance(value, int | Fraction):
        return Fraction(value)
    number = Decimal(repr(float(value))) if isinstance(value, float) else value
    if not number.is_finite():
        raise InvalidInput(name, f"must be a finite number, not {value}")
    if number and abs(number.adjusted()) > MAX_DIGITS:
        raise InvalidInput(name, f"must lie between 1e-{MAX_DIGITS} and 1e{MAX_DIGITS}")
    return Fraction(number)


def whole(value: object, name: str) -> int:
    """Return `value` as an int. Raises InvalidInput for anything that `exact` refuses and for fractions of one."""
    number = exact(value, name)
    if number.denominator != 1:
        raise InvalidInput(name, f"must be a whole number, not {value}")
    return number.numerator


def positive(value: object, name: str) -> Fraction:
    """Return `value` exactly; raises InvalidInput unless it is above zero."""
    number = exact(value, name)
    if number <= 0:
        raise InvalidInput(name, f"must be above 0, not {value}")
    return number


def not_negative(value: object, name: str) -> Fraction:
    """Return `value` exactly; raises InvalidInput if it is below zero."""
    number = exact(value, name)
    if number < 0:
        raise InvalidInput(name, f"must not be negative, not {value}")
    return number


def count(value: object, name: str, *, least: int = 1) -> int:
    """Return a whole number of at least `least`; raises InvalidInput otherwise."""
    number = value if type(value) is int else whole(value, name)
    if number < least:
        raise InvalidInput(name, f"must be at least {least}, not {value}")
    return number


def share(value: object, name: str) -> Fraction:
    """Return a part of a whole, above 0 and at most 1; raises InvalidInput otherwise."""
    number = exact(value, name)
    if not 0 < number <= 1:
        raise InvalidInput(name, f"must be above 0 and at most 1, not {value}")
    return number


def named(value: object, name: str) -> str:
    """Return a text that is not blank; raises InvalidInput otherwise."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidInput(name, "must not be blank")
    return value


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive whole number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def largest_divisor(number: int, *, up_to: int) -> int:
    """The largest divisor of `number` that is not above `up_to`; both are at least 1."""
    return next(d for d in range(min(number, up_to), 0, -1) if number % d == 0)


def to_decimal(number: Fraction) -> Decimal:
    """A decimal near the fraction, for display: 28 significant digits."""
    return Decimal(number.numerator) / Decimal(number.denominator)
