"""Whose request it is, and what that decides: limits, class, and who shares cached prefixes with whom."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.gateway.refusals import Refused
from bayplan.gateway.salts import Salts, SecretError, read_secret
from bayplan.gateway.settings import GatewaySettings, WorkloadClass
from bayplan.gateway.tenants import Tenants, TenantsError, TenantsFile, anonymous_tenants, parse_tenants
from tests.gateway.conftest import MakeScripted, MakeTown
from tests.gateway.scriptedengine import whole_answer

CLASSES = {"default": None, "batch": None}
SECRET = b"0123456789abcdef"


def digest(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def tenants(*entries: dict[str, Any]) -> Tenants:
    return parse_tenants(yaml.safe_dump({"tenants": list(entries)}), classes=CLASSES)


def entry(name: str = "a", key: str = "key-a", **fields: Any) -> dict[str, Any]:
    return {"name": name, "keys": [digest(key)], **fields}


def test_key_names_its_tenant() -> None:
    known = tenants(entry(workloadClass="batch", trustDomain="shared", weight=3), entry("b", "key-b"))
    tenant = known.identify("Bearer key-a")
    assert (tenant.name, tenant.workload_class, tenant.trust_domain) == ("a", "batch", "shared")
    assert known.policies["a"].weight == 3
    assert known.identify("bearer  key-b").trust_domain == "b"


@pytest.mark.parametrize(
    "header", [None, "", "key-a", "Basic key-a", "Bearer", "Bearer ", "Bearer key-a x", f"Bearer {digest('key-a')}"]
)
def test_other_header_is_refused(header: str | None) -> None:
    with pytest.raises(Refused) as refused:
        tenants(entry()).identify(header)
    assert refused.value.status == 401


def test_without_keys_everybody_is_one_tenant() -> None:
    assert anonymous_tenants().identify("Bearer anything").name == anonymous_tenants().identify(None).name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "tenants"),
        ("[]", "tenants"),
        ("tenants: []", "tenants"),
        ("tenants: [", "expected"),
        (yaml.safe_dump({"tenants": [entry(keys=["sesame"])]}), "tenants.0.keys.0"),
        (yaml.safe_dump({"tenants": [entry(keys=[])]}), "tenants.0.keys"),
        (yaml.safe_dump({"tenants": [entry(name="A b")]}), "tenants.0.name"),
        (yaml.safe_dump({"tenants": [entry(weight=0)]}), "tenants.0.weight"),
        (yaml.safe_dump({"tenants": [entry(weight=True)]}), "tenants.0.weight"),
        (yaml.safe_dump({"tenants": [entry(maxLiveTokens=0)]}), "tenants.0.maxLiveTokens"),
        (yaml.safe_dump({"tenants": [entry(surprise=1)]}), "tenants.0.surprise"),
        (yaml.safe_dump({"tenants": [entry(workloadClass="fast")]}), "workloadClass: must be one of batch, default"),
        (yaml.safe_dump({"tenants": [entry(), entry(key="b")]}), "there twice"),
        (yaml.safe_dump({"tenants": [entry(), entry("b")]}), "a key of a is repeated"),
    ],
)
def test_wrong_file_is_refused_by_field_and_never_quoted(text: str, problem: str) -> None:
    with pytest.raises(TenantsError, match=problem) as error:
        parse_tenants(text, classes=CLASSES)
    assert "sesame" not in str(error.value)


def test_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text(yaml.safe_dump({"tenants": [entry()]}))
    file = TenantsFile(path, classes=CLASSES)
    first = file.load()
    assert first is not None
    assert file.load() is None
    path.write_text(yaml.safe_dump({"tenants": [entry(key="other")]}))
    second = file.load()
    assert second is not None
    assert second.identify("Bearer other").name == "a"
    path.unlink()
    with pytest.raises(TenantsError, match=r"tenants\.yaml"):
        file.load()


def test_secret_file_is_read_and_a_short_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    assert read_secret(path) == SECRET
    path.write_bytes(SECRET[:15])
    with pytest.raises(SecretError, match="at least 16 bytes, has 15"):
        read_secret(path)
    with pytest.raises(SecretError, match="missing"):
        read_secret(tmp_path / "missing")
    assert read_secret(None) != read_secret(None)


def test_salt_is_one_per_engine_domain_and_secret() -> None:
    salts = Salts(SECRET)
    base = salts.of("team/a r1", "x")
    assert base == Salts(SECRET).of("team/a r1", "x")
    others = [salts.of("team/a r2", "x"), salts.of("team/a r1", "y"), Salts(SECRET + b"!").of("team/a r1", "x")]
    assert len({base, *others}) == 4


async def test_tenants_share_prefixes_only_inside_a_trust_domain(make_town: MakeTown, scripted: MakeScripted) -> None:
    known = tenants(
        entry("a", "ka", trustDomain="one"), entry("b", "kb", trustDomain="one"), entry("c", "kc"), entry("d", "kd")
    )
    town = await make_town(tenants=known)
    town.model()
    engine = await scripted(whole_answer)
    town.head("a", engine.host)
    for key in ("ka", "kb", "kc", "kd", "ka"):
        headers = {"Authorization": f"Bearer {key}"}
        assert (await town.post(headers=headers, cache_salt=f"forged-{key}"))[0] == 200
    a, b, c, d, again = (received.body["cache_salt"] for received in engine.received)
    assert a == b == again
    assert len({a, c, d}) == 3


async def test_wrong_key_is_refused_before_the_body_is_looked_at(make_town: MakeTown) -> None:
    town = await make_town(tenants=tenants(entry()))
    town.model()
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        status, body, answered = await town.post(headers=headers, prompt=None)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert answered["WWW-Authenticate"] == "Bearer"
    async with town.session.get(town.url + "/v1/models") as response:
        assert response.status == 401


async def test_limits_of_a_tenant_hold_and_change_under_the_running_gateway(
    make_town: MakeTown, scripted: MakeScripted
) -> None:
    town = await make_town(tenants=tenants(entry(maxTokensPerRequest=50)))
    town.model()
    town.head("a", (await scripted(whole_answer)).host)
    headers = {"Authorization": "Bearer key-a"}
    assert (await town.post(headers=headers, max_tokens=41))[0] == 200  # 5 bytes and 4 for the frame are the prompt
    status, body, _ = await town.post(headers=headers, max_tokens=42)
    assert (status, body["error"]["code"]) == (400, "request_too_large")
    town.gateway.set_tenants(tenants(entry(key="new", maxTokensPerRequest=51)))
    assert (await town.post(headers=headers))[0] == 401
    assert (await town.post(headers={"Authorization": "Bearer new"}, max_tokens=42))[0] == 200


async def test_class_of_the_tenant_labels_what_is_seen(make_town: MakeTown, scripted: MakeScripted) -> None:
    settings = GatewaySettings(classes={"default": WorkloadClass(), "batch": WorkloadClass(complete_seconds=60)})
    town = await make_town(settings=settings, tenants=tenants(entry(workloadClass="batch")))
    town.model()
    town.head("a", (await scripted(whole_answer)).host)
    assert (await town.post(headers={"Authorization": "Bearer key-a"}))[0] == 200
    assert [row["class"] for row in (await town.evidence())["rows"]] == ["batch"]
