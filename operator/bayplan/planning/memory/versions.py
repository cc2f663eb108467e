"""Engine versions as rules need them: ordered, with development builds before the release that they lead to."""

import re
from dataclasses import dataclass

from bayplan.planning.numbers import InvalidInput

_FORM = re.compile(r"^v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?((?:\.?(?:dev|rc|a|b|post)\d*)*)(?:\+.*)?$")


@dataclass(frozen=True, slots=True, order=True)
class EngineVersion:
    """A version; "0.20.1rc1.dev16" sorts between 0.20.0 and 0.20.1."""

    major: int
    minor: int
    patch: int
    final: int = 1
    """0 for a development build or candidate of this version."""

    @classmethod
    def parse(cls, text: str) -> "EngineVersion":
        """Read "0.19.0", "v0.22", "0.13.0rc2.dev112+g763963aa7".

        Raises InvalidInput for anything else, and for "0.1.dev20073": a build without tags, whose number says nothing.
        """
        match = _FORM.match(text.strip())
        if match is None:
            raise InvalidInput("engine_version", f"{text[:40]!r} must look like 0.19.0")
        major, minor, patch, suffix = match.groups()
        unreleased = any(word in suffix for word in ("dev", "rc")) or suffix.startswith(("a", "b", ".a", ".b"))
        if unreleased and patch is None:
            raise InvalidInput("engine_version", f"{text[:40]!r} is a build without a release; state the release")
        return cls(int(major), int(minor), int(patch or 0), 0 if unreleased else 1)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + ("" if self.final else " (development build)")
