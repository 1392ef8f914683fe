"""A serving pod with a proxy between its containers, so that tests of one pod can each tell other lies."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from enginewright_contract.task import ServeTask

from tests.support.adversary import honest
from tests.support.serving import Server
from tests.support.sidecar import Proxy, Sidecar


@dataclass(frozen=True)
class Pod:
    """A server, and the sidecar that reaches it through a proxy."""

    server: Server
    proxy: Proxy
    sidecar: Sidecar

    def mend(self) -> Self:
        """Return the pod, ready, once the proxy changes nothing more."""
        honest(self.proxy)
        self.sidecar.until_ready()
        return self


@contextmanager
def run_pod(root: Path, task: ServeTask, **settings: Any) -> Iterator[Pod]:
    """Run a pod whose sidecar has these settings."""
    with (
        Server(root, task) as server,
        Proxy(server.port) as proxy,
        Sidecar(root, task, proxy.port, **settings) as sidecar,
    ):
        yield Pod(server, proxy, sidecar)
