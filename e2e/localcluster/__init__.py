"""A real Kubernetes control plane without containers: built once from Go modules, started in seconds."""

from e2e.localcluster.client import JSON_PATCH, MERGE_PATCH, ApiError, KubeApi
from e2e.localcluster.cluster import Cluster, ClusterError
from e2e.localcluster.session import local_cluster, local_cluster_sync

__all__ = [
    "JSON_PATCH",
    "MERGE_PATCH",
    "ApiError",
    "Cluster",
    "ClusterError",
    "KubeApi",
    "local_cluster",
    "local_cluster_sync",
]
