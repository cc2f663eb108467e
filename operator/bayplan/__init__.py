"""Bayplan: a Kubernetes operator that fits, places, warms, scales and replaces LLM inference engines.

The layers, lowest first, are `api`, `planning`, `simulation`, `telemetry` and `cluster`, `reconcile` and `gateway`,
`cli`; each may import only from those before it (import-linter enforces it).
"""
