"""What clients of a Service in the cluster have counted."""

import json
from dataclasses import dataclass
from typing import Any, Final

from hack.samples.load import PORT, pod
from tests.e2e.harness import REPOSITORY, Namespace, eventually, run

REQUESTS: Final = 125  # per second, unless a test needs fewer
LEAST: Final = 5  # per second that the slowest machine sends: how many is not the product's doing


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


def start(
    namespace: Namespace, name: str, body: dict[str, Any], *others: str, requests: int = REQUESTS
) -> Load:
    """Start clients of the Service of a model, and of others: so many `requests` a second together."""
    models = [name, *others]
    # so many that they send what is asked for while answers take up to 0.15 s, as on a busy machine
    keeping, opening = (2, 2) if others else (12, 8)
    pause = (keeping + opening) * len(models) / requests
    image = run([str(REPOSITORY / "hack/images"), "list", "cpu"]).split()[1]
    load = Load(namespace, f"load-{name}")
    clients = pod(
        load.name,
        namespace.name,
        models,
        body,
        image,
        keeping=keeping,
        opening=opening,
        pause=pause,
    )
    namespace.apply(clients)
    eventually(lambda: load.counts().sent > 20, 60, f"clients of {name}")
    return load
