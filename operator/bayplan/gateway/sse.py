"""Server-sent events read beside the relayed bytes: the first token, how many tokens, usage, and how it ended.

Nothing here changes a byte. Events are split as they pass, over whatever boundaries the chunks have; an event longer
than the bound is not read, and what it said stays unknown.
"""

from typing import Any

import orjson

LONGEST_EVENT_BYTES = 2**20
_DONE = b"[DONE]"
ABORTED = "abort"
"""`finish_reason` by which an engine ends what it cut."""


class Progress:
    """What one answer has shown so far."""

    __slots__ = ("aborted", "choices_ended", "done", "output_events", "produced", "prompt_tokens", "reported_tokens")

    def __init__(self) -> None:
        self.produced = False
        """Whether any output has come."""
        self.output_events = 0
        """Events that carried output: engines send a token or a few in each."""
        self.choices_ended = 0
        self.aborted = False
        """Whether the engine cut it: a choice that ended so, or an error in the stream."""
        self.done = False
        """Whether the stream said that it is complete."""
        self.prompt_tokens: int | None = None
        self.reported_tokens: int | None = None

    @property
    def output_tokens(self) -> int:
        """Output tokens: as reported, else counted by events."""
        return self.output_events if self.reported_tokens is None else self.reported_tokens

    def read(self, answer: dict[str, Any]) -> None:
        """Take in one chunk of a stream, or a whole answer. An error in place of a chunk is a cut like any other."""
        self.aborted = self.aborted or answer.get("error") is not None
        usage = answer.get("usage")
        if isinstance(usage, dict):
            prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
            self.prompt_tokens = prompt if type(prompt) is int and prompt >= 0 else self.prompt_tokens
            self.reported_tokens = output if type(output) is int and output >= 0 else self.reported_tokens
        choices = answer.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            reason = choice.get("finish_reason")
            if reason is not None:
                self.choices_ended += 1
                self.aborted = self.aborted or reason == ABORTED
            if _has_output(choice):
                self.produced = True
                self.output_events += 1


def _has_output(choice: dict[str, Any]) -> bool:
    part = choice.get("delta") or choice.get("message") or choice
    if not isinstance(part, dict):
        return False
    names = ("text", "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "audio")
    return any(part.get(name) for name in names)


class EventReader:
    """Splits a byte stream into events and reads each into a `Progress`."""

    __slots__ = ("_rest", "_skipping", "progress")

    def __init__(self) -> None:
        self.progress = Progress()
        self._rest = b""
        self._skipping = False

    def feed(self, chunk: bytes) -> None:
        """Take in the next bytes of the body."""
        data = self._rest + chunk if self._rest else chunk
        lines = data.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if self._skipping:
                self._skipping = False
            elif line.startswith(b"data:"):
                self._read(line)
        if len(self._rest) > LONGEST_EVENT_BYTES:
            self._rest, self._skipping = b"", True

    def _read(self, line: bytes) -> None:
        progress = self.progress
        if (
            progress.produced
            and b'"finish_reason":null' in line
            and line.count(b'"finish_reason"') == 1
            and b'"usage":{' not in line
        ):
            # The common event by far, one token of one choice. Text inside a JSON string has its quotes escaped, so
            # these bytes are the member itself.
            progress.output_events += 1
            return
        data = line[5:].strip()
        if data == _DONE:
            progress.done = True
            return
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        if isinstance(event, dict):
            progress.read(event)
