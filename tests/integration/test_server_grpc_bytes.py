"""Bytes of gRPC messages count when they have arrived, those of responses until they are read.

The hostile clients come from another address than the others, as clients of a Service do.
"""

import gzip
import socket
import time
from contextlib import ExitStack
from typing import Any, Self

import grpc
import numpy as np
import pytest
from enginewright_serving.server.protocol.grpc.messages import InferRequest
from enginewright_serving.transport.http2 import frames

from tests.support import http2
from tests.support.broken_models import parse_text
from tests.support.process_memory import memory_of
from tests.support.serving import Server, infer_message
from tests.support.shared import share_server
from tests.support.waiting import until

MIB = 1 << 20
LIMIT = 64 * MIB  # of bytes in flight
LARGEST = 16 * MIB  # of a message
INFER = "/inference.GRPCInferenceService/ModelInfer"


# spreads one number out as often as a request says, and returns its other input
server = share_server(
    lambda: parse_text("""(float[1] x, int64[1] n, float[k] z) => (float[m] y, float[k] same) {
        y = Expand(x, n) same = Identity(z) }"""),
    {"x": np.ones(1, np.float32), "n": np.array([4]), "z": np.ones(2, np.float32)},
    inflight_bytes=LIMIT,
    body_bytes=LARGEST,
    sweep_seconds=0.1,
)


def request(*, spread: int = 1, values: int = 1, outputs: tuple[str, ...] = ("y",)) -> Any:
    arrays: dict[str, Any] = {
        "z": np.ones(values, np.float32),  # first, where it is aligned and need not be copied
        "x": np.ones(1, np.float32),
        "n": np.array([spread], np.int64),
    }
    message = infer_message(**arrays)
    message.MergeFrom(InferRequest(outputs=[{"name": name} for name in outputs]))
    return message


class Hostile:
    """A connection that sends any frames."""

    def __init__(self, server: Server, *values: tuple[int, int]) -> None:
        self.client = http2.Client()
        self.received = b""
        self._socket = socket.create_connection(("127.0.0.1", server.grpc_port), timeout=20)
        self.send(frames.PREFACE + http2.settings(*values))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def announce(self, stream: int, length: int, sent: int = 0, flag: int = 0) -> None:
        """Begin a call whose message has `length` bytes, of which so many follow."""
        self.send(self.client.headers(stream, http2.call_headers(INFER)))
        prefix = http2.message(b"", flag)[:1] + length.to_bytes(4, "big")
        self.send(http2.data(stream, prefix + bytes(min(sent, 16_000))))
        for at in range(16_000, sent, 16_000):
            self.send(http2.data(stream, bytes(min(16_000, sent - at))))

    def wait_acknowledged(self) -> None:
        """Return when the server has read what was sent."""
        self.send(http2.frame(frames.PING, payload=b"reached?"))
        until = time.monotonic() + 20
        while not any(
            frame.kind == frames.PING and frame.flags & frames.ACK and frame.payload == b"reached?"
            for frame in http2.split(self.received)
        ):
            assert time.monotonic() < until
            part = self._socket.recv(1 << 16)
            assert part, "the server has closed the connection"
            self.received += part

    def responses(self) -> dict[int, http2.Response]:
        return self.client.responses(self.received)

    def is_closed(self) -> bool:
        """Read what there is; return whether the connection has ended."""
        self._socket.settimeout(0.2)
        try:
            while part := self._socket.recv(1 << 16):
                self.received += part
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True


def call_answered(server: Server, message: Any) -> None:
    """Have a client that behaves well be answered."""
    with grpc.insecure_channel(
        f"127.0.0.1:{server.grpc_port}", options=[("grpc.max_receive_message_length", -1)]
    ) as channel:
        channel.unary_unary(INFER)(message.SerializeToString(), timeout=20)


def is_answered(server: Server, message: Any) -> bool:
    """Ask once; return whether the server had space for the answer."""
    try:
        call_answered(server, message)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return True


def count_computed(server: Server) -> float:
    """Return how many requests the model has answered."""
    return server.metric("enginewright_request_compute_seconds_count")


# fault: Hostile | a few gRPC calls announce large messages and send nothing | bytes are charged as
#   they arrive | prevented
def test_announced_messages_take_no_memory_from_others(server: Server) -> None:
    before = memory_of(server.process.pid)
    with ExitStack() as stack:
        for _ in range(8):
            client = stack.enter_context(Hostile(server))
            for stream in (1, 3, 5):
                client.announce(stream, LARGEST)
            client.wait_acknowledged()
        call_answered(server, request(values=3 * MIB))  # 12 MiB
        assert memory_of(server.process.pid) - before < LIMIT


