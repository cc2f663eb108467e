"""`bayplan rollout` as a process, against an API server that holds one Rollout."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.cli.rollouts import rollout
from tests.fakes.server import status_object

pytestmark = pytest.mark.slow

PATH = "/apis/bayplan.dev/v1alpha1/namespaces/team/rollouts"


class OneRollout:
    """An API server with one Rollout, and its kubeconfig."""

    def __init__(self, folder: Path) -> None:
        self.raw: dict[str, Any] = rollout()
        self.patches: list[dict[str, Any]] = []
        self.known = True
        self.shown_version = "7"
        self._folder = folder
        application = web.Application()
        application.router.add_get(PATH, self._list)
        application.router.add_get(PATH + "/{name}", self._get)
        application.router.add_patch(PATH + "/{name}", self._patch)
        self.server = TestServer(application)

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"kind": "RolloutList", "metadata": {"resourceVersion": "9"}, "items": [self.raw]})

    async def _get(self, request: web.Request) -> web.Response:
        if not self.known:
            return web.Response(text="404 page not found\n", status=404)
        if request.match_info["name"] != "chat":
            message = f'rollouts.bayplan.dev "{request.match_info["name"]}" not found'
            return web.json_response(status_object(404, "NotFound", message), status=404)
        shown = {**self.raw["metadata"], "resourceVersion": self.shown_version}
        return web.json_response({**self.raw, "metadata": shown})

    async def _patch(self, request: web.Request) -> web.Response:
        patch = await request.json()
        assert request.content_type == "application/merge-patch+json"
        if patch["metadata"]["resourceVersion"] != self.raw["metadata"]["resourceVersion"]:
            return web.json_response(status_object(409, "Conflict", "changed"), status=409)
        self.patches.append(patch["spec"])
        return web.json_response(self.raw)

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        kubeconfig = self._folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": str(self.server.make_url("")).rstrip("/")}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "team"}}],
        }
        kubeconfig.write_text(yaml.safe_dump(config))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bayplan", "rollout", *arguments),
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "COLUMNS": "160", "NO_COLOR": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OneRollout]:
    made = OneRollout(tmp_path)
    await made.server.start_server()
    yield made
    await made.server.close()


async def test_rollouts_are_listed_shown_explained_and_printed(server: OneRollout) -> None:
    listed, one, explained, printed = await asyncio.gather(
        *(server.run(*line.split()) for line in ("status", "status chat", "explain chat", "status --json"))
    )
    assert [answer[0] for answer in (listed, one, explained, printed)] == [0, 0, 0, 0]
    assert "canary-10" in listed[1]
    assert "team/chat of chat" in one[1]
    assert "team/chat of chat" in explained[1]
    (entry,) = json.loads(printed[1])
    assert (entry["name"], entry["status"]["plan"]["weight"]) == ("chat", 10)


async def test_change_is_printed_for_git_and_nothing_is_written(server: OneRollout) -> None:
    code, out, err = await server.run("approve", "chat")
    assert code == 0
    assert yaml.safe_load(out) == {"spec": {"approvals": [{"revision": "c1", "stage": "canary-10"}]}}
    assert "--apply" in err
    assert server.patches == []


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        (("approve", "chat"), {"approvals": [{"revision": "c1", "stage": "canary-10"}]}),
        (("pause", "chat"), {"paused": True}),
        (("abort", "chat"), {"abort": "c1"}),
        (("retry", "chat", "--token", "again"), {"retry": "again"}),
    ],
)
async def test_apply_makes_that_very_change(server: OneRollout, arguments: tuple[str, ...], spec: Any) -> None:
    code, out, _ = await server.run(*arguments, "--apply")
    assert code == 0
    assert "rollouts.bayplan.dev team/chat" in out
    assert server.patches == [spec]


async def test_what_is_said_already_writes_nothing(server: OneRollout) -> None:
    server.raw["spec"]["paused"] = True
    code, out, err = await server.run("pause", "chat", "--apply")
    assert (code, out) == (0, "")
    assert "paused already" in err
    assert server.patches == []


async def test_what_changed_meanwhile_is_not_overwritten(server: OneRollout) -> None:
    server.shown_version = "6"
    code, _, err = await server.run("pause", "chat", "--apply")
    assert code == 1
    assert "changed meanwhile" in err
    assert server.patches == []


async def test_what_is_not_there_is_named(server: OneRollout) -> None:
    code, _, err = await server.run("explain", "absent")
    assert (code, "no Rollout absent in namespace team" in err) == (1, True)
    server.known = False
    code, _, err = await server.run("explain", "chat")
    assert (code, "apply the CRDs first" in err) == (1, True)


async def test_nothing_on_trial_is_said_and_no_error_of_ours(server: OneRollout) -> None:
    server.raw = rollout(phase="Steady", trial=None)
    code, _, err = await server.run("abort", "chat")
    assert (code, "nothing is on trial" in err) == (1, True)


@pytest.mark.parametrize("wrong", [("status", "A/b"), ("approve", "A/b"), ("status", "x", "-A")])
async def test_wrong_name_is_refused_before_anything_is_asked(server: OneRollout, wrong: tuple[str, ...]) -> None:
    code, _, err = await server.run(*wrong)
    assert code == 2
    assert "NAME" in err
