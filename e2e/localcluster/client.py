"""A small API client for set-up and assertions: JSON by path, server-side apply of manifests, waiting on conditions."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from e2e.localcluster.kubeconfig import read_kubeconfig

FIELD_MANAGER = "localcluster"
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
POLL_SECONDS = 0.05
APPLIED_FIRST = ("Namespace", "CustomResourceDefinition", "PriorityClass", "ServiceAccount", "ConfigMap", "Secret")
"""Kinds that others in the same set may need; the rest keeps its order."""

Manifest = dict[str, Any]


class ApiError(Exception):
    """An answer of 400 or above. `status` is the HTTP code, `reason` and `message` are the API server's."""

    def __init__(self, *, status: int, reason: str, message: str, request: str) -> None:
        super().__init__(f"{request}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class KubeApi:
    """An open session with an API server; use `KubeApi.open(kubeconfig)`."""

    def __init__(self, session: aiohttp.ClientSession, tls: ssl.SSLContext | None) -> None:
        self._session = session
        self._tls = tls
        self._resources: dict[tuple[str, str], tuple[str, bool]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, kubeconfig: Path) -> AsyncIterator[Self]:
        """Open a session as the kubeconfig's user. Raises KubeconfigError when the file cannot be used."""
        access = read_kubeconfig(kubeconfig)
        headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        async with aiohttp.ClientSession(
            base_url=access.server + "/", headers=headers, timeout=aiohttp.ClientTimeout(total=30)
        ) as session:
            yield cls(session, access.tls)

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Send one request and return the decoded answer (text when it is not JSON). Raises ApiError from 400 on."""
        data = None if body is None else json.dumps(body, allow_nan=True).encode()
        headers = {"Content-Type": content_type} if data is not None else {}
        async with self._session.request(
            method, path.lstrip("/"), data=data, headers=headers, params=query, ssl=self._tls or True
        ) as response:
            text = await response.text()
            answer = json.loads(text) if response.content_type == "application/json" else text
            if response.status >= 400:
                status = answer if isinstance(answer, dict) else {}
                raise ApiError(
                    status=response.status,
                    reason=status.get("reason", ""),
                    message=status.get("message", text[:500]),
                    request=f"{method} {path}",
                )
            return answer

    async def get(self, path: str, **query: str) -> Any:
        return await self.request("GET", path, query=query)

    async def create(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: object, *, content_type: str = MERGE_PATCH, **query: str) -> Any:
        return await self.request("PATCH", path, body, content_type=content_type, query=query)

    async def delete(self, path: str, **query: str) -> Any:
        return await self.request("DELETE", path, query=query)

    async def path_of(self, manifest: Mapping[str, Any], *, namespace: str | None = None) -> str:
        """Return the path of the object that a manifest names; `namespace` stands in where it names none."""
        api_version, kind = str(manifest["apiVersion"]), str(manifest["kind"])
        plural, namespaced = await self._resource(api_version, kind)
        metadata = manifest["metadata"]
        parts = [_root(api_version)]
        if namespaced:
            parts += ["namespaces", metadata.get("namespace") or namespace or "default"]
        return "/".join([*parts, plural, metadata["name"]])

    async def apply(
        self,
        manifests: "Manifests",
        *,
        namespace: str | None = None,
        manager: str = FIELD_MANAGER,
        dry_run: bool = False,
    ) -> list[Manifest]:
        """Apply server-side (forced) and return the stored objects, in the order in which they were applied.

        Definitions are waited for before objects of other kinds follow. Raises ApiError on the first refusal.
        """
        documents = sorted(read_manifests(manifests), key=_apply_order)
        query = {"fieldManager": manager, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        applied: list[Manifest] = []
        definitions: list[str] = []
        for document in documents:
            if definitions and document["kind"] != "CustomResourceDefinition":
                await self.wait_established(definitions)
                definitions = []
            path = await self.path_of(document, namespace=namespace)
            applied.append(await self.patch(path, document, content_type=APPLY_PATCH, **query))
            if document["kind"] == "CustomResourceDefinition" and not dry_run:
                definitions.append(document["metadata"]["name"])
        await self.wait_established(definitions)
        return applied

    async def wait_established(self, names: Iterable[str], *, timeout_seconds: float = 30.0) -> None:
        """Wait until the API server serves the CustomResourceDefinitions, discovery included."""
        for name in names:
            path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"

            async def established(path: str = path) -> bool:
                definition = await self.get(path)
                conditions = (definition.get("status") or {}).get("conditions") or ()
                if not any(entry["type"] == "Established" and entry["status"] == "True" for entry in conditions):
                    return False
                spec = definition["spec"]
                versions = [f"{spec['group']}/{entry['name']}" for entry in spec["versions"] if entry["served"]]
                return all([await self._discovers(version, spec["names"]["plural"]) for version in versions])

            await self.wait_until(established, what=f"{name} to be established", timeout_seconds=timeout_seconds)

    async def wait_until(
        self, check: Callable[[], Awaitable[bool]], *, what: str, timeout_seconds: float = 30.0
    ) -> None:
        """Call `check` until it returns True. Raises TimeoutError that says what was waited for."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not await check():  # noqa: ASYNC110 - what is waited for is on the other side of HTTP
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"waited {timeout_seconds:g} s for {what}") from error

    async def _discovers(self, api_version: str, plural: str) -> bool:
        try:
            found = await self.get(_root(api_version))
        except ApiError as error:
            if error.status in (404, 503):
                return False
            raise
        return any(resource["name"] == plural for resource in found["resources"])

    async def _resource(self, api_version: str, kind: str) -> tuple[str, bool]:
        if (api_version, kind) not in self._resources:
            found = await self.get(_root(api_version))
            for resource in found["resources"]:
                if "/" not in resource["name"]:
                    self._resources[api_version, resource["kind"]] = (resource["name"], resource["namespaced"])
        try:
            return self._resources[api_version, kind]
        except KeyError:
            raise ApiError(
                status=404, reason="NotFound", message=f"no kind {kind}", request=f"GET {_root(api_version)}"
            ) from None


Manifests = Path | str | Manifest | Sequence[Path | str | Manifest]
"""Objects, YAML text, YAML files, folders of them, or a sequence of any of these."""


def read_manifests(source: Manifests) -> list[Manifest]:
    """Return the objects in `source`. Text is YAML, not a path. Raises ValueError naming the part that is no object."""
    if isinstance(source, dict):
        return [source]
    if isinstance(source, Path):
        files = sorted([*source.glob("*.yaml"), *source.glob("*.yml")]) if source.is_dir() else [source]
        return [entry for file in files for entry in _parse(file.read_text(), name=str(file))]
    if isinstance(source, str):
        return _parse(source, name="manifest text")
    return [entry for part in source for entry in read_manifests(part)]


def _parse(text: str, *, name: str) -> list[Manifest]:
    found: list[Manifest] = []
    for document in yaml.safe_load_all(text):
        if document is None:
            continue
        if not (isinstance(document, dict) and {"apiVersion", "kind", "metadata"} <= document.keys()):
            raise ValueError(
                f"{name}: not a Kubernetes object (apiVersion, kind and metadata are needed): {document!r}"
            )
        found.append(document)
    return found


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _apply_order(document: Manifest) -> int:
    kind = document["kind"]
    return APPLIED_FIRST.index(kind) if kind in APPLIED_FIRST else len(APPLIED_FIRST)
