"""Objects that every cluster is expected to have: DNS, a default StorageClass, the metrics API."""

import base64
import json
from pathlib import Path

from driver.images import archive_binary, load
from driver.layout import (
    DNS_ADDRESS,
    HUB_ADDRESS,
    METRICS_PORT,
    METRICS_USER,
    Cluster,
    Settings,
)
from driver.node import PAUSE_IMAGE
from driver.processes import run

METRICS_API = "apiservice/v1beta1.metrics.k8s.io"
DNS_IMAGE = "localhost/enginewright/coredns:1"

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
    for name, reference in (("pause", PAUSE_IMAGE), ("coredns", DNS_IMAGE)):
        archive = binaries / f"{name}.tar"
        if not archive.exists():
            archive_binary(binaries / name, reference, archive)
        for index in range(1, settings.nodes + 1):
            load(cluster.node(index), archive)


def apply(cluster: Cluster, kube: Path) -> None:
    """Apply DNS, the StorageClass and the metrics API, by server-side apply."""
    objects = [*_dns(), _storage_class(), *_metrics(cluster)]
    text = "\n---\n".join(json.dumps(each) for each in objects)
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


def _metrics(cluster: Cluster) -> list[dict[str, object]]:
    """Return the objects that register metrics-server, a process at the hub, as the metrics API."""
    meta = {"name": "metrics-server", "namespace": "kube-system"}
    user = {"name": METRICS_USER}
    authority = base64.b64encode((cluster.pki / "ca.crt").read_bytes()).decode()
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": user,
            "rules": [
                {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
                {
                    "apiGroups": [""],
                    "resources": ["pods", "nodes"],
                    "verbs": ["get", "list", "watch"],
                },
            ],
        },
        _metrics_binding(user, "ClusterRole", METRICS_USER),
        _metrics_binding(
            {"name": f"{METRICS_USER}:review"}, "ClusterRole", "system:auth-delegator"
        ),
        _metrics_binding(meta, "Role", "extension-apiserver-authentication-reader"),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": METRICS_PORT}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**meta, "labels": {"kubernetes.io/service-name": "metrics-server"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [HUB_ADDRESS], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": METRICS_PORT, "protocol": "TCP"}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": METRICS_API.removeprefix("apiservice/")},
            "spec": {
                "group": "metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "service": meta,
                "caBundle": authority,
            },
        },
    ]


def _metrics_binding(meta: dict[str, str], kind: str, role: str) -> dict[str, object]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": f"{kind}Binding",
        "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": kind, "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": METRICS_USER}],
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
                                "args": ["-conf", "/etc/coredns/Corefile"],
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
