"""`python -m e2e.nodeagent`: run the nodes of an inventory until SIGTERM or Ctrl-C."""

import asyncio
import contextlib
import logging
import signal
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from e2e.localcluster.client import ApiError
from e2e.localcluster.kubeconfig import KubeconfigError
from e2e.nodeagent.agent import AgentError, NodeAgent
from e2e.nodeagent.inventory import InventoryError, load_inventory
from e2e.nodeagent.server import ControlServer
from e2e.nodeagent.settings import AgentSettings


async def serve(agent: NodeAgent, host: str, port: int) -> None:
    """Run until a signal asks for the end. Prints the control address once everything is up."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    async with agent:
        server = ControlServer(agent)
        try:
            url = await server.start(host, port)
            print(f"node agent: {len(agent.nodes)} nodes, addresses {agent.network}, control {url}", flush=True)
            waits = {asyncio.create_task(ended.wait()), asyncio.create_task(agent.run())}
            done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            for task in done:
                task.result()
        finally:
            await server.stop()


def main(
    *,
    kubeconfig: Annotated[Path, typer.Option(envvar="KUBECONFIG", help="Who we are and where the API server is.")],
    inventory: Annotated[Path, typer.Option(help="YAML file with the nodes.")],
    control: Annotated[
        str, typer.Option(help="HOST:PORT of the control API; port 0 takes a free one.")
    ] = "127.0.0.1:9650",
    address_base: Annotated[
        str | None, typer.Option(help="Block of 127.0.0.0/8 for pods, such as 127.20.0.0/16; a free one if omitted.")
    ] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Container logs; a temporary folder if omitted.")] = None,
    lease_interval_seconds: Annotated[float, typer.Option(min=0.1, help="Time between Lease renewals.")] = 10.0,
    remove_nodes: Annotated[
        bool, typer.Option("--remove-nodes", help="Delete nodes and their pods at the end.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what happens to pods.")] = False,
) -> None:
    """Stand in for the kubelets of an inventory's nodes."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    host, _, port = control.rpartition(":")
    settings = AgentSettings(
        lease_interval_seconds=lease_interval_seconds,
        lease_duration_seconds=max(1, round(4 * lease_interval_seconds)),
        remove_nodes_on_stop=remove_nodes,
    )
    try:
        agent = NodeAgent(
            kubeconfig=kubeconfig,
            inventory=load_inventory(inventory),
            settings=settings,
            address_base=None if address_base is None else IPv4Network(address_base),
            log_dir=log_dir.absolute() if log_dir is not None else None,
        )
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(agent, host, int(port)))
    except (AgentError, InventoryError, KubeconfigError, ApiError, aiohttp.ClientError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
