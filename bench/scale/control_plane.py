"""The cluster: kube-apiserver, etcd, controller manager and scheduler are real, kwok plays nodes and pods."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from bench.scale.api import Json

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SYSTEM: Final = "enginewright-system"
NAME: Final = "scale"
_NODES: Final = 10
_ADDRESSES: Final = "198.18.128.0/17"  # of kwok's pods, in the cluster's range
_HUB: Final = "192.0.2.1"
_RIGHTS: Final = (
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "PriorityClass",
)
_STORAGE: Final = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "standard",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": "enginewright.dev/local",  # the local cluster's
}
_HERE: Final = Path(__file__).parent


def run(command: Sequence[str | Path], *, stdin: str | None = None) -> str:
    """Run a command and return its output. Raises subprocess.CalledProcessError."""
    done = subprocess.run(command, input=stdin, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for a condition. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {seconds:.0f} s")
        time.sleep(0.1)


@dataclass
class ControlPlane:
    """A running cluster."""

    kubeconfig: Path  # of its administrator, from outside
    inside: Path  # the same, in its network namespace
    folder: Path  # for files of this run
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl."""
        program = self.kubeconfig.parent / "bin/kubectl"
        return run([program, "--kubeconfig", self.kubeconfig, *arguments], stdin=stdin)

    def put(self, *objects: Mapping[str, Any]) -> None:
        """Apply objects on the server."""
        text = yaml.safe_dump_all(objects)
        self.kubectl("apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=text)

    def start(
        self, command: Sequence[str | Path], log: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in the cluster's network namespace; it ends with this cluster."""
        with (self.folder / log).open("ab") as output:
            process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/ew-{NAME}", "--", *command],
                stdout=output,
                stderr=output,
                env=environment,
            )
        self._processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a process of this cluster, and wait for it."""
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._processes.remove(process)

    def end_all(self) -> None:
        """End all processes that were started."""
        for process in reversed([*self._processes]):
            self.end(process)


def _cluster(*arguments: str) -> str:
    return run([REPOSITORY / "hack/cluster/cluster", "--name", NAME, *arguments])


@contextlib.contextmanager
def start_control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Start a cluster with simulated nodes and our chart's definitions and rights; remove it at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    program = run([REPOSITORY / "hack/go-program", "bench/scale/kwok", "sigs.k8s.io/kwok/cmd/kwok"])
    _cluster("down")
    _cluster("up", "--nodes", "0")
    try:
        (path,) = re.findall(r"KUBECONFIG=(\S+)", _cluster("env"))
        kubeconfig = Path(path)
        plane = ControlPlane(kubeconfig, _write_inside(kubeconfig, folder), folder)
        try:
            _furnish(plane, program.strip())
            yield plane
        finally:
            plane.end_all()
    finally:
        _cluster("down")


def _write_inside(kubeconfig: Path, folder: Path) -> Path:
    document = json.loads(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://{_HUB}:6443"
    path = folder / "inside.kubeconfig"
    path.write_text(json.dumps(document))
    return path


def _furnish(plane: ControlPlane, kwok: str) -> None:
    route = ["nsenter", f"--net=/run/netns/ew-{NAME}", "ip", "route", "replace", "local"]
    run([*route, _ADDRESSES, "dev", "lo"])
    run(["nsenter", f"--net=/run/netns/ew-{NAME}", "sysctl", "-qw", "net.core.somaxconn=4096"])
    plane.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    plane.kubectl("apply", "--server-side", "--filename", str(REPOSITORY / "crds"))
    plane.put(_STORAGE)
    plane.put(*_rights(plane))
    plane.start(
        [
            kwok, "--kubeconfig", plane.inside, "--config", _HERE / "stages.yaml", "--cidr", _ADDRESSES,
            "--node-ip", _HUB, "--manage-nodes-with-label-selector", "type=kwok",
            "--node-lease-duration-seconds", "40",
        ],
        "kwok.log",
    )  # fmt: skip
    plane.start([sys.executable, "-m", "bench.scale.sidecars", plane.inside], "sidecars.log")
    labels = {
        "type": "kwok",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "nvidia.com/gpu.product": "NVIDIA-L4",
    }
    plane.put(
        *(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": f"node-{number}", "labels": labels},
            }
            for number in range(_NODES)
        )
    )
    ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
    wait_until(
        lambda: plane.kubectl("get", "nodes", "--output", ready).split() == ["True"] * _NODES,
        60,
        "ready nodes",
    )


def _rights(plane: ControlPlane) -> list[Json]:
    """Return the chart's accounts, roles and priority."""
    helm = plane.kubeconfig.parent / "bin/helm"
    chart = REPOSITORY / "charts/enginewright"
    sets = [f"--set={item}" for item in ("images.operator=o:1", "images.runtime.cpu=c:1")]
    rendered = run([helm, "template", "enginewright", chart, "--namespace", SYSTEM, *sets])
    return [item for item in yaml.safe_load_all(rendered) if item and item["kind"] in _RIGHTS]
