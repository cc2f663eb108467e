"""The live cluster and the operator's configuration, imported only by whoever asks for them.

A plan on a saved inventory needs neither client nor configuration, and starts in half of the time without them.
"""

from datetime import datetime
from importlib import import_module
from pathlib import Path

from bayplan.cli.offline.document import ClusterDocument
from bayplan.planning.topology import DEFAULT_TOPOLOGY, Topology


class ClusterError(Exception):
    """Cluster or configuration cannot be read; the message says why."""


def read_topology(config: Path | None) -> Topology:
    """The topology of a configuration file, the default one without a file. Raises ClusterError."""
    if config is None:
        return DEFAULT_TOPOLOGY
    module = import_module("bayplan.cli.configuration")
    try:
        topology: Topology = module.load_configuration(config).topology
    except module.ConfigurationError as error:
        raise ClusterError(str(error)) from None
    return topology


def read_cluster(kubeconfig: Path | None, topology: Topology, now: datetime) -> ClusterDocument:
    """Read the cluster that a kubeconfig names. Raises ClusterError."""
    module = import_module("bayplan.cli.offline.live")
    try:
        document: ClusterDocument = module.read(kubeconfig, topology, now)
    except module.FAILURES as error:
        raise ClusterError(str(error)) from None
    return document
