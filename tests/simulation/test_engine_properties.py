"""What holds for every order of arrivals, steps and aborts."""

from collections import Counter

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bayplan.simulation.engine import Engine
from bayplan.simulation.kv_blocks import chain_block_hashes
from bayplan.simulation.requests import EngineConfig, EngineRequest, FinishReason
from tests.simulation.reference_engine import ReferenceEngine

pytestmark = pytest.mark.property

ARRIVAL = st.tuples(st.just("add"), st.integers(1, 30), st.integers(1, 30))
OPERATIONS = st.lists(
    st.one_of(
        ARRIVAL,
        st.tuples(st.just("step"), st.integers(1, 8), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 40), st.just(0)),
    ),
    max_size=60,
)
CONFIGS = st.builds(
    EngineConfig,
    num_blocks=st.integers(15, 24),
    block_size=st.just(4),
    max_model_len=st.just(60),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(6, 40),
)


@settings(max_examples=300, deadline=None)
@given(CONFIGS, OPERATIONS)
def test_every_step_is_what_counting_token_by_token_gives(config, operations):
    engine = Engine(config)
    plain = ReferenceEngine(config.num_blocks, config.block_size, config.max_num_seqs, config.max_num_batched_tokens)
    now = 0.0
    names = 0

    def step_both(now):
        result = engine.step(now)
        admitted, emitted, preempted, finished, prefill = plain.step()
        assert list(result.admitted) == admitted
        assert list(result.preempted) == preempted
        assert sorted(result.emitted) == sorted(emitted)
        assert result.generated_tokens == len(emitted)
        assert sorted((item.request_id, item.output_tokens) for item in result.finished) == sorted(finished)
        assert result.prefill_tokens == prefill
        assert engine.running_ids == tuple(sequence.name for sequence in plain.running)
        assert engine.waiting_ids == tuple(sequence.name for sequence in plain.waiting)
        assert engine.pool.num_used == sum(sequence.blocks for sequence in plain.running)
        for sequence in (*plain.running, *plain.waiting):
            assert engine.output_tokens_of(sequence.name) == sequence.outputs
        if preempted:
            event("preempted")
        return now + result.duration_seconds

    for operation, one, two in operations:
        if operation == "add":
            name = str(names)
            names += 1
            engine.add(EngineRequest(name, one, two), now=now)
            plain.add(name, one, min(two, config.max_model_len - one))
        elif operation == "abort" and names:
            engine.abort(str(one % names), now=now)
            plain.abort(str(one % names))
            assert engine.pool.num_used == sum(sequence.blocks for sequence in plain.running)
        else:
            for _ in range(one):
                if engine.has_work:
                    now = step_both(now)
    steps = 0
    while engine.has_work:
        now = step_both(now)
        steps += 1
        assert steps < 5000, "a request never ends"
    assert engine.pool.num_used == 0


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=24)
CACHED_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), PROMPTS, st.integers(1, 20), st.sampled_from([None, "a", "b"])),
        st.tuples(st.just("step"), st.just([]), st.integers(1, 6), st.none()),
        st.tuples(st.just("abort"), st.just([]), st.integers(0, 30), st.none()),
    ),
    max_size=50,
)


def play(config, operations, check):
    """Run the operations and then to the end; every result in order."""
    engine = Engine(config)
    history = []
    now = 0.0
    names = 0

    def step(now):
        result = engine.step(now)
        history.append(result)
        check(engine, result)
        return now + result.duration_seconds

    for operation, tokens, number, salt in operations:
        if operation == "add":
            full = tokens + [7] * number
            hashes = chain_block_hashes(full, block_size=config.block_size, cache_salt=salt)
            engine.add(EngineRequest(str(names), len(tokens), number, None, hashes), now=now)
            names += 1
        elif operation == "abort" and names:
            history.append(engine.abort(str(number % names), now=now))
        else:
            for _ in range(number):
                if engine.has_work:
                    now = step(now)
    for _ in range(5000):
        if not engine.has_work:
            break
        now = step(now)
    assert not engine.has_work
    return history, engine


