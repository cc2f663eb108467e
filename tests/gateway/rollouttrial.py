"""A serving engine and a candidate behind one gateway, sessions of each cohort, and what a candidate may do wrong."""

from collections import Counter
from typing import Any

from bayplan.gateway.generations import SESSION_HEADER
from bayplan.planning.rollout.cohort import Cohort, cohort_key, find_cohort
from tests.gateway.gatewaytown import Town
from tests.gateway.scriptedengine import HEAD, Connection, ScriptedEngine, event

SALT = "0123456789abcdef"
CANDIDATE = {"serving": "r1", "candidate": "r2", "cohortSalt": SALT, "candidateReplicas": 1}


def session_of(cohort: Cohort, weight: int, baseline: int = 0, *, skip: int = 0) -> str:
    """A session of that cohort, as the gateway will find it."""
    for n in range(100_000):
        key = cohort_key(session=f"anonymous s{n}", conversation=None, request_id="x")
        found = find_cohort(key, salt=SALT, weight_percent=weight, baseline_percent=baseline)
        if found is cohort:
            if skip == 0:
                return f"s{n}"
            skip -= 1
    raise AssertionError("no session belongs there")


class Trial:
    """A serving engine (r1) and a candidate (r2) behind one gateway."""

    def __init__(self, town: Town, serving: ScriptedEngine, candidate: ScriptedEngine) -> None:
        self.town = town
        self.serving = serving
        self.candidate = candidate
        town.model(serving=("r1",))
        self.pods = {
            "serving": town.head("serving", serving.host, revision="r1"),
            "candidate": town.head("candidate", candidate.host, revision="r2"),
        }

    def plan(self, epoch: int, **fields: Any) -> None:
        self.town.plan(epoch=epoch, **(CANDIDATE | fields))

    async def ask(self, session: str = "", **fields: Any) -> int:
        headers = {SESSION_HEADER: session} if session else None
        return (await self.town.post(headers=headers, **fields))[0]

    async def lead(self, number: int = 20) -> None:
        """Let the pool have requests first, so that the candidate's share is no bound for one."""
        for n in range(number):
            assert await self.ask(session_of(Cohort.REST, 50, 0, skip=n % 5)) == 200

    async def rows(self) -> Counter[tuple[str, str]]:
        """Requests by pod and arm."""
        rows = (await self.town.evidence())["rows"]
        return Counter({(row["pod"].removeprefix("pod-"), row["arm"]): row["requests"] for row in rows})

    async def errors(self, pod: str) -> dict[str, int]:
        rows = (await self.town.evidence())["rows"]
        found: Counter[str] = Counter()
        for row in rows:
            if row["pod"] == f"pod-{pod}":
                found.update(row["errors"])
        return dict(found)


MINE = session_of(Cohort.CANDIDATE, 50)
OTHERS = session_of(Cohort.REST, 50)


async def die(connection: Connection) -> None:
    connection.reset()


async def refuse(connection: Connection) -> None:
    await connection.answer(503, {"error": {"message": "full"}})


async def slow_stream(connection: Connection) -> None:
    await connection.send(HEAD)
    await connection.chunk(event("x"))
    await connection.until_client_leaves()
