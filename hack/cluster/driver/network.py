"""The cluster's own network: namespaces without a route to the outside.

    hub namespace (control plane)        node namespaces
      br0 192.0.2.1/24  ---- veth pair ----  eth0 192.0.2.1N/24, pods 198.18.N.0/24

The addresses are TEST-NET-1 and the benchmarking range (RFC 5737, RFC 2544), which are not routed.
Every command here is idempotent, so that `up` can continue an `up` that was interrupted.
"""

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from driver.layout import HUB_ADDRESS, POD_RANGE, Cluster, Node
from driver.processes import run

_NETNS = Path("/run/netns")
_FORWARD = "echo 1 > /proc/sys/net/ipv4/ip_forward"


def namespaces(cluster: Cluster) -> list[str]:
    """Return the names of the cluster's network namespaces, incomplete ones included."""
    if not _NETNS.is_dir():
        return []
    names = re.compile(rf"{re.escape(cluster.namespace)}(-\d+)?")
    return sorted(path.name for path in _NETNS.iterdir() if names.fullmatch(path.name))


def _is_mounted(namespace: str) -> bool:
    """Return False for the empty file that an interrupted `ip netns add` leaves."""
    try:
        return (_NETNS / namespace).stat().st_dev != _NETNS.stat().st_dev
    except FileNotFoundError:
        return False


def remove(cluster: Cluster) -> None:
    """Delete the cluster's namespaces, and the mount below them if the machine has no others."""
    for namespace in namespaces(cluster):
        if _is_mounted(namespace):
            run("ip", "netns", "delete", namespace)
        else:
            (_NETNS / namespace).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        if not any(_NETNS.iterdir()):
            if os.path.ismount(_NETNS):
                run("umount", _NETNS)
            _NETNS.rmdir()


def members(namespace: str) -> set[int]:
    """Return the pids of the processes in a network namespace."""
    if not _is_mounted(namespace):
        return set()
    return {int(pid) for pid in run("ip", "netns", "pids", namespace).split()}


def _inside(namespace: str, commands: Sequence[str]) -> None:
    script = "\n".join(["set -e", *commands])
    run("nsenter", f"--net={_NETNS / namespace}", "--", "sh", "-c", script)


def _create(namespace: str) -> None:
    if not _is_mounted(namespace):
        (_NETNS / namespace).unlink(missing_ok=True)
        run("ip", "netns", "add", namespace)


def create_hub(cluster: Cluster) -> None:
    """Create the control plane's namespace and the bridge with the API server's address."""
    _create(cluster.namespace)
    _inside(
        cluster.namespace,
        [
            "ip link set lo up",
            "ip link show br0 >/dev/null 2>&1 || ip link add br0 type bridge",
            f"ip address replace {HUB_ADDRESS}/24 dev br0",
            "ip link set br0 up",
            # Connections to other networks fail immediately instead of after a pod's timeout.
            "ip route replace unreachable default",
            _FORWARD,
        ],
    )


def create_node(node: Node, nodes: int) -> None:
    """Create a node's namespace, connected to the hub, with routes to the other nodes' pods."""
    hub, port = node.cluster.namespace, f"node{node.index}"
    pair = f"type veth peer name eth0 netns {node.namespace}"
    _create(node.namespace)
    _inside(
        hub,
        [
            f"ip link show {port} >/dev/null 2>&1 || ip link add {port} {pair}",
            f"ip link set {port} master br0 up",
            f"ip route replace {node.pod_range} via {node.address}",
        ],
    )
    others = [node.cluster.node(index) for index in range(1, nodes + 1) if index != node.index]
    _inside(
        node.namespace,
        [
            "ip link set lo up",
            f"ip address replace {node.address}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route replace default via {HUB_ADDRESS}",
            f"ip route replace unreachable {POD_RANGE}",  # addresses that no node has
            *(f"ip route replace {other.pod_range} via {other.address}" for other in others),
            _FORWARD,
        ],
    )


def pod_network(node: Node) -> dict[str, object]:
    """Return the CNI configuration of a node.

    Point-to-point rather than a bridge: all traffic is routed, so a Service's response between two
    pods of one node passes the same NAT as its request, even without br_netfilter.
    """
    return {
        "cniVersion": "0.4.0",
        "name": node.namespace,
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(node.folder / "ipam"),
                    "ranges": [[{"subnet": node.pod_range}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
