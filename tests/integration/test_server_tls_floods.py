"""The server's TLS ports beside a thousand clients that never complete a handshake, or read nothing."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from enginewright_contract.task import ServeTask
from enginewright_serving.transport.tls import HANDSHAKES

from tests.integration.test_server_floods import (
    ANSWER_SECONDS,
    COUNT,
    MEMORY,
    MIB,
    PROBE_FAILURES,
    PROBE_SECONDS,
    SECONDS,
    Repeated,
    leave_unread,
    spread_model,
)
from tests.integration.test_server_grpc_inference import SERVICE
from tests.support.certificates import Authority
from tests.support.cpu import processor_seconds
from tests.support.floods import flood_with
from tests.support.process_memory import memory_of
from tests.support.secret_volumes import write_secret
from tests.support.serving import Server, Wire, any_certificate, linear_model
from tests.support.sidecar import artifact

STORM = 300  # connections, which are replaced: the computing of so many handshakes is a core's


def secure_server(root: Path, task: ServeTask) -> ServeTask:
    write_secret(root / "run/enginewright/tls", **Authority(root / "authority").issue().files)
    return task.model_copy(update={"tls": True})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("floods")
    task = artifact(root, linear_model(), [{"x": np.full((1, 8), 0.5, np.float32)}])
    with Server(root, secure_server(root, task)) as server:
        yield server


def try_repeatedly(server: Server, act: Callable[[], None]) -> Repeated:
    """Do it again and again as a kubelet probes: within seconds of the server's work, with few failures in a row."""

    def attempt() -> None:
        before = processor_seconds(server.process.pid)
        act()
        if processor_seconds(server.process.pid) - before > PROBE_SECONDS:
            raise TimeoutError("it took longer than a kubelet waits")

    def attempts() -> None:
        for _ in range(PROBE_FAILURES - 1):
            with contextlib.suppress(OSError, EOFError, grpc.RpcError):
                attempt()
                return
        attempt()

    return Repeated(attempts, 0.05)


def probes(server: Server) -> Repeated:
    def act() -> None:
        with Wire(server.port, timeout=ANSWER_SECONDS, tls=any_certificate()) as wire:
            wire.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n")
            assert wire.receive().status == 200

    return try_repeatedly(server, act)


def calls(server: Server) -> Repeated:
    """Call on new connections."""
    certificate = (server.root / "authority/ca.crt").read_bytes()

    def act() -> None:
        credentials = grpc.ssl_channel_credentials(certificate)
        with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
            channel.unary_unary(f"/{SERVICE}/ServerReady")(b"", timeout=ANSWER_SECONDS)

    return try_repeatedly(server, act)


# fault: Hostile | clients hold or flood TLS handshakes: nothing sent, a part of the first record, no
#   second flight, many new connections | of each port so many handshakes are in progress at most, and the
#   oldest is ended for a new one | probes and other clients are answered
@pytest.mark.parametrize("kind", ["idle", "half hellos", "hellos", "hello storm"])
def test_probes_and_calls_get_through_beside_handshakes(server: Server, kind: str) -> None:
    count = STORM if kind == "hello storm" else COUNT
    before = memory_of(server.process.pid)
    with flood_with(server.port, kind, count), probes(server):
        time.sleep(SECONDS)
        most = memory_of(server.process.pid)
    with flood_with(server.grpc_port, kind, count), calls(server):
        time.sleep(SECONDS)
        most = max(most, memory_of(server.process.pid))
    assert most - before < MEMORY / 2
    assert "Traceback" not in server.log()


def test_the_oldest_handshakes_end_for_new_ones(server: Server) -> None:
    with contextlib.ExitStack() as opened:
        wires = [opened.enter_context(Wire(server.port)) for _ in range(HANDSHAKES + 10)]
        for item in wires[:10]:
            assert item.wait_closed()
        with server.wire() as wire:
            wire.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n")
            assert wire.receive().status == 200


def test_a_handshake_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), [{"x": np.full((1, 8), 0.5, np.float32)}])
    with Server(
        tmp_path, secure_server(tmp_path, task), head_seconds=0.3, sweep_seconds=0.05
    ) as server:
        for port in (server.port, server.grpc_port):
            for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
                with Wire(port) as wire:
                    wire.send(sent)
                    assert wire.wait_closed()


# fault: Hostile | clients do not read large responses
def test_responses_that_nobody_reads_take_limited_memory(tmp_path: Path) -> None:
    task = artifact(tmp_path, spread_model(16_000_000), [{"x": np.array([2], np.float32)}])
    with Server(tmp_path, secure_server(tmp_path, task), inflight_bytes=128 * MIB) as server:
        leave_unread(server, 40)
