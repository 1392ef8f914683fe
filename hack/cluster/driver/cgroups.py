"""The parent cgroups of the nodes' pods, on cgroup v1 and v2."""

import os
import time
from pathlib import Path

from driver.errors import ClusterError

_ROOT = Path("/sys/fs/cgroup")


def unified() -> bool:
    """Tell whether the machine has cgroup v2 only."""
    return (_ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Return the mount points of every hierarchy that carries cgroups."""
    if unified():
        return [_ROOT]
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if kind in {"cgroup", "cgroup2"} and Path(mount).is_dir():
            found.append(Path(mount))
    return found


def create(name: str) -> None:
    """Make a cgroup in every hierarchy, ready for children.

    Raises:
        ClusterError: A v2 hierarchy does not hand on what a kubelet needs.
    """
    for root in hierarchies():
        folder = root / name
        folder.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # empty at birth on v1: no task may enter
            if not unified() and (folder / file).exists():
                (folder / file).write_text((root / file).read_text())
        if unified():
            _hand_on(root)
            _hand_on(folder)


def _hand_on(folder: Path) -> None:
    """Give a v2 cgroup's children every controller that it has, one by one: some may be refused.

    Raises:
        ClusterError: One is refused that a kubelet cannot do without.
    """
    for controller in (folder / "cgroup.controllers").read_text().split():
        try:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            if controller in {"cpu", "memory", "pids"}:
                raise ClusterError(
                    f"{folder} does not hand the cgroup controller {controller} on "
                    f"({error.strerror}); run on the machine itself, or move the processes of this "
                    "container out of its root cgroup"
                ) from None


def existing(name: str, *, exact: bool = False) -> list[Path]:
    """Return the folders of a cgroup, or of all that are named `name` and a number."""
    pattern = name if exact else f"{name}-[0-9]*"
    return [each for root in hierarchies() for each in root.glob(pattern) if each.is_dir()]


def pids(top: Path) -> set[int]:
    """Return the pids in a cgroup and in those below it."""
    found: set[int] = set()
    for procs in top.rglob("cgroup.procs"):
        try:
            found.update(int(line) for line in procs.read_text().split())
        except OSError:  # removed meanwhile
            continue
    return found


def remove(prefix: str, seconds: float = 10) -> None:
    """Remove all cgroups whose name begins with `prefix`.

    Raises:
        ClusterError: One stays busy.
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
            raise ClusterError(f"the cgroup {folders[0]} stays busy; run `down` again")
        time.sleep(0.05)
