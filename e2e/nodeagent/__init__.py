"""A kubelet stand-in: the nodes of an inventory, each bound pod as an engine simulator, and faults on request.

`python -m e2e.nodeagent --kubeconfig FILE --inventory FILE` runs it, `python -m e2e.nodeagent.control` speaks to it;
tests use `NodeAgent` of `e2e.nodeagent.agent` inside their own process.
"""
