"""Where a cluster keeps its files: in one folder, which `down` removes."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

STATE_ROOT = Path("/var/lib/enginewright")
DEFAULT_NAME = "enginewright"
DEFAULT_PORT = 16443

HUB_ADDRESS = "192.0.2.1"  # TEST-NET-1: of the API server, only inside the cluster
SERVICE_RANGE = "198.19.0.0/16"
POD_RANGE = "198.18.0.0/16"
API_SERVICE_ADDRESS = "198.19.0.1"
DNS_ADDRESS = "198.19.0.10"
METRICS_PORT = 4443  # of metrics-server, at the hub
METRICS_USER = "enginewright:metrics-server"


def cache_root() -> Path:
    """Return the folder of everything that can be rebuilt."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "enginewright"


@dataclass(frozen=True)
class Gpus:
    """Devices of one node: a product from the table in gpus.py, as GPUs or as MIG slices."""

    node: int
    product: str
    mig: str | None
    count: int


@dataclass(frozen=True)
class Settings:
    """Requested configuration of a cluster, stored in its folder for comparison by a later `up`."""

    nodes: int
    port: int
    gpus: tuple[Gpus, ...] = ()
    build: str = ""  # digest of the binaries that it was created with
    controllers: bool = True  # whether it has any, and a scheduler


@dataclass(frozen=True)
class Node:
    """One kubelet with its containerd, in its own network namespace."""

    cluster: "Cluster"
    index: int  # from 1

    @property
    def name(self) -> str:
        """Name of the Node object."""
        return f"node-{self.index}"

    @property
    def folder(self) -> Path:
        """Everything that the node writes."""
        return self.cluster.folder / self.name

    @property
    def namespace(self) -> str:
        """Network namespace."""
        return f"{self.cluster.namespace}-{self.index}"

    @property
    def address(self) -> str:
        """Address in the cluster's own network."""
        return f"192.0.2.{self.index + 10}"

    @property
    def pod_range(self) -> str:
        """Addresses of the node's pods."""
        return f"198.18.{self.index}.0/24"

    @property
    def cgroup(self) -> str:
        """Parent of all pod cgroups, in every hierarchy."""
        return f"{self.cluster.cgroup_prefix}-{self.index}"

    @property
    def containerd_socket(self) -> Path:
        """Where the node's containerd listens."""
        return self.folder / "containerd.sock"


@dataclass(frozen=True)
class Cluster:
    """Names and paths derived from a cluster's name."""

    name: str

    @property
    def folder(self) -> Path:
        """All state, removed by `down`."""
        return STATE_ROOT / self.name

    @property
    def namespace(self) -> str:
        """Network namespace of the control plane, and prefix of the nodes' namespaces."""
        return f"ew-{self.name}"

    @property
    def enter(self) -> str:
        """Option of nsenter for the control plane's network namespace."""
        return f"--net=/run/netns/{self.namespace}"

    @property
    def cgroup_prefix(self) -> str:
        """Common prefix of the nodes' cgroups."""
        return f"ew-{self.name}"

    @property
    def kubeconfig(self) -> Path:
        """For users, through the forwarded port."""
        return self.folder / "kubeconfig"

    @property
    def pki(self) -> Path:
        """Certificates, keys and static tokens."""
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        """Folder with one file per process."""
        return self.folder / "logs"

    @property
    def bin(self) -> Path:
        """Folder with kubectl and helm, for PATH."""
        return self.folder / "bin"

    @property
    def settings_file(self) -> Path:
        """File of the `Settings`."""
        return self.folder / "settings.json"

    def node(self, index: int) -> Node:
        """Return the node with this number, from 1."""
        return Node(self, index)

    def nodes(self, settings: Settings) -> list[Node]:
        """Return all nodes."""
        return [self.node(index) for index in range(1, settings.nodes + 1)]

    def read_settings(self) -> Settings | None:
        """Return the cluster's settings, if it exists."""
        try:
            raw = json.loads(self.settings_file.read_text())
        except FileNotFoundError:
            return None
        return Settings(**{**raw, "gpus": tuple(Gpus(**item) for item in raw["gpus"])})

    def write_settings(self, settings: Settings) -> None:
        """Store the cluster's settings."""
        self.settings_file.write_text(json.dumps(asdict(settings)))
