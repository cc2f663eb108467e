"""Slow work beside the workers: warm-ups, scrapes, drains. One task per name, cancelled together at the end."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """Named tasks. What they find out goes into the reconciler's own state; they re-enqueue the key and end."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> bool:
        """Start `work` unless a task of that name runs or the end has begun; return whether it was started."""
        if self._closed or name in self._tasks:
            work.close()
            return False
        task = asyncio.create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(self._finished)
        return True

    def cancel(self, name: str) -> None:
        """Cancel the task of that name, if there is one; the name is free at once."""
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Cancel everything, wait until it has ended, and start nothing more."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[None]) -> None:
        if self._tasks.get(task.get_name()) is task:
            del self._tasks[task.get_name()]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task %s failed", task.get_name(), exc_info=error)
