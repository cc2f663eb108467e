"""Regular expressions from users, kept to forms that cannot take exponential time.

Python's matcher backtracks: a repeat of a group that itself repeats or branches, and references back, can take longer
than anyone waits. Such patterns are refused when they are declared. What remains is polynomial in the answer, whose
length is bounded; a caller still scores outside of everything that must stay responsive, with a deadline.
"""

import re

from bayplan.planning.numbers import InvalidInput

MAX_PATTERN_CHARACTERS = 512
MAX_REPEATS = 8
"""Repeats without an upper end in one pattern: each one multiplies the worst case by the answer's length."""
_TOKEN = re.compile(
    r"""(?P<skip>\\[^1-9]|\[\^?\]?(?:\\.|[^]\\])*\])
    |(?P<reference>\\[1-9]|\(\?P=|\(\?\(|\(\?\#|\(\?[a-zA-Z]*x)
    |(?P<open>\()
    |(?P<close>\))
    |(?P<bounded>\?|\{\d*(?:,\d+)?\})
    |(?P<repeat>[*+]|\{\d*,\})
    |(?P<branch>\|)""",
    re.VERBOSE | re.DOTALL,
)


def compile_pattern(text: object, name: str) -> re.Pattern[str]:
    """Compile a pattern; raises InvalidInput that names the field for what is no pattern or could take for ever."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_PATTERN_CHARACTERS:
        raise InvalidInput(name, f"must be a regular expression of 1 to {MAX_PATTERN_CHARACTERS} characters")
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidInput(name, f"must be a regular expression: {error}") from error
    _require_tame(text, name)
    return pattern


def _require_tame(text: str, name: str) -> None:
    wild: list[bool] = [False]  # per open group, whether it repeats or branches inside
    closed: tuple[int, bool] | None = None  # where the last group ended, and whether it did
    repeats = 0
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        after_group = closed is not None and closed[0] == token.start()
        if kind == "reference":
            raise InvalidInput(name, f"must not refer back, branch on a group or hold comments, as at {token.start()}")
        if kind == "open":
            wild.append(False)
        elif kind == "close":
            inside = wild.pop()
            closed = token.end(), inside
            wild[-1] = wild[-1] or inside
        elif kind == "branch":
            wild[-1] = True
        elif kind in ("repeat", "bounded"):
            text_of = token.group()
            if text_of != "?" and after_group and closed is not None and closed[1]:
                raise InvalidInput(name, f"must not repeat a group that repeats or branches, as at {token.start()}")
            repeats += kind == "repeat"
            wild[-1] = wild[-1] or not text_of[1:-1].isdigit()  # {3} takes one length only
    if repeats > MAX_REPEATS:
        raise InvalidInput(name, f"must have at most {MAX_REPEATS} repeats without an upper end, not {repeats}")
