"""Quality: each arm answers the prompt set at its own head pods, beside the reconcile workers; only counts are kept.

One run per revision and prompt set at a time. A prompt that no engine answers, or whose check fails, is Unknown, and
one Unknown makes the arm's quality Unknown (`planning.gates.quality`); such a run is tried again after a while. The
requests go past the gateways: they are no user's, few at a time, and enter no count of the gates on requests.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from bayplan.planning.gates.promptset import Prompt, PromptSet, read_prompt_set
from bayplan.planning.gates.quality import QualityCounts, count_scores
from bayplan.planning.measurements import Unknown
from bayplan.planning.numbers import InvalidInput
from bayplan.reconcile.background import TaskTable
from bayplan.reconcile.plainyaml import read_plain_yaml
from bayplan.telemetry.http import PodError
from bayplan.telemetry.prompts import PromptPort

logger = logging.getLogger(__name__)

PROMPTS_KEY = "prompts"
"""Key of the ConfigMap under which the prompts stand."""
PROMPT_SECONDS = 60.0
"""Longest time for one answer."""
RUN_SECONDS = 900.0
"""Longest time for a whole prompt set; what is not answered by then is Unknown."""
RETRY_SECONDS = 30.0
"""Wait before a run that left something unknown is made again."""
AT_ONCE = 2
"""Prompts under way per run: the engines serve users beside."""


@dataclass(frozen=True, slots=True)
class Examinee:
    """A revision that answers: its served name, and where its warm, ready heads are."""

    revision: str
    served_name: str
    addresses: tuple[str, ...]


def parse_prompt_set(data: Mapping[str, str]) -> PromptSet:
    """Read a ConfigMap's data. Raises InvalidInput that names what is missing or wrong."""
    text = data.get(PROMPTS_KEY)
    if text is None:
        raise InvalidInput(PROMPTS_KEY, "is no key of the ConfigMap; the list of prompts stands there")
    return read_prompt_set(read_plain_yaml(text, PROMPTS_KEY))


class QualityRuns:
    """Runs and remembers. `now_seconds` are Unix seconds; `owner` is the Rollout's key."""

    def __init__(
        self,
        engine: PromptPort,
        *,
        now_seconds: Callable[[], Fraction],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        prompt_seconds: float = PROMPT_SECONDS,
        run_seconds: float = RUN_SECONDS,
    ) -> None:
        self._engine = engine
        self._now_seconds = now_seconds
        self._sleep = sleep
        self._prompt_seconds = prompt_seconds
        self._run_seconds = run_seconds
        self._tasks = TaskTable()
        self._counts: dict[tuple[Hashable, str, str], QualityCounts] = {}

    def observe(self, owner: Hashable, revision: str, prompts: PromptSet) -> QualityCounts | None:
        """Return the counts of the last whole run of that revision on that prompt set, if there was one."""
        return self._counts.get((owner, revision, prompts.digest))

    def ensure(
        self,
        owner: Hashable,
        examinee: Examinee,
        prompts: PromptSet,
        *,
        since_seconds: Fraction,
        changed: Callable[[], None],
    ) -> None:
        """Have the revision answer the prompts, unless it is at it or has answered all since `since_seconds`.

        Does nothing without an address. `changed` is called when a run has ended.
        """
        subject = (examinee.revision, prompts.digest)
        counts = self._counts.get((owner, *subject))
        answered = counts is not None and counts.observed_at_seconds >= since_seconds and not counts.unknown
        if answered or not examinee.addresses or self._tasks.running(owner, subject):
            return
        wait = 0.0
        if counts is not None and counts.unknown:
            wait = max(0.0, RETRY_SECONDS - float(self._now_seconds() - counts.observed_at_seconds))
        work = self._run(owner, examinee, prompts, wait, changed)
        self._tasks.start(owner, subject, work, name=f"quality of {examinee.revision} for {owner}")

    def retain(self, owner: Hashable, revisions: Sequence[str], prompts: PromptSet | None) -> None:
        """Drop what runs or is known of the owner but for these revisions and this prompt set."""
        keep = {(revision, prompts.digest) for revision in revisions} if prompts is not None else set()
        self._tasks.retain(owner, keep)
        for key in [key for key in self._counts if key[0] == owner and key[1:] not in keep]:
            del self._counts[key]

    async def close(self) -> None:
        """Cancel everything and wait for it."""
        await self._tasks.close()

    # -- inside

    async def _run(
        self, owner: Hashable, examinee: Examinee, prompts: PromptSet, wait: float, changed: Callable[[], None]
    ) -> None:
        subject = (examinee.revision, prompts.digest)
        if wait:
            await self._sleep(wait)
        answers = await self._ask_all(examinee, prompts.prompts)
        # Checks are bounded, yet many of them may take longer than the loop should be held.
        scores = await asyncio.to_thread(_score_all, prompts.prompts, answers)
        self._counts[owner, *subject] = count_scores(
            scores,
            revision=examinee.revision,
            prompt_set=prompts.digest,
            observed_at_seconds=self._now_seconds(),
        )
        self._tasks.forget(owner, subject)
        changed()

    async def _ask_all(self, examinee: Examinee, prompts: Sequence[Prompt]) -> list[str | Unknown]:
        answers: list[str | Unknown] = [Unknown(f"not answered within {self._run_seconds:g} s")] * len(prompts)
        todo = iter(enumerate(prompts))

        async def ask() -> None:
            for at, prompt in todo:
                answers[at] = await self._ask(examinee, at, prompt)

        try:
            async with asyncio.timeout(self._run_seconds), asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(ask())
        except TimeoutError:
            logger.info("%s left prompts unanswered within %g s", examinee.revision, self._run_seconds)
        return answers

    async def _ask(self, examinee: Examinee, at: int, prompt: Prompt) -> str | Unknown:
        address = examinee.addresses[at % len(examinee.addresses)]
        try:
            return await self._engine.answer(
                address,
                model=examinee.served_name,
                text=prompt.text,
                messages=prompt.messages,
                max_tokens=prompt.max_tokens,
                timeout_seconds=self._prompt_seconds,
            )
        except PodError as error:
            return Unknown(f"{error!s:.200}")
        except Exception as error:  # whatever it is, it is no answer
            logger.exception("a prompt could not be asked")
            return Unknown(type(error).__name__)


def _score_all(prompts: Sequence[Prompt], answers: Sequence[str | Unknown]) -> list[bool | Unknown]:
    return [_score(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]


def _score(prompt: Prompt, answer: str | Unknown) -> bool | Unknown:
    score = answer if isinstance(answer, Unknown) else prompt.check.score(answer)
    return Unknown(f"prompt {prompt.name}: {score.reason}") if isinstance(score, Unknown) else score
