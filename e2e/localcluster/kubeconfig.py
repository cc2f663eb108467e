"""Write and read kubeconfig files: plain ones with certificates or a token inside, nothing that runs a command."""

import base64
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.localcluster.certificates import KeyPair
from e2e.localcluster.files import write_whole


class KubeconfigError(Exception):
    """A kubeconfig that cannot be used, with the field that is wrong."""


def write_kubeconfig(
    path: Path, *, server: str, ca: bytes, user: str, client: KeyPair | None = None, token: str | None = None
) -> Path:
    """Write a kubeconfig (mode 0600) for one cluster and one user with a client certificate or a bearer token."""
    credentials: dict[str, str] = {}
    if client is not None:
        credentials["client-certificate-data"] = base64.b64encode(client.certificate).decode()
        credentials["client-key-data"] = base64.b64encode(client.key).decode()
    if token is not None:
        credentials["token"] = token
    context = "bayplan"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": context,
                "cluster": {"server": server, "certificate-authority-data": base64.b64encode(ca).decode()},
            }
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
        "current-context": context,
    }
    write_whole(path, yaml.safe_dump(document, sort_keys=False))
    return path


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a client needs to talk to an API server: its URL, a TLS context (None for http) and a token if any."""

    server: str
    ca: bytes
    tls: ssl.SSLContext | None
    token: str | None


def read_kubeconfig(path: Path) -> Access:
    """Read the current context. Raises KubeconfigError naming the field; `exec` and `auth-provider` are not run."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise KubeconfigError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise KubeconfigError(f"{path}: not a kubeconfig")
    name = document.get("current-context")
    if not name:
        raise KubeconfigError(f"{path}: current-context is not set")
    context = _named(path, document, "contexts", "context", name)
    cluster = _named(path, document, "clusters", "cluster", context.get("cluster"))
    user = _named(path, document, "users", "user", context.get("user"))
    for unsupported in ("exec", "auth-provider"):
        if unsupported in user:
            raise KubeconfigError(
                f"{path}: users[{context['user']}].{unsupported} is not supported here; make a kubeconfig with a token:"
                " kubectl create token SERVICEACCOUNT"
            )
    server = cluster.get("server")
    if not isinstance(server, str):
        raise KubeconfigError(f"{path}: clusters[{context['cluster']}].server is not set")
    ca = _bytes_of(path, cluster, "certificate-authority")
    token = user.get("token")
    if token is None and "tokenFile" in user:
        token = Path(user["tokenFile"]).read_text().strip()
    return Access(server=server.rstrip("/"), ca=ca, tls=_tls(path, server, cluster, user, ca), token=token)


def _named(path: Path, document: dict[str, Any], section: str, field: str, name: object) -> dict[str, Any]:
    for entry in document.get(section) or ():
        if entry.get("name") == name and isinstance(entry.get(field), dict):
            found: dict[str, Any] = entry[field]
            return found
    raise KubeconfigError(f"{path}: {section} has no entry {name!r} with a `{field}`")


def _bytes_of(path: Path, entry: dict[str, Any], field: str) -> bytes:
    if f"{field}-data" in entry:
        return base64.b64decode(str(entry[f"{field}-data"]))
    if field in entry:
        return (path.parent / str(entry[field])).read_bytes()
    return b""


def _tls(path: Path, server: str, cluster: dict[str, Any], user: dict[str, Any], ca: bytes) -> ssl.SSLContext | None:
    if not server.startswith("https://"):
        return None
    tls = ssl.create_default_context(cadata=ca.decode() if ca else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    certificate, key = _bytes_of(path, user, "client-certificate"), _bytes_of(path, user, "client-key")
    if certificate:
        # The ssl module reads client certificates from files only.
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            tls.load_cert_chain(file.name)
    return tls
