"""Whole stories on a local cluster: control plane, node agent, operator, engines."""
