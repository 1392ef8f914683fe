"""Clients of a Service in the cluster, and their counts of requests."""

import json
from dataclasses import dataclass
from typing import Any, Final

from hack.samples.load import PORT, pod
from tests.e2e.harness import Namespace, eventually, image

REQUESTS: Final = 125  # per second, unless a test needs fewer
LEAST: Final = 5  # per second, on the slowest machine


@dataclass(frozen=True)
class Counts:
    """The clients' counts until now."""

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
        return Counts(**json.loads(self.namespace.kubectl("get", "--raw", path)))

    def stop(self) -> Counts:
        """Return the last counts, and end the clients."""
        counts = self.counts()
        self.namespace.kubectl("delete", "pod", self.name, "--wait=false", "--grace-period=1")
        return counts


def start(
    namespace: Namespace, name: str, body: dict[str, Any], *others: str, requests: int = REQUESTS
) -> Load:
    """Start clients of the Services of models, which send `requests` a second together."""
    models = [name, *others]
    # enough clients for this rate while an answer takes up to 0.15 s, as on a busy machine
    keeping, opening = (2, 2) if others else (12, 8)
    pause = (keeping + opening) * len(models) / requests
    load = Load(namespace, f"load-{name}")
    clients = pod(
        load.name,
        namespace.name,
        models,
        body,
        image("cpu"),
        keeping=keeping,
        opening=opening,
        pause=pause,
    )
    namespace.apply(clients)
    eventually(lambda: load.counts().sent > 20, 60, f"clients of {name}")
    return load
