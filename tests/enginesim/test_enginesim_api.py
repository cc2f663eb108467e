"""Answers, streams and errors as vLLM 0.32 gives them."""

import json

import pytest

CHAT = [{"role": "user", "content": "hello"}]


async def test_models_health_version_and_load_answer(engine):
    client = await engine("--served-model-name first second --max-model-len 2k", VERSION="0.31.1")
    assert (await client.get("/health")) == (await client.get("/ping")) == (200, b"")
    assert (await client.get("/version")) == (200, {"version": "0.31.1"})
    assert (await client.get("/load")) == (200, {"server_load": 0})
    status, models = await client.get("/v1/models")
    assert (status, models["object"]) == (200, "list")
    assert [(card["id"], card["root"], card["max_model_len"]) for card in models["data"]] == [
        ("first", "tiny", 2000),
        ("second", "tiny", 2000),
    ]
    assert all(len(card["permission"]) == 1 for card in models["data"])


async def test_load_counts_open_requests_where_tracking_is_on(engine):
    client = await engine("--enable-server-load-tracking")
    async with client.open_stream() as response:
        await response.content.readline()
        assert (await client.get("/load"))[1] == {"server_load": 1}


async def test_completion_has_text_usage_and_fingerprint(engine):
    client = await engine()
    body = await client.complete("hello", max_tokens=8, temperature=0)
    assert (body["object"], body["model"], body["id"][:5]) == ("text_completion", "tiny", "cmpl-")
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 8,
        "total_tokens": 13,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    (choice,) = body["choices"]
    assert (choice["index"], len(choice["text"]), choice["finish_reason"]) == (0, 8, "length")
    assert body["system_fingerprint"].startswith("vllm-0.32.0")


async def test_chat_completion_counts_the_laid_out_conversation(engine):
    client = await engine()
    status, body = await client.post("/v1/chat/completions", {"messages": CHAT, "max_completion_tokens": 3})
    assert (status, body["object"]) == (200, "chat.completion")
    assert body["usage"]["prompt_tokens"] == len("user: hello\nassistant: ")
    (choice,) = body["choices"]
    assert (choice["message"]["role"], len(choice["message"]["content"])) == ("assistant", 3)


async def test_message_parts_are_one_text(engine):
    client = await engine()
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    for messages in (CHAT, parts):
        _, body = await client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 9, "temperature": 0})
        assert body["usage"]["prompt_tokens"] == 23
    assert (await client.post("/tokenize", {"messages": parts}))[1]["count"] == 23


async def test_a_stream_is_the_same_text_in_pieces(engine):
    client = await engine()
    whole = await client.complete("hello", max_tokens=20, temperature=0)
    *chunks, done = await client.events(prompt="hello", max_tokens=20, temperature=0)
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_usage_comes_in_a_chunk_without_choices_before_done(engine):
    client = await engine()
    *_, last, usage, done = await client.events(stream_options={"include_usage": True})
    assert last["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]) == (
        [],
        {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13},
    )
    assert done == "[DONE]"


async def test_continuous_usage_counts_up(engine):
    client = await engine()
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, usage, _ = await client.events(max_tokens=5, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert (counts, usage["usage"]["completion_tokens"]) == (sorted(set(counts)), 5)
    assert counts[-1] == 5


@pytest.mark.parametrize("with_usage", [False, True])
async def test_fingerprint_is_on_the_last_message_alone(engine, with_usage):
    client = await engine()
    *chunks, _ = await client.events(max_tokens=4, stream_options={"include_usage": with_usage})
    stamped = ["system_fingerprint" in chunk for chunk in chunks]
    assert stamped == [False] * (len(chunks) - 1) + [True]


async def test_a_chat_stream_starts_with_a_role_for_every_choice(engine):
    client = await engine()
    *chunks, done = await client.events("/v1/chat/completions", messages=CHAT, n=2, max_tokens=4)
    assert done == "[DONE]"
    deltas = [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]) for chunk in chunks]
    assert deltas[:2] == [(0, {"role": "assistant", "content": ""}), (1, {"role": "assistant", "content": ""})]
    for index in (0, 1):
        assert len("".join(delta["content"] for number, delta in deltas if number == index)) == 4
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert ends.count("length") == 2
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)


async def test_headers_arrive_before_the_first_token(engine):
    client = await engine(HANG_REQUESTS="0", STEP_SECONDS="30")
    async with client.open_stream() as response:
        assert response.status == 200


