"""Where a cluster keeps its files, and what is remembered of it between calls."""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .errors import ClusterError

DEFAULT_NAME = "enginewright"
MAX_NODES = 16
# A unix socket's path has at most 107 bytes; the longest we make below the state folder has 26.
_LONGEST_STATE_PATH = 80


def _base(variable: str, fallback: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / fallback) / "enginewright"


def cache_folder() -> Path:
    """Where built binaries are kept, for all clusters."""
    return _base("XDG_CACHE_HOME", ".cache") / "cluster"


def clusters_folder() -> Path:
    """Where every cluster has its state folder."""
    return _base("XDG_STATE_HOME", ".local/state") / "clusters"


@dataclass(frozen=True)
class Layout:
    """The files of one cluster; everything below `state` goes with `down`."""

    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?", self.name):
            raise ClusterError(
                f"{self.name!r} cannot be a cluster's name",
                remedy="use at most 30 lower-case letters, digits and dashes",
            )
        if len(str(self.state)) > _LONGEST_STATE_PATH:
            raise ClusterError(
                f"the state folder {self.state} has a path too long for unix sockets",
                remedy=f"set XDG_STATE_HOME so that it has at most {_LONGEST_STATE_PATH} letters",
            )

    @property
    def state(self) -> Path:
        return clusters_folder() / self.name

    @property
    def config(self) -> Path:
        return self.state / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def credentials(self) -> Path:
        return self.state / "credentials"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def volumes(self) -> Path:
        return self.state / "volumes"

    @property
    def socket(self) -> Path:
        """Where the control plane's supervisor listens; also the mark of this cluster's processes."""
        return self.state / "sandbox.sock"

    @property
    def cgroup(self) -> str:
        """The cgroup below which every pod of this cluster runs, in each hierarchy."""
        return f"enginewright-{self.name}"

    def node(self, index: int) -> "NodeLayout":
        return NodeLayout(self, index)


@dataclass(frozen=True)
class NodeLayout:
    """The files of one node; `index` counts from 1."""

    cluster: Layout
    index: int

    @property
    def name(self) -> str:
        return f"node-{self.index}"

    @property
    def state(self) -> Path:
        return self.cluster.state / self.name

    @property
    def socket(self) -> Path:
        return self.state / "sandbox.sock"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd.sock"

    @property
    def var(self) -> Path:
        """What this node sees as /var."""
        return self.state / "var"

    @property
    def cgroup(self) -> str:
        return f"{self.cluster.cgroup}/{self.name}"


@dataclass(frozen=True)
class Config:
    """What a cluster was asked to be. `gpus` maps a node's index to what it offers, as given."""

    build: str
    port: int
    nodes: int
    control_plane_only: bool = False
    etcd_ports: tuple[int, int] = (2379, 2380)
    gpus: dict[int, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(asdict(self), indent=2))
        partial.replace(path)


def load_config(layout: Layout) -> Config | None:
    """The remembered configuration, or None where there is no such cluster (or none that got that far)."""
    try:
        raw = json.loads(layout.config.read_text())
    except FileNotFoundError:
        return None
    raw["etcd_ports"] = tuple(raw["etcd_ports"])
    raw["gpus"] = {int(index): offer for index, offer in raw["gpus"].items()}
    return Config(**raw)


def require_config(layout: Layout) -> Config:
    """As load_config, for verbs that need a cluster."""
    config = load_config(layout)
    if config is None:
        raise ClusterError(
            f"there is no cluster {layout.name!r}",
            remedy=f"start it: hack/cluster/cluster up --name {layout.name}",
        )
    return config


@contextmanager
def locked(folder: Path, *, busy: str) -> Iterator[None]:
    """Hold the only lock on a folder that exists; the lock is on the folder itself, no file is left."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(busy, remedy="wait until it has ended, then try again") from None
        yield
    finally:
        os.close(handle)
