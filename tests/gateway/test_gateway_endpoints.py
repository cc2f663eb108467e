"""Which pods take requests, and what is believed about them."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from bayplan.api import names
from bayplan.gateway.endpoints import EngineFacts, read_facts, view_head, view_model
from bayplan.gateway.enginefacts import FactsError, parse_facts, smaller
from tests.fakes.clock import until
from tests.gateway.conftest import MakeEngine, MakeScripted, MakeTown
from tests.gateway.gatewaytown import FACTS, raw_head, raw_model
from tests.gateway.scriptedengine import whole_answer

MODEL = view_model(raw_model())


@pytest.mark.parametrize(
    "change",
    [
        {"ready": False},
        {"warm": False},
        {"warm_on": "container-of-another-start"},
        {"draining": True},
        {"deleting": True},
        {"phase": "Pending"},
        {"phase": "Failed"},
        {"host_network": True},
    ],
    ids=str,
)
def test_head_in_that_state_takes_nothing(change: dict[str, Any]) -> None:
    assert view_head(raw_head("a", "127.0.0.1")).routable
    assert not view_head(raw_head("a", "127.0.0.1", **change)).routable


@pytest.mark.parametrize("address", ["", None, "evil.example", "127.0.0.1:80", "127.0.0.1/x", "fe80::1%eth0", 5])
def test_address_that_is_no_plain_ip_is_none(address: Any) -> None:
    head = view_head(raw_head("a", address))
    assert head.address is None
    assert not head.routable


def test_ipv6_address_stands_in_brackets() -> None:
    assert view_head(raw_head("a", "fd00::1")).address == "[fd00::1]"


@pytest.mark.parametrize(
    "change",
    [{"owner": "model-of-somebody-else"}, {"controller": False}, {"revision": "r0"}, {"namespace": "other"}],
    ids=str,
)
async def test_pod_that_is_not_the_models_own_gets_nothing(
    make_town: MakeTown, scripted: MakeScripted, change: dict[str, Any]
) -> None:
    town = await make_town()
    town.model()
    engine = await scripted(whole_answer)
    if change.get("namespace"):
        change = {**change, "owner": "model-default-tiny"}
    town.head("a", engine.host, **change)
    assert (await town.post())[0] == 503
    assert engine.received == []


async def test_revision_serves_as_soon_as_the_status_says_so(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await make_town()
    town.model(serving=("r1",))
    engine = await scripted(whole_answer)
    town.head("a", engine.host, revision="r2")
    assert (await town.post())[0] == 503
    town.model(serving=("r1", "r2"))
    assert (await town.post())[0] == 200


async def test_pods_seen_before_their_model_serve_when_it_is_seen(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await make_town()
    town.head("a", (await scripted(whole_answer)).host)
    town.model()
    assert (await town.post())[0] == 200


async def test_model_that_is_deleted_is_unknown_and_its_successor_is_another(
    make_town: MakeTown, scripted: MakeScripted
) -> None:
    town = await make_town()
    view = town.model()
    town.head("a", (await scripted(whole_answer)).host)
    assert (await town.post())[0] == 200
    town.models.discard(view.key, view.uid, view.resource_version + 10**6)
    assert (await town.post())[0] == 404
    town.models.put(view_model(raw_model(uid="another")))
    assert (await town.post())[0] == 503


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        json.dumps({"kvBlocks": 1, "blockSize": 16, "maxNumSeqs": 1}),
        json.dumps({"kvBlocks": 0, "blockSize": 16, "maxNumSeqs": 1, "maxModelLen": 1}),
        json.dumps({"kvBlocks": True, "blockSize": 16, "maxNumSeqs": 1, "maxModelLen": 1}),
        json.dumps({"kvBlocks": 1.5, "blockSize": 16, "maxNumSeqs": 1, "maxModelLen": 1}),
        json.dumps({"kvBlocks": 10**10, "blockSize": 16, "maxNumSeqs": 1, "maxModelLen": 1}),
    ],
)
def test_unreadable_annotation_counts_as_absent(text: str | None) -> None:
    assert read_facts(text) is None


def test_readable_annotation_is_believed() -> None:
    (text,) = raw_head("a", "127.0.0.1")["metadata"]["annotations"].values()
    assert names.ANNOTATION_ADMISSION in raw_head("a", "127.0.0.1")["metadata"]["annotations"]
    assert read_facts(text) == FACTS


METRIC = 'vllm:cache_config_info{{block_size="{size}",engine="{rank}",num_gpu_blocks="{blocks}"}} 1.0\n'


def test_engines_own_word_leaves_out_its_null_block_and_takes_the_smallest_rank() -> None:
    text = METRIC.format(size=32, rank=0, blocks=101) + METRIC.format(size=32, rank=1, blocks=91)
    assert parse_facts(text, MODEL) == EngineFacts(90, 32, 64, 4096)
    unlimited = replace(MODEL, max_num_seqs=None)
    assert parse_facts(text, unlimited).max_num_seqs == 128


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vllm:cache_config_info_other 1\n",
        'vllm:cache_config_info{block_size="16"} 1.0\n',
        METRIC.format(size="None", rank=0, blocks=10),
        METRIC.format(size=16, rank=0, blocks=1),
        METRIC.format(size=0, rank=0, blocks=10),
        "vllm:cache_config_info{{{ 1.0\n",
    ],
)
def test_engine_that_does_not_say_what_it_has_is_refused(text: str) -> None:
    with pytest.raises(FactsError):
        parse_facts(text, MODEL)


async def test_head_without_annotation_serves_once_its_engine_has_told(
    make_town: MakeTown, make_engine: MakeEngine
) -> None:
    town = await make_town()
    town.model(max_model_len=512)
    address = await make_engine("--block-size 32 --max-model-len 512", KV_TOKENS="3232")
    town.head("a", address, facts=None)
    (pool,) = town.gateway.directory
    await until(lambda: pool.ready)
    (reading,) = pool.readings().replicas.values()
    assert (reading.budget.kv_blocks, reading.budget.sequences) == (100, 64)
    assert (await town.post())[0] == 200


async def test_engine_that_gets_an_annotation_later_is_held_to_it(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await make_town()
    town.model()
    engine = await scripted(whole_answer)
    town.head("a", engine.host)
    town.head("a", engine.host, facts=replace(FACTS, kv_blocks=10))
    (pool,) = town.gateway.directory
    (reading,) = pool.readings().replicas.values()
    assert reading.budget.kv_blocks == 10


def cache(*, blocks: int, block_size: int) -> str:
    return f'vllm:cache_config_info{{engine="0",num_gpu_blocks="{blocks}",block_size="{block_size}"}} 1\n'


@pytest.mark.parametrize(
    ("reported", "counts"),
    [
        (EngineFacts(400, 16, 1, 1), EngineFacts(400, 16, 64, 4096)),
        (EngineFacts(4000, 16, 1, 1), EngineFacts(1000, 16, 64, 4096)),
        (EngineFacts(1000, 16, 1, 1), EngineFacts(1000, 16, 64, 4096)),
        (EngineFacts(400, 32, 1, 1), EngineFacts(400, 32, 64, 4096)),
        (EngineFacts(4000, 32, 1, 1), EngineFacts(500, 32, 64, 4096)),
        (EngineFacts(1, 1, 1, 1), EngineFacts(1, 1, 64, 4096)),
        (None, FACTS),
    ],
)
def test_of_plan_and_engine_the_smaller_cache_counts(reported: EngineFacts | None, counts: EngineFacts) -> None:
    assert smaller(FACTS, reported) == counts
    assert smaller(None, reported) == reported


async def test_engine_that_got_less_than_planned_is_held_to_what_it_says(
    make_town: MakeTown, scripted: MakeScripted
) -> None:
    town = await make_town()
    town.model()
    small, large = await scripted(whole_answer), await scripted(whole_answer)
    small.metrics, large.metrics = cache(blocks=101, block_size=16), cache(blocks=100_001, block_size=16)
    town.head("a", small.host)
    town.head("b", large.host)
    (pool,) = town.gateway.directory

    def budgets() -> dict[str, int]:
        return {uid: reading.budget.kv_blocks for uid, reading in pool.readings().replicas.items()}

    # Until they have told, the plan counts.
    assert budgets() == {"pod-a": FACTS.kv_blocks, "pod-b": FACTS.kv_blocks}
    await until(lambda: budgets() == {"pod-a": 100, "pod-b": FACTS.kv_blocks})
    assert (await town.post(max_tokens=100 * 16))[0] == 200  # on b
    town.gone(town.head("b", large.host))
    assert (await town.post(max_tokens=100 * 16))[0] == 400


async def test_engine_that_says_nothing_keeps_its_plan(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await make_town()
    town.model()
    town.head("a", (await scripted(whole_answer)).host)
    await asyncio.sleep(0.2)
    (pool,) = town.gateway.directory
    assert [reading.budget.kv_blocks for reading in pool.readings().replicas.values()] == [FACTS.kv_blocks]
    assert (await town.post())[0] == 200


async def test_blocks_of_another_size_are_counted_on_the_safe_side(make_town: MakeTown, scripted: MakeScripted) -> None:
    town = await make_town()
    town.model()
    engine = await scripted(whole_answer)
    town.head("a", engine.host, facts=EngineFacts(1000, 32, 8, 4096))
    town.head("b", engine.host, facts=EngineFacts(1000, 16, 8, 4096))
    town.head("c", engine.host, facts=EngineFacts(1000, 128, 8, 4096))
    (pool,) = town.gateway.directory
    budgets = {uid: reading.budget.kv_blocks for uid, reading in pool.readings().replicas.items()}
    # In blocks of 32: as they are; half as many; four times as many, less what 8 sequences may waste in larger blocks.
    assert budgets == {"pod-a": 1000, "pod-b": 500, "pod-c": 4000 - 8 * 3}
