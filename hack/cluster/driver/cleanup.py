"""Takes a cluster down and finds what a crash left, by the cluster's own marks alone.

The marks: pids with their start times, membership of the cluster's cgroups or network namespaces,
and shims that were started for a socket in the cluster's folder. Mounts are in the nodes' mount
namespaces and go with their processes.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from driver import cgroups, node
from driver.errors import ClusterError
from driver.layout import Cluster
from driver.processes import Processes, end, run

_NETNS = Path("/run/netns")


def remove(cluster: Cluster) -> None:
    """Leave no process, mount, cgroup, network namespace or file behind.

    Raises:
        ClusterError: Something stays busy.
    """
    processes = Processes(cluster)
    # Kubelets first: else they start again what is ended below.
    for name in sorted(processes.names(), key=_stop_order):
        processes.stop(name, seconds=5)
    for _ in range(20):  # a parent may fork while its children are being ended
        end(_members(cluster), 0)
        if not _members(cluster):
            break
    if left := _members(cluster):
        raise ClusterError(f"processes {sorted(left)} do not end; run `down` again")
    for namespace in _namespaces(cluster):
        run("ip", "netns", "delete", namespace)
    cgroups.remove(cluster.cgroup_prefix)
    if cluster.folder.exists():
        shutil.rmtree(cluster.folder)
    for folder in (cluster.folder.parent, *node.FIXED_PLACES):
        with contextlib.suppress(OSError):  # in use by another cluster, or by the machine
            os.rmdir(folder)


def leftovers(cluster: Cluster) -> list[str]:
    """Return what there is of a cluster, in words; empty when nothing is."""
    found = [f"process {pid}" for pid in sorted(_members(cluster))]
    found += [f"mount {path}" for path in _mounts(cluster)]
    found += [f"network namespace {name}" for name in _namespaces(cluster)]
    return [*found, str(cluster.folder)] if cluster.folder.exists() else found


def _stop_order(name: str) -> int:
    order = ("kubelet", "device-plugin", "kube-proxy", "provisioner", "containerd", "api-outside")
    return next((rank for rank, prefix in enumerate(order) if name.startswith(prefix)), len(order))


def _namespaces(cluster: Cluster) -> list[str]:
    if not _NETNS.is_dir():
        return []
    wanted = [cluster.namespace]
    wanted += [
        path.name
        for path in _NETNS.iterdir()
        if path.name.startswith(f"{cluster.namespace}-")
        and path.name.removeprefix(f"{cluster.namespace}-").isdigit()
    ]
    return [name for name in wanted if (_NETNS / name).exists()]


def _members(cluster: Cluster) -> set[int]:
    pids = cgroups.members(cluster.cgroup_prefix)
    for namespace in _namespaces(cluster):
        pids.update(int(pid) for pid in run("ip", "netns", "pids", namespace).split())
    pids.update(_shims(cluster))
    pids.discard(os.getpid())
    return pids


def _shims(cluster: Cluster) -> Iterator[int]:
    prefix = f"{cluster.folder}/".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if not arguments[0].endswith(b"containerd-shim-runc-v2") or b"-address" not in arguments:
            continue
        if arguments[arguments.index(b"-address") + 1].startswith(prefix):
            yield int(entry.name)


def _mounts(cluster: Cluster) -> list[str]:
    prefix = f"{cluster.folder}/"
    mounts = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    return [mount for mount in mounts if mount.startswith(prefix)]
