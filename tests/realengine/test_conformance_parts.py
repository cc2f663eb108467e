"""Parts of the conformance run: a part that fails is a finding with its reason, and the others go on."""

import json
import struct
from dataclasses import dataclass

import aiohttp
import pytest

from e2e.conformance import parts
from e2e.conformance.gatewaycheck import GatewayCheckError
from e2e.conformance.hub import checkpoint, hub
from e2e.conformance.parts import PARTS, Finding, Part, find


@dataclass
class Seen:
    number: int
    equal: bool = True


def part(monkeypatch: pytest.MonkeyPatch, result: object) -> None:
    async def run(*, say: object) -> object:
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(parts, "PARTS", {"one": Part(run, str)})


@pytest.mark.parametrize(
    ("result", "passed"), [(Seen(1), True), ([Seen(1), Seen(2)], True), ([Seen(1), Seen(2, equal=False)], False)]
)
async def test_a_part_passes_when_nothing_in_its_result_differs(
    monkeypatch: pytest.MonkeyPatch, result: object, passed: bool
) -> None:
    part(monkeypatch, result)

    finding = await find("one", say=print)

    assert finding.passed is passed
    assert json.loads(json.dumps(finding.as_json()))["passed"] is passed


@pytest.mark.parametrize(
    ("failure", "said"), [(GatewayCheckError("a stream was cut"), "a stream was cut"), (TimeoutError(), "TimeoutError")]
)
async def test_a_part_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, failure: Exception, said: str) -> None:
    part(monkeypatch, failure)

    finding = await find("one", say=print)

    assert (finding.error, finding.passed) == (said, False)
    assert finding.as_json() == {"result": None, "error": said, "passed": False}


async def test_a_fault_of_the_check_itself_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    part(monkeypatch, KeyError("typo"))

    with pytest.raises(KeyError):
        await find("one", say=print)


def test_nothing_found_is_not_a_pass_by_accident() -> None:
    assert not Finding(error="no engine").passed
    assert set(PARTS) == {"cache-pages", "inspect", "apply-to-answer", "gateway"}


async def test_the_hub_sends_parts_of_files_to_whoever_has_the_token() -> None:
    content = checkpoint({"a": 3, "b": 5})
    size = struct.unpack("<Q", content[:8])[0]
    async with (
        hub("acme/boat", {"model.safetensors": content}, token="key") as served,
        aiohttp.ClientSession() as client,
    ):
        url = f"{served.url}/acme/boat/resolve/main/"
        known = {"Authorization": "Bearer key"}
        async with client.get(url + "model.safetensors", headers=known | {"Range": f"bytes=8-{7 + size}"}) as part_of:
            header = json.loads(await part_of.read())
        async with client.get(url + "other", headers=known) as missing, client.get(url + "other") as unknown:
            statuses = (part_of.status, missing.status, unknown.status)

    assert statuses == (206, 404, 401)
    assert [header[name]["data_offsets"] for name in ("a", "b")] == [[0, 6], [6, 16]]
    assert len(content) == 8 + size + 16
    assert served.sent_bytes == {"model.safetensors": size}
