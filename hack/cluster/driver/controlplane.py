"""etcd, API server, controller manager and scheduler, in the cluster's own network namespace."""

import json
import secrets
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from driver.layout import (
    API_SERVICE_ADDRESS,
    HUB_ADDRESS,
    METRICS_PORT,
    METRICS_USER,
    SERVICE_RANGE,
    Cluster,
    Settings,
)
from driver.processes import Processes, run

# of the controller manager and the scheduler: with the default of 20 a second they are what thousands of pods wait for
_REQUEST_RATE = ("--kube-api-qps", "500", "--kube-api-burst", "1000")
# the default of both is 15 s, but tests and the demo wait for an autoscaler
AUTOSCALER_SYNC_SECONDS = 3
_METRICS_SECONDS = 10  # metrics-server's minimum

_SERVER_NAMES = (
    "127.0.0.1",
    "localhost",
    HUB_ADDRESS,
    API_SERVICE_ADDRESS,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
_INTERNAL = f"https://{HUB_ADDRESS}:6443"


def create_credentials(cluster: Cluster, kube: Path, settings: Settings) -> None:
    """Write certificates, static tokens and kubeconfigs, unless they exist."""
    tokens = cluster.pki / "tokens.csv"
    if tokens.exists():
        return
    cluster.pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    run(kube, "pki", cluster.pki, *_SERVER_NAMES)
    users = {
        "admin": ("admin", "system:masters"),
        "controller-manager": ("system:kube-controller-manager", ""),
        "scheduler": ("system:kube-scheduler", ""),
        "proxy": ("system:kube-proxy", "system:node-proxier"),
        "metrics-server": (METRICS_USER, ""),
    }
    for node in cluster.nodes(settings):
        users[node.name] = (f"system:node:{node.name}", "system:nodes")
    lines = []
    for name, (user, group) in users.items():
        token = secrets.token_hex(24)
        lines.append(f"{token},{user},{user}{f',{group}' if group else ''}")
        _write_kubeconfig(cluster, cluster.pki / f"{name}.kubeconfig", _INTERNAL, user, token)
        if name == "admin":
            address = f"https://127.0.0.1:{settings.port}"
            _write_kubeconfig(cluster, cluster.kubeconfig, address, cluster.name, token)
    tokens.write_text("\n".join(lines) + "\n")


def _write_kubeconfig(cluster: Cluster, path: Path, server: str, user: str, token: str) -> None:
    name = f"enginewright-{cluster.name}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [
            {
                "name": name,
                "cluster": {"server": server, "certificate-authority": str(cluster.pki / "ca.crt")},
            }
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
    }
    path.write_text(json.dumps(config, indent=1))  # JSON is YAML
    path.chmod(0o600)


def start(cluster: Cluster, kube: Path, settings: Settings, processes: Processes) -> None:
    """Start the processes that are not running, and wait until the API server is ready.

    Raises:
        ClusterError: The API server ended, or is not ready in time.
    """
    pki, enter = cluster.pki, [cluster.enter]
    processes.start(
        "etcd",
        [
            kube, "etcd", "--data-dir", cluster.folder / "etcd", "--unsafe-no-fsync",
            "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
            "--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "warn",
        ],
        enter=enter,
    )  # fmt: skip
    processes.start(
        "kube-apiserver",
        [
            kube, "kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379",
            "--bind-address", HUB_ADDRESS, "--advertise-address", HUB_ADDRESS, "--secure-port", "6443",
            "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
            "--allow-privileged", "--token-auth-file", pki / "tokens.csv", "--client-ca-file", pki / "ca.crt",
            "--tls-cert-file", pki / "apiserver.crt", "--tls-private-key-file", pki / "apiserver.key",
            "--kubelet-client-certificate", pki / "kubelet-client.crt",
            "--kubelet-client-key", pki / "kubelet-client.key",
            "--kubelet-preferred-address-types", "InternalIP",
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", pki / "service-accounts.key",
            "--service-account-signing-key-file", pki / "service-accounts.key",
            "--service-cluster-ip-range", SERVICE_RANGE,
            "--requestheader-client-ca-file", pki / "front-proxy-ca.crt",
            "--requestheader-allowed-names", "front-proxy-client",
            "--requestheader-username-headers", "X-Remote-User",
            "--requestheader-group-headers", "X-Remote-Group",
            "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
            "--proxy-client-cert-file", pki / "front-proxy-client.crt",
            "--proxy-client-key-file", pki / "front-proxy-client.key",
            # The hub has no kube-proxy: webhooks and aggregated APIs are reached at their endpoints.
            "--enable-aggregator-routing",
            "--cert-dir", cluster.folder / "apiserver",
        ],
        enter=enter,
    )  # fmt: skip
    socket = cluster.folder / "api.sock"
    if not processes.alive("api-inside"):
        socket.unlink(missing_ok=True)
    inside, outside = f"tcp:{HUB_ADDRESS}:6443", f"tcp:127.0.0.1:{settings.port}"
    processes.start("api-inside", [kube, "forward", f"unix:{socket}", inside], enter=enter)
    processes.start("api-outside", [kube, "forward", outside, f"unix:{socket}"])
    processes.wait("kube-apiserver", "readiness", lambda: ready(cluster, settings.port), 120)


