"""`make demo`: a model from `kubectl apply` to an answered request, and seven more scenes, on a real control plane.

Asks nothing; exits 0 only if every scene reached its state. `--all` (`make demo-all`) adds scenes that are worth a
longer look, `--keep` leaves the last state running until Ctrl-C.
"""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from e2e.localcluster import ClusterError
from e2e.scenarios.narration import (
    Narrator,
    SceneFailedError,
    complete,
    condition,
    is_ready,
    streaming,
)
from e2e.scenarios.stack import INVENTORIES, Stack, StackError, stack

MODELS = Path("e2e/scenarios/models")
STREAM_TOKENS = 1200
"""About 15 s of stream: longer than a busy machine takes to start draining."""


class Demo:
    """The scenes, in order. Each leaves the system in a state that the next one builds on."""

    def __init__(self, system: Stack, tell: Narrator) -> None:
        self.system = system
        self.tell = tell

    async def run(self, *, everything: bool) -> int:
        """Play the scenes; return how many there were."""
        scenes = [
            self.fleet,
            self.first_model,
            self.tensor_parallel,
            self.does_not_fit,
            self.fragmented,
            self.scaling,
            self.node_loss,
            self.deletion,
        ]
        if everything:
            scenes += [self.two_nodes, self.operator_killed, self.wrong_spec]
        for scene in scenes:
            await scene()
        return len(scenes)

    async def fleet(self) -> None:
        """Scene 1."""
        self.tell.scene(
            1,
            "Six GPU nodes, three GPU kinds, two zones, three racks",
            "Nodes are objects of a real API server, labelled as GPU Feature Discovery and Topograph do; tier-0 is the "
            "rack's switch.",
        )
        columns = "nvidia.com/gpu.product,topology.kubernetes.io/zone,fabric.topograph.run/tier-0"
        text = await self.tell.kubectl(f"get nodes -L {columns}")
        if text.count(" Ready ") != 6:
            raise SceneFailedError("not all six nodes are Ready")

    async def first_model(self) -> None:
        """Scene 2."""
        self.tell.scene(
            2,
            "An 8B model with two replicas",
            "Fit, layout, whole-group reservation, release to kube-scheduler, warm-up by a real generation, Ready.",
        )
        await self.tell.kubectl(f"apply -f {MODELS}/llama-8b.yaml")
        model = await self.tell.follow("llama-8b", is_ready(2), what="two ready replicas")
        self.tell.say(condition(model, "MemoryFit")["message"])
        await self.tell.kubectl("get pods -l bayplan.dev/model=llama-8b -o wide")
        zones = await self.zones("llama-8b")
        if len(set(zones)) != 2:
            raise SceneFailedError(f"the replicas are not spread over zones: {zones}")
        self.tell.say(f"one replica in each of {' and '.join(sorted(zones))}")
        address = (await self.heads("llama-8b"))[0]["status"]["podIP"]
        name = model["spec"]["model"]["name"]
        self.tell.typed(f'curl http://{address}:8000/v1/completions -d \'{{"model": "{name}", …, "max_tokens": 16}}\'')
        answer = await complete(address, name, "A bay plan says", 16)
        self.tell.came_back(f"{answer['choices'][0]['text'].strip()}\nusage: {answer['usage']}")
        self.tell.typed('curl -N … "stream": true')
        async with streaming(address, name, "A bay plan says", 24) as stream:
            await asyncio.wait_for(stream.done.wait(), 20)
        self.tell.came_back(f"{stream.text.strip()}\n[DONE] after {stream.completion_tokens} tokens")

    async def tensor_parallel(self) -> None:
        """Scene 3."""
        self.tell.scene(
            3,
            "A 70B model: tensor parallel 4 on one node",
            "The layout is derived from the memory; the whole group goes to one node, with the facts that decided.",
        )
        await self.tell.kubectl(f"apply -f {MODELS}/llama-70b.yaml")
        model = await self.tell.follow("llama-70b", is_ready(1), what="one ready replica")
        group = model["status"]["placement"]["groups"][0]
        layout = next(p for p in model["status"]["parallelism"] if p["gpuProduct"] == group["gpuProduct"])
        if layout["tensor"] != 4 or len(group["nodes"]) != 1:
            raise SceneFailedError(f"expected tensor 4 on one node, found {layout} on {group['nodes']}")
        self.tell.say(f"tensor={layout['tensor']} on {group['nodes'][0]} ({group['gpuProduct']}): {layout['reason']}")
        for fact in group["facts"]:
            self.tell.came_back(f"- {fact}")

    async def does_not_fit(self) -> None:
        """Scene 4."""
        self.tell.scene(
            4,
            "A model that cannot fit",
            "It is refused before anything is allocated, with the shortfall and what would fit.",
        )
        await self.tell.kubectl(f"apply -f {MODELS}/llama-405b.yaml")
        model = await self.tell.follow(
            "llama-405b", lambda m: condition(m, "MemoryFit").get("status") == "False", what="MemoryFit=False"
        )
        await self.tell.kubectl("get imodel llama-405b")
        self.tell.say(condition(model, "MemoryFit")["message"])
        pods = await self.tell.kubectl("get pods -l bayplan.dev/model=llama-405b")
        if "No resources found" not in pods:
            raise SceneFailedError("a model that does not fit has pods")

    async def fragmented(self) -> None:
        """Scene 5."""
        self.tell.scene(
            5,
            "Enough GPUs in sum, but no whole group",
            "Three groups of four L40S on one node each: two find a node, the third does not, although GPUs are free.",
        )
        await self.tell.kubectl(f"apply -f {MODELS}/yi-34b.yaml")
        model = await self.tell.follow(
            "yi-34b",
            lambda m: (
                m.get("status", {}).get("readyReplicas") == 2
                and condition(m, "Placed").get("reason") == "FragmentedCapacity"
            ),
            what="two ready replicas and FragmentedCapacity",
        )
        self.tell.say(condition(model, "Placed")["message"])
        self.tell.say("room appears: the 8B model goes down to one replica")
        await self.tell.kubectl("scale imodel llama-8b --replicas 1")
        await self.tell.follow("yi-34b", is_ready(3), what="the third replica ready by itself")

    async def scaling(self) -> None:
        """Scene 6."""
        self.tell.scene(
            6,
            "Scale up and down with a stream running",
            "A replica that leaves is unrouted first, and deleted when its engine shows nothing running or waiting.",
        )
        await self.tell.kubectl("scale imodel llama-8b --replicas 2")
        model = await self.tell.follow("llama-8b", is_ready(2), what="two ready replicas")
        leaving = await self.youngest("llama-8b")
        name, address = model["spec"]["model"]["name"], leaving["status"]["podIP"]
        self.tell.say(f"a stream of {STREAM_TOKENS} tokens starts on {leaving['metadata']['name']}")
        async with streaming(address, name, "Tell a long story", STREAM_TOKENS) as stream:
            await asyncio.wait_for(stream.begun.wait(), 20)
            await self.tell.kubectl("scale imodel llama-8b --replicas 1")
            await self.tell.follow(
                "llama-8b", lambda m: m["status"].get("drainingReplicas") == 1, what="one draining replica"
            )
            if stream.done.is_set():
                raise SceneFailedError("the stream ended before the replica drained: nothing was shown")
            await asyncio.wait_for(stream.done.wait(), 60)
            if (stream.finish_reason, stream.completion_tokens) != ("length", STREAM_TOKENS):
                raise SceneFailedError(f"the stream was cut: {stream.completion_tokens} tokens, {stream.finish_reason}")
        self.tell.say(f"the stream ended whole: {stream.completion_tokens} tokens, {stream.finish_reason}")
        await self.tell.follow("llama-8b", is_ready(1), what="one ready replica")

    async def node_loss(self) -> None:
        """Scene 7."""
        head = (await self.heads("llama-8b"))[0]
        node, pod = head["spec"]["nodeName"], head["metadata"]["name"]
        self.tell.scene(
            7,
            f"Node {node} dies, and comes back",
            "The group moves at once; the pod on the lost node is in no count and goes when the node returns.",
        )
        self.tell.typed(f"python -m e2e.nodeagent.control lose-node {node}   # the machine loses power")
        await self.system.control("/lose-node", node=node, mode="dead")
        await self.tell.follow(
            "llama-8b",
            lambda m: any(g["stage"] == "Ready" and node not in g["nodes"] for g in m["status"]["placement"]["groups"]),
            what="a ready replica on another node",
            timeout_seconds=90,
        )
        await self.tell.kubectl("get pods -l bayplan.dev/model=llama-8b -o wide")
        self.tell.typed(f"python -m e2e.nodeagent.control return-node {node}")
        await self.system.control("/return-node", node=node)

        async def gone() -> bool:
            return pod not in await self.tell.kubectl("get pods -l bayplan.dev/model=llama-8b", quiet=True)

        await self.tell.wait(gone, what=f"the stale pod {pod} to go")
        self.tell.say(f"the node is back; its stale pod {pod} is gone")

    async def deletion(self) -> None:
        """Scene 8."""
        self.tell.scene(8, "Delete everything", "Children belong to their model: garbage collection takes all of them.")
        await self.tell.kubectl("delete imodel --all")
        kinds = "pods,services,poddisruptionbudgets,controllerrevisions"
        selector = "app.kubernetes.io/managed-by=bayplan"

        async def nothing_left() -> bool:
            return "No resources found" in await self.tell.kubectl(f"get {kinds} -l {selector}", quiet=True)

        await self.tell.wait(nothing_left, what="nothing left", timeout_seconds=60)
        await self.tell.kubectl(f"get {kinds} -l {selector}")

    async def two_nodes(self) -> None:
        """Scene 9."""
        self.tell.scene(
            9,
            "A replica over two nodes, and one of its ranks dies",
            "The group is placed in one rack, starts as one engine, fails as a whole and is replaced as a whole.",
        )
        await self.tell.kubectl(f"apply -f {MODELS}/two-node.yaml")
        model = await self.tell.follow("two-node", is_ready(1), what="one ready replica on two nodes")
        await self.tell.kubectl("get pods -l bayplan.dev/model=two-node -o wide")
        self.tell.say("; ".join(model["status"]["placement"]["groups"][0]["facts"][:2]))
        group = model["status"]["placement"]["groups"][0]["name"]
        self.tell.typed(f"python -m e2e.nodeagent.control kill-pod default/{group}-1")
        await self.system.control("/kill-pod", namespace="default", name=f"{group}-1", exit_code=1)
        model = await self.tell.follow(
            "two-node",
            lambda m: is_ready(1)(m) and m["status"]["placement"]["groups"][0]["name"] != group,
            what="the next attempt ready",
        )
        self.tell.say(f"replaced whole by {model['status']['placement']['groups'][0]['name']}")

    async def operator_killed(self) -> None:
        """Scene 10."""
        self.tell.scene(
            10,
            "The operator is killed while a model starts",
            "All state is in the pods: the next operator goes on where the last one stopped.",
        )
        await self.tell.kubectl(f"apply -f {MODELS}/llama-8b.yaml")
        await self.tell.follow("llama-8b", lambda m: m["status"].get("warmingReplicas", 0) > 0, what="warming replicas")
        pods = {pod["metadata"]["uid"] for pod in await self.heads("llama-8b")}
        self.tell.typed("kill -9 <operator>")
        await self.system.kill_operator(self.system.operators[0])
        await self.system.start_operator()
        await self.tell.follow("llama-8b", is_ready(2), what="two ready replicas", timeout_seconds=90)
        if {pod["metadata"]["uid"] for pod in await self.heads("llama-8b")} != pods:
            raise SceneFailedError("the restarted operator replaced pods")
        self.tell.say("the same pods became ready")

    async def wrong_spec(self) -> None:
        """Scene 11."""
        self.tell.scene(
            11,
            "Wrong specs are refused at apply",
            "The API server knows every bound and rule; the message names the field and what would be accepted.",
        )
        patches = {
            "a negative number": '{"spec":{"replicas":-1}}',
            "a flag that would contradict the plan": '{"spec":{"engine":{"args":["--max-model-len=4096"]}}}',
            "an immutable field": '{"spec":{"model":{"name":"other"}}}',
        }
        for what, patch in patches.items():
            self.tell.say(what)
            try:
                await self.tell.kubectl(f"patch imodel llama-8b --type merge -p '{patch}'")
            except SceneFailedError:
                continue
            raise SceneFailedError(f"{what} was accepted")
        await self.deletion()

    # --- looking ---------------------------------------------------------------------------------------------------

    async def heads(self, model: str) -> list[dict[str, Any]]:
        """Return the live head pods of a model."""
        selector = f"bayplan.dev/model={model},bayplan.dev/rank=0"
        found = await self.system.api.get("/api/v1/namespaces/default/pods", labelSelector=selector)
        return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]

    async def youngest(self, model: str) -> dict[str, Any]:
        """Return the head that became ready last: scale-down takes it first."""
        heads = await self.heads(model)

        def warm_since(pod: dict[str, Any]) -> str:
            conditions = {c["type"]: c["lastTransitionTime"] for c in pod["status"]["conditions"]}
            return str(conditions["bayplan.dev/warm"])

        return max(heads, key=warm_since)

    async def zones(self, model: str) -> list[str]:
        """Return the zone of each replica."""
        zones = []
        for pod in await self.heads(model):
            node = await self.system.api.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
            zones.append(node["metadata"]["labels"]["topology.kubernetes.io/zone"])
        return zones


async def play(*, keep: bool, everything: bool) -> None:
    """Run the demo on a cluster of its own."""
    async with stack(name="demo", inventory=INVENTORIES / "demo.yaml") as system:
        tell = Narrator(kubeconfig=system.cluster.kubeconfig_path)
        scenes = await Demo(system, tell).run(everything=everything)
        tell.console.print(
            f"\n[bold green]All {scenes} scenes reached their state in {tell.seconds:.0f} s.[/bold green]"
        )
        if keep:
            tell.console.print(f"export KUBECONFIG={system.cluster.kubeconfig_path}   # Ctrl-C ends it")
            await asyncio.Event().wait()


def main(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the system running until Ctrl-C.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Play every scene, not only the best.")] = False,
) -> None:
    """Play the demo."""
    try:
        asyncio.run(play(keep=keep, everything=everything))
    except KeyboardInterrupt:
        raise typer.Exit(0 if keep else 130) from None
    except (SceneFailedError, StackError, ClusterError, TimeoutError) as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
