"""What every provider gives: a name, a kubeconfig, a folder, perhaps an audit log, and helpers on top of them."""

import hashlib
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from e2e.localcluster.client import KubeApi, Manifest, Manifests
from e2e.localcluster.kubeconfig import read_kubeconfig, write_kubeconfig

TOKEN_SECONDS = 24 * 3600


class ClusterError(Exception):
    """A cluster could not be started, reached or used; the message says why and where the logs are."""


class Cluster(Protocol):
    """A cluster to work with, whoever runs it. `audit_log_path` is None where the provider has none."""

    name: str
    provider: str
    folder: Path
    kubeconfig_path: Path
    audit_log_path: Path | None

    def api(self, kubeconfig: Path | None = None) -> AbstractAsyncContextManager[KubeApi]:
        """Open a client session, as the administrator unless another kubeconfig is given."""
        ...

    async def stop(self) -> None:
        """End what the provider started; nothing when it started nothing."""
        ...

    def kubeconfig_for(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """Write a kubeconfig that is `user` in `groups`; ClusterError where the provider holds no authority's key."""
        ...

    async def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Write a kubeconfig with a token of an existing ServiceAccount, as its pods would hold one."""
        ...

    async def apply(self, manifests: Manifests, *, namespace: str | None = None) -> list[Manifest]:
        """Apply manifests server-side as the administrator."""
        ...

    async def wait_established(self, names: Iterable[str]) -> None:
        """Wait until the named CustomResourceDefinitions are served."""
        ...


class BaseCluster:
    """The parts that do not depend on the provider."""

    provider: str
    kubeconfig_path: Path
    audit_log_path: Path | None = None

    def __init__(self, *, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder

    @asynccontextmanager
    async def api(self, kubeconfig: Path | None = None) -> AsyncIterator[KubeApi]:
        """Open a client session, as the administrator unless another kubeconfig is given."""
        async with KubeApi.open(kubeconfig or self.kubeconfig_path) as api:
            yield api

    async def apply(self, manifests: Manifests, *, namespace: str | None = None) -> list[Manifest]:
        """Apply manifests server-side (forced) as the administrator; see `KubeApi.apply`."""
        async with self.api() as api:
            return await api.apply(manifests, namespace=namespace)

    async def wait_established(self, names: Iterable[str]) -> None:
        """Wait until the named CustomResourceDefinitions are served."""
        async with self.api() as api:
            await api.wait_established(names)

    def kubeconfig_for(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """Write a kubeconfig that is `user` in `groups`."""
        raise ClusterError(
            f"the {self.provider} provider holds no authority that could make a certificate for {user}"
            f"{' in ' + ', '.join(groups) if groups else ''}; use service_account_kubeconfig"
        )

    async def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Write a kubeconfig with a token from the TokenRequest API, valid for a day."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_SECONDS},
        }
        async with self.api() as api:
            answer = await api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request)
        access = read_kubeconfig(self.kubeconfig_path)
        user = f"system:serviceaccount:{namespace}:{name}"
        return write_kubeconfig(
            self.identity_path(user), server=access.server, ca=access.ca, user=user, token=answer["status"]["token"]
        )

    def identity_path(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """Return where the kubeconfig of an identity lies in the cluster's folder."""
        folder = self.folder / "identities"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        digest = hashlib.sha256("\0".join([user, *groups]).encode()).hexdigest()[:8]
        return folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', user)}-{digest}.kubeconfig"
