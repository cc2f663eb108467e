"""The walk of one object through its steps, and what must hold after each.

After a legal step: the status is about the present generation, the operator is quiet, and the children, and what the
status says of the spec, equal those of an object that is made with that very spec. After an illegal one: refused, and
nothing changed. After going back: as before the step. Requests of a step are bounded, and a deleted object leaves
nothing behind.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from e2e.localcluster import ApiError, KubeApi
from e2e.specwalk.children import Family, family_of
from e2e.specwalk.kinds import OBJECT, Json, Kind
from e2e.specwalk.steps import Step
from e2e.specwalk.writelog import WriteLog

QUIET_SECONDS = 2.0
STUCK_SECONDS = 6.0
"""An object that still says Reconciling is taken for converged when the operator leaves it alone for so long."""
CONVERGE_SECONDS = 90.0
GONE_SECONDS = 60.0
WRITES_PER_STEP = 80
"""A step moves at most a quota's worth of replicas: their pods, budgets, a revision, and the statuses in between."""
REFUSALS = (400, 422)
POLL_SECONDS = 0.2


@dataclass
class Findings:
    """What a walk did and what broke."""

    legal: int = 0
    ruled_out: int = 0
    """Legal by the schema, refused by one of its rules."""
    illegal: int = 0
    ready: int = 0
    """Legal steps after which the object was Ready."""
    most_writes: int = 0
    divergences: list[str] = field(default_factory=list)


