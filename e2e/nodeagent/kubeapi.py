"""Requests to the API server over a session that the whole agent shares, and list + watch on top of them."""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

from e2e.localcluster.client import ApiError
from e2e.localcluster.kubeconfig import Access

Object = dict[str, Any]
"""A Kubernetes object as parsed JSON."""

STRATEGIC_MERGE = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"

logger = logging.getLogger(__name__)
_PAGE = 500
_WATCH_SECONDS = 300


class KubeApi:
    """Requests to one API server over a shared aiohttp session."""

    def __init__(self, access: Access, session: aiohttp.ClientSession) -> None:
        self._access = access
        self._session = session

    def _options(self, timeout: aiohttp.ClientTimeout) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        if self._access.token:
            headers["Authorization"] = f"Bearer {self._access.token}"
        return {"headers": headers, "ssl": self._access.tls or True, "timeout": timeout}

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Object:
        """Send one request, return the parsed answer. Raises ApiError, or aiohttp.ClientError when unreachable."""
        options = self._options(aiohttp.ClientTimeout(total=30))
        if body is not None:
            options["headers"]["Content-Type"] = content_type
            options["data"] = json.dumps(body).encode()
        async with self._session.request(method, self._access.server + path, params=params, **options) as answer:
            text = await answer.read()
            if answer.status >= 400:
                raise _api_error(f"{method} {path}", answer.status, text)
            found: Object = json.loads(text)
            return found

    async def list_all(self, path: str, params: Mapping[str, str]) -> tuple[list[Object], str]:
        """Return all items, page by page, and the resourceVersion to watch from."""
        items: list[Object] = []
        query = dict(params) | {"limit": str(_PAGE)}
        while True:
            page = await self.request("GET", path, params=query)
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            query["continue"] = metadata["continue"]

    async def watch(self, path: str, params: Mapping[str, str], version: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object) until the server closes the watch. Raises ApiError; status 410 asks for a new list."""
        seconds = random.randint(_WATCH_SECONDS, 2 * _WATCH_SECONDS)
        query = dict(params) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        options = self._options(aiohttp.ClientTimeout(total=seconds + 30))
        async with self._session.get(self._access.server + path, params=query, **options) as answer:
            if answer.status >= 400:
                raise _api_error(f"WATCH {path}", answer.status, await answer.read())
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _status_error(f"WATCH {path}", event["object"])
                    yield event["type"], event["object"]


def _api_error(request: str, code: int, text: bytes) -> ApiError:
    try:
        return _status_error(request, {"code": code} | json.loads(text))
    except (ValueError, TypeError):
        return ApiError(status=code, reason="", message=text.decode(errors="replace")[:500], request=request)


def _status_error(request: str, status: Object) -> ApiError:
    return ApiError(
        status=int(status.get("code", 500)),
        reason=str(status.get("reason", "")),
        message=str(status.get("message", "")),
        request=request,
    )


async def follow(
    api: KubeApi,
    path: str,
    params: Mapping[str, str],
    *,
    replace: Callable[[list[Object]], None],
    change: Callable[[str, Object], None],
) -> None:
    """Keep a view of a collection current, for ever.

    `replace` gets every complete list (whatever it lacks is gone), `change` each later ADDED, MODIFIED or DELETED.
    """
    delay = 0.1
    version = ""
    while True:
        try:
            if not version:
                items, version = await api.list_all(path, params)
                replace(items)
            async for kind, item in api.watch(path, params, version):
                version = item["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    change(kind, item)
                delay = 0.1
        except ApiError as error:
            version = ""
            if error.status != 410:
                logger.warning("%s: %s", path, error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.info("%s: %s", path, error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 5.0)
