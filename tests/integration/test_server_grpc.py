"""gRPC's own client, and a test of conformance to HTTP/2, against an echo on a real socket.

The inference server has the same transport; its methods have tests of their own.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.support import grpc_echo
from tests.support.grpc_echo import ECHO, FAIL, LARGE, LATER, METADATA, SEEN
from tests.support.programs import go_program, run_program
from tests.support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 1024 * 1024
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
H2SPEC_CASES = 146


class EchoServer:
    """A server in a process of its own."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", grpc_echo.__name__, *options],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = f"127.0.0.1:{self.process.stdout.readline().strip()}"

    def stop(self) -> None:
        """Terminate it, which it does once its connections are closed; it must have logged nothing."""
        self.process.send_signal(signal.SIGTERM)
        _, logged = self.process.communicate(timeout=60)
        assert (self.process.returncode, logged) == (0, "")

    def channel(self, **options: object) -> grpc.Channel:
        return grpc.insecure_channel(self.address, [*UNLIMITED, *options.items()])

    def count_seen(self) -> dict[str, int]:
        """Return what the server counted."""
        with self.channel() as channel:
            text = call(channel, SEEN)(b"", timeout=20).decode()
        return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", text)}


@contextlib.contextmanager
def serving(*options: str) -> Iterator[EchoServer]:
    server = EchoServer(*options)
    try:
        yield server
        server.stop()
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[EchoServer]:
    with serving() as running:
        yield running


def call(channel: grpc.Channel, method: bytes) -> grpc.UnaryUnaryMultiCallable:
    return channel.unary_unary(method.decode())


def error(calling: grpc.UnaryUnaryMultiCallable, request: bytes, **named: object) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        calling(request, timeout=named.pop("timeout", 20), **named)
    return caught.value


SIZES = (0, 1, 5, 16379, 16380, 16384, 65535, 65536, 100_000, MIB, 5 * MIB, 40_000_000)


@pytest.mark.parametrize("size", SIZES)
def test_messages_of_any_size_are_echoed(server: EchoServer, size: int) -> None:
    content = os.urandom(size)
    with server.channel() as channel:
        for _ in range(2):
            assert call(channel, ECHO)(content, timeout=60) == content


def test_calls_of_one_connection_run_at_once(server: EchoServer) -> None:
    with server.channel() as channel, ThreadPoolExecutor(64) as threads:
        contents = [os.urandom(length * 997) for length in range(300)]
        answers = threads.map(lambda content: call(channel, ECHO)(content, timeout=60), contents)
        assert list(answers) == contents
        began = time.monotonic()
        later = [call(channel, LATER).future(b"0.5", timeout=20) for _ in range(100)]
        assert [item.result() for item in later] == [b"0.5"] * 100
        assert time.monotonic() - began < 10


def test_more_calls_than_streams_wait_in_the_client(server: EchoServer) -> None:
    with server.channel() as channel:
        later = [call(channel, LATER).future(b"0.05", timeout=60) for _ in range(1000)]
        assert {item.result() for item in later} == {b"0.05"}


def test_a_large_answer_does_not_hold_small_ones(server: EchoServer) -> None:
    with server.channel() as channel:
        large = [call(channel, LARGE).future(b"40000000", timeout=60) for _ in range(3)]
        assert call(channel, ECHO)(b"small", timeout=20) == b"small"
        assert [len(item.result()) for item in large] == [40_000_000] * 3


def test_metadata_arrives(server: EchoServer) -> None:
    with server.channel() as channel:
        long = "v" * 5000
        given = (("x-test", long), ("x-other-bin", bytes(range(256))))
        for _ in range(3):
            assert call(channel, METADATA)(b"", timeout=20, metadata=given) == long.encode()


@pytest.mark.parametrize("text", ["", "plain", "50% of größe\n\ttab", "✓" * 500])
def test_status_and_message_arrive(server: EchoServer, text: str) -> None:
    with server.channel() as channel:
        failure = error(call(channel, FAIL), text.encode())
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.details() == text


def test_an_unknown_method_and_a_large_message_are_refused(server: EchoServer) -> None:
    with server.channel() as channel:
        for size in (0, 1000, 10 * MIB):
            failure = error(call(channel, b"/no/Method"), bytes(size))
            assert failure.code() is grpc.StatusCode.UNIMPLEMENTED
        failure = error(call(channel, ECHO), bytes(grpc_echo.LARGEST + 1))
        assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(channel, ECHO)(b"next", timeout=20) == b"next"


def test_calls_that_are_cancelled_or_late_are_dropped() -> None:
    with serving() as server:
        with server.channel() as channel:
            failure = error(call(channel, LATER), b"1", timeout=0.2)
            assert failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            until(lambda: not server.count_seen()["waiting"], "the end of the late call")
            cancelled = call(channel, LATER).future(b"5", timeout=20)
            until(lambda: server.count_seen()["waiting"] == 1, "the call that is cancelled")
            cancelled.cancel()
            assert call(channel, LATER)(b"1.5", timeout=20) == b"1.5"
        lost = server.channel()
        until(lambda: not server.count_seen()["waiting"], "the end of the cancelled call")
        # without a reference it may not be sent
        left = call(lost, LATER).future(b"5", timeout=20)
        until(lambda: server.count_seen()["waiting"] == 1, "the call that is left")
        lost.close()
        assert left.exception(10).code() is grpc.StatusCode.CANCELLED
        until(lambda: not server.count_seen()["waiting"], "the end of all")
        assert server.count_seen()["dropped"] == 3


@pytest.mark.parametrize("size", [0, 10, 100_000, 20_000_000])
def test_compressed_messages_are_decompressed(server: EchoServer, size: int) -> None:
    content = bytes(size // 2) + os.urandom(size // 2)
    with server.channel() as channel:
        answer = call(channel, ECHO)(content, timeout=60, compression=grpc.Compression.Gzip)
        assert answer == content
        if size:
            failure = error(call(channel, ECHO), content, compression=grpc.Compression.Deflate)
            assert failure.code() is grpc.StatusCode.UNIMPLEMENTED


def test_connections_are_renewed_without_an_error() -> None:
    with serving("--connection_age", "0.3", "--sweep_seconds", "0.05") as server:
        with server.channel() as channel, ThreadPoolExecutor(8) as threads:
            end = time.monotonic() + 3

            def calls(_: int) -> int:
                count = 0
                while time.monotonic() < end:
                    assert call(channel, ECHO)(b"again", timeout=20) == b"again"
                    count += 1
                return count

            assert sum(threads.map(calls, range(8))) > 100
        assert server.count_seen()["connections"] == 1


def test_a_server_that_stops_answers_what_it_has_accepted() -> None:
    with serving() as server, server.channel() as channel:
        accepted = [call(channel, LATER).future(b"1", timeout=20) for _ in range(20)]
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        assert [item.result() for item in accepted] == [b"1"] * 20


def test_http2_conforms_to_its_specification(server: EchoServer) -> None:
    """RFC 7540 and 7541, which is stricter than RFC 9113 on priorities only (5.3.1)."""
    program = go_program("hack/conformance", "github.com/summerwind/h2spec/cmd/h2spec")
    host, port = server.address.split(":")
    done = run_program(
        [program, "--host", host, "--port", port, "--strict"], timeout=280, code=None
    )
    (counts,) = re.findall(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    assert counts == (str(H2SPEC_CASES), str(H2SPEC_CASES), "0", "0"), done.stdout[-5000:]
