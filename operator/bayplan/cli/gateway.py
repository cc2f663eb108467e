"""`bayplan gateway`: assemble the process that carries requests."""

import socket
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from bayplan.cli.configuration import ConfigurationError, OperatorConfiguration, load_configuration
from bayplan.cli.logs import set_up_logging
from bayplan.cluster.client import ApiClient
from bayplan.cluster.clock import SystemClock
from bayplan.cluster.credentials import Credentials, CredentialsError, load_access
from bayplan.cluster.loop import run
from bayplan.cluster.servertime import ServerTime
from bayplan.gateway.acknowledgements import GatewayPod
from bayplan.gateway.promptsize import TextCounter, TokenizerError, TokenizerFile
from bayplan.gateway.runtime import GatewayRuntime
from bayplan.gateway.salts import SecretError, read_secret
from bayplan.gateway.tenants import Tenants, TenantsError, TenantsFile, anonymous_tenants


async def run_gateway(configuration: OperatorConfiguration, *, credentials: Credentials, pod: GatewayPod) -> int:
    """Run the gateway until it is stopped or has to end; return the exit code.

    Raises TenantsError, SecretError, TokenizerError and CredentialsError for files that cannot be used.
    """
    section, clock = configuration.gateway, SystemClock()
    settings = section.settings()
    times = configuration.api_server.times()
    server_time = ServerTime(clock, local=lambda: datetime.now(UTC))
    tenants: Tenants | None = anonymous_tenants()
    tenants_file = None
    if section.tenants_file is not None:
        tenants_file = TenantsFile(section.tenants_file, classes=settings.classes)
        tenants = tenants_file.load()
    counters: Mapping[str, TextCounter] = {name: TokenizerFile(path) for name, path in settings.tokenizers.items()}
    async with ApiClient(
        credentials, clock=clock, timeout_seconds=times.request, on_date=server_time.observe
    ) as client:
        runtime = GatewayRuntime(
            client,
            pod,
            settings,
            tenants=tenants or anonymous_tenants(),
            tenants_file=tenants_file,
            secret=read_secret(section.secret_file),
            counters=counters,
            sockets=section.sockets(),
            server_time=server_time,
            times=times,
            clock=clock,
        )
        return await runtime.run()


def gateway(
    config: Annotated[
        Path | None, typer.Option(help="YAML file with the configuration; its section `gateway` counts here.")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Kubeconfig; without it $KUBECONFIG, then the pod's own service account."),
    ] = None,
    namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", help="Namespace of the gateway's Pod and Lease.")
    ] = "bayplan-system",
    pod_name: Annotated[
        str | None, typer.Option(envvar="POD_NAME", help="Name of the gateway's Pod; the host's name without it.")
    ] = None,
    pod_uid: Annotated[
        str | None, typer.Option(envvar="POD_UID", help="uid of the gateway's Pod; without it the Lease has no owner.")
    ] = None,
) -> None:
    """Run the gateway: admit requests before they cost GPU memory, and stream answers from warm replicas."""
    try:
        configuration = load_configuration(config)
    except ConfigurationError as error:
        _fail(error)
    set_up_logging(configuration.logging)
    path = str(kubeconfig) if kubeconfig is not None else None
    credentials = Credentials(lambda: load_access(kubeconfig=path))
    pod = GatewayPod(namespace, pod_name or socket.gethostname(), pod_uid or str(uuid.uuid4()), bound=bool(pod_uid))
    try:
        code = run(run_gateway(configuration, credentials=credentials, pod=pod))
    except (CredentialsError, TenantsError, SecretError, TokenizerError) as error:
        _fail(error)
    raise typer.Exit(code)


def _fail(error: Exception) -> NoReturn:
    typer.echo(f"bayplan gateway: {error}", err=True)
    raise typer.Exit(2) from None
