"""`bayplan status [NAME]`: what the on-call looks at first."""

import asyncio
import json
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from bayplan.api.inferencemodel_status import InferenceModelStatus
from bayplan.cli.statusview import ShownModel, model_screen, models_table
from bayplan.cluster.client import ApiClient
from bayplan.cluster.credentials import Credentials, CredentialsError, load_access
from bayplan.cluster.errors import ApiError, NotFound
from bayplan.cluster.loop import run
from bayplan.cluster.port import Json
from bayplan.cluster.resources import INFERENCE_MODELS

REFRESH_SECONDS = 1.0
PIPE_WIDTH = 160


class StatusError(Exception):
    """Nothing can be shown; the message says why."""


def status(
    name: Annotated[str | None, typer.Argument(help="An InferenceModel; all of them without it.")] = None,
    *,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace; that of the current context without it.")
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Models of all namespaces.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print names and status as JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing, until Ctrl-C.")] = False,
    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
) -> None:
    """Show InferenceModels: counts, memory terms, groups on nodes, and the reason for what is not ready."""
    if name is not None and all_namespaces:
        raise typer.BadParameter("NAME belongs to one namespace: use --namespace instead of --all-namespaces")
    if name is not None and not re.fullmatch("[a-z0-9]([-.a-z0-9]*[a-z0-9])?", name):
        raise typer.BadParameter(f"NAME {name!r} is no name of an object: lower-case letters, digits, '-' and '.'")
    if as_json and watch:
        raise typer.BadParameter("--json prints once: use it without --watch")
    path = str(kubeconfig) if kubeconfig is not None else None
    try:
        run(_show(path, name, namespace, all_namespaces=all_namespaces, as_json=as_json, watch=watch))
    except (StatusError, CredentialsError) as error:
        typer.echo(f"bayplan status: {error}", err=True)
        raise typer.Exit(1) from None


async def _show(
    kubeconfig: str | None, name: str | None, namespace: str | None, *, all_namespaces: bool, as_json: bool, watch: bool
) -> None:
    credentials = Credentials(lambda: load_access(kubeconfig=kubeconfig))
    # A pipe has no width; it gets everything, and what reads it may cut.
    console = Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=PIPE_WIDTH)
    async with ApiClient(credentials) as client:
        here = namespace or (await credentials.access()).namespace or "default"
        scope = None if all_namespaces else here
        if as_json:
            typer.echo(json.dumps([_plain(raw) for raw in await _read(client, scope, name)], indent=2))
            return
        if not watch:
            console.print(_render(await _read(client, scope, name), name))
            return
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                live.update(_render(await _read(client, scope, name), name), refresh=True)
                await asyncio.sleep(REFRESH_SECONDS)


async def _read(client: ApiClient, namespace: str | None, name: str | None) -> list[Json]:
    try:
        if name is not None and namespace is not None:
            return [await client.get(INFERENCE_MODELS, namespace, name)]
        return [raw async for page, _ in client.list_pages(INFERENCE_MODELS, namespace) for raw in page]
    except NotFound as error:
        if name is not None and error.reason == "NotFound" and "inferencemodels" in error.message:
            raise StatusError(f"no InferenceModel {name} in namespace {namespace}") from None
        raise StatusError("the cluster does not know InferenceModels: apply the CRDs first") from None
    except ApiError as error:
        raise StatusError(str(error)) from None


def _render(raws: list[Json], name: str | None) -> Any:
    models, now = [_shown(raw) for raw in raws], datetime.now(UTC)
    return model_screen(models[0], now=now) if name is not None else models_table(models, now=now)


def _shown(raw: Json) -> ShownModel:
    meta = raw["metadata"]
    served = raw.get("spec", {}).get("model", {}).get("name", "?")
    status = InferenceModelStatus.read(raw.get("status") or {})
    return ShownModel(meta["namespace"], meta["name"], str(served), meta.get("generation", 0), status)


def _plain(raw: Json) -> dict[str, Any]:
    shown = _shown(raw)
    return {
        "namespace": shown.namespace,
        "name": shown.name,
        "servedName": shown.served_name,
        "generation": shown.generation,
        "status": shown.status.to_wire(),
    }
