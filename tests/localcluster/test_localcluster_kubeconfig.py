"""Certificates and kubeconfig files."""

import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from e2e.localcluster.certificates import Authority
from e2e.localcluster.kubeconfig import KubeconfigError, read_kubeconfig, write_kubeconfig


def test_a_client_certificate_carries_user_and_groups_and_is_signed_by_its_authority() -> None:
    authority = Authority("ca")
    user = "system:serviceaccount:bayplan-system:bayplan-operator"
    pair = authority.issue_client(user=user, groups=("system:serviceaccounts", "b"))
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    subject = certificate.subject
    assert [entry.value for entry in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [user]
    groups = {entry.value for entry in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)}
    assert groups == {"system:serviceaccounts", "b"}
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.pair.certificate))


@pytest.mark.parametrize("user", ["", "x" * 65])
def test_a_user_that_no_certificate_can_name_is_refused(user: str) -> None:
    with pytest.raises(ValueError, match="user: a certificate's common name takes 1 to 64 characters"):
        Authority("ca").issue_client(user=user)


def test_the_longest_user_is_accepted() -> None:
    assert Authority("ca").issue_client(user="x" * 64).certificate


def test_key_files_are_private(tmp_path: Path) -> None:
    Authority("ca").pair.write(tmp_path, "ca")
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600


def test_what_is_written_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    authority = Authority("ca")
    path = write_kubeconfig(
        tmp_path / "config",
        server="https://127.0.0.1:6443",
        ca=authority.pair.certificate,
        user="admin",
        client=authority.issue_client(user="admin"),
        token="secret",
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    access = read_kubeconfig(path)
    assert (access.server, access.token, access.ca) == ("https://127.0.0.1:6443", "secret", authority.pair.certificate)
    assert access.tls is not None


def a_kubeconfig(folder: Path, **user: object) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:8001/"}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


def test_a_token_file_is_read_and_plain_http_needs_no_tls(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    access = read_kubeconfig(a_kubeconfig(tmp_path, tokenFile=str(tmp_path / "token")))
    assert (access.server, access.token, access.tls) == ("http://127.0.0.1:8001", "from-file", None)


def test_certificates_may_lie_beside_the_kubeconfig(tmp_path: Path) -> None:
    authority = Authority("ca")
    authority.pair.write(tmp_path, "ca")
    authority.issue_client(user="admin").write(tmp_path, "admin")
    path = a_kubeconfig(tmp_path, **{"client-certificate": "admin.crt", "client-key": "admin.key"})
    document = yaml.safe_load(path.read_text())
    document["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:6443", "certificate-authority": "ca.crt"}
    path.write_text(yaml.safe_dump(document))
    access = read_kubeconfig(path)
    assert access.ca == authority.pair.certificate
    assert access.tls is not None


def test_a_login_program_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"users\[u\]\.exec is not supported here.*kubectl create token"):
        read_kubeconfig(a_kubeconfig(tmp_path, exec={"command": "login"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a kubeconfig"),
        ("{}", "current-context is not set"),
        ("current-context: x", "contexts has no entry 'x'"),
        ("a: [", "config: "),
    ],
)
def test_a_damaged_kubeconfig_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(KubeconfigError, match=message):
        read_kubeconfig(tmp_path / "config")


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="nowhere"):
        read_kubeconfig(tmp_path / "nowhere")