async def test_each_prompt_of_a_list_and_each_of_n_choices_is_answered(engine):
    client = await engine()
    body = await client.complete(["one", "three"], n=2, max_tokens=6, temperature=0.7)
    texts = [choice["text"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3 + 5, 24)
    assert (await client.complete([[1, 2], [3]], max_tokens=1))["usage"]["prompt_tokens"] == 3


async def test_text_is_a_function_of_prompt_and_seeds(engine):
    client = await engine()
    other = await engine(SEED="1")

    async def text(where, prompt, **fields):
        return (await where.complete(prompt, max_tokens=40, **fields))["choices"][0]["text"]

    greedy = await text(client, "hello", temperature=0)
    assert await text(client, "hello", temperature=0, seed=5) == greedy
    assert await text(client, "hello", temperature=1, seed=5) == await text(client, "hello", temperature=1, seed=5)
    different = [
        greedy,
        await text(client, "hellp", temperature=0),
        await text(client, "hello", temperature=1, seed=5),
        await text(client, "hello", temperature=1, seed=6),
        await text(other, "hello", temperature=0),
    ]
    assert len(set(different)) == 5


async def test_a_longer_answer_starts_like_a_shorter_one(engine):
    client = await engine()
    texts = [
        (await client.complete(max_tokens=count, temperature=0, ignore_eos=True))["choices"][0]["text"]
        for count in (1, 7, 30, 31)
    ]
    assert [len(text) for text in texts] == [1, 7, 30, 31]
    assert all(texts[-1].startswith(text) for text in texts)


async def test_the_model_stops_by_itself_and_the_last_token_is_not_text(engine):
    client = await engine(OUTPUT_TOKENS_MEDIAN="20")
    body = await client.complete(max_tokens=2000, temperature=0)
    (choice,) = body["choices"]
    count = body["usage"]["completion_tokens"]
    assert (choice["finish_reason"], choice["stop_reason"], len(choice["text"])) == ("stop", None, count - 1)
    assert 3 < count < 200
    at_limit = await client.complete(max_tokens=count, temperature=0)
    assert at_limit["choices"][0]["finish_reason"] == "stop"
    cut = await client.complete(max_tokens=count - 1, temperature=0)
    assert (cut["choices"][0]["finish_reason"], cut["choices"][0]["text"]) == ("length", choice["text"])
    ignoring = await client.complete(max_tokens=300, temperature=0, ignore_eos=True)
    assert (ignoring["choices"][0]["finish_reason"], ignoring["usage"]["completion_tokens"]) == ("length", 300)
    longer = await client.complete(max_tokens=2000, temperature=0, min_tokens=count + 5)
    assert longer["usage"]["completion_tokens"] == count + 6


async def test_chat_without_a_limit_may_fill_the_model_length(engine):
    client = await engine("--max-model-len 100")
    body = {"messages": CHAT, "ignore_eos": True}
    assert (await client.post("/v1/chat/completions", body))[1]["usage"]["total_tokens"] == 100


async def test_a_stop_string_ends_the_text_before_it(engine):
    client = await engine()
    text = (await client.complete(max_tokens=60, temperature=0, ignore_eos=True))["choices"][0]["text"]
    stop = text[20:25]
    assert text.index(stop) == 20
    body = await client.complete(max_tokens=60, temperature=0, ignore_eos=True, stop=["\n\n", stop])
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text[:20], "stop", stop)
    assert body["usage"]["completion_tokens"] == 25
    kept = await client.complete(
        max_tokens=60, temperature=0, ignore_eos=True, stop=stop, include_stop_str_in_output=True
    )
    assert kept["choices"][0]["text"] == text[:25]
    passed = await client.complete(max_tokens=60, temperature=0, ignore_eos=True, stop=stop, min_tokens=25)
    assert passed["choices"][0]["finish_reason"] == "length"


async def test_a_stream_never_shows_a_part_of_the_stop_string(engine):
    client = await engine()
    text = (await client.complete(max_tokens=60, temperature=0, ignore_eos=True))["choices"][0]["text"]
    *chunks, _ = await client.events(max_tokens=60, temperature=0, ignore_eos=True, stop=text[20:25])
    pieces = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(pieces) == text[:20]
    assert chunks[-1]["choices"][0]["stop_reason"] == text[20:25]


