"""The `bayplan` command, also `kubectl bayplan …`."""

import typer

from bayplan.cli.gateway import gateway
from bayplan.cli.operator import operator
from bayplan.cli.status import status

app = typer.Typer(
    help="Bayplan places, warms, scales and replaces LLM inference engines on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(operator)
app.command()(gateway)
app.command()(status)


@app.callback()
def bayplan() -> None:
    """Bayplan places, warms, scales and replaces LLM inference engines on Kubernetes."""


def main() -> None:
    """Entry point of `bayplan` and `kubectl-bayplan`."""
    app()
