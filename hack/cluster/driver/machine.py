"""The machine's prerequisites: checks before anything is started, and packages to install."""

import os
import platform
import shutil
import socket
from pathlib import Path

from driver.errors import ClusterError
from driver.layout import STATE_ROOT, cache_root
from driver.processes import run
from driver.progress import step

MINIMUM_DISK_GIB = 8
MINIMUM_MEMORY_GIB = 3

_PROGRAMS = {  # program -> Debian package
    "containerd": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "socat": "socat",
}
_CNI_FOLDER = Path("/usr/lib/cni")
_INSTALL = Path(__file__).resolve().parents[2] / "packages"


def require_linux_root() -> None:
    """Fail on a machine or for a user that cannot run the cluster.

    Raises:
        ClusterError: Not Linux, or not root.
    """
    if platform.system() != "Linux":
        raise ClusterError(
            "the local cluster needs Linux (network namespaces, cgroups); "
            "use `make demo CONTEXT=<kube context>` with your own cluster instead"
        )
    if os.geteuid() != 0:
        raise ClusterError("the local cluster needs root; run it with sudo")


def require_resources() -> None:
    """Fail where free disk or memory would not suffice for the cluster.

    Raises:
        ClusterError: There is not enough disk or memory.
    """
    for folder in (STATE_ROOT, cache_root()):
        free = shutil.disk_usage(_existing(folder)).free / 2**30
        if free < MINIMUM_DISK_GIB:
            raise ClusterError(
                f"{folder} has {free:.1f} GiB of disk free, the cluster needs {MINIMUM_DISK_GIB}; "
                "free disk space"
            )
    available = _available_memory_gib()
    if available < MINIMUM_MEMORY_GIB:
        raise ClusterError(
            f"{available:.1f} GiB of memory are available, the cluster needs {MINIMUM_MEMORY_GIB}; "
            "stop other programs"
        )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _available_memory_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return 0.0


def require_port(port: int) -> None:
    """Fail if another process listens on the port.

    Raises:
        ClusterError: The port is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise ClusterError(
                f"port {port} on 127.0.0.1 is in use; choose another with --port"
            ) from None


def free_port() -> int:
    """Return a port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def install_programs() -> None:
    """Install the Debian packages of programs that are missing.

    Raises:
        ClusterError: They cannot be installed.
    """
    missing = {package for program, package in _PROGRAMS.items() if not shutil.which(program)}
    if not (_CNI_FOLDER / "ptp").exists():
        missing.add("containernetworking-plugins")
    if missing:
        names = sorted(missing)
        with step(f"installing {', '.join(names)}"):
            run(_INSTALL, *names, timeout=900)