async def test_the_request_id_header_becomes_the_id(engine):
    client = await engine()
    headers = {"X-Request-Id": "mine"}
    _, body = await client.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=headers)
    assert body["id"] == "cmpl-mine"


async def test_tokenize_counts_bytes(engine):
    client = await engine()
    status, body = await client.post("/tokenize", {"prompt": "aé"})
    assert (status, body["count"], body["tokens"]) == (200, 3, [97, 195, 169])
    assert (await client.complete("aé", max_tokens=1))["usage"]["prompt_tokens"] == 3


MEANING = "BadRequestError"
FORM = "Bad Request"
BAD = [
    ({"model": "other"}, 404, "NotFoundError", "model"),
    ({"max_tokens": 0}, 400, MEANING, "max_tokens"),
    ({"max_tokens": -1}, 400, MEANING, "max_tokens"),
    ({"max_tokens": 101}, 400, MEANING, "max_tokens"),
    ({"max_tokens": "five"}, 400, FORM, "body.max_tokens"),
    ({"max_tokens": 1.5}, 400, FORM, "body.max_tokens"),
    ({"max_tokens": 1e400}, 400, FORM, "body.max_tokens"),
    ({"prompt": "x" * 100}, 400, MEANING, "max_tokens"),
    ({"prompt": "x" * 101}, 400, MEANING, "input_tokens"),
    ({"prompt": ""}, 400, MEANING, "prompt"),
    ({"prompt": None}, 400, MEANING, "prompt"),
    ({"prompt": []}, 400, MEANING, None),
    ({"prompt": [[]]}, 400, MEANING, None),
    ({"prompt": 5}, 400, FORM, "body.prompt"),
    ({"prompt": [-1]}, 400, FORM, "body.prompt.0"),
    ({"n": 0}, 400, MEANING, None),
    ({"n": 16_385}, 400, MEANING, None),
    ({"n": 2, "temperature": 0}, 400, MEANING, None),
    ({"n": "two"}, 400, FORM, "body.n"),
    ({"temperature": -0.1}, 400, MEANING, "temperature"),
    ({"temperature": 2.01}, 400, MEANING, "temperature"),
    ({"temperature": float("nan")}, 400, MEANING, "temperature"),
    ({"top_p": 0}, 400, MEANING, "top_p"),
    ({"top_k": -2}, 400, MEANING, None),
    ({"min_p": 1.01}, 400, MEANING, None),
    ({"presence_penalty": 2.01}, 400, MEANING, None),
    ({"frequency_penalty": -2.01}, 400, MEANING, None),
    ({"repetition_penalty": 0}, 400, MEANING, None),
    ({"min_tokens": 9}, 400, MEANING, None),
    ({"min_tokens": -1}, 400, MEANING, None),
    ({"stop": [""]}, 400, MEANING, None),
    ({"stop": 7}, 400, FORM, "body.stop"),
    ({"stop": ["1", "2", "3", "4", "5"]}, 400, FORM, "body.stop"),
    ({"stream": "maybe"}, 400, FORM, "body.stream"),
    ({"stream_options": {"include_usage": True}}, 400, MEANING, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": "maybe"}}, 400, FORM, "body.stream_options.include_usage"),
    ({"cache_salt": ""}, 400, MEANING, "cache_salt"),
    ({"cache_salt": 5}, 400, MEANING, "cache_salt"),
    ({"cache_salt": "a" * 129}, 400, MEANING, "cache_salt"),
    *(({"cache_salt": f"a{bad}b"}, 400, MEANING, "cache_salt") for bad in "@/\\\0"),
]


async def test_a_limit_above_what_the_prompt_leaves_is_cut_to_it(engine):
    client = await engine("--max-model-len 100")
    for wanted in (4, 5, 6, 100):
        body = await client.complete("x" * 95, max_tokens=wanted, ignore_eos=True)
        assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (min(wanted, 5), "length")


@pytest.mark.parametrize(("fields", "status", "kind", "param"), BAD, ids=[json.dumps(row[0])[:40] for row in BAD])
async def test_what_vllm_refuses_is_refused(engine, fields, status, kind, param):
    client = await engine("--max-model-len 100")
    answer = await client.post("/v1/completions", {"prompt": "hello", "max_tokens": 8, **fields})
    assert answer[0] == status
    error = answer[1]["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    assert error["message"]


GOOD = [
    {"max_tokens": 1},
    {"max_tokens": 100},
    {"prompt": "x" * 99},
    {"temperature": 2},
    {"top_k": -1},
    {"min_p": 1},
    {"presence_penalty": -2},
    {"frequency_penalty": 2},
    {"stop": ["1", "2", "3", "4"]},
    {"max_tokens": "5"},
    {"prompt": "x" * 92},
    {"prompt": [0, 2**40]},
    {"cache_salt": "a" * 128},
    {"cache_salt": "ä €"},
    {"cache_salt": None},
    {"model": None},
    {"n": None},
    {"stop": []},
    {"unknown_field": [1]},
    {"prompt": "\ud800"},
]


@pytest.mark.parametrize("fields", GOOD, ids=[json.dumps(row)[:40] for row in GOOD])
async def test_what_vllm_takes_is_taken(engine, fields):
    client = await engine("--max-model-len 100")
    await client.complete(**{"prompt": "hello", **fields})


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("data", "param"), [(b"{", "body.1"), (b'{"a": x}', "body.6"), (b"", "body"), (b"[]", "body"), (b'"text"', "body")]
)
async def test_a_body_that_is_no_request_is_refused(engine, data, param):
    client = await engine()
    for path in ("/v1/completions", "/v1/chat/completions"):
        async with client.session.post(client.url + path, data=data, headers=JSON) as response:
            error = (await response.json())["error"]
            assert (response.status, response.headers["Content-Type"]) == (400, "application/json")
            assert (error["code"], error["type"], error["param"]) == (400, FORM, param)


@pytest.mark.parametrize("data", [b'{"a": "\xff"}', b"[" * 100_000])
async def test_a_body_that_cannot_be_parsed_is_refused_below_the_api(engine, data):
    client = await engine()
    async with client.session.post(client.url + "/v1/completions", data=data, headers=JSON) as response:
        assert (response.status, list(await response.json())) == (400, ["detail"])


@pytest.mark.parametrize(
    ("kind", "status"), [("text/plain", 400), ("application/json; charset=nonsense", 200), ("application/json", 200)]
)
async def test_the_content_type_must_be_json_whatever_its_charset(engine, kind, status):
    client = await engine()
    data = b'{"prompt": "a", "max_tokens": 1}'
    headers = {"Content-Type": kind}
    async with client.session.post(client.url + "/v1/completions", data=data, headers=headers) as response:
        assert response.status == status


async def test_what_is_below_the_api_has_an_error_body_of_its_own(engine):
    client = await engine()
    assert await client.get("/nope") == (404, {"detail": "Not Found"})
    assert await client.get("/v1/completions") == (405, {"detail": "Method Not Allowed"})
    async with client.session.head(client.url + "/health") as response:
        assert response.status == 405


CONVERSATIONS = [
    ([{"content": "x"}], FORM, "body.messages.0.role"),
    ([{"role": "user", "content": None}], FORM, "body.messages.0"),
    ([{"role": "user", "content": 5}], FORM, "body.messages.0.content"),
    ([{"role": "user", "content": [{"type": "smell"}]}], MEANING, None),
    ("hello", FORM, "body.messages"),
    ([], MEANING, None),
    (None, MEANING, None),
]


@pytest.mark.parametrize(("messages", "kind", "param"), CONVERSATIONS)
async def test_a_wrong_conversation_is_refused(engine, messages, kind, param):
    client = await engine()
    status, body = await client.post("/v1/chat/completions", {"messages": messages})
    assert (status, body["error"]["type"], body["error"]["param"]) == (400, kind, param)


async def test_an_assistant_may_have_said_nothing(engine):
    client = await engine()
    messages = [{"role": "assistant", "content": None}, {"role": "user"}]
    status, body = await client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert (status, body["usage"]["prompt_tokens"]) == (200, len("assistant: \nuser: \nassistant: "))


@pytest.mark.parametrize("limit", [{"max_tokens": 0}, {"max_completion_tokens": 0}])
async def test_a_chat_limit_below_one_is_blamed_on_max_tokens(engine, limit):
    client = await engine()
    _, body = await client.post("/v1/chat/completions", {"messages": CHAT, **limit})
    assert body["error"]["param"] == "max_tokens"


async def test_a_chat_limit_above_the_context_is_blamed_on_its_own_name(engine):
    client = await engine("--max-model-len 100")
    for name in ("max_tokens", "max_completion_tokens"):
        _, body = await client.post("/v1/chat/completions", {"messages": CHAT, name: 101})
        assert body["error"]["param"] == name
