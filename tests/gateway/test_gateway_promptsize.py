"""How many tokens a prompt is taken to have: never fewer than the engine will find."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bayplan.gateway.generations import footprint
from bayplan.gateway.promptsize import (
    BYTE_BOUND,
    FRAME_TOKENS,
    INLINE_BYTES,
    MESSAGE_TOKENS,
    TEMPLATE_TOKENS,
    PromptSize,
    PromptTexts,
    TokenizerError,
    TokenizerFile,
    measure,
)
from bayplan.gateway.requests import Api, parse_generation
from tests.gateway.conftest import MakeScripted, MakeTown
from tests.gateway.scriptedengine import whole_answer

SENTENCE = "the quick brown fox jumps over the lazy dog "


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer as models have it, trained on one sentence."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([SENTENCE * 50], trainer)
    tokenizer.enable_truncation(4)  # as some files have it: it must not make prompts look short
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def counter(tokenizer_path: Path) -> TokenizerFile:
    return TokenizerFile(tokenizer_path)


def test_tokenizer_file_counts_tokens_of_the_whole_text(counter: TokenizerFile) -> None:
    assert 80 < counter.count(SENTENCE * 10) <= 100
    assert counter.count(SENTENCE) < len(SENTENCE) / 2
    assert counter.count("") == 0
    assert counter.count("\ud800") > 0


@given(st.text(max_size=200))
def test_bytes_bound_the_tokens_of_a_byte_level_vocabulary(text: str) -> None:
    tokenizer = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert BYTE_BOUND.count(text) >= len(tokenizer.encode(text).ids)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"version": "1.0"}'])
def test_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(content)
    with pytest.raises(TokenizerError, match=r"wrong\.json"):
        TokenizerFile(path)
    with pytest.raises(TokenizerError, match=r"missing\.json"):
        TokenizerFile(tmp_path / "missing.json")


async def test_sizes_of_all_kinds_of_prompts(counter: TokenizerFile) -> None:
    words = counter.count(SENTENCE)
    text, both = PromptTexts(prompts=((SENTENCE,),)), PromptTexts(prompts=((SENTENCE,), 500))
    assert await measure(text, counter) == PromptSize(words + FRAME_TOKENS, exact=False)
    assert await measure(text, BYTE_BOUND) == PromptSize(len(SENTENCE) + FRAME_TOKENS, exact=False)
    assert await measure(PromptTexts(prompts=(7, 9)), BYTE_BOUND) == PromptSize(9, exact=True)
    assert await measure(both, counter) == PromptSize(500 + FRAME_TOKENS, exact=False)
    chat = PromptTexts(prompts=((SENTENCE, SENTENCE),), messages=2, is_chat=True)
    assert await measure(chat, counter) == PromptSize(2 * words + TEMPLATE_TOKENS + 2 * MESSAGE_TOKENS, exact=False)
    assert await measure(PromptTexts(prompts=(("a",),), opaque=True), counter) is None


async def test_long_texts_do_not_hold_the_loop(counter: TokenizerFile) -> None:
    threads: list[int] = []

    class Watching:
        exact = True

        def count(self, text: str) -> int:
            threads.append(threading.get_ident())
            return counter.count(text)

    for length in (INLINE_BYTES, INLINE_BYTES + 1):
        await measure(PromptTexts(prompts=(("a" * length,),)), Watching())
    own = threading.get_ident()
    assert [thread == own for thread in threads] == [True, False]
    assert asyncio.get_running_loop().is_running()


def texts(**body: object) -> PromptTexts:
    return parse_generation(Api.CHAT, json.dumps(body).encode()).texts


def test_everything_that_a_template_may_print_counts() -> None:
    plain = texts(messages=[{"role": "user", "content": "hi"}])
    assert plain == PromptTexts(prompts=(("hi", "user"),), messages=1, is_chat=True)
    parts = texts(
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    )
    assert parts.prompts == (("a", "b", "user"),)
    calls = texts(
        messages=[{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}], "name": "n"}],
        tools=[{"type": "function"}],
    )
    assert calls.prompts == (("assistant", '[{"id":"x"}]', "n", '[{"type":"function"}]'),)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        {"messages": [{"role": "user", "content": [5]}]},
        {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ 'x' * 10000 }}"},
    ],
)
def test_what_no_text_tells_makes_the_prompt_opaque(body: dict[str, object]) -> None:
    assert texts(**body).opaque


@pytest.mark.parametrize(
    ("size", "limit", "expected"),
    [
        (PromptSize(10, exact=True), 20, (10, 20)),
        (PromptSize(10, exact=True), None, (10, 50)),
        (PromptSize(80, exact=True), None, (80, 20)),
        (PromptSize(80, exact=True), 50, (80, 50)),
        (PromptSize(100, exact=True), None, (100, 1)),
        (PromptSize(400, exact=True), None, (400, 1)),
        (PromptSize(80, exact=False), 50, (50, 50)),
        (PromptSize(400, exact=False), None, (99, 1)),
        (PromptSize(10, exact=False), 100, (1, 100)),
        (PromptSize(10, exact=False), 200, (1, 200)),
        (None, 30, (70, 30)),
        (None, None, (50, 50)),
        (None, 100, (1, 100)),
    ],
)
def test_footprint_stays_within_the_model_where_only_a_bound_is_known(
    size: PromptSize | None, limit: int | None, expected: tuple[int, int]
) -> None:
    assert footprint(size, limit, default=50, longest=100) == expected


async def test_tokenizer_of_the_model_decides_what_is_reserved(
    make_town: MakeTown, scripted: MakeScripted, counter: TokenizerFile
) -> None:
    town = await make_town(counters={"default/tiny": counter})
    town.model()
    town.model("other", served="other")
    town.head("a", (await scripted(whole_answer)).host)
    await town.post(prompt=SENTENCE, max_tokens=8)
    await town.post(prompt=SENTENCE, max_tokens=8, model="other")
    demand = {pool.model.key.name: pool.readings().demand.prompt_tokens for pool in town.gateway.directory}
    assert demand == {"tiny": counter.count(SENTENCE) + FRAME_TOKENS, "other": len(SENTENCE) + FRAME_TOKENS}


async def test_engine_that_counts_more_than_was_reserved_is_told_of(
    make_town: MakeTown, scripted: MakeScripted
) -> None:
    town = await make_town()
    town.model()
    town.head("a", (await scripted(whole_answer)).host)  # it says 3 prompt tokens
    await town.post(prompt=[1, 2, 3])
    assert town.gateway.outcomes.undercounted_prompts == 0
    await town.post(prompt=[1, 2])
    assert town.gateway.outcomes.undercounted_prompts == 1
