"""From `kubectl apply` to replicas on GPUs: what fits, where it goes, and what is refused."""

import asyncio

from e2e.scenarios.narration import SceneFailedError, complete, condition, is_ready, streaming
from e2e.scenarios.scenes.stage import MODELS, Stage


async def fleet(stage: Stage) -> None:
    """Show the nodes."""
    stage.tell.scene(
        "Six GPU nodes, three GPU kinds, two zones, three racks",
        "Nodes are objects of a real API server, labelled as GPU Feature Discovery and Topograph do; tier-0 is the "
        "rack's switch.",
    )
    columns = "nvidia.com/gpu.product,topology.kubernetes.io/zone,fabric.topograph.run/tier-0"
    text = await stage.tell.kubectl(f"get nodes -L {columns}")
    if text.count(" Ready ") != 6:
        raise SceneFailedError("not all six nodes are Ready")


async def first_model(stage: Stage) -> None:
    """From apply to an answer of the engine."""
    stage.tell.scene(
        "An 8B model with two replicas",
        "Fit, layout, whole-group reservation, release to kube-scheduler, warm-up by a real generation, Ready.",
    )
    await stage.tell.kubectl(f"apply -f {MODELS}/llama-8b.yaml")
    model = await stage.tell.follow("llama-8b", is_ready(2), what="two ready replicas")
    stage.tell.say(condition(model, "MemoryFit")["message"])
    await stage.tell.kubectl("get pods -l bayplan.dev/model=llama-8b -o wide")
    zones = await stage.zones("llama-8b")
    if len(set(zones)) != 2:
        raise SceneFailedError(f"the replicas are not spread over zones: {zones}")
    stage.tell.say(f"one replica in each of {' and '.join(sorted(zones))}")
    address = (await stage.heads("llama-8b"))[0]["status"]["podIP"]
    name = model["spec"]["model"]["name"]
    stage.tell.typed(f'curl http://{address}:8000/v1/completions -d \'{{"model": "{name}", …, "max_tokens": 16}}\'')
    answer = await complete(address, name, "A bay plan says", 16)
    used = answer["usage"]
    stage.tell.came_back(
        f"{answer['choices'][0]['text'].strip()}\n"
        f"usage: {used['prompt_tokens']} prompt tokens, {used['completion_tokens']} completion tokens"
    )
    stage.tell.typed('curl -N … "stream": true')
    async with streaming(address, name, "A bay plan says", 24) as stream:
        await asyncio.wait_for(stream.done.wait(), 20)
    stage.tell.came_back(f"{stream.text.strip()}\n[DONE] after {stream.completion_tokens} tokens")


async def tensor_parallel(stage: Stage) -> None:
    """A layout that is derived."""
    stage.tell.scene(
        "A 70B model: tensor parallel 4 on one node",
        "The layout is derived from the memory; the whole group goes to one node, with the facts that decided.",
    )
    await stage.tell.kubectl(f"apply -f {MODELS}/llama-70b.yaml")
    model = await stage.tell.follow("llama-70b", is_ready(1), what="one ready replica")
    group = model["status"]["placement"]["groups"][0]
    layout = next(p for p in model["status"]["parallelism"] if p["gpuProduct"] == group["gpuProduct"])
    if layout["tensor"] != 4 or len(group["nodes"]) != 1:
        raise SceneFailedError(f"expected tensor 4 on one node, found {layout} on {group['nodes']}")
    stage.tell.say(f"tensor={layout['tensor']} on {group['nodes'][0]} ({group['gpuProduct']}): {layout['reason']}")
    for fact in group["facts"]:
        stage.tell.came_back(f"- {fact}")


async def does_not_fit(stage: Stage) -> None:
    """A proven no."""
    stage.tell.scene(
        "A model that cannot fit",
        "It is refused before anything is allocated, with the shortfall and what would fit.",
    )
    await stage.tell.kubectl(f"apply -f {MODELS}/llama-405b.yaml")
    model = await stage.tell.follow(
        "llama-405b", lambda m: condition(m, "MemoryFit").get("status") == "False", what="MemoryFit=False"
    )
    await stage.tell.kubectl("get imodel llama-405b")
    stage.tell.say(condition(model, "MemoryFit")["message"])
    pods = await stage.tell.kubectl("get pods -l bayplan.dev/model=llama-405b")
    if "No resources found" not in pods:
        raise SceneFailedError("a model that does not fit has pods")


async def fragmented(stage: Stage) -> None:
    """Free GPUs that are no group; needs `first_model` for room to give up."""
    stage.tell.scene(
        "Enough GPUs in sum, but no whole group",
        "Three groups of four L40S on one node each: two find a node, the third does not, although GPUs are free.",
    )
    await stage.tell.kubectl(f"apply -f {MODELS}/yi-34b.yaml")
    model = await stage.tell.follow(
        "yi-34b",
        lambda m: (
            m.get("status", {}).get("readyReplicas") == 2
            and condition(m, "Placed").get("reason") == "FragmentedCapacity"
        ),
        what="two ready replicas and FragmentedCapacity",
    )
    stage.tell.say(condition(model, "Placed")["message"])
    stage.tell.say("room appears: the 8B model goes down to one replica")
    await stage.tell.kubectl("scale imodel llama-8b --replicas 1")
    await stage.tell.follow("yi-34b", is_ready(3), what="the third replica ready by itself")


async def two_nodes(stage: Stage) -> None:
    """A group of pods as one replica; needs the GPUs that `deletion` frees."""
    stage.tell.scene(
        "A replica over two nodes, and one of its ranks dies",
        "The group is placed in one rack, starts as one engine, fails as a whole and is replaced as a whole.",
    )
    await stage.tell.kubectl(f"apply -f {MODELS}/two-node.yaml")
    model = await stage.tell.follow("two-node", is_ready(1), what="one ready replica on two nodes")
    await stage.tell.kubectl("get pods -l bayplan.dev/model=two-node -o wide")
    stage.tell.say("; ".join(model["status"]["placement"]["groups"][0]["facts"][:2]))
    group = model["status"]["placement"]["groups"][0]["name"]
    stage.tell.typed(f"python -m e2e.nodeagent.control kill-pod default/{group}-1")
    await stage.system.control("/kill-pod", namespace="default", name=f"{group}-1", exit_code=1)
    model = await stage.tell.follow(
        "two-node",
        lambda m: is_ready(1)(m) and m["status"]["placement"]["groups"][0]["name"] != group,
        what="the next attempt ready",
    )
    stage.tell.say(f"replaced whole by {model['status']['placement']['groups'][0]['name']}")