def test_a_connection_announces_no_more_than_the_server_holds(server: Server) -> None:
    with Hostile(server) as client:
        for stream in range(1, 2 * 6, 2):
            client.announce(stream, LARGEST)
        client.wait_acknowledged()
        refused = client.responses()
        assert set(refused) == {9, 11}
        assert {response.status for response in refused.values()} == {
            grpc.StatusCode.UNAVAILABLE.value[0]
        }
        assert "announces more than" in refused[9].headers["grpc-message"]


# fault: Hostile | gRPC calls send much of their messages and then nothing | they are given up for
#   others, slowest first: UNAVAILABLE | when others need the memory, and they are known to be slow
def test_messages_that_arrive_slowly_make_space_for_others(server: Server) -> None:
    before = memory_of(server.process.pid)
    with ExitStack() as stack:
        clients = [stack.enter_context(Hostile(server)) for _ in range(6)]
        for client in clients:
            client.announce(1, LARGEST, LARGEST - 100_000)
            client.wait_acknowledged()
        for _ in range(4):
            until(lambda: is_answered(server, request(values=3 * MIB)))
        for client in clients:
            client.is_closed()
        responses = [client.responses() for client in clients]
        refused = [response[1].headers for response in responses if response]
        assert refused
        assert {entry["grpc-status"] for entry in refused} == {"14"}
        assert memory_of(server.process.pid) - before < 2 * LIMIT


# fault: Hostile | small compressed gRPC messages state large sizes | what is decompressed is
#   charged, as far as it is | prevented
def test_stated_sizes_of_compressed_messages_take_no_memory(server: Server) -> None:
    content = gzip.compress(bytes(LARGEST), 1)
    lie = content[:-4] + LARGEST.to_bytes(4, "little")
    encoding = ("grpc-encoding", "gzip")
    with ExitStack() as stack:
        clients = [stack.enter_context(Hostile(server)) for _ in range(8)]
        for client in clients:
            for stream in range(1, 20, 2):
                headers = client.client.headers(stream, http2.call_headers(INFER, encoding))
                client.send(headers + http2.data(stream, http2.message(lie, 1)[:-9]))
        call_answered(server, request(values=3 * MIB))
        for client in clients:
            client.wait_acknowledged()
            for stream in range(1, 20, 2):
                client.send(http2.data(stream, http2.message(lie, 1)[-9:], ends=True))
        call_answered(server, request(values=1 * MIB))


# fault: Hostile | gRPC clients do not read responses | these are charged until they are read, and given
#   up for others once they are known to be slow, or after 10 s without progress | prevented
@pytest.mark.parametrize("window", [0, frames.DEFAULT_WINDOW])
def test_responses_that_nobody_reads_are_limited_and_make_space(
    server: Server, window: int
) -> None:
    before = memory_of(server.process.pid)
    message = request(spread=2 * MIB).SerializeToString()  # 8 MiB
    with ExitStack() as stack:
        for _ in range(6):
            client = stack.enter_context(Hostile(server, (frames.INITIAL_WINDOW_SIZE, window)))
            for stream in range(1, 2 * 16, 2):
                client.send(client.client.call(stream, INFER, message))
        for _ in range(4):
            until(lambda: is_answered(server, request(spread=3 * MIB)))
            assert memory_of(server.process.pid) - before < 3 * LIMIT


def test_small_responses_that_nobody_reads_are_limited(server: Server) -> None:
    before, runs = memory_of(server.process.pid), count_computed(server)
    message = request(spread=3000).SerializeToString()  # 12 kB
    with ExitStack() as stack:
        for number in range(1, 65):
            client = stack.enter_context(Hostile(server, (frames.INITIAL_WINDOW_SIZE, 0)))
            for stream in range(1, 2 * 120, 2):
                client.send(client.client.call(stream, INFER, message))
            until(lambda: count_computed(server) >= runs + 120 * number)  # noqa: B023 - called at once
        call_answered(server, request(spread=3 * MIB))
        assert memory_of(server.process.pid) - before < 2 * LIMIT


def test_the_server_is_still_well(server: Server) -> None:
    assert "Traceback" not in server.log()
    assert server.process.poll() is None
