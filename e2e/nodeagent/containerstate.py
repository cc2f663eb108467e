"""The state of one container and its form in `status.containerStatuses`."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.nodeagent.services import now_text

SIGKILL_EXIT_CODE = 137
_MESSAGE_BYTES = 2048
_MESSAGE_LINES = 80


@dataclass
class ContainerState:
    """What is reported of a container. Exactly one of waiting, running and terminated holds at a time."""

    name: str
    image: str
    waiting: tuple[str, str] | None = ("ContainerCreating", "")
    running_since: str | None = None
    terminated: dict[str, Any] | None = None
    last_terminated: dict[str, Any] | None = None
    container_id: str | None = None
    restart_count: int = 0
    started: bool = False
    ready: bool = False

    def wait(self, reason: str, message: str = "") -> None:
        """Go to waiting; a termination before it becomes the last one."""
        if self.terminated is not None:
            self.last_terminated, self.terminated = self.terminated, None
        self.waiting, self.running_since, self.started, self.ready = (reason, message), None, False, False

    def run(self) -> None:
        """Go to running under a new container id."""
        if self.last_terminated is not None:
            self.restart_count += 1
        self.container_id = f"nodeagent://{secrets.token_hex(32)}"
        self.waiting, self.terminated, self.running_since = None, None, now_text()

    def end(self, exit_code: int, *, reason: str | None = None, message: str = "") -> None:
        """Go to terminated; the reason follows from the exit code unless given."""
        terminated = {
            "exitCode": exit_code,
            "reason": reason or ("Completed" if exit_code == 0 else "Error"),
            "startedAt": self.running_since,
            "finishedAt": now_text(),
            "containerID": self.container_id,
            "message": message or None,
        }
        self.terminated = {key: value for key, value in terminated.items() if value is not None}
        self.waiting, self.running_since, self.started, self.ready = None, None, False, False

    def adopt(self, status: Mapping[str, Any]) -> None:
        """Take over what the API server shows of a container that this agent did not start itself."""
        state = status.get("state") or {}
        self.restart_count = int(status.get("restartCount") or 0)
        self.container_id = status.get("containerID")
        self.last_terminated = (status.get("lastState") or {}).get("terminated")
        if (running := state.get("running")) is not None:
            self.waiting, self.running_since = None, running.get("startedAt")
        elif (terminated := state.get("terminated")) is not None:
            self.waiting, self.terminated = None, dict(terminated)

    def lose(self) -> None:
        """End a container that ran before its node went down and of which nothing is left."""
        self.end(
            SIGKILL_EXIT_CODE,
            reason="ContainerStatusUnknown",
            message="The container could not be located when the pod was terminated",
        )

    def settle(self) -> None:
        """Go to the final state of a container that does not run: its last end, if it ever ran."""
        if self.terminated is None and self.last_terminated is not None:
            self.terminated, self.waiting = self.last_terminated, None
        elif self.terminated is None:
            self.lose()

    def to_status(self) -> dict[str, Any]:
        """Return the entry of `status.containerStatuses`."""
        if self.waiting is not None:
            reason, message = self.waiting
            state: dict[str, Any] = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        elif self.terminated is not None:
            state = {"terminated": self.terminated}
        else:
            state = {"running": {"startedAt": self.running_since}}
        status = {
            "name": self.name,
            "image": self.image,
            "imageID": "" if self.container_id is None else f"nodeagent://{self.image}",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restart_count,
            "state": state,
            "lastState": {} if self.last_terminated is None else {"terminated": self.last_terminated},
        }
        return status if self.container_id is None else status | {"containerID": self.container_id}


def log_tail(log: Path) -> str:
    """Return the end of a container's log as a kubelet quotes it: at most 80 lines and 2 KiB."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _MESSAGE_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = re.sub(r"[^\x09\x0a\x20-\U0010ffff]", "", text).splitlines()[-_MESSAGE_LINES:]
    return "\n".join(lines)
