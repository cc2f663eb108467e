"""Work side by side: several coroutines of one pass, and slow work beside the reconcile workers.

Slow work has at most one task per subject, dropped when its subject goes. Reconcilers only ask for the latest
observation; the task re-enqueues the object when that changes.
"""

import asyncio
from collections.abc import Coroutine, Hashable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all to their end, then raise the first error: a failed one must not cut off its neighbours half-way."""
    results = await asyncio.gather(*work, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


class TaskTable:
    """Tasks by owner (an object's key) and subject (for example a container)."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, dict[Hashable, asyncio.Task[None]]] = {}

    def running(self, owner: Hashable, subject: Hashable) -> bool:
        """Whether a task was started for that subject, finished or not."""
        return subject in self._tasks.get(owner, {})

    def start(self, owner: Hashable, subject: Hashable, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Start `work`; the subject must not have a task yet."""
        self._tasks.setdefault(owner, {})[subject] = asyncio.create_task(work, name=name)

    def retain(self, owner: Hashable, subjects: Iterable[Hashable]) -> list[Hashable]:
        """Cancel and forget the owner's tasks for all other subjects; return those subjects."""
        tasks = self._tasks.get(owner)
        if not tasks:
            return []
        keep = set(subjects)
        gone = [subject for subject in tasks if subject not in keep]
        for subject in gone:
            tasks.pop(subject).cancel()
        if not tasks:
            del self._tasks[owner]
        return gone

    def forget(self, owner: Hashable, subject: Hashable) -> None:
        """Let the subject have another task; called by the one that is ending."""
        tasks = self._tasks.get(owner)
        if tasks is not None and tasks.pop(subject, None) is not None and not tasks:
            del self._tasks[owner]

    async def close(self) -> None:
        """Cancel everything and wait for it."""
        tasks = [task for by_subject in self._tasks.values() for task in by_subject.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
