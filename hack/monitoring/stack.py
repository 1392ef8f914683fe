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
from pathlib import Path
from string import Template
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
_FOLDER: Final = Path(__file__).parent

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
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
    *objects, config_map = _read("stack.yaml", namespace=namespace)
    names = {"namespace": namespace, "image": image, "digest": digest}
    programs = [_program(name, **names) for name in PORTS]
    deployments, services = zip(*programs, strict=True)
    return [*objects, config_map | {"data": config}, *deployments, *services]


def _read(file: str, **names: object) -> list[Object]:
    """Return the objects of a manifest, with these values for its names."""
    text = "".join(line for line in (_FOLDER / file).open() if not line.startswith("#"))
    return list(yaml.safe_load_all(Template(text).substitute(names)))


def _program(name: str, **names: str) -> list[Object]:
    """Return the Deployment and the Service of a program."""
    deployment, service = _read(
        "program.yaml", name=name, port=PORTS[name], ready=_READY[name], **names
    )
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["command"] = list(_COMMANDS[name])
    if name == "prometheus":
        pod |= {"automountServiceAccountToken": True, "serviceAccountName": name}
        fields = ("image", "imagePullPolicy", "resources", "securityContext")
        finder = {"name": "discovery"} | {field: container[field] for field in fields}
        command = ["discovery", f"--port={_DISCOVERY_PORT}"]
        pod["containers"].append(finder | {"command": command})
    return [deployment, service]


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
