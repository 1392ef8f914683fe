"""The addresses of a cluster. Pure: every cluster has network namespaces of its own, so all are alike.

Ranges are those reserved for documentation (192.0.2.0/24) and benchmarking (198.18.0.0/15), which no
network that a user's machine talks to may use.
"""

SERVER = "192.0.2.1"
SERVER_PORT = 6443
NODE_PREFIX = 24
POD_RANGE = "198.18.0.0/16"
SERVICE_RANGE = "198.19.0.0/16"
KUBERNETES_SERVICE = "198.19.0.1"
DNS_SERVICE = "198.19.0.10"
DOMAIN = "cluster.local"
METRICS_SERVER_PORT = 4443


def node_address(index: int) -> str:
    """The address of node INDEX (from 1) on the cluster's bridge."""
    return f"192.0.2.{10 + index}"


def pod_range(index: int) -> str:
    """The addresses of the pods of node INDEX."""
    return f"198.18.{index}.0/24"


def server_hosts() -> list[str]:
    """Every name and address under which the API server is reached."""
    service = "kubernetes.default.svc"
    names = ["localhost", "kubernetes", "kubernetes.default", service, f"{service}.{DOMAIN}"]
    return [*names, "127.0.0.1", SERVER, KUBERNETES_SERVICE]


def server_commands() -> list[str]:
    """Commands that give the control plane's namespace its bridge; `up` runs them once.

    Nothing outside has a route in or out. Packets to other networks are refused at once instead of
    dropped, so that a pod which asks for the internet fails in milliseconds.
    """
    return [
        "ip link set lo up",
        "ip link add nodes type bridge",
        f"ip address add {SERVER}/{NODE_PREFIX} dev nodes",
        "ip link set nodes up",
        "ip route add unreachable default",
    ]


def attach_commands(index: int, pid: int) -> list[str]:
    """Commands in the control plane's namespace that plug node INDEX, whose first process is PID, in."""
    link = f"node{index}"
    return [
        f"! ip link show {link} >/dev/null 2>&1 || ip link delete {link}",
        f"ip link add {link} type veth peer name eth0 netns {pid}",
        f"ip link set {link} master nodes up",
        f"ip route replace {pod_range(index)} via {node_address(index)}",
    ]


def node_commands(index: int) -> list[str]:
    """Commands in a node's namespace once it is plugged in."""
    return [
        "ip link set lo up",
        f"ip address replace {node_address(index)}/{NODE_PREFIX} dev eth0",
        "ip link set eth0 up",
        "ip route replace unreachable default",
        "sysctl -q -w net.ipv4.ip_forward=1",
    ]


def peer_commands(index: int, nodes: int) -> list[str]:
    """Commands in node INDEX's namespace that route to the pods of the other nodes."""
    return [
        f"ip route replace {pod_range(other)} via {node_address(other)}"
        for other in range(1, nodes + 1)
        if other != index
    ]
