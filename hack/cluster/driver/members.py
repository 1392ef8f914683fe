"""Finds a cluster's processes by its own marks alone, whatever started them and whoever lost them.

The marks: membership of the cluster's cgroups or network namespaces, and, for programs that a
cluster consists of, an argument that lies in the cluster's folder. Never a name alone.
"""

import os
from collections.abc import Callable
from pathlib import Path

from driver import cgroups, network
from driver.errors import ClusterError
from driver.layout import Cluster, Node
from driver.processes import end

_PROGRAMS = {"containerd", "containerd-shim-runc-v2", "kube", "nsenter", "pause", "runc", "unshare"}


def of_cluster(cluster: Cluster) -> set[int]:
    """Return the pids of all that belongs to a cluster."""
    pids = {pid for path in cgroups.existing(cluster.cgroup_prefix) for pid in cgroups.pids(path)}
    for namespace in network.namespaces(cluster):
        pids |= network.members(namespace)
    return _others(pids | _started_for(cluster.folder))


def of_node(node: Node) -> set[int]:
    """Return the pids of all that belongs to one node: its programs, its pods."""
    pids = {pid for path in cgroups.existing(node.cgroup, exact=True) for pid in cgroups.pids(path)}
    return _others(pids | network.members(node.namespace) | _started_for(node.folder))


def end_node(node: Node) -> None:
    """Cut a node's power: nothing of it has time to say good-bye.

    Raises:
        ClusterError: A process does not end.
    """
    _end(lambda: of_node(node))


def end_cluster(cluster: Cluster) -> None:
    """End all that belongs to a cluster, at once.

    Raises:
        ClusterError: A process does not end.
    """
    _end(lambda: of_cluster(cluster))


def _end(find: Callable[[], set[int]]) -> None:
    pids: set[int] = set()
    for _ in range(20):  # a parent may fork while its children are being ended
        pids = find()
        if not pids:
            return
        end(pids, 0)
    raise ClusterError(f"processes {sorted(pids)} do not end; try again")


def _others(pids: set[int]) -> set[int]:
    return pids - {os.getpid()}


def _started_for(folder: Path) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if is_marked(arguments, folder):
            found.add(int(entry.name))
    return found


def is_marked(arguments: list[str], folder: Path) -> bool:
    """Tell whether a command line is a cluster program's that was started for `folder`."""
    program = os.path.basename(arguments[0])
    if program not in _PROGRAMS or arguments[1:2] in (["kubectl"], ["helm"]):
        return False
    prefix = f"{folder}/"
    return any(
        argument.startswith(prefix) or f":{prefix}" in argument or f"={prefix}" in argument
        for argument in arguments[1:]
    )
