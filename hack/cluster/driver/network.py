"""The cluster's own network: namespaces with no route out, so that nothing reaches anything else.

    hub namespace (control plane)        node namespaces
      br0 192.0.2.1/24  ---- veth pair ----  eth0 192.0.2.1N/24, pods 198.18.N.0/24

The addresses are TEST-NET-1 and the benchmarking range (RFC 5737, RFC 2544): nobody routes them.
"""

from pathlib import Path

from driver.layout import HUB_ADDRESS, Cluster, Node
from driver.processes import run


def exists(namespace: str) -> bool:
    """Tell whether a network namespace is there."""
    return Path(f"/run/netns/{namespace}").exists()


def _inside(namespace: str, *command: str) -> None:
    run("nsenter", f"--net=/run/netns/{namespace}", "--", *command)


def _sysctl(namespace: str, name: str, value: str) -> None:
    _inside(namespace, "sh", "-c", f"echo {value} > /proc/sys/{name}")


def _create(namespace: str) -> None:
    run("ip", "netns", "add", namespace)
    _inside(namespace, "ip", "link", "set", "lo", "up")
    _sysctl(namespace, "net/ipv4/ip_forward", "1")


def create_hub(cluster: Cluster) -> None:
    """Make the control plane's namespace with the bridge that carries the API server's address."""
    if exists(cluster.namespace):
        return
    _create(cluster.namespace)
    _inside(cluster.namespace, "ip", "link", "add", "br0", "type", "bridge")
    _inside(cluster.namespace, "ip", "address", "add", f"{HUB_ADDRESS}/24", "dev", "br0")
    _inside(cluster.namespace, "ip", "link", "set", "br0", "up")
    # The API server finds its own address by the default route; it leads nowhere.
    _inside(cluster.namespace, "ip", "route", "add", "default", "dev", "br0")


def create_node(node: Node, nodes: int) -> None:
    """Make a node's namespace, joined to the hub, with routes to the other nodes' pods."""
    if exists(node.namespace):
        return
    _create(node.namespace)
    hub = node.cluster.namespace
    port = f"node{node.index}"
    run(
        "ip", "link", "add", port, "netns", hub,
        "type", "veth", "peer", "name", "eth0", "netns", node.namespace,
    )  # fmt: skip
    _inside(hub, "ip", "link", "set", port, "master", "br0", "up")
    _inside(hub, "ip", "route", "replace", node.pod_range, "via", node.address)
    _inside(node.namespace, "ip", "address", "add", f"{node.address}/24", "dev", "eth0")
    _inside(node.namespace, "ip", "link", "set", "eth0", "up")
    _inside(node.namespace, "ip", "route", "add", "default", "via", HUB_ADDRESS)
    for index in range(1, nodes + 1):
        if index != node.index:
            other = node.cluster.node(index)
            _inside(node.namespace, "ip", "route", "add", other.pod_range, "via", other.address)


def pod_network(node: Node) -> dict[str, object]:
    """Return the CNI configuration of a node.

    Point-to-point rather than a bridge: all traffic is routed, so a Service's answer between two
    pods of one node passes the same translation as its request, also without br_netfilter.
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
