"""A bar of how the usable memory of a GPU is used."""

from collections.abc import Sequence
from fractions import Fraction

from rich.text import Text

BAR_CELLS = 40
TERM_COLOURS = ("blue", "magenta", "yellow", "cyan", "green", "red")


def memory_bar(sizes_gib: Sequence[Fraction], *, required_gib: Fraction, usable_gib: Fraction) -> Text:
    """Terms as coloured parts of the usable memory; what does not fit goes beyond its end, up to twice its length."""
    bar, drawn = Text(), 0
    for colour, size in zip(TERM_COLOURS * 4, sizes_gib, strict=False):
        cells = max(0, min(2 * BAR_CELLS - drawn, round(size / usable_gib * BAR_CELLS)))
        bar.append("█" * cells, style=colour)
        drawn += cells
    bar.append("░" * max(0, BAR_CELLS - drawn), style="dim")
    text = f"  {float(required_gib):.1f} of {float(usable_gib):.1f} GiB usable"
    bar.append(text, style="red" if required_gib > usable_gib else "")
    return bar