class Walker:
    """Walks one object in a namespace of its own; fresh installs are made in a second one."""

    def __init__(self, api: KubeApi, kind: Kind, log: WriteLog, *, namespace: str, fresh: str) -> None:
        self.findings = Findings()
        self._api = api
        self._kind = kind
        self._log = log
        self._namespace = namespace
        self._fresh = fresh
        self._valid = kind.valid()
        self._base: Family | None = None

    async def walk(self, steps: Sequence[Step], messages: Sequence[str], advance: Callable[[], object]) -> None:
        """Take all steps; divergences are collected, not raised."""
        await self._api.create(self._kind.collection(self._namespace), self._manifest(self._valid))
        stored = await self._converged(self._namespace, ready=True)
        self._base = await self._family(self._namespace, stored)
        if _condition(stored, "Ready")[0] != "True":
            self.findings.divergences.append(f"the valid object does not become Ready: {_conditions(stored)}")
            return
        for step in steps:
            self._log.take(self._namespace)
            try:
                await self._take(step, messages)
            except (ApiError, TimeoutError) as error:
                self.findings.divergences.append(f"{step}: {error}")
                await self._start_over()
            advance()
        await self._remove(self._namespace, "the walk")

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _take(self, step: Step, messages: Sequence[str]) -> None:
        before = await self._get(self._namespace)
        try:
            await self._put(before, step.spec)
        except ApiError as error:
            await self._refused(step, before, error, messages)
            return
        if not step.legal:
            self.findings.illegal += 1
            self.findings.divergences.append(f"{step}: accepted, expected {step.case.refusal!r}")
        else:
            self.findings.legal += 1
            await self._compare(step)
        await self._go_back(step)

    async def _refused(self, step: Step, before: Json, error: ApiError, messages: Sequence[str]) -> None:
        if error.status not in REFUSALS:
            raise error
        by_rule = any(message in error.message for message in messages)
        if step.legal and by_rule:
            self.findings.ruled_out += 1
        elif step.legal:
            self.findings.divergences.append(f"{step}: refused: {error.message[:300]}")
        else:
            self.findings.illegal += 1
        after = await self._get(self._namespace)
        if after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
            self.findings.divergences.append(f"{step}: refused, yet the object changed")

    async def _compare(self, step: Step) -> None:
        """Compare the walked object with a fresh one of the same spec."""
        await self._api.create(self._kind.collection(self._fresh), self._manifest(step.spec))
        walked, fresh = await asyncio.gather(self._converged(self._namespace), self._converged(self._fresh))
        mine, theirs = await self._family(self._namespace, walked), await self._family(self._fresh, fresh)
        self._bounded(step)
        for kind in self._kind.conditions:
            if _condition(walked, kind) != _condition(fresh, kind):
                self._diverged(step, f"{kind} is {_condition(walked, kind)}, fresh {_condition(fresh, kind)}")
        for member in self._kind.status:
            if walked["status"].get(member) != fresh["status"].get(member):
                told = f"{walked['status'].get(member)}, fresh {fresh['status'].get(member)}"
                self._diverged(step, f"status.{member} is {told}")
        if _condition(fresh, "Ready")[0] == "True":
            self.findings.ready += 1
            if _condition(walked, "Ready") != _condition(fresh, "Ready"):
                self._diverged(step, f"not Ready as a fresh one is: {_conditions(walked)}")
            elif difference := mine.difference(theirs, without=self._kind.kept):
                self._diverged(step, difference)
        else:
            # What served before goes on serving; more than that and what a fresh one has is a leak.
            assert self._base is not None
            for collection in self._kind.children:
                limit = self._base.raw[collection] + theirs.raw[collection]
                if collection not in self._kind.kept and mine.raw[collection] > limit:
                    self._diverged(step, f"{mine.raw[collection]} {collection}, at most {limit} expected")
        await self._remove(self._fresh, str(step))

    async def _go_back(self, step: Step) -> None:
        self._log.take(self._namespace)
        await self._put(await self._get(self._namespace), self._valid)
        try:
            stored = await self._converged(self._namespace, ready=True)
        except TimeoutError as error:
            self._diverged(step, f"does not recover when it is taken back: {error}")
            await self._start_over()
            return
        assert self._base is not None
        difference = (await self._family(self._namespace, stored)).difference(self._base)
        if difference:
            self._diverged(step, f"taken back, {difference}")
            await self._start_over()
        self._bounded(step)

    def _bounded(self, step: Step) -> None:
        self._log.pull()
        writes: Counter[str] = self._log.take(self._namespace)
        self.findings.most_writes = max(self.findings.most_writes, writes.total())
        if writes.total() > WRITES_PER_STEP:
            self._diverged(step, f"{writes.total()} writes: {dict(writes)}")

    def _diverged(self, step: Step, what: str) -> None:
        self.findings.divergences.append(f"{step}: {what}")

    async def _start_over(self) -> None:
        """Go on with a new object: a later step must not pay for an earlier one."""
        for namespace in (self._namespace, self._fresh):
            await self._delete(namespace)
        await self._api.create(self._kind.collection(self._namespace), self._manifest(self._valid))
        await self._converged(self._namespace, ready=True)

    # --- the object --------------------------------------------------------------------------------------------------

    def _manifest(self, spec: Json) -> Json:
        return self._kind.manifest(OBJECT, deepcopy(spec))

    async def _get(self, namespace: str) -> Json:
        found: Json = await self._api.get(f"{self._kind.collection(namespace)}/{OBJECT}")
        return found

    async def _put(self, stored: Json, spec: Json) -> None:
        body = self._manifest(spec)
        body["metadata"] |= {"resourceVersion": stored["metadata"]["resourceVersion"]}
        # The status moves on by itself meanwhile; a conflict is no refusal.
        for last in (False, False, True):
            try:
                path = f"{self._kind.collection(self._namespace)}/{OBJECT}"
                await self._api.request("PUT", path, body, query={"fieldValidation": "Strict"})
            except ApiError as error:
                if error.status != 409 or last:
                    raise
                stored = await self._get(self._namespace)
                body["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
            else:
                return

    async def _converged(self, namespace: str, *, ready: bool = False) -> Json:
        """Wait until the status is about the present generation and the operator is quiet; return the object."""
        stored: Json = {}
        try:
            async with asyncio.timeout(CONVERGE_SECONDS):
                while True:
                    await asyncio.sleep(POLL_SECONDS)
                    stored = await self._get(namespace)
                    quiet = self._log.quiet_seconds(namespace)
                    observed = (stored.get("status") or {}).get("observedGeneration")
                    settled = not _condition(stored, "Reconciling")[0]
                    if observed == stored["metadata"]["generation"] and (
                        (settled and quiet >= QUIET_SECONDS) or (quiet >= STUCK_SECONDS and not ready)
                    ):
                        return stored
        except TimeoutError:
            raise TimeoutError(
                f"{namespace} does not converge in {CONVERGE_SECONDS:g} s: {_conditions(stored)}"
            ) from None

    async def _family(self, namespace: str, stored: Json) -> Family:
        target = ((stored.get("status") or {}).get("revisions") or {}).get("target", "")
        return await family_of(self._api, self._kind, namespace, target=target)

    async def _delete(self, namespace: str) -> bool:
        """Delete the object and wait until it and its children are gone; return whether they went."""
        path = f"{self._kind.collection(namespace)}/{OBJECT}"
        try:
            await self._api.delete(path)
        except ApiError as error:
            if error.status != 404:
                raise

        async def gone() -> bool:
            try:
                await self._api.get(path)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                return False
            return not any((await family_of(self._api, self._kind, namespace)).raw.values())

        try:
            await self._api.wait_until(gone, what="children to go", timeout_seconds=GONE_SECONDS)
        except TimeoutError:
            return False
        return True

    async def _remove(self, namespace: str, after: str) -> None:
        if not await self._delete(namespace):
            left = (await family_of(self._api, self._kind, namespace)).raw
            self.findings.divergences.append(f"{after}: left behind in {namespace}: {left}")


def _condition(stored: Json, kind: str) -> tuple[str, str]:
    for entry in (stored.get("status") or {}).get("conditions") or ():
        if entry["type"] == kind:
            return entry["status"], entry["reason"]
    return "", ""


def _conditions(stored: Json) -> Any:
    found = (stored.get("status") or {}).get("conditions") or ()
    return {c["type"]: f"{c['status']} {c['reason']}: {c['message'][:120]}" for c in found}
