import base64
import json
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from bayplan.cluster.credentials import (
    EXPIRY_MARGIN,
    Access,
    Credentials,
    CredentialsError,
    load_access,
    load_in_cluster,
    load_kubeconfig,
)
from tests.fakes.clock import FakeClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def kubeconfig(path: Path, user: dict, *, cluster: dict | None = None, name: str = "one") -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "team"}}],
        "clusters": [{"name": name, "cluster": cluster or {"server": f"http://{name}.test:8080/"}}],
        "users": [{"name": name, "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


def plugin(folder: Path, status: dict) -> dict:
    """An exec plugin that answers with what `answer.json` holds and counts its runs."""
    (folder / "answer.json").write_text(
        json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})
    )
    script = folder / "plugin.sh"
    script.write_text(f'#!/bin/sh\necho run >> "{folder}/runs"\ncat "{folder}/answer.json"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script), "args": []}}


def test_a_token_in_a_kubeconfig_is_a_bearer(tmp_path: Path) -> None:
    access = load_kubeconfig(kubeconfig(tmp_path / "config", {"token": "secret"}))
    assert access.server == "http://one.test:8080"
    assert access.authorization == "Bearer secret"
    assert access.namespace == "team"
    assert access.tls is None


def test_a_token_file_may_end_with_a_line_end_and_be_relative(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    access = load_kubeconfig(kubeconfig(tmp_path / "config", {"tokenFile": "token"}))
    assert access.authorization == "Bearer secret"
    assert str(tmp_path / "token") in access.files


def test_basic_credentials_and_none_at_all_work(tmp_path: Path) -> None:
    access = load_kubeconfig(kubeconfig(tmp_path / "config", {"username": "me", "password": "pw"}))
    assert access.authorization == "Basic " + base64.b64encode(b"me:pw").decode()
    assert load_kubeconfig(kubeconfig(tmp_path / "config", {})).authorization is None


def test_an_exec_plugin_is_run_and_its_expiry_kept(tmp_path: Path) -> None:
    user = plugin(tmp_path, {"token": "from-plugin", "expirationTimestamp": "2099-01-01T00:00:00Z"})
    access = load_kubeconfig(kubeconfig(tmp_path / "config", user))
    assert access.authorization == "Bearer from-plugin"
    assert access.expires_at == datetime(2099, 1, 1, tzinfo=UTC)


def test_a_plugin_that_fails_is_an_error_not_an_anonymous_user(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false", "args": []}}
    with pytest.raises(CredentialsError, match="credential plugin"):
        load_kubeconfig(kubeconfig(tmp_path / "config", user))


def test_several_kubeconfigs_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kubeconfig(tmp_path / "a", {"token": "a"}, name="one")
    second = kubeconfig(tmp_path / "b", {"token": "b"}, name="two")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([first, second, str(tmp_path / "absent")]))
    assert load_kubeconfig(context="one").authorization == "Bearer a"
    assert load_kubeconfig(context="two").server == "http://two.test:8080"


def test_a_proxy_and_a_server_name_are_taken_over(tmp_path: Path) -> None:
    cluster = {"server": "http://x", "proxy-url": "http://proxy.test:3128", "tls-server-name": "api.test"}
    access = load_kubeconfig(kubeconfig(tmp_path / "config", {"token": "t"}, cluster=cluster))
    assert (access.proxy, access.tls_server_name) == ("http://proxy.test:3128", "api.test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no file at"),
        ("", "kubeconfig"),
        ("just text", "kubeconfig"),
        ("current-context: x\ncontexts: []\nclusters: []\nusers: []", "kubeconfig"),
        ("a: [", "kubeconfig"),
    ],
)
def test_a_broken_kubeconfig_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CredentialsError, match=message) as caught:
        load_kubeconfig(str(path))
    assert str(path) in str(caught.value)


def test_a_token_that_no_header_can_carry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="no HTTP header may carry") as caught:
        load_kubeconfig(kubeconfig(tmp_path / "config", {"token": "sec\nret"}))
    assert "ret" not in str(caught.value).replace("carry", "")


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    cluster = {"server": "https://x", "certificate-authority": "absent.crt"}
    with pytest.raises(CredentialsError, match=r"absent\.crt"):
        load_kubeconfig(kubeconfig(tmp_path / "config", {"token": "t"}, cluster=cluster))


