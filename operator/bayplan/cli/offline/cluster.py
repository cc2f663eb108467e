"""The live cluster and the operator's configuration, imported only by whoever asks for them.

A plan on a saved inventory needs neither client nor configuration, and starts in half of the time without them.
"""

from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from pathlib import Path

from bayplan.cli.offline.document import ClusterDocument
from bayplan.planning.memory.gpucatalogue import Gpu
from bayplan.planning.placement.topology import DEFAULT_TOPOLOGY, Topology


class ClusterError(Exception):
    """Cluster or configuration cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Site:
    """What the operator's configuration says of nodes."""

    topology: Topology = field(default_factory=lambda: DEFAULT_TOPOLOGY)
    gpus: tuple[Gpu, ...] = ()
    """GPU products whose figures it states."""


def read_site(config: Path | None) -> Site:
    """What a configuration file says, the defaults without a file. Raises ClusterError."""
    if config is None:
        return Site()
    module = import_module("bayplan.cli.configuration")
    try:
        configuration = module.load_configuration(config)
    except module.ConfigurationError as error:
        raise ClusterError(str(error)) from None
    return Site(configuration.topology, configuration.stated_gpus())


def read_cluster(kubeconfig: Path | None, topology: Topology, now: datetime) -> ClusterDocument:
    """Read the cluster that a kubeconfig names. Raises ClusterError."""
    module = import_module("bayplan.cli.offline.live")
    try:
        document: ClusterDocument = module.read(kubeconfig, topology, now)
    except module.FAILURES as error:
        raise ClusterError(str(error)) from None
    return document
