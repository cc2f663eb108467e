"""The operator dies between any two of its writes; a fresh one, knowing only the API server, ends in the same state."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bayplan.api import names
from bayplan.cluster.resources import CONTROLLER_REVISIONS, INFERENCE_MODELS, PDBS, PODS, SERVICES
from tests.fakes.api import FakeApi
from tests.reconcile.operators import Operator
from tests.reconcile.world import TWO_NODES, World, pinned_node

Json = dict[str, Any]
WRITES = ("create", "patch_json", "patch_strategic", "patch_merge", "apply", "delete")


class OperatorDiedError(Exception):
    """Raised in place of the write that the process did not live to make."""


class MortalPort:
    """The port of a process that dies before its write number `lives`, counted from 0."""

    def __init__(self, api: FakeApi, lives: int | None) -> None:
        self.made = 0
        self._api = api
        self._lives = lives

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._api, verb)
        if verb not in WRITES:
            return call

        async def write(*args: Any, **kwargs: Any) -> Any:
            if self._lives is not None and self.made >= self._lives:
                raise OperatorDiedError
            self.made += 1
            return await call(*args, **kwargs)

        return write


class Play:
    """Runs a scenario in a world whose operator may die once."""

    def __init__(self, *, lives: int | None) -> None:
        self.world = World()
        for number in range(1, 5):
            self.world.add_node(f"n{number}", zone=f"zone-{number % 2}")
        self.port = MortalPort(self.world.api, lives)
        self.died = False
        self.begins = 0
        """Writes made before the part that the scenario is about."""
        self.world.operator = self._operator(self.port)

    def _operator(self, port: Any) -> Operator:
        world = self.world
        operator = Operator(world.api, world.clock, world.engine, now=world.now, port=port)
        operator.load()
        return operator

    async def rest(self, seconds: float = 5) -> None:
        until = self.world.clock.time() + seconds
        try:
            await self.world.advance(seconds)
        except OperatorDiedError:
            assert not self.died
            self.died = True
            await self.world.operator.close()
            self.world.operator = self._operator(self.world.api)
            await self.world.advance(max(0.0, until - self.world.clock.time()))

    async def prepare(self) -> None:
        """Come to rest before the part that the scenario is about."""
        await self.rest()
        self.begins = self.port.made

    def end_state(self) -> Json:
        """All that is left, without uids, versions and times."""
        world = self.world
        pods = {}
        for pod in world.objects(PODS):
            meta = pod["metadata"]
            pods[meta["name"]] = (
                meta["labels"],
                meta["annotations"].get(names.ANNOTATION_ASSIGNMENT),
                pod["spec"].get("nodeName"),
                pinned_node(pod),
                pod["spec"]["containers"],
                sorted((c["type"], c["status"]) for c in pod["status"].get("conditions", ())),
            )
        models = {
            model["metadata"]["name"]: {
                **{key: value for key, value in model["status"].items() if key not in ("conditions", "placement")},
                "conditions": [
                    (c["type"], c["status"], c["reason"], c["message"]) for c in model["status"]["conditions"]
                ],
            }
            for model in world.objects(INFERENCE_MODELS)
        }
        children = {
            resource.plural: [child["metadata"]["name"] for child in world.objects(resource)]
            for resource in (PDBS, SERVICES, CONTROLLER_REVISIONS)
        }
        return {"pods": pods, "models": models, **children}


async def create(play: Play) -> None:
    play.world.add_model("llama", replicas=1, **TWO_NODES)
    play.world.add_model("qwen")
    await play.rest()


async def scale_down(play: Play) -> None:
    play.world.add_model("qwen", replicas=3)
    await play.prepare()
    play.world.edit_spec(next(iter(play.world.operator.models.values())).key, replicas=1)
    await play.rest(10)


async def replace_revision(play: Play) -> None:
    key = play.world.add_model("llama", replicas=1, **TWO_NODES)
    await play.prepare()
    play.world.edit_spec(key, engine={"image": "vllm/vllm-openai:v0.33.0", "maxModelLen": 8192})
    await play.rest(15)


async def fail_and_replace(play: Play) -> None:
    play.world.add_model("llama", replicas=1, **TWO_NODES)
    await play.prepare()
    play.world.exit_engine(play.world.pod_names()[0], code=9)
    await play.rest(20)


async def lose_a_node(play: Play) -> None:
    play.world.add_model("llama", replicas=1, **TWO_NODES)
    await play.prepare()
    play.world.lose_node(str(play.world.pods()[1]["spec"]["nodeName"]))
    await play.rest(40)


async def suspend(play: Play) -> None:
    key = play.world.add_model("qwen", replicas=2)
    await play.prepare()
    play.world.edit_spec(key, suspend=True)
    await play.rest(10)


@pytest.mark.property
@pytest.mark.parametrize("scenario", [create, scale_down, replace_revision, fail_and_replace, lose_a_node, suspend])
async def test_death_between_any_two_writes_leads_to_the_same_end_state(
    scenario: Callable[[Play], Awaitable[None]],
) -> None:
    undisturbed = Play(lives=None)
    await scenario(undisturbed)
    expected, writes = undisturbed.end_state(), range(undisturbed.begins, undisturbed.port.made)
    assert len(writes) >= 5
    for lives in writes:
        play = Play(lives=lives)
        await scenario(play)
        assert play.died, lives
        # What was interrupted may have to run into its limit first.
        await play.rest(70)
        assert play.end_state() == expected, f"died before write {lives}"
        settled = play.world.api.write_count()
        await play.world.restart()
        await play.rest(120)
        assert play.world.api.write_count() == settled, "writes after convergence"
