#!/usr/bin/env python3
"""Finds pods for a Prometheus that was built without Kubernetes' service discovery, as Debian's is.

It answers GET /?namespace=NAME&namespace=NAME, without names for all namespaces, in the format of
Prometheus' HTTP service discovery, with the labels of Prometheus' own Kubernetes discovery (buildPod
in its discovery/kubernetes/pod.go), so that the same relabelings work. Standard library only: it
runs beside Prometheus, with the service account's token.
"""

import argparse
import ipaddress
import json
import os
import re
import ssl
import sys
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PREFIX: Final = "__meta_kubernetes_"
_SECONDS: Final = 10.0  # for the API server to answer

Json = dict[str, Any]


def targets(pods: list[Json]) -> list[Json]:
    """Return target groups of HTTP service discovery for pods from the API server, one per port."""
    groups = []
    for pod in pods:
        address = pod.get("status", {}).get("podIP")
        if not address:  # not started yet, or evicted
            continue
        labels = _pod_labels(pod)
        host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
        for container, init in _containers(pod):
            own = labels | _container_labels(pod, container, init=init)
            ports = container.get("ports") or ()
            if not ports:
                groups.append({"targets": [address], "labels": own})
            groups += [
                {
                    "targets": [f"{host}:{port['containerPort']}"],
                    "labels": own | _port_labels(port),
                }
                for port in ports
            ]
    return groups


def _pod_labels(pod: Json) -> dict[str, str]:
    metadata, status = pod["metadata"], pod["status"]
    ready = next(
        (item["status"] for item in status.get("conditions") or () if item["type"] == "Ready"),
        "unknown",
    )
    labels = {
        "namespace": metadata["namespace"],
        "pod_name": metadata["name"],
        "pod_uid": metadata.get("uid", ""),
        "pod_ip": status["podIP"],
        "pod_host_ip": status.get("hostIP", ""),
        "pod_phase": status.get("phase", ""),
        "pod_ready": ready.lower(),
        "pod_node_name": pod["spec"].get("nodeName", ""),
    }
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            labels |= {"pod_controller_kind": owner["kind"], "pod_controller_name": owner["name"]}
    for kind in ("label", "annotation"):
        for name, value in (metadata.get(f"{kind}s") or {}).items():
            sanitized = re.sub(r"[^a-zA-Z0-9_]", "_", name)
            labels |= {
                f"pod_{kind}_{sanitized}": value,
                f"pod_{kind}present_{sanitized}": "true",
            }
    return {f"{_PREFIX}{name}": value for name, value in labels.items()}


def _containers(pod: Json) -> list[tuple[Json, bool]]:
    """Return all containers, and whether each is an init container, which native sidecars are."""
    spec = pod["spec"]
    return [(item, False) for item in spec["containers"]] + [
        (item, True) for item in spec.get("initContainers") or ()
    ]


def _container_labels(pod: Json, container: Json, *, init: bool) -> dict[str, str]:
    statuses = pod["status"].get("initContainerStatuses" if init else "containerStatuses") or ()
    identity = next(
        (
            status.get("containerID", "")
            for status in statuses
            if status["name"] == container["name"]
        ),
        "",
    )
    labels = {
        "name": container["name"],
        "id": identity,
        "image": container.get("image", ""),
        "init": str(init).lower(),
    }
    return {f"{_PREFIX}pod_container_{name}": value for name, value in labels.items()}


def _port_labels(port: Json) -> dict[str, str]:
    labels = {
        "name": port.get("name", ""),
        "number": str(port["containerPort"]),
        "protocol": port.get("protocol", ""),
    }
    return {f"{_PREFIX}pod_container_port_{name}": value for name, value in labels.items()}


def list_pods(namespaces: list[str], server: str, account: Path) -> list[Json]:
    """Return the pods of some namespaces, or of all. Raises OSError if the API server fails."""
    context = ssl.create_default_context(cafile=str(account / "ca.crt"))
    token = (account / "token").read_text()  # read each time, as it is rotated
    paths = [f"/api/v1/namespaces/{name}/pods" for name in namespaces] or ["/api/v1/pods"]
    pods: list[Json] = []
    for path in paths:
        request = urllib.request.Request(
            f"{server}{path}?resourceVersion=0", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:
            pods += json.load(answer)["items"]
    return pods


def api_server() -> str:
    """Return the API server's URL from a pod's environment."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_GET(self) -> None:
        """List the pods without a cache: Prometheus requests them rarely enough."""
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        try:
            body: object = targets(list_pods(query.get("namespace", []), api_server(), ACCOUNT))
            code = 200
        except OSError as error:
            print(f"pods cannot be listed: {error}", file=sys.stderr, flush=True)
            body, code = {"error": str(error)}, 503
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    # the image has no typing_extensions for @override, and the argument has the base's name
    def log_message(self, format: str, *args: object) -> None:  # type: ignore[explicit-override]  # noqa: A002
        """Log no successful requests."""


def main() -> int:
    """Serve on the loopback interface until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        print("discovery: KUBERNETES_SERVICE_HOST is not set: run it in a pod", file=sys.stderr)
        return 1
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
