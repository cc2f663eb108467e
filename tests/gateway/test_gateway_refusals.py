"""What cannot be served is refused at once, precisely, with nothing reserved."""

import json
from typing import Any

import pytest

from bayplan.gateway.settings import GatewaySettings
from tests.gateway.conftest import MakeTown
from tests.gateway.gatewaytown import Town

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


async def refused(town: Town, data: bytes | str | dict[str, Any], path: str = COMPLETIONS) -> tuple[int, Any]:
    raw = json.dumps(data) if isinstance(data, dict) else data
    async with town.session.post(town.url + path, data=raw) as response:
        assert response.headers["Content-Type"].startswith("application/json")
        error = (await response.json())["error"]
        assert response.headers["x-should-retry"] in ("true", "false")
    assert {"message", "type", "param", "code"} <= error.keys()
    assert town.held == town.reserved_tokens() == town.queued() == 0
    return response.status, error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"model": "tiny", "prompt": "a", "max_tokens": NaN}',
        b'{"model": "tiny", "prompt": "a", "max_tokens": Infinity}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "tiny", "prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:20]),
)
async def test_body_that_is_no_json_object_is_named_as_such(town: Town, body: bytes) -> None:
    status, error = await refused(town, body)
    assert (status, error["code"]) == (400, "invalid_request")
    assert "body" in error["message"] or "JSON" in error["message"]


@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, False, [], {}, 10**9, 10**30, -(10**30)])
@pytest.mark.parametrize(
    ("path", "field"),
    [(COMPLETIONS, "max_tokens"), (CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (COMPLETIONS, "n")],
)
async def test_count_that_is_no_sensible_whole_number_is_refused_by_name(
    town: Town, path: str, field: str, value: object
) -> None:
    body = {"model": "tiny", **({"prompt": "a"} if path == COMPLETIONS else {"messages": HELLO}), field: value}
    status, error = await refused(town, body, path)
    assert (status, error["code"], error["param"]) == (400, "invalid_request", field)
    assert "whole number from 1 to" in error["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {}, "prompt"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [""]}, "prompt"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [True]}, "prompt"),
        (COMPLETIONS, {"prompt": {"a": 1}}, "prompt"),
        (COMPLETIONS, {"prompt": 5}, "prompt"),
        (COMPLETIONS, {"prompt": ["a"] * 129}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 65}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "n": 10**6}, "n"),
        (COMPLETIONS, {"prompt": "a", "best_of": 10**6}, "best_of"),
        (COMPLETIONS, {"prompt": "a", "stream": "yes"}, "stream"),
        (COMPLETIONS, {"prompt": "a", "stream": 1}, "stream"),
        (COMPLETIONS, {"prompt": "a", "model": 5}, "model"),
        (COMPLETIONS, {"prompt": "a", "model": ""}, "model"),
        (COMPLETIONS, {"prompt": "a", "model": None}, "model"),
        (COMPLETIONS, {"prompt": "a", "kv_transfer_params": {"remote_host": "evil"}}, "kv_transfer_params"),
        (COMPLETIONS, {"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds"),
        (CHAT, {}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "hello"}, "messages"),
        (CHAT, {"messages": ["hello"]}, "messages.0"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ],
    ids=repr,
)
async def test_wrong_field_is_named(town: Town, path: str, fields: dict[str, Any], param: str) -> None:
    status, error = await refused(town, {"model": "tiny", **fields}, path)
    assert (status, error["code"], error["param"]) == (400, "invalid_request", param)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": [1] * 4000, "max_tokens": 96}, 200),
        ({"prompt": [1] * 4000, "max_tokens": 97}, 400),
        ({"prompt": "a", "max_tokens": 4095}, 200),
        ({"prompt": "a", "max_tokens": 4096}, 400),
        ({"prompt": "a", "n": 64, "max_tokens": 1}, 200),
        ({"prompt": "a", "n": 65, "max_tokens": 1}, 400),
    ],
    ids=str,
)
async def test_request_beyond_what_one_replica_holds_is_refused_for_good(
    town: Town, fields: dict[str, Any], status: int
) -> None:
    found, body, headers = await town.post(**fields)
    assert found == status
    if status == 400:
        assert body["error"]["code"] == "request_too_large"
        assert headers["x-should-retry"] == "false"
        assert "retry-after" not in headers


async def test_prompt_that_is_only_bounded_counts_at_most_what_the_model_can_hold(town: Town) -> None:
    # 6,000 bytes of text may be far fewer tokens: the engine knows, and lets no sequence grow beyond its length.
    async with town.open_stream(prompt="word " * 600, max_tokens=1000) as response:
        assert response.status == 200
        assert town.reserved_tokens() in (3004 + 1000, 4096)
        await response.read()


@pytest.mark.parametrize(
    "path",
    [
        "/", "/v1", "/v1/embeddings", "/v2/completions", "/metrics", "/evidence", "/healthz", "/models",
        "/models/default/tiny", "/models/default/tiny/v1/../../../metrics", "/models/default/v1/completions",
        "/models/a/b/c/v1/completions", "/v1/completions/", "//v1/completions", "/models//tiny/v1/completions",
    ],
)  # fmt: skip
async def test_path_that_is_not_served_is_404(town: Town, path: str) -> None:
    status, error = await refused(town, {"model": "tiny", "prompt": "a"}, path)
    assert (status, error["code"]) == (404, "path_not_found")


