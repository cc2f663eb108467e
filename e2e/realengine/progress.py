"""How far pip is: it says what it downloads in its log, and what it unpacks is visible in the folder."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

LINE_SECONDS = 3.0
_SIZE = re.compile(r"Downloading \S+ \(([\d.]+) (kB|MB|GB)\)")
_MEGABYTES = {"kB": 0.001, "MB": 1.0, "GB": 1000.0}


def describe(log: str, *, unpacked: int, total: int) -> str:
    """One line of progress.

    Args:
        log: pip's output so far.
        unpacked: distributions whose metadata is in the environment.
        total: distributions in the lock file.
    """
    collected = len(re.findall(r"^Collecting ", log, re.MULTILINE))
    megabytes = sum(float(size) * _MEGABYTES[unit] for size, unit in _SIZE.findall(log))
    if "Installing collected packages" in log:
        return f"unpacked {unpacked} of {total} packages ({megabytes / 1000:.1f} GB of wheels)"
    return f"downloading: {collected} of {total} packages, {megabytes / 1000:.1f} GB"


class PipProgress:
    """Says a line every few seconds while pip gets further."""

    def __init__(self, *, say: Callable[[str], None], log: Path, site_packages: Path, total: int) -> None:
        self._say = say
        self._log = log
        self._site_packages = site_packages
        self._total = total
        self._said = ""

    async def watch(self) -> None:
        """Follow pip until cancelled."""
        while True:
            await asyncio.sleep(LINE_SECONDS)
            unpacked = sum(1 for _ in self._site_packages.glob("*.dist-info"))
            line = describe(self._log.read_text(errors="replace"), unpacked=unpacked, total=self._total)
            if line != self._said:
                self._said = line
                self._say(line)
