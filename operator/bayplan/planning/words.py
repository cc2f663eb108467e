"""How decisions write numbers for people."""

from fractions import Fraction

from bayplan.planning.numbers import GIB


def plural(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size_text(gib: Fraction) -> str:
    """A size given in GiB: one decimal of a GiB; MiB or bytes where that would read as nothing."""
    size = abs(gib) * GIB
    sign = "-" if gib < 0 else ""
    if abs(gib) >= Fraction(1, 10) or not gib:
        return f"{sign}{float(abs(gib)):.1f} GiB"
    if size >= 2**20:
        return f"{sign}{float(size / 2**20):.1f} MiB"
    return f"{sign}{plural(max(1, round(size)), 'byte')}"
