"""Watches a gateway's evidence and a Rollout's plan, and checks who got requests. Shares no code with the gateway.

For every two looks at which the gateway routes by plans that are known:

- requests grew only at pods of revisions that one of the two plans routes to; at the candidate's only as the arms that
  its weight and share allow;
- since the candidate last had no weight, it got at most its weight of all requests, plus one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import aiohttp

from e2e.localcluster.client import KubeApi

Json = dict[str, Any]
POLL_SECONDS = 0.1
COPIES = "shadow"


class TrafficWatch:
    """Checks one model behind one gateway while its block runs; `violations` says what was seen."""

    def __init__(self, model: str) -> None:
        """`model` is NAMESPACE/NAME."""
        self.violations: list[str] = []
        self.checked = 0
        """Looks that were compared with the one before."""
        self.candidate_requests = 0
        """Requests that candidates got."""
        self._model = model
        self._plans: dict[int, Json] = {}
        self._last: tuple[str, Json, dict[tuple[str, str, str], int]] | None = None
        self._allowed_percent = 0
        self._candidate = 0

    @classmethod
    @asynccontextmanager
    async def on(cls, api: KubeApi, *, rollout: str, model: str, evidence_url: str) -> AsyncIterator[Self]:
        """Watch for the length of the block. `rollout` is the object's path."""
        watch = cls(model)

        async def look() -> None:
            async with aiohttp.ClientSession() as session:
                while True:
                    watch.plan_seen(await api.get(rollout))
                    async with session.get(evidence_url) as answer:
                        evidence = await answer.json()
                    watch.plan_seen(await api.get(rollout))
                    watch.check(evidence)
                    await asyncio.sleep(POLL_SECONDS)

        task = asyncio.create_task(look(), name="traffic invariant")
        try:
            yield watch
        finally:
            ended = task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if ended:
                watch.violations.append("the watch ended early")

    def plan_seen(self, rollout: Json) -> None:
        """Take in the plan as it stands."""
        plan = (rollout.get("status") or {}).get("plan")
        if plan:
            self._plans[plan["epoch"]] = plan

    def check(self, evidence: Json) -> None:
        """Compare one look with the one before."""
        routed_by = (evidence["models"].get(self._model) or {}).get("plan") or {}
        plan = self._plans.get(routed_by.get("epoch", 0))
        if plan is None:
            self._last = None
            return
        counts: dict[tuple[str, str, str], int] = {}
        for row in evidence["rows"]:
            if f"{row['namespace']}/{row['model']}" == self._model:
                key = row["pod"], row["revision"], row["arm"]
                counts[key] = counts.get(key, 0) + row["requests"]
        last, self._last = self._last, (evidence["gateway"]["startedAt"], plan, counts)
        if last is None or last[0] != evidence["gateway"]["startedAt"]:
            self._allowed_percent = self._candidate = 0
            return
        self.checked += 1
        grown = {key: number - last[2].get(key, 0) for key, number in counts.items()}
        self._check_arms((last[1], plan), {key: number for key, number in grown.items() if number})
        self._check_share((last[1], plan), grown)

    def _check_arms(self, plans: tuple[Json, Json], grown: dict[tuple[str, str, str], int]) -> None:
        allowed = {pair for plan in plans for pair in _routes(plan)}
        for (pod, revision, arm), number in grown.items():
            if (revision, arm) not in allowed:
                epochs = " and ".join(str(plan["epoch"]) for plan in plans)
                self.violations.append(f"{number} requests as {arm} at {pod} of {revision}, outside plans {epochs}")

    def _check_share(self, plans: tuple[Json, Json], grown: dict[tuple[str, str, str], int]) -> None:
        weight = max(plan.get("weight", 0) for plan in plans)
        routed = sum(number for (_, _, arm), number in grown.items() if arm != COPIES)
        mine = sum(number for (_, _, arm), number in grown.items() if arm == "candidate")
        self.candidate_requests += mine
        if not weight:
            self._allowed_percent = self._candidate = 0
            return
        self._allowed_percent += weight * routed
        self._candidate += mine
        if 100 * self._candidate > self._allowed_percent + 100:
            self.violations.append(
                f"{self._candidate} candidate requests under a weight of {weight} %, "
                f"at most {self._allowed_percent / 100 + 1:g}"
            )


def _routes(plan: Json) -> set[tuple[str, str]]:
    """(revision, arm) that a plan lets requests grow in."""
    pool = [plan["serving"], *([plan["previous"]] if plan.get("previous") else [])]
    routes = {(revision, arm) for revision in pool for arm in ("serving", "baseline")}
    if plan.get("weight"):
        routes.add((plan["candidate"], "candidate"))
    if plan.get("shadowShare"):
        routes.add((plan["candidate"], COPIES))
    return routes
