"""What clients of a Service in the cluster have counted."""

import json
from dataclasses import dataclass
from typing import Any

from hack.samples.load import PORT, pod
from tests.e2e.harness import REPOSITORY, Namespace, eventually, run


@dataclass(frozen=True)
class Counts:
    """What the clients have counted."""

    sent: int
    failed: int
    failures: dict[str, int]
    slowest: float  # seconds


@dataclass(frozen=True)
class Load:
    """Clients of one model."""

    namespace: Namespace
    name: str

    def counts(self) -> Counts:
        path = f"/api/v1/namespaces/{self.namespace.name}/pods/{self.name}:{PORT}/proxy/"
        found = json.loads(self.namespace.kubectl("get", "--raw", path))
        return Counts(found["sent"], found["failed"], found["failures"], found["slowest"])

    def stop(self) -> Counts:
        """Return the last counts, and end the clients."""
        counts = self.counts()
        self.namespace.kubectl("delete", "pod", self.name, "--wait=false", "--grace-period=1")
        return counts


def start(namespace: Namespace, model: str, body: dict[str, Any]) -> Load:
    """Start clients of a model's Service: 125 requests a second."""
    name = f"load-{model}"
    image = run([str(REPOSITORY / "hack/images"), "list", "cpu"]).split()[1]
    namespace.apply(pod(name, namespace.name, model, body, image))
    load = Load(namespace, name)
    eventually(lambda: load.counts().sent > 20, 60, f"clients of {model}")
    return load
