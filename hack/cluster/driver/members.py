"""Finds a cluster's processes by its marks, even those whose pids were not recorded.

The marks: membership of the cluster's cgroups or network namespaces, and, for the programs of a
cluster, an argument inside the cluster's folder. A program's name alone never suffices.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from driver import cgroups, network
from driver.errors import ClusterError
from driver.layout import Cluster, Node
from driver.processes import end

_END_SECONDS: Final = 60.0  # for which processes are killed
_PROGRAMS = {"containerd", "containerd-shim-runc-v2", "kube", "nsenter", "pause", "runc", "unshare"}


def of_cluster(cluster: Cluster) -> set[int]:
    """Return the pids of all processes of a cluster."""
    pids = {pid for path in cgroups.existing(cluster.cgroup_prefix) for pid in cgroups.pids(path)}
    for namespace in network.namespaces(cluster):
        pids |= network.members(namespace)
    return _others(pids | _find_programs_of(cluster.folder))


def of_node(node: Node) -> set[int]:
    """Return the pids of all processes of one node: its programs and its pods."""
    pids = {pid for path in cgroups.existing(node.cgroup, exact=True) for pid in cgroups.pids(path)}
    return _others(pids | network.members(node.namespace) | _find_programs_of(node.folder))


def end_node(node: Node) -> None:
    """Kill all processes of a node, as a power cut would: none can shut down.

    Raises:
        ClusterError: A process does not exit.
    """
    _end(lambda: of_node(node))


def end_cluster(cluster: Cluster) -> None:
    """Kill all processes of a cluster.

    Raises:
        ClusterError: A process does not exit.
    """
    _end(lambda: of_cluster(cluster))


def _end(find: Callable[[], set[int]]) -> None:
    deadline = time.monotonic() + _END_SECONDS
    # A parent may fork while its children are being killed, and threads outlive the leader of their group
    while pids := find():
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {sorted(pids)} do not exit; try again")
        end(pids, 0)
        time.sleep(0.05)


def _others(pids: set[int]) -> set[int]:
    return pids - {os.getpid()}


def _find_programs_of(folder: Path) -> set[int]:
    started = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if is_marked(arguments, folder):
            started.add(int(entry.name))
    return started


def is_marked(arguments: list[str], folder: Path) -> bool:
    """Return whether a command line is that of a cluster program started for `folder`."""
    program = os.path.basename(arguments[0])
    if program not in _PROGRAMS or arguments[1:2] in (["kubectl"], ["helm"]):
        return False
    prefix = f"{folder}/"
    return any(
        argument.startswith(prefix) or f":{prefix}" in argument or f"={prefix}" in argument
        for argument in arguments[1:]
    )
