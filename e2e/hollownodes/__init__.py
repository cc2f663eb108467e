"""Nodes without machines: real Node objects, kubelets that only report, engines that only answer. Hundreds fit in one
process, so what is measured is the operator and the control plane. The node agent is the thorough stand-in.
"""

from e2e.hollownodes.engines import HollowEngines
from e2e.hollownodes.kubelets import HollowKubelets
from e2e.hollownodes.nodes import NodeShape, create_nodes, node_manifest
from e2e.hollownodes.session import hollow_nodes

__all__ = ["HollowEngines", "HollowKubelets", "NodeShape", "create_nodes", "hollow_nodes", "node_manifest"]
