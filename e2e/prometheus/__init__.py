"""A real Prometheus server on loopback, from the Debian package; found on PATH, or unpacked into the cache once."""

from e2e.prometheus.program import MissingPrometheusError, ensure_prometheus
from e2e.prometheus.server import PrometheusServer, Target

__all__ = ["MissingPrometheusError", "PrometheusServer", "Target", "ensure_prometheus"]
