"""How the operator reaches the API server and as whom, kept fresh while tokens and certificates rotate.

Loading is left to the `kubernetes` package, which knows kubeconfig merging, exec plugins and the service account's
files. It blocks (files, child processes), so it runs in a thread; what it does not do is notice a rotated file: here
the files are looked at every few seconds, and a 401 forces a reload.
"""

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from kubernetes.client import Configuration
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from bayplan.cluster.clock import Clock, SystemClock

EXPIRY_MARGIN = timedelta(minutes=5)
_NAMESPACE_FILE = Path(SERVICE_TOKEN_FILENAME).with_name("namespace")


class CredentialsError(Exception):
    """No usable credentials: the message names the file or variable and what was expected there."""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One way into the cluster. `files` are those whose change makes it stale."""

    server: str
    authorization: str | None
    tls: ssl.SSLContext | None
    tls_server_name: str | None = None
    proxy: str | None = None
    namespace: str | None = None
    expires_at: datetime | None = None
    files: tuple[str, ...] = ()


def load_access(*, kubeconfig: str | None = None, context: str | None = None) -> Access:
    """Load from `kubeconfig` if given, else from the pod's service account, else from the default kubeconfig.

    Raises CredentialsError. Blocks: files are read and an exec plugin may run.
    """
    if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return load_in_cluster()
    return load_kubeconfig(kubeconfig, context=context)


def load_kubeconfig(path: str | None = None, *, context: str | None = None) -> Access:
    """Load one context of a kubeconfig: `path`, else `$KUBECONFIG` (a list is merged), else `~/.kube/config`."""
    paths = path or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    existing = [part for part in paths.split(os.pathsep) if part and Path(part).expanduser().is_file()]
    if not existing:
        raise CredentialsError(f"kubeconfig: no file at {paths!r}; set KUBECONFIG or pass a path")
    try:
        config = KubeConfigMerger(os.pathsep.join(existing)).config  # type: ignore[no-untyped-call]
        loader = KubeConfigLoader(config_dict=config, active_context=context, config_base_path=None)  # type: ignore[no-untyped-call]
        configuration = Configuration()
        loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
        current = loader.current_context["context"]
        entry = config["users"].get_with_name(current["user"], safe=True) if current.get("user") else None
        user = entry.value["user"] or {} if entry else {}
        base = Path(entry.path).expanduser().parent if entry else Path()
    except (ConfigException, yaml.YAMLError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise CredentialsError(f"kubeconfig {paths!r}: {error}") from error
    authorization = configuration.get_api_key_with_prefix("BearerToken")
    if authorization is None and configuration.cert_file is None and ("exec" in user or "auth-provider" in user):
        raise CredentialsError(f"kubeconfig {paths!r}: the credential plugin of the current context gave no credential")
    named = [user.get(field) for field in ("tokenFile", "client-certificate", "client-key")]
    expiry = getattr(loader, "expiry", None)
    return _access(
        configuration,
        authorization=authorization,
        namespace=current.get("namespace"),
        expires_at=expiry if isinstance(expiry, datetime) else None,
        files=(*existing, *(str(base / name) for name in named if name)),
    )


def load_in_cluster(
    *,
    token_file: str = SERVICE_TOKEN_FILENAME,
    ca_file: str = SERVICE_CERT_FILENAME,
    environ: Mapping[str, str] = os.environ,
) -> Access:
    """Load the service account that the kubelet mounted into this pod."""
    configuration = Configuration()
    try:
        loader = InClusterConfigLoader(token_file, ca_file, environ=environ)  # type: ignore[no-untyped-call]
        loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        raise CredentialsError(f"service account: {error}") from error
    namespace = _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.is_file() else None
    return _access(
        configuration,
        authorization=configuration.get_api_key_with_prefix("BearerToken"),
        namespace=namespace,
        expires_at=None,
        files=(token_file, ca_file),
    )


def _access(
    configuration: Configuration,
    *,
    authorization: str | None,
    namespace: str | None,
    expires_at: datetime | None,
    files: tuple[str, ...],
) -> Access:
    authorization = authorization.strip() if authorization else None
    if authorization is not None and (not authorization.isprintable() or not authorization.isascii()):
        raise CredentialsError("the token holds characters that no HTTP header may carry")
    try:
        tls = _tls(configuration) if configuration.host.startswith("https") else None
    except (OSError, ValueError) as error:
        raise CredentialsError(f"certificates for {configuration.host}: {error}") from error
    return Access(
        server=configuration.host.rstrip("/"),
        authorization=authorization,
        tls=tls,
        tls_server_name=configuration.tls_server_name,
        proxy=getattr(configuration, "proxy", None),
        namespace=namespace,
        expires_at=expires_at,
        files=files,
    )


def _tls(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    # Cluster CAs made by common tools lack the key usage extension that the strict mode of newer Pythons asks for.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def _fingerprint(files: tuple[str, ...]) -> tuple[tuple[int, int, int], ...]:
    """Identify the files' present content cheaply; a missing file counts as a state of its own."""
    marks = []
    for name in files:
        try:
            stat = Path(name).stat()
            marks.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        except OSError:
            marks.append((0, 0, 0))
    return tuple(marks)


class Credentials:
    """The current `Access`, reloaded when its files change, before it expires, and after a 401."""

    def __init__(
        self,
        load: Callable[[], Access] = load_access,
        *,
        clock: Clock | None = None,
        check_seconds: float = 10.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._load = load
        self._clock = clock or SystemClock()
        self._check_seconds = check_seconds
        self._now = now
        self._lock = asyncio.Lock()
        self._current: Access | None = None
        self._marks: tuple[tuple[int, int, int], ...] = ()
        self._check_at = 0.0

    async def access(self) -> Access:
        """Return the current access. Raises CredentialsError only when there has been none yet."""
        current = self._current
        if current is not None and self._clock.time() < self._check_at:
            return current
        async with self._lock:
            current = self._current
            if current is None:
                return await self._reload()
            if self._clock.time() >= self._check_at:
                self._check_at = self._clock.time() + self._check_seconds
                expiring = current.expires_at is not None and current.expires_at - EXPIRY_MARGIN <= self._now()
                if expiring or _fingerprint(current.files) != self._marks:
                    return await self._reload_or_keep(current)
            return current

    async def reload(self, refused: Access) -> Access:
        """Return an access to try after a 401 for `refused`; many callers cause one reload."""
        async with self._lock:
            if self._current is not None and self._current is not refused:
                return self._current
            return await self._reload_or_keep(refused)

    async def _reload(self) -> Access:
        access = await asyncio.to_thread(self._load)
        self._current = access
        self._marks = _fingerprint(access.files)
        self._check_at = self._clock.time() + self._check_seconds
        return access

    async def _reload_or_keep(self, current: Access) -> Access:
        # A half-written file or a failing plugin must not take away credentials that may still be good.
        try:
            return await self._reload()
        except CredentialsError:
            return current
