"""Objects that every cluster is expected to have: DNS, a default StorageClass, the metrics API."""

import base64
import string
from pathlib import Path

from driver.images import archive_binary, load
from driver.layout import DNS_ADDRESS, HUB_ADDRESS, METRICS_PORT, METRICS_USER, Cluster, Settings
from driver.node import PAUSE_IMAGE
from driver.processes import run

METRICS_API = "apiservice/v1beta1.metrics.k8s.io"
DNS_IMAGE = "localhost/enginewright/coredns:1"
_MANIFESTS = Path(__file__).resolve().parents[1] / "addons.yaml"


def load_images(cluster: Cluster, binaries: Path, settings: Settings) -> None:
    """Import the pause and CoreDNS images into every node."""
    for name, reference in (("pause", PAUSE_IMAGE), ("coredns", DNS_IMAGE)):
        archive = binaries / f"{name}.tar"
        if not archive.exists():
            archive_binary(binaries / name, reference, archive)
        for node in cluster.nodes(settings):
            load(node, archive)


def apply(cluster: Cluster, kube: Path) -> None:
    """Apply DNS, the StorageClass and the metrics API, by server-side apply."""
    run(
        kube, "kubectl", "--kubeconfig", cluster.kubeconfig,
        "apply", "--server-side", "--force-conflicts", "--filename", "-",
        input_text=manifests((cluster.pki / "ca.crt").read_bytes()),
    )  # fmt: skip


def manifests(authority: bytes) -> str:
    """Return the objects as YAML; `authority` is the certificate that metrics-server's is signed by."""
    return string.Template(_MANIFESTS.read_text().partition("\n")[2]).substitute(
        dns_address=DNS_ADDRESS,
        dns_image=DNS_IMAGE,
        hub_address=HUB_ADDRESS,
        metrics_port=METRICS_PORT,
        metrics_user=METRICS_USER,
        authority=base64.b64encode(authority).decode(),
    )
