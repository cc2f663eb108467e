"""Two operators, a scheduler, kubelets and strangers on one API server; a script says who moves next.

Every command lets at most one call of an operator reach the API server, so a script reaches every interleaving.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from bayplan.cluster.resources import NODES, PODS, Key
from tests.fakes.clock import settle
from tests.reconcile.gpuledger import GpuLedger, partial_groups
from tests.reconcile.operators import Operator
from tests.reconcile.turnstile import Fate, Turnstile, TurnstilePort
from tests.reconcile.world import TWO_NODES, World, foreign_pod

Json = dict[str, Any]
TICKS = (0.3, 0.3, 1.0, 1.0, 2.0, 8.0, 31.0, 61.0)
QUIET_SECONDS = 150.0
MODELS: dict[str, Json] = {
    "one": {"replicas": 2},
    "wide": {"parallelism": {"tensor": 2}},
    "long": TWO_NODES,
    "far": TWO_NODES,
}


class Arena(World):
    """`play` runs one command; `come_to_rest` lets everybody work fairly, with one operator left."""

    def __init__(self) -> None:
        self.turnstile = Turnstile()
        self.ports: list[TurnstilePort] = []
        super().__init__()
        self.ledger = GpuLedger()
        self.tasks: dict[tuple[int, Key], asyncio.Task[None]] = {}
        self.failures: list[BaseException] = []
        self._mover: TurnstilePort | None = None
        self._first_seen: dict[str, int] = {}
        self._strangers = 0
        self._checked = 0
        for number in range(1, 4):
            self.add_node(f"n{number}", zone=f"zone-{number % 2}")
        self.keys = [self.add_model(name, **spec) for name, spec in MODELS.items()]
        self.operators = [self.operator, self.new_operator()]
        self._ports_of = [0, 1]
        for operator in self.operators:
            operator.deliver()
        self._check()

    def new_operator(self, *, seed: int = 0) -> Operator:
        port = TurnstilePort(self.api, self.turnstile, len(self.ports))
        self.ports.append(port)
        operator = Operator(self.api, self.clock, self.engine, now=self.now, port=port, seed=seed + len(self.ports))
        operator.load()
        return operator

    # --- the account -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._checked == self.api.version:
            return
        self._checked = self.api.version
        pods = self.api.objects(PODS)
        for pod in pods:
            self._first_seen.setdefault(pod["metadata"]["uid"], self.api.version)
        self.ledger.observe(pods, self.api.objects(NODES), version=self.api.version, read_at=self._read_at)

    def _read_at(self, pod: Json) -> int:
        """When the mover began to read the pod's node, for a recheck that began after the group's last POST."""
        group = pod["metadata"]["labels"]["bayplan.dev/group"]
        posted = max(
            self._first_seen[other["metadata"]["uid"]]
            for other in self.api.objects(PODS)
            if other["metadata"]["labels"].get("bayplan.dev/group") == group
        )
        place = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        name = place["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        reads = self._mover.node_reads if self._mover is not None else []
        return min((v for node, v in reads if node == name and v >= posted), default=self.api.version)

    async def moved(self) -> None:
        await settle(12)
        self._check()

    # --- commands --------------------------------------------------------------------------------------------------

    async def play(self, command: str, number: int) -> None:
        """Do one command; `number` chooses among what it can be applied to."""
        self._mover = None
        handler: Callable[[int], Any] = getattr(self, f"do_{command}")
        done = handler(number)
        if asyncio.iscoroutine(done):
            await done
        await self.moved()

    def do_deliver(self, number: int) -> None:
        resource = (None, PODS, NODES)[number // 2 % 3]
        self.operators[number % 2].deliver(resource, limit=1 + number % 5)

    def do_work(self, number: int) -> None:
        who = number % 2
        operator = self.operators[who]
        for key in list(operator.queued):
            if (who, key) not in self.tasks:
                task = asyncio.create_task(operator.reconcile(key))
                self.tasks[who, key] = task
                task.add_done_callback(lambda done, slot=(who, key): self._ended(slot, done))

    def _ended(self, slot: tuple[int, Key], task: "asyncio.Task[None]") -> None:
        if self.tasks.get(slot) is task:
            del self.tasks[slot]
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(task.exception())  # type: ignore[arg-type]

    def do_call(self, number: int, fate: Fate = Fate.DONE) -> None:
        if self.turnstile.waiting:
            self._mover = self.ports[self.turnstile.waiting[number % len(self.turnstile.waiting)].who]
            self.turnstile.let_through(number, fate)

    async def do_burst(self, number: int) -> None:
        """Let a few calls of one operator through, one after the other."""
        for _ in range(2 + number // 2 % 8):
            mine = [i for i, call in enumerate(self.turnstile.waiting) if call.who == self._who(number % 2)]
            if not mine:
                return
            self.do_call(mine[0])
            await self.moved()

    def _who(self, operator: int) -> int:
        """The place of an operator's present port among all ports ever."""
        return self._ports_of[operator]

    def do_cut(self, number: int) -> None:
        self.do_call(number, Fate.CUT)

    def do_lose(self, number: int) -> None:
        self.do_call(number, Fate.LOST)

    async def do_kill(self, number: int) -> None:
        await self.stop(number % 2)
        self._ports_of[number % 2] = len(self.ports)
        self.operators[number % 2] = self.new_operator()

    async def stop(self, who: int) -> None:
        gone = [self.tasks.pop(slot) for slot in list(self.tasks) if slot[0] == who]
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        await self.operators[who].close()

    def do_bind(self, number: int) -> None:
        waiting = [p for p in self.objects(PODS) if not p["spec"].get("nodeName") and not p["spec"]["schedulingGates"]]
        if waiting:
            self.schedule_pod(waiting[number % len(waiting)])

    def do_kubelet(self, number: int) -> None:
        bound = [pod for pod in self.objects(PODS) if pod["spec"].get("nodeName")]
        if bound:
            self.kubelet(bound[number % len(bound)])

    def do_exit(self, number: int) -> None:
        running = [p for p in self.objects(PODS) if p["status"].get("containerStatuses")]
        if running:
            self.exit_engine(running[number % len(running)]["metadata"]["name"])

    def do_foreign(self, number: int) -> None:
        """kube-scheduler binds somebody's pod; it knows of bound pods only."""
        target = self.objects(NODES)[number % 3]
        gpus = 1 + number // 3 % 2
        if gpus <= self.room(target) and not target["spec"].get("unschedulable"):
            self._strangers += 1
            self.api.seed(PODS, foreign_pod(f"stranger-{self._strangers}", target["metadata"]["name"], gpus=gpus))

    def do_foreign_leaves(self, number: int) -> None:
        strangers = [p["metadata"]["name"] for p in self.objects(PODS) if p["metadata"]["namespace"] == "other"]
        if strangers:
            self.api.remove(PODS, Key("other", strangers[number % len(strangers)]))

    def do_cordon(self, number: int) -> None:
        name = f"n{1 + number % 3}"
        target = next(obj for obj in self.objects(NODES) if obj["metadata"]["name"] == name)
        self.cordon(name, on=not target["spec"].get("unschedulable", False))

    def do_silence(self, number: int) -> None:
        name = f"n{1 + number % 3}"
        if name in self.dead_nodes:
            self.find_node(name)
        else:
            self.lose_node(name)

    def do_scale(self, number: int) -> None:
        self.edit_spec(self.keys[number % 4], replicas=number // 4 % 4)

    def do_revise(self, number: int) -> None:
        engine = {"image": "vllm/vllm-openai:v0.32.0", "maxModelLen": 4096 + 1024 * (number // 4 % 3)}
        self.edit_spec(self.keys[number % 4], engine=engine)

    async def do_tick(self, number: int) -> None:
        await self.clock.advance(TICKS[number % len(TICKS)])

    # --- the end ---------------------------------------------------------------------------------------------------

    async def come_to_rest(self) -> None:
        """One operator dies for good, nodes come back, and everybody works until every limit has passed."""
        await self.stop(1)
        for name in list(self.dead_nodes):
            self.find_node(name)
        await self.pass_time(QUIET_SECONDS)

    async def pass_time(self, seconds: float) -> None:
        """Let the remaining operator and the cluster work while time passes, timer by timer."""
        until = self.clock.time() + seconds
        while self.clock.time() < until:
            await self._round()
            due = self.clock.next_due or until
            await self.clock.advance(min(5.0, max(0.05, due - self.clock.time())))
            self._check()

    async def _round(self) -> None:
        """Let everything that can happen now happen."""
        for _ in range(400):
            version, waiting = self.api.version, list(self.turnstile.waiting)
            self.operators[0].deliver()
            await self.play("work", 0)
            await self.play("call", 0)
            if not self.turnstile.waiting:
                self.schedule()
                self.kubelets()
                await self.moved()
            if self.api.version == version and not waiting and not self.operators[0].queued:
                return
        raise AssertionError(f"no rest; last writes {self.writes()[-8:]}")

    def problems(self) -> list[str]:
        """What must not be, at rest."""
        left = [f"{name} holds {by} GPUs too much at rest" for name, by in self.ledger.excess.items()]
        return [
            *self.ledger.over_allocations,
            *left,
            *partial_groups(self.api.objects(PODS)),
            *map(repr, self.failures),
        ]
