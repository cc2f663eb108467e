"""The scheduler, case by case."""

import pytest

from bayplan.simulation.engine import Engine
from bayplan.simulation.kv_blocks import chain_block_hashes
from bayplan.simulation.requests import EngineConfig, EngineRequest, FinishReason
from bayplan.simulation.speed import SpeedModel

SECOND = SpeedModel(seconds_per_step=1, seconds_per_sequence=0, seconds_per_prefill_token=0)


def engine(**changes):
    values = {"num_blocks": 16, "block_size": 4, "max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return Engine(EngineConfig(**{**values, **changes}), SECOND)


def request(name, *, prompt_tokens=4, max_tokens=100, output_tokens=None, tokens=None, salt=None):
    hashes = () if tokens is None else chain_block_hashes(tokens, block_size=4, cache_salt=salt)
    return EngineRequest(name, len(tokens) if tokens else prompt_tokens, max_tokens, output_tokens, hashes)


def run(simulated, now=0.0, steps=10_000):
    """Step until idle; every finished request by id, in order."""
    finished = {}
    while simulated.has_work and steps:
        result = simulated.step(now)
        now += result.duration_seconds
        finished |= {item.request_id: item for item in result.finished}
        steps -= 1
    assert not simulated.has_work
    return finished


def test_a_request_gets_its_first_token_in_the_step_that_computes_its_prompt():
    simulated = engine()
    simulated.add(request("a", prompt_tokens=6, max_tokens=3), now=5.0)
    first = simulated.step(7.0)
    assert (first.admitted, first.emitted, first.prefill_tokens, first.generated_tokens) == (["a"], ["a"], 6, 1)
    assert [token.request_id for token in first.first_tokens] == ["a"]
    second = simulated.step(8.0)
    assert (second.admitted, second.emitted, second.first_tokens, second.finished) == ([], ["a"], [], ())
    assert simulated.output_tokens_of("a") == 2
    (done,) = simulated.step(9.0).finished
    assert (done.reason, done.output_tokens, done.prompt_tokens) == (FinishReason.LENGTH, 3, 6)
    assert (done.arrival_seconds, done.scheduled_seconds, done.first_token_seconds, done.finished_seconds) == (
        5.0,
        7.0,
        8.0,
        10.0,
    )
    assert simulated.pool.num_used == 0


@pytest.mark.parametrize(
    ("natural", "most", "reason", "count"),
    [
        (1, 5, FinishReason.STOP, 1),
        (4, 5, FinishReason.STOP, 4),
        (5, 5, FinishReason.STOP, 5),
        (6, 5, FinishReason.LENGTH, 5),
        (None, 5, FinishReason.LENGTH, 5),
        (None, 1, FinishReason.LENGTH, 1),
    ],
)
def test_finish_reason_says_whether_the_model_or_the_limit_ended_it(natural, most, reason, count):
    simulated = engine()
    simulated.add(request("a", max_tokens=most, output_tokens=natural), now=0.0)
    assert (run(simulated)["a"].reason, simulated.pool.num_used) == (reason, 0)
    simulated.add(request("a", max_tokens=most, output_tokens=natural), now=0.0)
    assert run(simulated)["a"].output_tokens == count


def test_model_length_bounds_the_output():
    simulated = engine(max_model_len=20)
    simulated.add(request("a", prompt_tokens=15), now=0.0)
    done = run(simulated)["a"]
    assert (done.output_tokens, done.reason) == (5, FinishReason.LENGTH)


@pytest.mark.parametrize(("prompt_tokens", "accepted"), [(63, True), (64, False), (65, False)])
def test_a_prompt_must_leave_room_for_a_token(prompt_tokens, accepted):
    simulated = engine()
    if accepted:
        simulated.add(request("a", prompt_tokens=prompt_tokens), now=0.0)
        assert run(simulated)["a"].output_tokens == 1
    else:
        with pytest.raises(ValueError, match="prompt_tokens"):
            simulated.add(request("a", prompt_tokens=prompt_tokens), now=0.0)
        assert not simulated.has_work


def test_one_id_is_not_taken_twice():
    simulated = engine()
    simulated.add(request("a"), now=0.0)
    with pytest.raises(ValueError, match="'a'"):
        simulated.add(request("a"), now=0.0)


def test_an_idle_engine_cannot_step():
    with pytest.raises(RuntimeError, match="no request"):
        engine().step(0.0)


def test_max_num_seqs_run_and_the_rest_wait_in_order():
    simulated = engine(max_num_seqs=2)
    for name in "abcd":
        simulated.add(request(name, max_tokens=2), now=0.0)
    simulated.step(0.0)
    assert (simulated.running_ids, simulated.waiting_ids) == (("a", "b"), ("c", "d"))
    simulated.step(1.0)
    assert (simulated.running_ids, simulated.waiting_ids) == ((), ("c", "d"))
    assert simulated.step(2.0).admitted == ["c", "d"]


@pytest.mark.parametrize(("prompt_tokens", "admitted"), [(27, True), (28, True), (29, False)])
def test_a_prompt_is_admitted_only_when_all_of_it_fits(prompt_tokens, admitted):
    simulated = engine(max_num_batched_tokens=8)
    # 36 prompt tokens take 9 of the 16 blocks, 7 x 4 = 28 tokens are left.
    simulated.add(request("big", prompt_tokens=36, max_tokens=2), now=0.0)
    simulated.add(request("next", prompt_tokens=prompt_tokens, max_tokens=1), now=0.0)
    for now in range(5):
        result = simulated.step(float(now))
    assert ("next" in result.admitted) == admitted


def test_the_head_of_the_queue_holds_up_smaller_requests():
    simulated = engine()
    simulated.add(request("big", prompt_tokens=36, max_tokens=3), now=0.0)
    simulated.add(request("wide", prompt_tokens=40, max_tokens=1), now=0.0)
    simulated.add(request("small", prompt_tokens=1, max_tokens=1), now=0.0)
    assert simulated.step(0.0).admitted == ["big"]
    assert simulated.waiting_ids == ("wide", "small")


def test_prompts_are_cut_by_the_token_budget_and_decoding_comes_first():
    simulated = engine(max_num_batched_tokens=8)
    simulated.add(request("a", prompt_tokens=2), now=0.0)
    simulated.step(0.0)
    simulated.add(request("b", prompt_tokens=16, max_tokens=1), now=1.0)
    chunks = []
    for now in (1.0, 2.0, 3.0):
        result = simulated.step(now)
        chunks.append((result.prefill_tokens, list(result.emitted)))
    assert chunks == [(7, ["a"]), (7, ["a"]), (2, ["a", "b"])]


def test_whoever_fits_the_rest_of_the_budget_starts_beside_the_end_of_a_cut_prompt():
    simulated = engine(max_num_batched_tokens=8)
    simulated.add(request("a", prompt_tokens=10, max_tokens=2), now=0.0)
    simulated.add(request("b", prompt_tokens=3, max_tokens=2), now=0.0)
    simulated.add(request("c", prompt_tokens=9, max_tokens=2), now=0.0)
    assert simulated.step(0.0).admitted == ["a"]
    second = simulated.step(1.0)
    assert (second.admitted, second.prefill_tokens) == (["b", "c"], 8)
    assert [token.request_id for token in second.first_tokens] == ["a", "b"]
    third = simulated.step(2.0)
    assert (third.prefill_tokens, [token.request_id for token in third.first_tokens]) == (6, ["c"])


def test_the_youngest_is_preempted_and_computed_again_from_the_head_of_the_queue():
    simulated = engine(num_blocks=4, max_model_len=16)
    for name in "ab":
        simulated.add(request(name, prompt_tokens=6, max_tokens=9), now=0.0)
    simulated.add(request("c", prompt_tokens=1, max_tokens=1), now=0.0)
    simulated.step(0.0)  # 2 blocks each: nothing is left for c
    assert simulated.waiting_ids == ("c",)
    assert [simulated.step(float(now)).preempted for now in (1, 2)] == [[], []]
    result = simulated.step(3.0)  # the ninth token of a needs a third block
    assert (result.preempted, list(result.emitted), result.admitted) == (["b"], ["a"], [])
    assert simulated.waiting_ids == ("b", "c")
    assert (simulated.output_tokens_of("b"), simulated.blocks_of("b")) == (3, ())
    finished = run(simulated, now=4.0)
    assert [finished[name].output_tokens for name in "abc"] == [9, 9, 1]
    assert (finished["b"].preemptions, simulated.preemptions_total) == (1, 1)
    assert finished["b"].first_token_seconds == 1.0
    assert simulated.pool.num_used == 0


def test_a_sequence_can_preempt_itself():
    simulated = engine(num_blocks=4, max_model_len=16)
    simulated.add(request("a", prompt_tokens=6, max_tokens=3), now=0.0)
    simulated.add(request("b", prompt_tokens=7, max_tokens=3), now=0.0)
    simulated.step(0.0)
    simulated.step(1.0)  # b writes its eighth token
    result = simulated.step(2.0)
    assert (result.preempted, [item.request_id for item in result.finished]) == (["b"], ["a"])
    assert run(simulated, now=3.0)["b"].output_tokens == 3


def test_abort_frees_blocks_at_once_wherever_the_request_is():
    simulated = engine(max_num_batched_tokens=8)
    simulated.add(request("decoding", prompt_tokens=4), now=0.0)
    simulated.step(0.0)
    simulated.add(request("prefilling", prompt_tokens=20), now=1.0)
    simulated.add(request("waiting", prompt_tokens=4), now=1.0)
    simulated.step(1.0)
    assert (simulated.running_ids, simulated.waiting_ids) == (("decoding", "prefilling"), ("waiting",))
    counts = []
    for name in ("prefilling", "decoding", "waiting"):
        ended = simulated.abort(name, now=1.5)
        counts.append((ended.reason, ended.output_tokens, ended.scheduled_seconds, simulated.pool.num_used))
    assert counts == [
        (FinishReason.ABORT, 0, 1.0, 2),
        (FinishReason.ABORT, 2, 0.0, 0),
        (FinishReason.ABORT, 0, None, 0),
    ]
    assert not simulated.has_work
    assert simulated.abort("decoding", now=2.0) is None


def test_an_aborted_id_can_come_back_and_is_not_ended_by_its_old_plans():
    simulated = engine()
    simulated.add(request("a", prompt_tokens=4, max_tokens=4), now=0.0)
    simulated.step(0.0)
    simulated.abort("a", now=1.0)
    simulated.add(request("a", prompt_tokens=4, max_tokens=9), now=1.0)
    assert run(simulated, now=1.0)["a"].output_tokens == 9


# -- prefix cache: prompts of 109 tokens in blocks of 32 hit 96, as vLLM 0.32 does

PROMPT = list(range(1000, 1109))


def cached(simulated, name, tokens, salt=None):
    hashes = chain_block_hashes(tokens, block_size=32, cache_salt=salt)
    simulated.add(EngineRequest(name, len(tokens), 2, None, hashes), now=0.0)
    return run(simulated)[name].cached_tokens


def test_same_salt_hits_and_no_other_does():
    simulated = engine(num_blocks=40, block_size=32, max_model_len=1024, max_num_batched_tokens=1024)
    got = [cached(simulated, str(i), PROMPT, salt) for i, salt in enumerate(("a", "a", "b", None, None, "b", "ab"))]
    assert got == [0, 96, 0, 0, 96, 96, 0]
    assert simulated.prefix_cache_queried_tokens_total == 7 * 109
    assert simulated.prefix_cache_hit_tokens_total == 3 * 96


@pytest.mark.parametrize(("length", "hit"), [(95, 64), (96, 64), (97, 96), (128, 96), (129, 128)])
def test_the_last_token_is_always_computed(length, hit):
    simulated = engine(num_blocks=40, block_size=32, max_model_len=1024, max_num_batched_tokens=1024)
    tokens = list(range(length))
    assert [cached(simulated, name, tokens) for name in "ab"] == [0, hit]


def test_the_next_turn_hits_the_answer_of_the_last_one():
    simulated = engine(num_blocks=40, block_size=32, max_model_len=1024, max_num_batched_tokens=1024)
    conversation = list(range(160))
    hashes = chain_block_hashes(conversation, block_size=32)
    simulated.add(EngineRequest("turn-1", 60, 100, None, hashes), now=0.0)
    run(simulated)
    # 159 of 160 tokens were fed back: 4 full blocks.
    assert cached(simulated, "turn-2", [*conversation, *range(900, 950)]) == 128


def test_a_preempted_request_hits_what_is_left_of_its_own_blocks():
    simulated = engine(num_blocks=4, max_model_len=16)
    simulated.add(request("a", tokens=list(range(6)), max_tokens=4), now=0.0)
    simulated.add(request("b", tokens=list(range(50, 56)), max_tokens=9), now=0.0)
    for now in range(4):
        result = simulated.step(float(now))
    assert (result.preempted, [item.request_id for item in result.finished]) == (["b"], ["a"])
    again = simulated.step(4.0)
    assert (again.admitted, again.prefill_tokens, again.first_tokens) == (["b"], 6 + 3 - 4, [])
    assert run(simulated, now=5.0)["b"].cached_tokens == 0  # what it hit when it first ran
    assert simulated.prefix_cache_hit_tokens_total == 0


def test_running_requests_share_the_blocks_of_a_common_prefix():
    simulated = engine(num_blocks=40, block_size=32, max_model_len=1024, max_num_batched_tokens=1024)
    hashes = chain_block_hashes(PROMPT, block_size=32)
    simulated.add(EngineRequest("a", 109, 50, None, hashes), now=0.0)
    simulated.step(0.0)
    simulated.add(EngineRequest("b", 109, 50, None, hashes), now=1.0)
    simulated.step(1.0)
    assert simulated.blocks_of("a")[:3] == simulated.blocks_of("b")[:3]
    assert simulated.pool.num_used == 4 + 1
    simulated.abort("a", now=2.0)
    assert simulated.pool.num_used == 4


# -- time


def test_step_time_follows_the_batch():
    speed = SpeedModel(seconds_per_kv_token=1e-6)
    simulated = Engine(EngineConfig(num_blocks=16, block_size=4, max_model_len=64), speed)
    simulated.add(request("a", prompt_tokens=14), now=0.0)
    simulated.add(request("b", prompt_tokens=14), now=0.0)
    assert simulated.step(0.0).duration_seconds == pytest.approx(0.012 + 2 * 0.00006 + 28 / 14_000 + 28e-6)
    assert simulated.step(1.0).duration_seconds == pytest.approx(0.012 + 2 * 0.00006 + 28e-6)
    assert simulated.step(1.0).duration_seconds == pytest.approx(0.012 + 2 * 0.00006 + 30e-6)
    simulated.speed = SpeedModel(decode_factor=2)
    assert simulated.step(1.0).duration_seconds == pytest.approx(2 * (0.012 + 2 * 0.00006))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_model_len": 65}, "max_model_len: 65 tokens do not fit"),
        ({"max_num_batched_tokens": 7}, "max_num_batched_tokens: 7 is below max_num_seqs 8"),
        ({"block_size": 0}, "block_size: 0"),
        ({"num_blocks": 0}, "num_blocks: 0"),
    ],
)
def test_limits_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        engine(**changes)


@pytest.mark.parametrize(
    ("values", "field"), [((0, 1, None), "prompt_tokens"), ((1, 0, None), "max_tokens"), ((1, 1, 0), "output_tokens")]
)
def test_a_request_of_nothing_is_refused(values, field):
    with pytest.raises(ValueError, match=field):
        EngineRequest("a", *values)
