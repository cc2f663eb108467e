"""What happens to a model that runs: replicas by hand, lost nodes, a killed operator, wrong changes, the end."""

import asyncio

from e2e.scenarios.narration import SceneFailedError, is_ready, streaming
from e2e.scenarios.scenes.stage import MODELS, Stage

STREAM_TOKENS = 1200
"""About 15 s of stream: longer than a busy machine takes to start draining."""


async def scaling(stage: Stage) -> None:
    """Replicas by hand; needs `first_model`, leaves it one replica."""
    stage.tell.scene(
        "Scale up and down with a stream running",
        "A replica that leaves is unrouted first, and deleted when its engine shows nothing running or waiting.",
    )
    await stage.tell.kubectl("scale imodel llama-8b --replicas 2")
    model = await stage.tell.follow("llama-8b", is_ready(2), what="two ready replicas")
    leaving = await stage.youngest("llama-8b")
    name, address = model["spec"]["model"]["name"], leaving["status"]["podIP"]
    stage.tell.say(f"a stream of {STREAM_TOKENS} tokens starts on {leaving['metadata']['name']}")
    async with streaming(address, name, "Tell a long story", STREAM_TOKENS) as stream:
        await asyncio.wait_for(stream.begun.wait(), 20)
        await stage.tell.kubectl("scale imodel llama-8b --replicas 1")
        await stage.tell.follow(
            "llama-8b", lambda m: m["status"].get("drainingReplicas") == 1, what="one draining replica"
        )
        if stream.done.is_set():
            raise SceneFailedError("the stream ended before the replica drained: nothing was shown")
        await asyncio.wait_for(stream.done.wait(), 60)
        if (stream.finish_reason, stream.completion_tokens) != ("length", STREAM_TOKENS):
            raise SceneFailedError(f"the stream was cut: {stream.completion_tokens} tokens, {stream.finish_reason}")
    stage.tell.say(f"the stream ended whole: {stream.completion_tokens} tokens, {stream.finish_reason}")
    await stage.tell.follow("llama-8b", is_ready(1), what="one ready replica")


async def node_loss(stage: Stage) -> None:
    """A node under the one replica that `fragmented` has left."""
    head = (await stage.heads("llama-8b"))[0]
    node, pod = head["spec"]["nodeName"], head["metadata"]["name"]
    stage.tell.scene(
        f"Node {node} dies, and comes back",
        "The group moves at once; the pod on the lost node is in no count and goes when the node returns.",
    )
    stage.tell.typed(f"python -m e2e.nodeagent.control lose-node {node}   # the machine loses power")
    await stage.system.control("/lose-node", node=node, mode="dead")
    await stage.tell.follow(
        "llama-8b",
        lambda m: any(g["stage"] == "Ready" and node not in g["nodes"] for g in m["status"]["placement"]["groups"]),
        what="a ready replica on another node",
        timeout_seconds=90,
    )
    await stage.tell.kubectl("get pods -l bayplan.dev/model=llama-8b -o wide")
    stage.tell.typed(f"python -m e2e.nodeagent.control return-node {node}")
    await stage.system.control("/return-node", node=node)

    async def gone() -> bool:
        return pod not in await stage.tell.kubectl("get pods -l bayplan.dev/model=llama-8b", quiet=True)

    await stage.tell.wait(gone, what=f"the stale pod {pod} to go")
    stage.tell.say(f"the node is back; its stale pod {pod} is gone")


async def operator_killed(stage: Stage) -> None:
    """A crash in the middle of a start."""
    stage.tell.scene(
        "The operator is killed while a model starts",
        "All state is in the pods: the next operator goes on where the last one stopped.",
    )
    await stage.tell.kubectl(f"apply -f {MODELS}/llama-8b.yaml")
    await stage.tell.follow("llama-8b", lambda m: m["status"].get("warmingReplicas", 0) > 0, what="warming replicas")
    pods = {pod["metadata"]["uid"] for pod in await stage.heads("llama-8b")}
    stage.tell.typed("kill -9 <operator>")
    await stage.system.kill_operator(stage.system.operators[0])
    await stage.system.start_operator()
    await stage.tell.follow("llama-8b", is_ready(2), what="two ready replicas", timeout_seconds=90)
    if {pod["metadata"]["uid"] for pod in await stage.heads("llama-8b")} != pods:
        raise SceneFailedError("the restarted operator replaced pods")
    stage.tell.say("the same pods became ready")


async def wrong_spec(stage: Stage) -> None:
    """Refusals by the API server, then the end of all models."""
    stage.tell.scene(
        "Wrong specs are refused at apply",
        "The API server knows every bound and rule; the message names the field and what would be accepted.",
    )
    patches = {
        "a negative number": '{"spec":{"replicas":-1}}',
        "a flag that would contradict the plan": '{"spec":{"engine":{"args":["--max-model-len=4096"]}}}',
        "an immutable field": '{"spec":{"model":{"name":"other"}}}',
    }
    for what, patch in patches.items():
        stage.tell.say(what)
        try:
            await stage.tell.kubectl(f"patch imodel llama-8b --type merge -p '{patch}'")
        except SceneFailedError:
            continue
        raise SceneFailedError(f"{what} was accepted")
    await delete_all(stage)


async def deletion(stage: Stage) -> None:
    """The end of all models."""
    stage.tell.scene("Delete everything", "Children belong to their model: garbage collection takes all of them.")
    await delete_all(stage)


async def delete_all(stage: Stage) -> None:
    """Delete all models and wait until nothing of them is left."""
    await stage.tell.kubectl("delete imodel --all")
    kinds = "pods,services,poddisruptionbudgets,controllerrevisions"
    selector = "app.kubernetes.io/managed-by=bayplan"

    async def nothing_left() -> bool:
        return "No resources found" in await stage.tell.kubectl(f"get {kinds} -l {selector}", quiet=True)

    await stage.tell.wait(nothing_left, what="nothing left", timeout_seconds=60)
    await stage.tell.kubectl(f"get {kinds} -l {selector}")
