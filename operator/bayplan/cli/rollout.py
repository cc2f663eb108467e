"""`bayplan rollout …`: where a trial stands, why, and a person's word on it.

What changes something prints the change of the spec, for Git; with `--apply` it makes it. The object's
`resourceVersion` guards it: what changed meanwhile is looked at again, not overwritten.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from bayplan.api.rollout_status import RolloutStatus
from bayplan.cli import rolloutchanges
from bayplan.cli.rolloutchanges import Change, ChangeRefusedError
from bayplan.cli.rolloutview import ShownRollout, explanation, rollout_screen, rollouts_table
from bayplan.cluster.client import ApiClient
from bayplan.cluster.credentials import Credentials, CredentialsError, load_access
from bayplan.cluster.errors import ApiError, Conflict, NotFound
from bayplan.cluster.loop import run
from bayplan.cluster.port import Json
from bayplan.cluster.resources import ROLLOUTS

PIPE_WIDTH = 160

rollout = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Staged promotion: where it stands, why, and a word on it."
)

Name = Annotated[str, typer.Argument(help="Name of the Rollout.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace; that of the current context without it.")
]
Kubeconfig = Annotated[Path | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")]
Apply = Annotated[bool, typer.Option("--apply", help="Change the object; without it the change is printed.")]
Revision = Annotated[str | None, typer.Option(help="A revision; the one on trial without it.")]


class RolloutError(Exception):
    """It cannot be done; the message says why."""


@rollout.command()
def status(
    name: Annotated[str | None, typer.Argument(help="A Rollout; all of them without it.")] = None,
    *,
    namespace: Namespace = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Rollouts of all namespaces.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print names and status as JSON.")] = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show where Rollouts stand."""
    if name is not None and all_namespaces:
        raise typer.BadParameter("NAME belongs to one namespace: use --namespace instead of --all-namespaces")

    async def work(client: ApiClient, here: str) -> None:
        scope = None if all_namespaces else here
        raws = [await _get(client, here, name)] if name is not None else await _all(client, scope)
        shown = [_shown(raw) for raw in raws]
        if as_json:
            entries = [
                {"namespace": one.namespace, "name": one.name, "model": one.model, "status": one.status.to_wire()}
                for one in shown
            ]
            typer.echo(json.dumps(entries, indent=2))
        elif name is not None:
            _console().print(rollout_screen(shown[0], now=datetime.now(UTC)))
        else:
            _console().print(rollouts_table(shown, now=datetime.now(UTC)))

    _run(work, name, namespace, kubeconfig)


@rollout.command()
def explain(name: Name, *, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> None:
    """Show everything that decides: holds, gates, evidence, room, proof."""

    async def work(client: ApiClient, here: str) -> None:
        shown = _shown(await _get(client, here, name))
        _console().print(explanation(shown, now=datetime.now(UTC)))

    _run(work, name, namespace, kubeconfig)


@rollout.command()
def approve(
    name: Name,
    *,
    stage: Annotated[str | None, typer.Option(help="warm, shadow, canary-WEIGHT or promote; the next one.")] = None,
    revision: Revision = None,
    apply: Apply = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Let the candidate enter a stage that asks for approval."""

    def make(raw: Json) -> Change:
        return rolloutchanges.approve(raw, revision=revision, stage=stage)

    _change(name, namespace, kubeconfig, make, apply=apply)


@rollout.command()
def pause(
    name: Name,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="End the pause.")] = False,
    apply: Apply = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Stop the clock and the way on; the way back stays open."""
    _change(name, namespace, kubeconfig, lambda raw: rolloutchanges.pause(raw, resume=resume), apply=apply)


@rollout.command()
def abort(
    name: Name,
    *,
    revision: Revision = None,
    apply: Apply = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Take the traffic from the candidate, or from what was just promoted, at once."""
    _change(name, namespace, kubeconfig, lambda raw: rolloutchanges.abort(raw, revision=revision), apply=apply)


@rollout.command()
def retry(
    name: Name,
    *,
    token: Annotated[str | None, typer.Option(help="Any text that was not used before; the time without it.")] = None,
    apply: Apply = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Let a rejected revision, or a stage that stopped, start again."""
    now = datetime.now(UTC)
    _change(name, namespace, kubeconfig, lambda raw: rolloutchanges.retry(raw, token=token, now=now), apply=apply)


def _change(
    name: str, namespace: str | None, kubeconfig: Path | None, make: Callable[[Json], Change], *, apply: bool
) -> None:
    async def work(client: ApiClient, here: str) -> None:
        raw = await _get(client, here, name)
        try:
            change = make(raw)
        except ChangeRefusedError as error:
            raise RolloutError(str(error)) from None
        where = f"rollouts.bayplan.dev {here}/{name}"
        if not change.spec:
            typer.echo(f"{where}: {change.what}", err=True)
        elif not apply:
            typer.echo(yaml.safe_dump({"spec": dict(change.spec)}, sort_keys=False), nl=False)
            typer.echo(f"{where}: {change.what}. Nothing is changed yet: put it into Git, or use --apply.", err=True)
        else:
            body = {"metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]}, "spec": dict(change.spec)}
            try:
                await client.patch_merge(ROLLOUTS, here, name, body)
            except Conflict:
                raise RolloutError(f"{where} was changed meanwhile: look at it again") from None
            typer.echo(f"{where}: {change.what}")

    _run(work, name, namespace, kubeconfig)


# -- inside


def _run(
    work: Callable[[ApiClient, str], Any], name: str | None, namespace: str | None, kubeconfig: Path | None
) -> None:
    if name is not None and not re.fullmatch("[a-z0-9]([-.a-z0-9]*[a-z0-9])?", name):
        raise typer.BadParameter(f"NAME {name!r} is no name of an object: lower-case letters, digits, '-' and '.'")
    path = str(kubeconfig) if kubeconfig is not None else None

    async def connected() -> None:
        credentials = Credentials(lambda: load_access(kubeconfig=path))
        async with ApiClient(credentials) as client:
            here = namespace or (await credentials.access()).namespace or "default"
            await work(client, here)

    try:
        run(connected())
    except (RolloutError, CredentialsError, ApiError) as error:
        typer.echo(f"bayplan rollout: {error}", err=True)
        raise typer.Exit(1) from None


async def _get(client: ApiClient, namespace: str, name: str) -> Json:
    try:
        return await client.get(ROLLOUTS, namespace, name)
    except NotFound as error:
        raise _not_found(error, f"no Rollout {name} in namespace {namespace}") from None


async def _all(client: ApiClient, scope: str | None) -> list[Json]:
    try:
        return [raw async for page, _ in client.list_pages(ROLLOUTS, scope) for raw in page]
    except NotFound as error:
        raise _not_found(error, "no Rollouts") from None


def _not_found(error: NotFound, absent: str) -> RolloutError:
    if error.reason == "NotFound" and "rollouts" in error.message:
        return RolloutError(absent)
    return RolloutError("the cluster does not know rollouts.bayplan.dev: apply the CRDs first")


def _shown(raw: Json) -> ShownRollout:
    meta, spec = raw["metadata"], raw.get("spec") or {}
    model = str((spec.get("modelRef") or {}).get("name", "?"))
    return ShownRollout(meta["namespace"], meta["name"], model, spec, RolloutStatus.read(raw.get("status")))


def _console() -> Console:
    # A pipe has no width; it gets everything, and what reads it may cut.
    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=PIPE_WIDTH)
