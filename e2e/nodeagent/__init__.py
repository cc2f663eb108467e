"""A kubelet stand-in: the nodes of an inventory, each bound pod as an engine simulator, and faults on request.

`python -m e2e.nodeagent --kubeconfig FILE --inventory FILE` runs it, `python -m e2e.nodeagent.control` speaks to it;
tests use `NodeAgent` inside their own process.
"""

from e2e.nodeagent.agent import AgentError, NodeAgent
from e2e.nodeagent.images import ContainerRequest, ImageError, ImageRule, build_pause, build_simulator, default_rules
from e2e.nodeagent.inventory import Inventory, InventoryError, load_inventory, parse_inventory
from e2e.nodeagent.node import NodeCondition
from e2e.nodeagent.processes import Launch
from e2e.nodeagent.settings import AgentSettings
from e2e.nodeagent.state import AgentState, ContainerStatus, NodeState, PodState

__all__ = [
    "AgentError",
    "AgentSettings",
    "AgentState",
    "ContainerRequest",
    "ContainerStatus",
    "ImageError",
    "ImageRule",
    "Inventory",
    "InventoryError",
    "Launch",
    "NodeAgent",
    "NodeCondition",
    "NodeState",
    "PodState",
    "build_pause",
    "build_simulator",
    "default_rules",
    "load_inventory",
    "parse_inventory",
]
