"""The server's TLS ports beside a thousand clients that never complete a handshake, or read nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from enginewright_contract.task import ServeTask

from tests.integration.test_server_floods import (
    COUNT,
    MEMORY,
    MIB,
    PROBE_SECONDS,
    SECONDS,
    Repeated,
    leave_unread,
    resident,
    spread_model,
)
from tests.integration.test_server_grpc_inference import SERVICE
from tests.support.certificates import Authority
from tests.support.floods import flooded
from tests.support.key_updates import KeyUpdater
from tests.support.secret_volumes import write_secret
from tests.support.serving import Server, Wire, any_certificate, linear_model
from tests.support.sidecar import artifact

STORM = 300  # connections, which are replaced: the computing of so many handshakes is a core's


def secured(root: Path, task: ServeTask) -> ServeTask:
    write_secret(root / "run/enginewright/tls", **Authority(root / "authority").issue().files)
    return task.model_copy(update={"tls": True})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("floods")
    task = artifact(root, linear_model(), [{"x": np.full((1, 8), 0.5, np.float32)}])
    with Server(root, secured(root, task)) as server:
        yield server


def probes(port: int) -> Repeated:
    """Probe as a kubelet does."""

    def act() -> None:
        with Wire(port, timeout=PROBE_SECONDS, tls=any_certificate()) as wire:
            wire.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n")
            assert wire.receive().status == 200

    return Repeated(act, 0.05)


def calls(server: Server) -> Repeated:
    """Call on new connections."""
    certificate = (server.root / "authority/ca.crt").read_bytes()

    def act() -> None:
        credentials = grpc.ssl_channel_credentials(certificate)
        with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
            channel.unary_unary(f"/{SERVICE}/ServerReady")(b"", timeout=PROBE_SECONDS)

    return Repeated(act, 0.05)


# fault: Hostile | clients hold or flood TLS handshakes: nothing sent, a part of the first record, no
#   second flight, many new connections | a handshake is a connection that has sent nothing: the peer with
#   the most is closed first | probes and other clients are answered
@pytest.mark.parametrize("sources", [1, 40])
@pytest.mark.parametrize("kind", ["idle", "half hellos", "hellos", "hello storm"])
def test_probes_and_calls_get_through_beside_handshakes(
    server: Server, kind: str, sources: int
) -> None:
    count = STORM if kind == "hello storm" else COUNT
    before = resident(server.process.pid)
    with flooded(server.port, kind, count, sources=sources), probes(server.port):
        time.sleep(SECONDS)
        most = resident(server.process.pid)
    with flooded(server.grpc_port, kind, count, sources=sources), calls(server):
        time.sleep(SECONDS)
        most = max(most, resident(server.process.pid))
    assert most - before < MEMORY / 2
    assert "Traceback" not in server.log()


def test_a_handshake_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), [{"x": np.full((1, 8), 0.5, np.float32)}])
    with Server(tmp_path, secured(tmp_path, task), head_seconds=0.3, sweep_seconds=0.05) as server:
        for port in (server.port, server.grpc_port):
            for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
                with Wire(port) as wire:
                    wire.send(sent)
                    assert wire.closed()


# fault: Hostile | clients do not read large responses
def test_responses_that_nobody_reads_take_limited_memory(tmp_path: Path) -> None:
    """Forty of them, of 16 MB each, encrypted only as they are read."""
    task = artifact(tmp_path, spread_model(16_000_000), [{"x": np.array([2], np.float32)}])
    with Server(tmp_path, secured(tmp_path, task), inflight_bytes=128 * MIB) as server:
        leave_unread(server, 40)


# fault: Hostile | clients update the keys of TLS without end | a connection whose records carry nothing is
#   closed, one whose records carry little is read in turns | other clients are answered
def test_a_flood_of_key_updates_is_closed(server: Server) -> None:
    for port in (server.port, server.grpc_port):
        with KeyUpdater(port) as client:
            assert client.update(100_000) < 50_000


def test_key_updates_between_requests_are_answered(server: Server) -> None:
    request = b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n"
    with KeyUpdater(server.port) as client:
        for _ in range(20):
            assert client.update(100) == 100
            assert client.send(request)
            assert client.receive().startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("data", [b"\r\n", b"\r\n\r\n"])
def test_key_updates_with_some_data_delay_no_probes(server: Server, data: bytes) -> None:
    """Replies to them are not read, so that after a while the connection is closed."""
    before = resident(server.process.pid)
    with probes(server.port), KeyUpdater(server.port, receive_buffer=4096) as client:
        for _ in range(2000):
            if client.update(500) < 500 or not client.send(data):
                break
        else:
            raise AssertionError("replies are kept for a client that reads none")
    assert resident(server.process.pid) - before < 32 * MIB