def test_the_service_account_comes_before_the_default_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", {"token": "t"}))
    assert load_access().authorization == "Bearer t"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(CredentialsError, match="service account: Service token file does not exist"):
        load_access()
    assert load_access(kubeconfig=str(tmp_path / "config")).authorization == "Bearer t"


def test_a_service_account_without_its_address_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="service account: Service host/port is not set"):
        load_in_cluster(token_file=str(tmp_path / "t"), ca_file=str(tmp_path / "c"), environ={})


# --- staying fresh ---------------------------------------------------------------------------------------------------


async def test_a_rotated_token_file_is_noticed(tmp_path: Path) -> None:
    token, clock = tmp_path / "token", FakeClock()
    token.write_text("first")
    path = kubeconfig(tmp_path / "config", {"tokenFile": "token"})
    credentials = Credentials(lambda: load_kubeconfig(path), clock=clock, check_seconds=10)
    assert (await credentials.access()).authorization == "Bearer first"
    (tmp_path / "new").write_text("second")
    (tmp_path / "new").rename(token)
    await clock.advance(9.9)
    assert (await credentials.access()).authorization == "Bearer first"
    await clock.advance(0.1)
    assert (await credentials.access()).authorization == "Bearer second"


async def test_an_unchanged_file_is_not_loaded_again_and_no_plugin_runs(tmp_path: Path) -> None:
    clock = FakeClock()
    user = plugin(tmp_path, {"token": "t", "expirationTimestamp": "2099-01-01T00:00:00Z"})
    path = kubeconfig(tmp_path / "config", user)
    credentials = Credentials(lambda: load_kubeconfig(path), clock=clock)
    for _ in range(5):
        await credentials.access()
        await clock.advance(11)
    assert (tmp_path / "runs").read_text().count("run") == 1


@pytest.mark.parametrize(("left", "reloaded"), [(EXPIRY_MARGIN, True), (EXPIRY_MARGIN + timedelta(seconds=1), False)])
async def test_an_expiring_token_is_replaced_before_its_end(left: timedelta, reloaded: bool) -> None:
    clock = FakeClock()
    loads: list[Access] = []

    def load() -> Access:
        loads.append(Access(server="http://x", authorization=f"Bearer {len(loads)}", tls=None, expires_at=NOW + left))
        return loads[-1]

    credentials = Credentials(load, clock=clock, now=lambda: NOW)
    await credentials.access()
    await clock.advance(10)
    await credentials.access()
    assert len(loads) == (2 if reloaded else 1)


async def test_a_half_written_file_does_not_take_the_credentials_away(tmp_path: Path) -> None:
    clock = FakeClock()
    path = kubeconfig(tmp_path / "config", {"token": "good"})
    credentials = Credentials(lambda: load_kubeconfig(path), clock=clock)
    await credentials.access()
    Path(path).write_text("a: [")
    await clock.advance(10)
    assert (await credentials.access()).authorization == "Bearer good"
    kubeconfig(tmp_path / "config", {"token": "better"})
    await clock.advance(10)
    assert (await credentials.access()).authorization == "Bearer better"


async def test_no_credentials_at_all_is_an_error_each_time(tmp_path: Path) -> None:
    credentials = Credentials(lambda: load_kubeconfig(str(tmp_path / "absent")), clock=FakeClock())
    for _ in range(2):
        with pytest.raises(CredentialsError):
            await credentials.access()


async def test_many_refusals_of_one_access_cause_one_reload() -> None:
    loads: list[int] = []

    def load() -> Access:
        loads.append(1)
        return Access(server="http://x", authorization=f"Bearer {len(loads)}", tls=None)

    credentials = Credentials(load, clock=FakeClock())
    refused = await credentials.access()
    renewed = [await credentials.reload(refused) for _ in range(5)]
    assert len(loads) == 2
    assert {access.authorization for access in renewed} == {"Bearer 2"}
