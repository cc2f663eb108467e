"""PromQL selectors with every value quoted, so that no name can end a string and go on as a query."""

import re
from collections.abc import Collection, Mapping


def quoted(value: str) -> str:
    """Return a PromQL string; backslash, quote and line ends are what could end it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def any_of(values: Collection[str]) -> str:
    """Return a regular expression that matches exactly these values; matchers are anchored by Prometheus."""
    return "|".join(re.escape(value) for value in values)


def selector(
    *,
    names: Collection[str] = (),
    equal: Mapping[str, str] | None = None,
    one_of: Mapping[str, Collection[str]] | None = None,
) -> str:
    """Return `{__name__=~"…",label="…",label=~"…"}`. Label names are ours, values are anybody's.

    Without names it selects every metric.
    """
    matchers = [f"__name__=~{quoted(any_of(names))}"] if names else []
    matchers += [f"{label}={quoted(value)}" for label, value in (equal or {}).items()]
    matchers += [f"{label}=~{quoted(any_of(values))}" for label, values in (one_of or {}).items()]
    return "{" + ",".join(matchers) + "}"