@pytest.mark.parametrize(
    "path",
    [
        "/models/default/other/v1/completions",
        "/models/other/tiny/v1/completions",
        "/models/..%2fdefault/tiny/v1/completions",
        "/models/default/tiny%00/v1/completions",
        "/models/default/TINY/v1/completions",
        "/models/%20/%20/v1/completions",
    ],
)
async def test_object_that_is_not_there_is_404(town: Town, path: str) -> None:
    status, error = await refused(town, {"prompt": "a"}, path)
    assert (status, error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("model", ["other", "other/tiny", "default/other", "tiny ", "TINY", "../tiny", "x" * 256])
async def test_model_that_is_not_there_is_404(town: Town, model: str) -> None:
    status, error = await refused(town, {"model": model, "prompt": "a"})
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")


async def test_path_and_body_must_mean_the_same_model(town: Town) -> None:
    town.model("second", served="second")
    status, error = await refused(town, {"model": "second", "prompt": "a"}, "/models/default/tiny/v1/completions")
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_other_methods_are_405(town: Town, method: str) -> None:
    async with town.session.request(method, town.url + COMPLETIONS) as response:
        assert response.status == 405
        assert (await response.json())["error"]["code"] == "method_not_allowed"


async def test_short_name_counts_only_where_it_is_unique(town: Town) -> None:
    town.model("tiny", namespace="other", served="tiny")
    status, error = await refused(town, {"model": "tiny", "prompt": "a"})
    assert (status, error["code"]) == (404, "model_ambiguous")
    assert (await town.post(model="default/tiny"))[0] == 200
    status, body, _ = await town.post(model="other/tiny")
    assert (status, body["error"]["code"]) == (503, "no_ready_replica")


async def test_name_that_is_short_for_one_and_full_for_another_is_ambiguous(town: Town) -> None:
    town.model("slash", namespace="x", served="default/tiny")
    status, error = await refused(town, {"model": "default/tiny", "prompt": "a"})
    assert (status, error["code"]) == (404, "model_ambiguous")


async def test_model_without_a_ready_replica_is_503_with_a_time_to_come_back(make_town: MakeTown) -> None:
    town = await make_town()
    town.model()
    status, body, headers = await town.post()
    assert (status, body["error"]["code"]) == (503, "no_ready_replica")
    assert (headers["retry-after"], headers["x-should-retry"]) == ("5", "true")
    assert 'bayplan_gateway_demand_tokens_total{kind="output",model="tiny",namespace="default"} 8.0' in (
        await town.metrics()
    )


async def test_body_beyond_the_limit_is_refused_by_its_length(make_town: MakeTown) -> None:
    town = await make_town(settings=GatewaySettings(max_body_bytes=1000))
    town.model()
    exact = json.dumps({"model": "tiny", "prompt": ""})[:-2].encode()
    fits = exact + b"a" * (1000 - len(exact) - 2) + b'"}'
    assert len(fits) == 1000
    assert (await refused(town, fits))[1]["code"] == "no_ready_replica"
    status, error = await refused(town, fits + b" ")
    assert (status, error["code"]) == (413, "body_too_large")


async def test_body_beyond_the_limit_is_refused_without_a_stated_length(make_town: MakeTown) -> None:
    town = await make_town(settings=GatewaySettings(max_body_bytes=1000))

    async def pieces():  # type: ignore[no-untyped-def]
        for _ in range(100):
            yield b" " * 100

    async with town.session.post(town.url + COMPLETIONS, data=pieces()) as response:
        assert response.status == 413


async def test_large_bodies_together_are_bounded(make_town: MakeTown) -> None:
    town = await make_town(settings=GatewaySettings(max_body_bytes=1000, max_buffered_bytes=500))
    town.model()
    status, error = await refused(town, b" " * 501)
    assert (status, error["code"]) == (503, "gateway_busy")
    assert (await refused(town, b" " * 500))[1]["code"] == "invalid_request"


async def test_body_counts_until_its_stream_has_begun(town: Town) -> None:
    async with town.open_stream(max_tokens=400) as response:
        await response.content.readany()
        assert town.held == 1
        assert town.gateway.generations.buffered_bytes == 0
        await response.read()


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a\tb"])
async def test_idempotency_key_that_is_none_is_refused(town: Town, key: str) -> None:
    status, body, _ = await town.post(headers={"Idempotency-Key": key})
    assert (status, body["error"]["code"]) == (400, "invalid_request")
    assert "Idempotency-Key" in body["error"]["message"]


async def test_no_text_of_the_request_is_in_logs_or_metrics(
    town: Town, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("DEBUG")

    def fail(*_: object) -> None:
        raise KeyError("sesame")

    await town.post(prompt="open sesame")
    await refused(town, b'{"open sesame": ')
    monkeypatch.setattr(town.gateway.directory, "named", fail)
    status, error = await refused(town, {"model": "sesame", "prompt": "open sesame"})
    assert (status, error["code"]) == (500, "internal_error")
    gateway_log = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("bayplan"))
    assert "KeyError" in gateway_log
    assert "sesame" not in gateway_log.replace('KeyError("sesame")', "")
    assert "sesame" not in await town.metrics() + json.dumps(await town.evidence())
