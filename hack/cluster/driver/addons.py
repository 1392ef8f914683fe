"""What every cluster is expected to have: DNS, a storage class, a class for system pods."""

import json
from pathlib import Path

from driver.images import archive_binary, load
from driver.layout import DNS_ADDRESS, Cluster, Settings, cache_root
from driver.node import PAUSE_IMAGE
from driver.processes import run

DNS_IMAGE = "localhost/enginewright/cluster-kube:1"

_COREFILE = """\
.:5353 {
    errors
    health :8080
    ready :8181
    kubernetes cluster.local in-addr.arpa
    cache 5
}
"""


def load_images(cluster: Cluster, binaries: Path, settings: Settings) -> None:
    """Import the pause and CoreDNS images into every node."""
    for name, reference in (("pause", PAUSE_IMAGE), ("kube", DNS_IMAGE)):
        archive = cache_root() / "cluster" / f"{binaries.name}-{name}.tar"
        if not archive.exists():
            archive_binary(binaries / name, reference, archive)
        for index in range(1, settings.nodes + 1):
            load(cluster.node(index), archive)


def apply(cluster: Cluster, kube: Path) -> None:
    """Apply DNS and the storage class; unchanged ones stay as they are."""
    text = "\n---\n".join(json.dumps(each) for each in [*_dns(), _storage_class()])
    run(
        kube, "kubectl", "--kubeconfig", cluster.kubeconfig,
        "apply", "--server-side", "--force-conflicts", "--filename", "-",
        input_text=text,
    )  # fmt: skip


def _storage_class() -> dict[str, object]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": "standard",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "enginewright.dev/local",
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def _dns() -> list[dict[str, object]]:
    meta = {"name": "coredns", "namespace": "kube-system"}
    labels = {"k8s-app": "kube-dns"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "system:coredns"},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["services", "namespaces"],
                    "verbs": ["list", "watch"],
                },
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": ["list", "watch"],
                },
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "system:coredns"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:coredns",
            },
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta,
            "data": {"Corefile": _COREFILE},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
            "spec": {
                "clusterIP": DNS_ADDRESS,
                "selector": labels,
                "ports": [
                    {"name": "dns", "port": 53, "targetPort": 5353, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "targetPort": 5353, "protocol": "TCP"},
                ],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {**meta, "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "serviceAccountName": "coredns",
                        "priorityClassName": "system-cluster-critical",
                        "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
                        "containers": [
                            {
                                "name": "coredns",
                                "image": DNS_IMAGE,
                                "imagePullPolicy": "Never",
                                "args": ["coredns", "-conf", "/etc/coredns/Corefile"],
                                "readinessProbe": {
                                    "httpGet": {"path": "/ready", "port": 8181},
                                    "periodSeconds": 1,
                                },
                                "resources": {"requests": {"cpu": "20m", "memory": "70Mi"}},
                                "securityContext": {
                                    "allowPrivilegeEscalation": False,
                                    "readOnlyRootFilesystem": True,
                                    "capabilities": {"drop": ["ALL"]},
                                },
                                "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
                            }
                        ],
                        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
                    },
                },
            },
        },
    ]
