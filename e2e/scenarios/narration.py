"""How a scenario is told: the line a person would type, what came back, and what was waited for."""

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

Check = Callable[[dict[str, Any]], bool]
MARGIN = "  "
NARROWEST, LOG_WIDTH = 60, 120
"""Columns of output: at least, and where no terminal says how many there are."""


class SceneFailedError(Exception):
    """A scene did not reach its state; the message says which state was seen last."""


class Narrator:
    """Prints scenes and runs their commands. One per demo."""

    def __init__(self, *, kubeconfig: Path, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._kubeconfig = kubeconfig
        self._kubectl = Path(sys.executable).with_name("kubectl")
        self._started = time.monotonic()
        self.scenes = 0
        """Scenes that were opened."""

    def scene(self, title: str, why: str) -> None:
        """Open the next scene."""
        self.scenes += 1
        self.console.print()
        clock = f"{int(self.seconds) // 60}:{int(self.seconds) % 60:02d}"
        head = f"[bold]{self.scenes} · {escape(title)}[/bold] [dim]· {clock}[/dim]"
        self.console.print(Rule(head, align="left", style="cyan"))
        self.console.print(f"[dim]{escape(why)}[/dim]")

    def say(self, text: str) -> None:
        """Say something about what is seen."""
        self.console.print(f"[green]→[/green] {escape(text)}")

    def typed(self, line: str) -> None:
        """Show a line as typed, in the folder where the scenario keeps what it makes itself."""
        self.console.print(f"[bold]$ {escape(line.replace(f'{self._kubeconfig.parent}/', ''))}[/bold]")

    def came_back(self, text: str) -> None:
        """Show output."""
        for line in text.rstrip().splitlines():
            self.console.print(f"{MARGIN}{escape(line.rstrip())}")

    async def kubectl(self, line: str, *, quiet: bool = False) -> str:
        """Run `kubectl LINE`, show it and what came back; raises SceneFailedError when it fails."""
        if not quiet:
            self.typed(f"kubectl {line}")
        process = await asyncio.create_subprocess_exec(
            str(self._kubectl),
            *shlex.split(line),
            env={**os.environ, "KUBECONFIG": str(self._kubeconfig)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        text = output.decode(errors="replace")
        if not quiet:
            self.came_back(text)
        if process.returncode != 0:
            raise SceneFailedError(f"kubectl {line}: exit {process.returncode}: {text.strip()}")
        return text

    async def bayplan(self, *arguments: str, fits: tuple[int, ...] = (0,)) -> tuple[int, str]:
        """Run `bayplan ARGUMENTS` in the width there is; return its exit code, one of `fits`, and what it printed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bayplan", *arguments),
            env={
                **os.environ,
                "KUBECONFIG": str(self._kubeconfig),
                "COLUMNS": str(self._columns),
                "NO_COLOR": "1",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        if process.returncode not in fits:
            shown = " ".join(arguments)
            raise SceneFailedError(f"bayplan {shown}: exit {process.returncode}: {errors.decode(errors='replace')}")
        return process.returncode, output.decode(errors="replace")

    @property
    def _columns(self) -> int:
        """What is left of a terminal beside the margin; a log is as wide as it is read comfortably."""
        width = self.console.width if self.console.is_terminal else LOG_WIDTH
        return max(NARROWEST, width) - len(MARGIN)

    async def model(self, name: str) -> dict[str, Any]:
        """Return an InferenceModel as stored."""
        found: dict[str, Any] = json.loads(await self.kubectl(f"get imodel {name} -o json", quiet=True))
        return found

    async def follow(self, name: str, reached: Check, *, what: str, timeout_seconds: float = 60.0) -> dict[str, Any]:
        """Show each change of a model's counts until `reached` holds; raises SceneFailedError after the time limit."""
        began, last, model = time.monotonic(), "", {}
        while time.monotonic() - began < timeout_seconds:
            model = await self.model(name)
            line = counts_line(model)
            if line != last:
                self.console.print(f"  [cyan]{time.monotonic() - began:5.1f} s[/cyan]  {name}: {escape(line)}")
                last = line
            if reached(model):
                return model
            await asyncio.sleep(0.25)
        raise SceneFailedError(f"{name}: not seen in {timeout_seconds:g} s: {what}; last seen: {last}")

    async def wait(self, check: Callable[[], Awaitable[bool]], *, what: str, timeout_seconds: float = 60.0) -> None:
        """Wait for anything else."""
        began = time.monotonic()
        while not await check():
            if time.monotonic() - began > timeout_seconds:
                raise SceneFailedError(f"not seen in {timeout_seconds:g} s: {what}")
            await asyncio.sleep(0.2)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started


def counts_line(model: dict[str, Any]) -> str:
    """The five states of an InferenceModel and its Ready reason in one line."""
    status = model.get("status") or {}
    if not status.get("conditions"):
        return "no status yet"
    counts = ", ".join(
        f"{word} {status.get(f'{word}Replicas', 0)}" for word in ("desired", "pending", "warming", "ready", "draining")
    )
    ready = condition(model, "Ready")
    return f"{counts} · Ready={ready.get('status')} {ready.get('reason')}"


def condition(model: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return one condition, empty when it is not there."""
    for entry in (model.get("status") or {}).get("conditions") or ():
        if entry["type"] == kind:
            found: dict[str, Any] = entry
            return found
    return {}


def is_ready(replicas: int) -> Check:
    """Exactly so many replicas ready, nothing on its way, and the status is about the present spec."""

    def check(model: dict[str, Any]) -> bool:
        status = model.get("status") or {}
        return (
            status.get("observedGeneration") == model["metadata"]["generation"]
            and status.get("readyReplicas") == status.get("desiredReplicas") == replicas
            and not any(status.get(f"{word}Replicas") for word in ("pending", "warming", "draining"))
        )

    return check


async def complete(address: str, model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    """Ask an engine for one completion."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens}
    async with aiohttp.ClientSession() as session, session.post(url(address), json=body) as answer:
        found: dict[str, Any] = await answer.json()
        if answer.status != 200:
            raise SceneFailedError(f"{address} answered {answer.status}: {found}")
        return found


def url(address: str) -> str:
    """Address of an engine's completions."""
    return f"http://{address}:8000/v1/completions"


@asynccontextmanager
async def streaming(address: str, model: str, prompt: str, max_tokens: int) -> AsyncIterator["Stream"]:
    """Open a streamed completion; it is read in the background until the block ends."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(url(address), json=body) as answer,
    ):
        if answer.status != 200:
            raise SceneFailedError(f"{address} answered {answer.status}: {await answer.text()}")
        stream = Stream(answer)
        reader = asyncio.create_task(stream.read())
        try:
            yield stream
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


class Stream:
    """A streamed answer as it comes in."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.text = ""
        self.finish_reason: str | None = None
        self.completion_tokens = 0
        self.done = asyncio.Event()
        """Set at `[DONE]`."""
        self.begun = asyncio.Event()
        """Set at the first token."""

    async def read(self) -> None:
        """Take in the chunks until the end."""
        async for line in self._answer.content:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                self.done.set()
                return
            chunk = json.loads(data)
            for choice in chunk["choices"]:
                self.text += choice["text"]
                self.finish_reason = choice["finish_reason"] or self.finish_reason
                self.begun.set()
            if chunk.get("usage"):
                self.completion_tokens = chunk["usage"]["completion_tokens"]
