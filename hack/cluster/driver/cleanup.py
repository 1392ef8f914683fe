"""Takes a cluster down and finds what a crash left, by the cluster's own marks (see members.py).

Mounts are in the nodes' mount namespaces and go with their processes.
"""

import contextlib
import shutil
from pathlib import Path

from driver import cgroups, members, network
from driver.layout import Cluster
from driver.processes import Processes


def remove(cluster: Cluster) -> None:
    """Leave no process, mount, cgroup, network namespace or file behind.

    Nothing is ended politely: all data goes anyway, and politeness would cost seconds a process.

    Raises:
        ClusterError: Something stays busy.
    """
    processes = Processes(cluster)
    for name in sorted(processes.names(), key=_stop_order):
        processes.stop(name, seconds=0)
    members.end_cluster(cluster)
    network.remove(cluster)
    cgroups.remove(cluster.cgroup_prefix)
    if cluster.folder.exists():
        shutil.rmtree(cluster.folder)
    with contextlib.suppress(OSError):  # another cluster's folder lies there too
        cluster.folder.parent.rmdir()


def leftovers(cluster: Cluster) -> list[str]:
    """Return what there is of a cluster, as text; empty when nothing is."""
    found = [f"process {pid}" for pid in sorted(members.of_cluster(cluster))]
    found += [f"mount {path}" for path in _mounts(cluster)]
    found += [f"network namespace {name}" for name in network.namespaces(cluster)]
    found += [f"cgroup {path}" for path in cgroups.existing(cluster.cgroup_prefix)]
    return [*found, str(cluster.folder)] if cluster.folder.exists() else found


def _stop_order(name: str) -> int:
    # What starts others goes first: else it starts again what is ended after it.
    order = ("kubelet", "containerd")
    return next((rank for rank, prefix in enumerate(order) if name.startswith(prefix)), len(order))


def _mounts(cluster: Cluster) -> list[str]:
    prefix = f"{cluster.folder}/"
    mounts = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    return [mount for mount in mounts if mount.startswith(prefix)]
