"""The parent cgroups of the nodes' pods, on cgroup v1 and v2."""

import os
import time
from pathlib import Path

from driver.errors import ClusterError

_ROOT = Path("/sys/fs/cgroup")


def is_unified() -> bool:
    """Return whether the machine has cgroup v2 only."""
    return (_ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Return the mount points of all cgroup hierarchies."""
    if is_unified():
        return [_ROOT]
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    return [
        Path(mount)
        for mount, kind in mounts
        if kind in {"cgroup", "cgroup2"} and Path(mount).is_dir()
    ]


def create(name: str) -> None:
    """Create a cgroup in every hierarchy, ready for children.

    Raises:
        ClusterError: A v2 hierarchy does not delegate a controller that a kubelet needs.
    """
    for root in hierarchies():
        folder = root / name
        folder.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # initially empty on v1: no task may join
            if not is_unified() and (folder / file).exists():
                (folder / file).write_text((root / file).read_text())
        if is_unified():
            _delegate(root)
            _delegate(folder)


def _delegate(folder: Path) -> None:
    """Enable all controllers of a v2 cgroup for its children, one by one: some may be rejected.

    Raises:
        ClusterError: A controller that a kubelet requires was rejected.
    """
    for controller in (folder / "cgroup.controllers").read_text().split():
        try:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            if controller in {"cpu", "memory", "pids"}:
                raise ClusterError(
                    f"{folder} cannot delegate the cgroup controller {controller} "
                    f"({error.strerror}); run on the machine itself, or move the processes of this "
                    "container out of its root cgroup"
                ) from None


def existing(name: str, *, exact: bool = False) -> list[Path]:
    """Return the folders of a cgroup, or of all that are named `name` with a number."""
    pattern = name if exact else f"{name}-[0-9]*"
    return [path for root in hierarchies() for path in root.glob(pattern) if path.is_dir()]


def pids(top: Path) -> set[int]:
    """Return the pids in a cgroup and in those below it; any of them may be removed meanwhile."""
    members: set[int] = set()
    for folder, _, _ in os.walk(top):  # skips what it cannot list, unlike `rglob`
        try:
            lines = (Path(folder) / "cgroup.procs").read_text().split()
        except OSError:
            continue
        members.update(int(line) for line in lines)
    return members


def remove(prefix: str, seconds: float = 10) -> None:
    """Remove all cgroups whose name begins with `prefix`.

    Raises:
        ClusterError: One still has processes after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while folders := existing(prefix):
        for top in folders:
            for folder, _, _ in os.walk(top, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    continue
        if time.monotonic() > deadline:
            raise ClusterError(f"the cgroup {folders[0]} is still busy; run `down` again")
        time.sleep(0.05)