def start_controllers(cluster: Cluster, kube: Path, processes: Processes) -> None:
    """Start the controller manager, the scheduler and the volume provisioner."""
    pki, enter = cluster.pki, [cluster.enter]
    processes.start(
        "kube-controller-manager",
        [
            kube, "kube-controller-manager", "--kubeconfig", pki / "controller-manager.kubeconfig",
            "--authentication-kubeconfig", pki / "controller-manager.kubeconfig",
            "--authorization-kubeconfig", pki / "controller-manager.kubeconfig",
            "--bind-address", "127.0.0.1", "--leader-elect=false", "--use-service-account-credentials",
            "--service-account-private-key-file", pki / "service-accounts.key",
            "--root-ca-file", pki / "ca.crt", "--cert-dir", cluster.folder / "controller-manager",
            "--node-monitor-grace-period", "20s",
            "--horizontal-pod-autoscaler-sync-period", f"{AUTOSCALER_SYNC_SECONDS}s", *_REQUEST_RATE,
        ],
        enter=enter,
    )  # fmt: skip
    processes.start(
        "kube-scheduler",
        [
            kube, "kube-scheduler", "--kubeconfig", pki / "scheduler.kubeconfig",
            "--authentication-kubeconfig", pki / "scheduler.kubeconfig",
            "--authorization-kubeconfig", pki / "scheduler.kubeconfig",
            "--bind-address", "127.0.0.1", "--leader-elect=false",
            "--cert-dir", cluster.folder / "scheduler", *_REQUEST_RATE,
        ],
        enter=enter,
    )  # fmt: skip
    processes.start(
        "provisioner",
        [kube, "provisioner", pki / "admin.kubeconfig", cluster.folder / "volumes"],
        enter=enter,
    )


def start_metrics(cluster: Cluster, kube: Path, processes: Processes) -> None:
    """Start metrics-server. The kubelets' certificates are self-signed, so it does not verify them."""
    pki, credentials = cluster.pki, cluster.pki / "metrics-server.kubeconfig"
    processes.start(
        "metrics-server",
        [
            kube, "metrics-server", "--kubeconfig", credentials,
            "--authentication-kubeconfig", credentials, "--authorization-kubeconfig", credentials,
            "--secure-port", str(METRICS_PORT), "--tls-cert-file", pki / "metrics-server.crt",
            "--tls-private-key-file", pki / "metrics-server.key",
            "--kubelet-insecure-tls", "--kubelet-preferred-address-types", "InternalIP",
            "--metric-resolution", f"{_METRICS_SECONDS}s", "--kubelet-request-timeout", "5s",
        ],
        enter=[cluster.enter],
    )  # fmt: skip


def ready(cluster: Cluster, port: int) -> bool:
    """Return whether the API server reports that it is ready."""
    token = json.loads(cluster.kubeconfig.read_text())["users"][0]["user"]["token"]
    context = ssl.create_default_context(cafile=str(cluster.pki / "ca.crt"))
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}/readyz", headers={"Authorization": f"Bearer {token}"}
    )
    # without the environment's proxy, as the server is on this machine
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(request, timeout=3) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
