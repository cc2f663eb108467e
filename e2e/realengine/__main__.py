"""`python -m e2e.realengine install | model | serve | path | lock`."""

import asyncio
import os
import sys
import time
from typing import Annotated

import typer

from e2e.realengine.arguments import UnsupportedArgumentsError, argv
from e2e.realengine.environment import InstallError, NotInstalledError, install, locations, remake_model
from e2e.realengine.lock import LockError, write
from e2e.realengine.recipe import LOCK, UnsupportedMachineError

app = typer.Typer(
    help="vLLM's CPU build with a tiny random model, cached outside the repository.", no_args_is_help=True
)


def _say(text: str) -> None:
    typer.echo(f"[real engine] {text}", err=True)


@app.command("install")
def install_command() -> None:
    """Install the engine (about 6 GB) and make the tiny model, unless both are in the cache."""
    started = time.monotonic()
    found = asyncio.run(install(say=_say))
    _say(f"ready after {time.monotonic() - started:.0f} s: {found.environment}, model {found.model}")


@app.command("model")
def model_command() -> None:
    """Make the tiny model again."""
    typer.echo(asyncio.run(remake_model(say=_say)))


@app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve_command(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
) -> None:
    """Become the engine. Further arguments are the engine's own, as in a container of its image."""
    command, environment = argv(host=host, port=port, container_args=context.args, env=os.environ)
    os.execve(command[0], command, environment)


@app.command("path")
def path_command() -> None:
    """Print the interpreter and the model folder; fail when they are not there."""
    found = locations()
    typer.echo(f"python={found.python}\nmodel={found.model}")
    if not found.is_complete():
        raise NotInstalledError("not installed: run `make real-engine`")


@app.command("lock")
def lock_command() -> None:
    """Resolve the lock file anew (needs `uv`)."""
    _say(f"{write()} distributions in {LOCK}")


def main() -> None:
    """Run the command line; expected failures end with their message alone."""
    try:
        app()
    except (InstallError, NotInstalledError, UnsupportedMachineError, UnsupportedArgumentsError, LockError) as error:
        _say(f"error: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
