"""The kubelet's probes of the sidecar are answered whatever other clients ask it."""

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from tests.support.serving import Feeds, Server, Wire, linear_model
from tests.support.shared import share_server
from tests.support.sidecar import Sidecar, artifact, share_token

CLIENTS: Final = 100
PROBE_SECONDS: Final = 3.0  # the timeout of the pod's readiness probe
PIPELINES: Final = 8
BATCH: Final = 5000  # requests


SAMPLE: Final[Feeds] = {"x": np.full((1, 8), 0.5, np.float32)}
server = share_server(linear_model, SAMPLE)


@pytest.fixture(scope="module")
def sidecar(server: Server) -> Iterator[Sidecar]:
    with Sidecar(server.root, server.task, server.port) as started:
        started.until_ready()
        for path in ("/measurements", "/metrics"):
            started.until(lambda path=path: started.get(path).status == 200, "reported")  # type: ignore[misc]  # mypy cannot infer it
        yield started


def request_of(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


class Looping:
    """Clients that ask for `path` without pause, each on a connection that it keeps."""

    def __init__(self, port: int, path: str) -> None:
        self.statuses: Counter[int] = Counter()
        self._port = port
        self._request = request_of(path)
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._loop, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(30)

    def _loop(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError, EOFError), Wire(self._port, timeout=10) as wire:
                while not self._ended.is_set():
                    wire.send(self._request)
                    self.statuses[wire.receive().status] += 1


def probe_repeatedly(sidecar: Sidecar, count: int) -> float:
    """Probe as the kubelet does, on new connections; return the longest time of one."""
    longest = 0.0
    for _ in range(count):
        began = time.monotonic()
        with Wire(sidecar.port, timeout=PROBE_SECONDS) as wire:
            wire.send(request_of("/readyz"))
            assert wire.receive().status == 200
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.1)
    return longest


# fault: Hostile | a hundred clients ask the sidecar for measurements or metrics without pause |
#   an answer is built once for all, and a connection that waits for one gives way to a new one |
#   the pod stays ready, and scrapes are answered
@pytest.mark.parametrize("path", ["/measurements", "/metrics"])
def test_probes_are_answered_beside_costly_requests(path: str, sidecar: Sidecar) -> None:
    clients = Looping(sidecar.port, path)
    try:
        sidecar.until(lambda: clients.statuses[200] > CLIENTS, "they are answered")
        assert probe_repeatedly(sidecar, 30) < PROBE_SECONDS
        assert sidecar.get(path).status == 200
    finally:
        clients.end()
    assert set(clients.statuses) == {200}


class Pipelining:
    """Clients that send thousands of requests for `path` without waiting, and read what is answered."""

    def __init__(self, port: int, path: str) -> None:
        self.received = 0  # bytes
        self._requests = request_of(path) * BATCH
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(PIPELINES)]
        self._threads = [
            threading.Thread(target=act, args=(item,), daemon=True)
            for item in self._sockets
            for act in (self._send, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        for item in self._sockets:
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for item in self._sockets:
            item.close()

    def _send(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client.sendall(self._requests)

    def _read(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                self.received += len(data)


# fault: Hostile | clients of the sidecar send thousands of requests at once without waiting for answers |
#   each connection has one request answered in a turn, and a verdict is encoded when it changes | the
#   pod stays ready
@pytest.mark.parametrize("path", ["/verdict", "/readyz", "/measurements", "/metrics", "/none"])
def test_probes_are_answered_beside_clients_that_pipeline_thousands_of_requests(
    path: str, sidecar: Sidecar
) -> None:
    clients = Pipelining(sidecar.port, path)
    try:
        sidecar.until(lambda: clients.received > 0, "the first is answered")
        assert probe_repeatedly(sidecar, 20) < PROBE_SECONDS
        received = clients.received
        sidecar.until(lambda: clients.received > received, "they are answered as well")
    finally:
        clients.end()


def hold(stack: contextlib.ExitStack, port: int, count: int, sent: str) -> None:
    for _ in range(count):
        stack.enter_context(Wire(port)).send(sent.encode())


def test_silent_connections_leave_the_others_their_answers(sidecar: Sidecar) -> None:
    paths = ("/measurements", "/metrics")
    for path in paths:
        with contextlib.ExitStack() as stack:
            hold(stack, sidecar.port, CLIENTS, "")
            time.sleep(1.2)  # their requests could have been on their way
            assert sidecar.get(path).status == 200


def test_measurements_are_built_once_per_interval(server: Server, tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), [SAMPLE])
    share_token(server, tmp_path)
    with Sidecar(tmp_path, task, server.port, measurements_age=3600.0) as sidecar:
        sidecar.until_ready()
        sidecar.until(lambda: sidecar.get("/measurements").status == 200, "reported")
        first = sidecar.get("/measurements")
        time.sleep(2.5)  # the server's memory and golden inferences have been measured again
        assert sidecar.get("/measurements").body == first.body
