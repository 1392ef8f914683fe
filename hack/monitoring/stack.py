"""Prints the objects of a small Prometheus and Alertmanager in a cluster, for tests and demo.

Both are Debian's. Their targets and alerts are converted from the chart's PodMonitors and
PrometheusRule, so they are what users install. Not for production: intervals are a few seconds, and
the storage is deleted with the pod.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml
from typing_extensions import override

from hack.monitoring.config import RenderError, chart_objects, files
from hack.monitoring.convert import ConvertError

PORTS: Final = {"prometheus": 9090, "alertmanager": 9093, "webhook": 8080}  # by Service
_COMMANDS: Final = {
    "prometheus": (
        "prometheus",
        "--config.file=/config/prometheus.yml",
        "--storage.tsdb.path=/data",
        "--storage.tsdb.retention.time=1d",
    ),
    "alertmanager": (
        "prometheus-alertmanager",
        "--config.file=/config/alertmanager.yml",
        "--storage.path=/data",
        "--cluster.listen-address=",  # disables clustering: there is a single replica
    ),
    "webhook": ("webhook", f"--port={PORTS['webhook']}"),
}
_DISCOVERY_PORT: Final = 9099  # beside Prometheus, on its loopback interface
_READY: Final = {"prometheus": "/-/ready", "alertmanager": "/-/ready", "webhook": "/"}
_USER: Final = 65532  # the image's own
_ACCOUNT: Final = "prometheus"
_CONFIG: Final = "monitoring"  # name of the ConfigMap

Object = dict[str, Any]


def stack(namespace: str, image: str, chart: Sequence[Object]) -> list[Object]:
    """Return all objects; `chart` are the rendered objects of the chart.

    Raises:
        ConvertError: The chart's objects have a field that the converter does not support.
    """
    config = files(
        chart,
        alertmanager=f"alertmanager:{PORTS['alertmanager']}",
        webhook=f"http://webhook:{PORTS['webhook']}/",
        discovery=f"http://127.0.0.1:{_DISCOVERY_PORT}/",
        folder="/config",
    )
    config_map = _named("v1", "ConfigMap", _CONFIG, namespace) | {"data": config}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
    return [
        _namespace(namespace),
        *_account(namespace),
        config_map,
        *(_deployment(name, namespace, image, digest) for name in PORTS),
        *(_service(name, namespace) for name in PORTS),
    ]


def _named(version: str, kind: str, name: str, namespace: str | None) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _namespace(name: str) -> Object:
    namespace = _named("v1", "Namespace", name, None)
    namespace["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    return namespace


def _account(namespace: str) -> list[Object]:
    """Return Prometheus' service account, which may only list and watch pods in all namespaces."""
    group = "rbac.authorization.k8s.io"
    role = f"{namespace}-{_ACCOUNT}"  # cluster-scoped, so it must not clash
    return [
        _named("v1", "ServiceAccount", _ACCOUNT, namespace),
        _named(f"{group}/v1", "ClusterRole", role, None)
        | {
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
        },
        _named(f"{group}/v1", "ClusterRoleBinding", role, None)
        | {
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": namespace}],
        },
    ]


def _deployment(name: str, namespace: str, image: str, config_digest: str) -> Object:
    labels = {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/part-of": "enginewright-monitoring",
    }
    container = _container(name, image, _COMMANDS[name]) | {
        "ports": [{"name": "http", "containerPort": PORTS[name]}],
        "readinessProbe": {"httpGet": {"path": _READY[name], "port": "http"}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "data", "mountPath": "/data"},
        ],
    }
    finds_pods = name == "prometheus"
    finder = _container("discovery", image, ("discovery", f"--port={_DISCOVERY_PORT}"))
    pod = {
        "automountServiceAccountToken": finds_pods,
        **({"serviceAccountName": _ACCOUNT} if finds_pods else {}),
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container, finder] if finds_pods else [container],
        "volumes": [
            {"name": "config", "configMap": {"name": _CONFIG}},
            {"name": "data", "emptyDir": {}},
        ],
    }
    annotations = {"enginewright.dev/config": config_digest}  # a change replaces the pod
    return _named("apps/v1", "Deployment", name, namespace) | {
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        }
    }


def _container(name: str, image: str, command: Sequence[str]) -> Object:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "resources": {
            "requests": {"cpu": "20m", "memory": "64Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _service(name: str, namespace: str) -> Object:
    return _named("v1", "Service", name, namespace) | {
        "spec": {
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "http", "port": PORTS[name], "targetPort": "http"}],
        }
    }


class _Dumper(yaml.SafeDumper):
    """Writes no YAML aliases, to keep the output readable."""

    @override
    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Represent a text of several lines as a literal block."""
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return the objects as documents of one YAML stream."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=120)


def main() -> int:
    """Print the objects."""
    parser = argparse.ArgumentParser(prog="hack/monitoring/stack", description=__doc__)
    parser.add_argument("--namespace", required=True, help="namespace of the objects")
    parser.add_argument("--image", required=True, help="image `monitoring` of hack/images")
    arguments = parser.parse_args()
    try:
        print(to_yaml(stack(arguments.namespace, arguments.image, chart_objects())), end="")
    except (RenderError, ConvertError) as error:
        print(f"stack: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
