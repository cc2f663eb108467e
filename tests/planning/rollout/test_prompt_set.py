"""Prompt sets as users write them: read whole, or refused by the entry that is wrong."""

from typing import Any

import pytest

from bayplan.planning.gates.promptset import DEFAULT_ANSWER_TOKENS, MAX_PROMPTS, read_prompt_set
from bayplan.planning.numbers import InvalidInput

ENTRY = {"name": "capital", "prompt": "The capital of France is", "check": {"regex": "Paris"}}


def test_prompts_are_read_in_order_with_their_checks() -> None:
    chat = {
        "name": "chat",
        "messages": [{"role": "user", "content": "Say yes"}],
        "maxTokens": 3,
        "check": {"exact": "yes"},
    }
    found = read_prompt_set([ENTRY, chat])
    first, second = found.prompts
    assert (first.name, first.text, first.messages, first.max_tokens) == (
        "capital",
        "The capital of France is",
        (),
        DEFAULT_ANSWER_TOKENS,
    )
    assert first.check.score("It is Paris.") is True
    assert (second.text, second.messages, second.max_tokens) == ("", ({"role": "user", "content": "Say yes"},), 3)
    assert second.check.score("no") is False


def test_digest_is_of_everything_that_could_change_a_score() -> None:
    digest = read_prompt_set([ENTRY]).digest
    assert len(digest) == 16
    assert read_prompt_set([dict(reversed(ENTRY.items()))]).digest == digest
    for change in ({"prompt": "other"}, {"check": {"exact": "Paris"}}, {"maxTokens": 5}, {"name": "other"}):
        assert read_prompt_set([ENTRY | change]).digest != digest
    assert read_prompt_set([ENTRY, ENTRY | {"name": "b"}]).digest != digest


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (None, "prompts"),
        ([], "prompts"),
        ({"prompts": []}, "prompts"),
        ([ENTRY] * (MAX_PROMPTS + 1), "prompts"),
        ([ENTRY, ENTRY], r"prompts\[1\].name"),
        (["text"], r"prompts\[0\]"),
        ([ENTRY | {"name": " "}], r"prompts\[0\].name"),
        ([ENTRY | {"name": 5}], r"prompts\[0\].name"),
        ([ENTRY | {"prompt": ""}], r"prompts\[0\].prompt"),
        ([ENTRY | {"prompt": ["a"]}], r"prompts\[0\].prompt"),
        ([ENTRY | {"messages": []}], r"prompts\[0\]: must have exactly one"),
        ([{"name": "a", "check": {"exact": "b"}}], r"prompts\[0\]: must have exactly one"),
        ([{"name": "a", "messages": [], "check": {"exact": "b"}}], r"prompts\[0\].messages"),
        (
            [{"name": "a", "messages": [{"role": "user", "content": []}], "check": {"exact": "b"}}],
            r"prompts\[0\].messages\[0\]",
        ),
        (
            [{"name": "a", "messages": [{"role": "tool", "content": "x"}], "check": {"exact": "b"}}],
            r"prompts\[0\].messages\[0\]",
        ),
        ([ENTRY | {"maxTokens": 0}], r"prompts\[0\].maxTokens"),
        ([ENTRY | {"maxTokens": True}], r"prompts\[0\].maxTokens"),
        ([ENTRY | {"maxTokens": 1.5}], r"prompts\[0\].maxTokens"),
        ([ENTRY | {"check": None}], r"prompts\[0\].check"),
        ([ENTRY | {"check": {"exact": "a", "regex": "b"}}], r"prompts\[0\].check"),
        ([ENTRY | {"check": {"regex": "("}}], r"prompts\[0\].check.regex"),
        ([ENTRY | {"temperature": 1}], r"prompts\[0\].temperature"),
        ([ENTRY | {"check": {"jsonSchema": {"const": float("nan")}}}], "prompts"),
    ],
)
def test_what_cannot_be_asked_or_scored_is_refused_by_its_place(raw: Any, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        read_prompt_set(raw)
