"""Clients that read large responses slowly, of which the kernel's buffer takes megabytes at once."""

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from enginewright_serving.transport.http2 import frames

from tests.integration.test_server_grpc_inference import INFER
from tests.support import http2
from tests.support.broken_models import parse_text
from tests.support.serving import Server, binary_inputs, infer_message
from tests.support.shared import share_server
from tests.support.waiting import until

ELEMENTS = 1_250_000
LENGTH = 4 * ELEMENTS
LEAST = 128 * 1024  # bytes per second
READ = 4 * LEAST  # a third of the kernel's buffer takes several seconds
CHUNK = 16 * 1024
LARGEST_WINDOW = 2**31 - 1
PIPELINED = 30  # requests for a megabyte each: several times what the buffers of the kernel take
PAUSE = 0.4  # seconds: several sweeps, but less than `transfer_window`


server = share_server(
    lambda: parse_text("""(int64[1] size) => (float[n] y) {
        y = ConstantOfShape <value = float[1] {1.0}> (size) }"""),
    {"size": np.array([4])},
    transfer_window=1,
    transfer_rate=LEAST,
    sweep_seconds=0.1,
)


def ask_over_http(server: Server) -> socket.socket:
    document, tensors = binary_inputs(size=np.array([ELEMENTS]))
    client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    client.sendall(server.infer_request(document, tensors))
    return client


def ask_over_grpc(server: Server) -> socket.socket:
    """Ask as a client whose windows admit everything at once."""
    message = infer_message(size=np.array([ELEMENTS])).SerializeToString()
    widen = (LARGEST_WINDOW - frames.DEFAULT_WINDOW).to_bytes(4, "big")
    client = socket.create_connection(("127.0.0.1", server.grpc_port), timeout=30)
    client.sendall(
        frames.PREFACE
        + http2.settings((frames.INITIAL_WINDOW_SIZE, LARGEST_WINDOW))
        + http2.frame(frames.WINDOW_UPDATE, payload=widen)
        + http2.Client().call(1, INFER, message)
    )
    return client


ASKED = {"http": ask_over_http, "grpc": ask_over_grpc}


def read_slowly(client: socket.socket) -> int:
    """Read a little at a time; return how many bytes came until all were there, or the connection was closed."""
    began, taken = time.monotonic(), 0
    while taken < LENGTH:
        time.sleep(max(0.0, began + taken / READ - time.monotonic()))
        part = client.recv(CHUNK)
        if not part:
            break
        taken += len(part)
    return taken


# fault: Hostile | clients read large responses slowly, but above the documented rate | what their kernels
#   acknowledge counts, not what the server's kernel has taken | all get them whole
def test_a_response_that_is_read_slowly_comes_whole(server: Server) -> None:
    clients = [ask(server) for ask in ASKED.values()]
    with ThreadPoolExecutor(len(clients)) as threads:
        taken = list(threads.map(read_slowly, clients))
    for client in clients:
        client.close()
    assert min(taken) >= LENGTH


def test_a_client_that_pipelines_has_its_time_for_what_it_has_not_read(server: Server) -> None:
    document, tensors = binary_inputs(size=np.array([ELEMENTS // 5]))
    request = server.infer_request(document, tensors)
    last = server.infer_request(document, tensors, headers={"Connection": "close"})
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(request * (PIPELINED - 1) + last)
        time.sleep(PAUSE)
        with client.makefile("rb") as stream:
            received = stream.read()
    assert received.count(b"HTTP/1.1 200") == PIPELINED
    assert len(received) > PIPELINED * LENGTH // 5


@pytest.mark.parametrize("protocol", ASKED)
def test_a_client_that_reads_nothing_is_disconnected(server: Server, protocol: str) -> None:
    def count_sockets() -> int:
        sockets = 0
        for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                sockets += link.readlink().name.startswith("socket")
        return sockets

    before = count_sockets()
    with ASKED[protocol](server):
        until(lambda: count_sockets() > before, "it is connected")
        until(lambda: count_sockets() <= before, "it is disconnected", seconds=20)