def assert_blocks_add_up(engine, _result):
    held = [engine.blocks_of(name) for name in engine.running_ids]
    users = Counter(block for blocks in held for block in blocks)
    assert all(len(set(blocks)) == len(blocks) for blocks in held)
    assert {block: engine.pool.references(block) for block in users} == users
    assert len(users) == engine.pool.num_used
    assert engine.pool.num_used + engine.pool.num_free == engine.config.num_blocks
    assert len(engine.running_ids) <= engine.config.max_num_seqs


@settings(max_examples=200, deadline=None)
@given(CONFIGS, CACHED_OPERATIONS)
def test_with_shared_prefixes_blocks_add_up_and_every_request_gets_its_tokens(config, operations):
    history, engine = play(config, operations, assert_blocks_add_up)
    assert engine.pool.num_used == 0
    steps = [item for item in history if hasattr(item, "emitted")]
    emitted = Counter(name for result in steps for name in result.emitted)
    finished = [item for result in steps for item in result.finished]
    aborted = [item for item in history if hasattr(item, "reason")]
    wanted = [(len(tokens), number) for operation, tokens, number, _ in operations if operation == "add"]
    assert len(finished) + len(aborted) == len(wanted)
    for item in finished:
        prompt, most = wanted[int(item.request_id)]
        assert (item.reason, item.output_tokens) == (FinishReason.LENGTH, most)
        assert item.prompt_tokens == prompt
        assert item.cached_tokens <= prompt - 1
    for item in (*finished, *aborted):
        assert emitted[item.request_id] == item.output_tokens
    if any(item.preemptions for item in finished):
        event("a preempted request finished")
    first_admissions = list(dict.fromkeys(name for result in steps for name in result.admitted))
    assert first_admissions == sorted(first_admissions, key=int)  # first come, first served


@settings(max_examples=100, deadline=None)
@given(CONFIGS, CACHED_OPERATIONS)
def test_the_same_operations_give_the_same_history(config, operations):
    def ignore(_engine, _result):
        pass

    assert play(config, operations, ignore)[0] == play(config, operations, ignore)[0]


@settings(max_examples=100, deadline=None)
@given(CONFIGS, CACHED_OPERATIONS)
def test_a_salt_of_its_own_never_hits(config, operations):
    alone = [
        (operation, tokens, number, f"salt-{index}")
        for index, (operation, tokens, number, _) in enumerate(operations)
        if operation != "abort"
    ]

    def ignore(_engine, _result):
        pass

    history, engine = play(config, alone, ignore)
    assert engine.prefix_cache_hit_tokens_total == 0
    assert all(item.cached_tokens == 0 for result in history for item in result.finished)


@settings(max_examples=100, deadline=None)
@given(PROMPTS.filter(lambda tokens: len(tokens) > 4), st.sampled_from([None, "a"]))
def test_the_same_prompt_and_salt_hit_all_full_blocks_but_the_last_token(tokens, salt):
    engine = Engine(EngineConfig(num_blocks=64, block_size=4, max_model_len=60))
    cached = []
    for name in "xy":
        hashes = chain_block_hashes(tokens, block_size=4, cache_salt=salt)
        engine.add(EngineRequest(name, len(tokens), 1, None, hashes), now=0.0)
        (done,) = engine.step(0.0).finished
        cached.append(done.cached_tokens)
    assert cached == [0, (len(tokens) - 1) // 4 * 4]


@settings(max_examples=200, deadline=None)
@given(CONFIGS, st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=12))
def test_a_whole_prompt_fits_whenever_it_is_admitted(config, requests):
    engine = Engine(config)
    for index, (prompt, most) in enumerate(requests):
        engine.add(EngineRequest(str(index), prompt, most), now=0.0)
    while engine.has_work:
        free = engine.pool.num_free
        before = {name: engine.output_tokens_of(name) for name in engine.waiting_ids}
        result = engine.step(0.0)
        for name in result.admitted:
            assert -(-(requests[int(name)][0] + before[name]) // config.block_size) <= free
            # Prompts that fit the step's budget take their blocks in it; the next one finds fewer free.
            free -= len(engine.blocks_of(name)) if name in engine.running_ids else 1
    assert engine.pool.num_used == 0
