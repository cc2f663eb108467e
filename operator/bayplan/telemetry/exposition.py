"""The text in which processes expose metrics, read as far as it is asked for.

Only the lines of wanted metrics are parsed: an engine publishes hundreds of series, and this runs in the event loop.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bayplan.planning.measurements import Measured, Unknown, measured

PARSER_ERRORS = (ValueError, LookupError, TypeError)
"""The parser's ways to meet nonsense."""
MAX_NAMES = 2000


def read_samples(text: str, wanted: Collection[str]) -> list[Sample]:
    """Return the samples of the wanted metrics; raises PARSER_ERRORS where their lines are none."""
    lines = [line for line in text.split("\n") if line.startswith(tuple(wanted))]
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    return [sample for family in families for sample in family.samples if sample.name in wanted]


def sums_of(samples: Iterable[tuple[str, float]]) -> dict[str, Measured]:
    """Sum values by name over all labels (one engine may report several ranks); one bad value makes a sum Unknown."""
    sums: dict[str, Measured] = {}
    for name, raw in samples:
        value, before = measured(raw, name), sums.get(name, Fraction(0))
        if isinstance(before, Unknown):
            continue
        sums[name] = value if isinstance(value, Unknown) else before + value
    return sums


def first_of(values: Mapping[str, Measured], names: Sequence[str]) -> Measured | None:
    """Return the value under the first of the names that is there, None when none is."""
    return next((values[name] for name in names if name in values), None)


def metric_names(text: str) -> list[str]:
    """Return the names of the samples in an exposition, as far as they are plausible."""
    names = {line.split("{", 1)[0].split(" ", 1)[0] for line in text.split("\n") if line and line[0] not in "# \t"}
    return sorted(name for name in names if name.isprintable() and len(name) <= 200)[:MAX_NAMES]


def nearest_name(wanted: Sequence[str], present: Iterable[str]) -> str:
    """Return the present name that is most like one of the wanted, empty when none is like any.

    A name that goes on where a wanted one ends is a renamed or split metric more often than one of equal length.
    """
    names = list(present)
    found = []
    for name in wanted:
        stem = name.removesuffix("_total")
        alike = [near for near in names if near.startswith(stem)] or difflib.get_close_matches(name, names, n=1)
        found += [(near.startswith(stem), difflib.SequenceMatcher(None, name, near).ratio(), near) for near in alike]
    return max(found, default=(False, 0.0, ""))[2]
