"""The `bayplan` command, also `kubectl bayplan …`.

Each command's module is imported when it is called: `bayplan status` must not wait for what the operator needs.
"""

import gc
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

COMMANDS = ("operator", "gateway", "status", "fit", "plan", "inventory", "rollout", "gate")
"""Each is a function, or a group of commands, of its own name in the module of its own name."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 + SIGINT."""


class _Commands(TyperGroup):
    def list_commands(self, _ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        # Classes and functions by the ten thousand, and nothing to collect: a fifth of the time goes to looking.
        gc.disable()
        module = import_module(f"bayplan.cli.{cmd_name}")
        gc.enable()
        command = getattr(module, cmd_name)
        if isinstance(command, typer.Typer):
            group = typer.main.get_command(command)
            group.name = cmd_name  # the list of commands shows this one
            return group
        single.command(cmd_name)(command)
        return typer.main.get_command(single)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer passes the option's value
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - no command needs it

        typer.echo(f"bayplan {version('bayplan')}")
        raise typer.Exit


@app.callback()
def bayplan(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Bayplan places, warms, scales and replaces LLM inference engines on Kubernetes."""


def main() -> None:
    """Entry point of `bayplan` and `kubectl-bayplan`."""
    # Before a command has set up its own way to end, Ctrl-C ends it without a traceback.
    signal.signal(signal.SIGINT, lambda *_: sys.exit(INTERRUPTED))
    app()
