"""The command lines of the four programs, and the audit policy: a real control plane, lean enough for a laptop.

Admission, RBAC, quota, disruption, garbage collection and node lifecycle run as in any cluster. What differs from a
usual installation: no fsync, no leader election, nothing reconciles the `kubernetes` Service's endpoints, and the
clients of scheduler and controller-manager are allowed to be fast (their defaults throttle themselves to a few groups
a second).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.localcluster.ports import ADDRESS

NODE_MONITOR_GRACE_SECONDS = 50
"""Kubernetes' own default: how long a Node may be silent before it is NotReady and tainted unreachable."""
NODE_MONITOR_PERIOD_SECONDS = 5.0
GO_RUNTIME = {"GOGC": "200"}
"""Half the garbage collections: a tenth less processor time at the start, 60 MB more in the API server."""
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The loopback ports of one cluster."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the files of one cluster lie."""

    folder: Path

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def etcd_data(self) -> Path:
        return self.folder / "etcd"

    @property
    def audit_policy(self) -> Path:
        return self.folder / "audit-policy.json"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def component_kubeconfig(self, component: str) -> Path:
        return self.pki / f"{component}.kubeconfig"

    def certificate(self, name: str) -> str:
        return str(self.pki / f"{name}.crt")

    def key(self, name: str) -> str:
        return str(self.pki / f"{name}.key")


def etcd_command(binary: Path, layout: Layout, ports: Ports) -> list[str]:
    """Return etcd's command line."""
    client, peer = f"http://{ADDRESS}:{ports.etcd}", f"http://{ADDRESS}:{ports.etcd_peer}"
    return [
        str(binary),
        f"--data-dir={layout.etcd_data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver_command(binary: Path, layout: Layout, ports: Ports) -> list[str]:
    """Return the API server's command line."""
    return [
        str(binary),
        f"--etcd-servers=http://{ADDRESS}:{ports.etcd}",
        f"--secure-port={ports.apiserver}",
        f"--bind-address={ADDRESS}",
        f"--advertise-address={ADDRESS}",
        f"--cert-dir={layout.pki}",
        f"--tls-cert-file={layout.certificate('server')}",
        f"--tls-private-key-file={layout.key('server')}",
        f"--client-ca-file={layout.certificate('ca')}",
        # A separate authority: with the client CA here, 1.37 refuses to start unless names are restricted.
        f"--requestheader-client-ca-file={layout.certificate('front-proxy-ca')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--service-account-issuer=https://{ADDRESS}:{ports.apiserver}",
        f"--service-account-key-file={layout.certificate('service-account')}",
        f"--service-account-signing-key-file={layout.key('service-account')}",
        "--endpoint-reconciler-type=none",
        f"--audit-policy-file={layout.audit_policy}",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-format=json",
        # Never rotated: the checkers of a run read one file from its beginning.
        "--audit-log-maxsize=100000",
        "--profiling=false",
    ]


def controller_manager_command(
    binary: Path, layout: Layout, ports: Ports, *, node_monitor_grace_seconds: int
) -> list[str]:
    """Return the controller-manager's command line."""
    kubeconfig = layout.component_kubeconfig("kube-controller-manager")
    period = min(NODE_MONITOR_PERIOD_SECONDS, node_monitor_grace_seconds / 4)
    return [
        str(binary),
        *_controller_flags(kubeconfig, layout, port=ports.controller_manager, qps=500),
        f"--root-ca-file={layout.certificate('ca')}",
        f"--service-account-private-key-file={layout.key('service-account')}",
        "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={layout.certificate('ca')}",
        f"--cluster-signing-key-file={layout.key('ca')}",
        f"--node-monitor-grace-period={node_monitor_grace_seconds}s",
        f"--node-monitor-period={round(period * 1000)}ms",
        f"--node-startup-grace-period={max(node_monitor_grace_seconds, 10)}s",
    ]


def scheduler_command(binary: Path, layout: Layout, ports: Ports) -> list[str]:
    """Return the scheduler's command line."""
    kubeconfig = layout.component_kubeconfig("kube-scheduler")
    return [str(binary), *_controller_flags(kubeconfig, layout, port=ports.scheduler, qps=2000)]


def _controller_flags(kubeconfig: Path, layout: Layout, *, port: int, qps: int) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--client-ca-file={layout.certificate('ca')}",
        f"--requestheader-client-ca-file={layout.certificate('front-proxy-ca')}",
        f"--tls-cert-file={layout.certificate('server')}",
        f"--tls-private-key-file={layout.key('server')}",
        f"--bind-address={ADDRESS}",
        f"--secure-port={port}",
        "--leader-elect=false",
        f"--kube-api-qps={qps}",
        f"--kube-api-burst={2 * qps}",
        "--profiling=false",
    ]


def audit_policy() -> Mapping[str, Any]:
    """Return the audit policy: every request once, with bodies where a checker must see what was written.

    Pods carry request and response (the response is the object as stored), the writes of Bayplan's kinds, nodes and
    evictions carry their request; the rest says who did what to which object. Secrets and tokens never show a body.
    """
    writes = ["create", "update", "patch", "delete", "deletecollection"]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": True,
        "rules": [
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"]},
            {
                "level": "RequestResponse",
                "verbs": writes,
                "resources": [{"group": "", "resources": ["pods", "pods/binding", "pods/status"]}],
            },
            {
                "level": "Request",
                "verbs": writes,
                "resources": [
                    {"group": "bayplan.dev"},
                    {"group": "", "resources": ["nodes", "nodes/status", "pods/eviction", "services"]},
                ],
            },
            {"level": "Metadata"},
        ],
    }
