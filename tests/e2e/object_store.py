"""An S3 server beside the cluster: pods reach it at an address outside their network, like a cloud's.

Requests pass through a proxy of the tests, which can kill the server at a given request.
"""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from driver.layout import HUB_ADDRESS, Cluster

from tests.e2e.harness import CLUSTER_NAME
from tests.support.source_cutter import Cutter
from tests.support.source_servers import GoServers, SourceServers, go_servers

BUCKET: Final = "store"
_PORT: Final = 9000
_ENDPOINT: Final = f"http://{HUB_ADDRESS}:{_PORT}"


@dataclass(frozen=True)
class ObjectStore:
    """The running server."""

    _servers: GoServers
    _cutter: Cutter

    @property
    def secret(self) -> dict[str, str]:
        """Return the contents of a Secret for it."""
        servers = SourceServers(self._servers.folder, self._servers.addresses)
        return servers.s3(AWS_ENDPOINT_URL=_ENDPOINT)

    @property
    def folder(self) -> Path:
        """Return the bucket: each object is a file."""
        return self._servers.folder / "s3" / BUCKET

    def kill_at(self, method: str, part: str) -> threading.Event:
        """Kill it at the next request of this method whose path contains `part`; return the event that this sets."""
        killed = threading.Event()

        def on_request(request: str) -> None:
            if request.startswith(f"{method} ") and part in request and not killed.is_set():
                self._servers.kill()
                killed.set()

        self._cutter.on_request = on_request
        return killed

    def kill_after(self, size: int) -> threading.Event:
        """Kill it once it has sent this many bytes through one connection; return the event that this sets."""
        killed = threading.Event()

        def on_sent() -> None:
            self._servers.kill()
            killed.set()

        self._cutter.arm(size, 1, on_sent)
        return killed

    def start(self) -> None:
        """Start it again, with what it has stored."""
        self._servers.start()
        self._cutter.redirect(self._servers.addresses["s3"])


@contextmanager
def serving(folder: Path) -> Iterator[ObjectStore]:
    """Run the server on files in a folder, a bucket each."""
    socket = folder / "socket"  # network namespaces share sockets that are files
    enter = ("nsenter", Cluster(CLUSTER_NAME).enter, "--")
    listen = f"TCP-LISTEN:{_PORT},bind={HUB_ADDRESS},reuseaddr,fork"
    with ExitStack() as stack:
        servers = stack.enter_context(go_servers(folder))
        cutter = stack.enter_context(Cutter(servers.addresses["s3"]))
        stack.enter_context(_socat(f"UNIX-LISTEN:{socket},fork", f"TCP:127.0.0.1:{cutter.port}"))
        stack.enter_context(_socat(listen, f"UNIX-CONNECT:{socket}", *enter))
        store = ObjectStore(servers, cutter)
        store.folder.mkdir()
        yield store


@contextmanager
def _socat(listen: str, connect: str, *enter: str) -> Iterator[None]:
    process = subprocess.Popen([*enter, "socat", listen, connect])
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)
