"""Removes a cluster and what a crash left of it, identified by the cluster's marks (members.py).

Mounts are in the nodes' mount namespaces and end with their processes.
"""

import contextlib
import shutil
from pathlib import Path

from driver import cgroups, members, network
from driver.layout import Cluster
from driver.processes import Processes


def remove(cluster: Cluster) -> None:
    """Remove all processes, mounts, cgroups, network namespaces and files.

    Processes are killed: all data is removed anyway, and termination would take seconds each.

    Raises:
        ClusterError: A process did not exit, or a cgroup is still busy.
    """
    processes = Processes(cluster)
    for name in sorted(processes.names(), key=_stop_order):
        processes.stop(name, seconds=0)
    members.end_cluster(cluster)
    network.remove(cluster)
    cgroups.remove(cluster.cgroup_prefix)
    if cluster.folder.exists():
        shutil.rmtree(cluster.folder)
    with contextlib.suppress(OSError):  # not empty: it has another cluster's folder too
        cluster.folder.parent.rmdir()


def leftovers(cluster: Cluster) -> list[str]:
    """Return descriptions of all that exists of a cluster; empty if nothing does."""
    return [
        *(f"process {pid}" for pid in sorted(members.of_cluster(cluster))),
        *(f"mount {path}" for path in _mounts(cluster)),
        *(f"network namespace {name}" for name in network.namespaces(cluster)),
        *(f"cgroup {path}" for path in cgroups.existing(cluster.cgroup_prefix)),
        *([str(cluster.folder)] if cluster.folder.exists() else []),
    ]


def _stop_order(name: str) -> int:
    # processes that restart others stop first
    order = ("kubelet", "containerd")
    return next((rank for rank, prefix in enumerate(order) if name.startswith(prefix)), len(order))


def _mounts(cluster: Cluster) -> list[str]:
    prefix = f"{cluster.folder}/"
    mounts = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    return [mount for mount in mounts if mount.startswith(prefix)]
