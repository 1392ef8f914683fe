"""TLS of the real server, HTTP and gRPC: clients of all kinds, renewed certificates, and clients that mean harm."""

import concurrent.futures
import contextlib
import json
import resource
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from enginewright_contract.reasons import ExitCode
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_serving.mounted_secret import MountedSecret
from enginewright_serving.server.protocol.grpc.messages import InferResponse
from enginewright_serving.transport.certificate import Certificate

from tests.integration.test_server_clients import PROGRAMS, PYTHON
from tests.integration.test_server_grpc_inference import INFER, SERVICE, batch, parse_message
from tests.integration.test_sidecar_shadow import (
    compare_requests,
    count_by_code,
    counts,
    order,
    read_comparison,
    request,
    start_watching,
)
from tests.support.certificates import Authority, Pair
from tests.support.secret_volumes import write_secret
from tests.support.serving import (
    Answer,
    Server,
    Wire,
    any_certificate,
    binary_inputs,
    json_inputs,
    linear_model,
    read_report,
    run_json,
    write_artifact,
)
from tests.support.shared import share_server
from tests.support.sidecar import artifact
from tests.support.waiting import until

SAMPLES = [{"x": np.ones((1, 8), np.float32)}]
DOCUMENT = json_inputs(x=np.ones((1, 8), np.float32))
TOKEN = "t0ken-of-the-shop"
VOLUME = "run/enginewright/tls"
SECONDS = 20.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def secure_task(root: Path, files: dict[str, str], **fields: Any) -> ServeTask:
    write_secret(root / VOLUME, **files)
    task = write_artifact(root, linear_model(), SAMPLES)
    return task.model_copy(update={"tls": True, **fields})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("tls")
    with Server(root, secure_task(root, authority.issue().files)) as server:
        yield server


plain = share_server(linear_model, *SAMPLES)


def verifying(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.path)


def channel(server: Server, authority: Authority) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(authority.path.read_bytes())
    return grpc.secure_channel(f"localhost:{server.grpc_port}", credentials)


def rows(server: Server, count: int) -> bytes:
    """Return a binary request with so many rows of 32 bytes."""
    document, tensors = binary_inputs(x=np.arange(count * 8, dtype=np.float32).reshape(count, 8))
    return server.infer_request(document | {"outputs": [{"name": "y"}]}, tensors)


def multiply_rows(count: int) -> Any:
    x = np.arange(count * 8, dtype=np.float32).reshape(count, 8)
    return x @ (np.arange(32, dtype=np.float32).reshape(8, 4) / 8)


def outputs(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return np.frombuffer(answer.tensors(), np.float32).reshape(-1, 4)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_http_over_tls(server: Server, authority: Authority, version: ssl.TLSVersion) -> None:
    context = verifying(authority)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    with Wire(server.port, tls=context) as wire:
        assert wire.tls.selected_alpn_protocol() == "http/1.1"
        for count in (1, 100, 300_000, 3):  # up to 9.6 MB
            wire.send(rows(server, count))
            np.testing.assert_allclose(outputs(wire.receive()), multiply_rows(count), rtol=1e-5)
        wire.send(server.infer_request(DOCUMENT) * 30)  # pipelined
        assert [wire.receive().status for _ in range(30)] == [200] * 30
        wire.send(b"GET /v2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert wire.receive().status == 200
        assert wire.wait_closed()


def test_an_early_refusal_is_read_although_the_body_was_not(
    server: Server, authority: Authority
) -> None:
    with Wire(server.port, tls=verifying(authority)) as wire:
        wire.send(b"POST /v2/models/n/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000\r\n\r\n")
        with contextlib.suppress(OSError):  # it may be closed by then
            wire.send(bytes(9_000_000))
        assert wire.receive().status == 404


def test_grpc_over_tls(server: Server, authority: Authority) -> None:
    with channel(server, authority) as opened:
        call = opened.unary_unary(INFER)
        for count in (1, 100_000, 1):
            answer = parse_message(
                InferResponse, call(batch(count).SerializeToString(), timeout=SECONDS)
            )
            assert len(answer.raw_output_contents[0]) == 16 * count
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            sent = batch(1000).SerializeToString()
            sizes = list(pool.map(lambda _: len(call(sent, timeout=SECONDS)), range(64)))
        assert len(set(sizes)) == 1
    context = verifying(authority)
    context.set_alpn_protocols(["h2"])
    with Wire(server.grpc_port, tls=context) as wire:
        assert wire.tls.selected_alpn_protocol() == "h2"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_older_versions_are_refused(server: Server) -> None:
    context = any_certificate()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    for port in (server.port, server.grpc_port):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            Wire(port, tls=context)


def test_plain_http_is_told_to_use_tls(server: Server) -> None:
    with Wire(server.port) as wire:
        wire.send(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = wire.receive()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert "speaks TLS only; use https" in answer.json()["error"]
        assert wire.wait_closed()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as opened:
        with pytest.raises(grpc.RpcError) as caught:
            opened.unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=SECONDS)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "HTTP status 400" in caught.value.details(), "at once, and not retried as a call"


def test_tls_at_a_plain_port_ends_at_once(plain: Server) -> None:
    began = time.monotonic()
    for port in (plain.port, plain.grpc_port):
        with pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
            Wire(port, tls=any_certificate())
    assert time.monotonic() - began < SECONDS / 2, "not only at the limit of a head"


def serial(port: int) -> str:
    with Wire(port, tls=any_certificate()) as wire:
        return str(wire.tls.getpeercert(binary_form=True))


def _has_logged(server: Server, text: str) -> bool:
    return text in server.log()


@pytest.fixture(scope="module")
def renewing(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    """Run a server that soon sees a changed Secret."""
    root = tmp_path_factory.mktemp("renewing")
    with Server(root, secure_task(root, authority.issue().files), sweep_seconds=0.02) as server:
        yield server


def test_a_renewed_certificate_is_used_without_a_restart(
    renewing: Server, authority: Authority
) -> None:
    server, volume = renewing, renewing.root / VOLUME
    other, second, third = (authority.issue() for _ in range(3))
    with (
        Wire(server.port, tls=verifying(authority)) as old,
        channel(server, authority) as calls,
    ):
        call = calls.unary_unary(INFER)
        before = serial(server.port)
        failed: list[Exception] = []
        done = threading.Event()

        def requests() -> None:
            try:
                while not done.is_set():
                    assert server.post(DOCUMENT).status == 200
                    call(batch(1).SerializeToString(), timeout=SECONDS)
            except Exception as error:  # noqa: BLE001 - shown at the end
                failed.append(error)

        busy = threading.Thread(target=requests)
        busy.start()
        write_secret(volume, **second.files)
        until(lambda: serial(server.port) != before, "the new certificate")
        renewed = serial(server.port)
        assert serial(server.grpc_port) == renewed
        mixed = Pair(third.certificate, other.key)
        for broken, reason in (
            (mixed.files, "tls.key that is not of its tls.crt"),
            ({"tls.crt": "x", "tls.key": third.key}, "that cannot be used"),
            ({"tls.crt": third.certificate}, "lacks tls.crt or tls.key"),
        ):
            write_secret(volume, **broken)
            until(partial(_has_logged, server, reason), reason)
            assert serial(server.port) == renewed
        assert "the earlier certificate stays in use: create or correct" in server.log()
        write_secret(volume, **third.files)
        until(lambda: serial(server.port) != renewed, "the corrected one")
        done.set()
        busy.join(SECONDS)
        assert not failed
        old.send(server.infer_request(DOCUMENT))
        assert old.receive().status == 200, "on the connection from before"
    for key in ("PRIVATE KEY", other.key.splitlines()[1]):
        assert key not in server.log()


def test_a_certificate_that_cannot_be_read_is_read_again(
    renewing: Server, authority: Authority
) -> None:
    before, kept = serial(renewing.port), "the earlier certificate stays in use"
    logged, pid = renewing.log().count(kept), renewing.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        write_secret(renewing.root / VOLUME, **authority.issue().files)
        until(lambda: renewing.log().count(kept) > logged, "is logged")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: serial(renewing.port) != before, "the new certificate")


ENCRYPTED = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIH\n-----END ENCRYPTED PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tls.key": None}, "does not exist or lacks tls.crt or tls.key"),
        ({"tls.key": "", "tls.crt": ""}, "cannot be used"),
        ({"tls.key": ENCRYPTED}, "cannot be used"),
        ({"tls.crt": None, "tls.key": None}, "does not exist or lacks tls.crt or tls.key"),
    ],
)
def test_a_secret_without_a_usable_certificate_is_refused(
    tmp_path: Path, authority: Authority, change: dict[str, str | None], reason: str
) -> None:
    files = authority.issue().files | change
    write_secret(tmp_path, **{name: file for name, file in files.items() if file is not None})
    with pytest.raises(StageFailure, match=reason):
        Certificate(MountedSecret(tmp_path))


def test_without_a_certificate_the_server_does_not_start(tmp_path: Path) -> None:
    assert Server(tmp_path, secure_task(tmp_path, {})).wait() == ExitCode.TRANSIENT
    report = read_report(tmp_path)
    assert report.reason == "SecretUnusable"
    assert "the Secret of spec.serving.tls.secretRef" in report.outcome
    assert "does not exist or lacks tls.crt or tls.key" in report.outcome


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    """Run a server with TLS that requires a token."""
    root = tmp_path_factory.mktemp("guarded")
    write_secret(root / "run/enginewright/tokens", shop=TOKEN)
    with Server(root, secure_task(root, authority.issue().files, auth=True)) as server:
        yield server


def test_tritons_and_kserves_clients_with_tls_and_a_token(
    guarded: Server, authority: Authority
) -> None:
    given = {
        "http": f"localhost:{guarded.port}",
        "grpc": f"localhost:{guarded.grpc_port}",
        "token": TOKEN,
        "authority": str(authority.path),
    }
    program = (PROGRAMS / "secured.py").read_text()
    results: dict[str, Any] = {}
    for client in ("triton", "kserve"):
        results |= run_json(PYTHON, program, json.dumps(given | {"client": client}))
    for name in ("http", "grpc", "kserve"):
        answered, refused = results[name]
        np.testing.assert_allclose(answered, [[14, 15, 16, 17]] * 2, rtol=1e-5)
        assert "the bearer token is not valid" in refused or "401" in refused
    assert results["http ready"] is True
    assert results["grpc ready"] is True


def test_call_credentials_carry_the_token(guarded: Server, authority: Authority) -> None:
    with channel(guarded, authority) as opened, pytest.raises(grpc.RpcError) as caught:
        opened.unary_unary(INFER)(batch(1).SerializeToString(), timeout=SECONDS)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(authority.path.read_bytes()),
        grpc.access_token_call_credentials(TOKEN),
    )
    with grpc.secure_channel(f"localhost:{guarded.grpc_port}", credentials) as opened:
        answer = opened.unary_unary(INFER)(batch(1).SerializeToString(), timeout=SECONDS)
    assert parse_message(InferResponse, answer).model_name == "m"


def test_copies_go_to_canaries_with_the_same_certificate_alone(
    tmp_path: Path, authority: Authority
) -> None:
    pair, tasks = authority.issue(), []
    for revision in ("r1", "r2"):
        root = tmp_path / revision
        root.mkdir()
        write_secret(root / VOLUME, **pair.files)
        update: dict[str, Any] = {"tls": True, "revision": revision}
        tasks.append(artifact(root, linear_model(), SAMPLES).model_copy(update=update))
    with (
        Server(tmp_path / "r1", tasks[0]) as serving,
        Server(tmp_path / "r2", tasks[1], sweep_seconds=0.05) as canary,
        start_watching(tmp_path / "r1", tasks[0], serving.port, canary.port) as sidecar,
    ):
        compare_requests(serving, sidecar, request(serving, [[1.0] * 8]))
        assert {check.state for check in sidecar.verdict().checks} <= {"ok", "unknown"}
        assert b"enginewright_requests_total" in sidecar.get("/metrics").body, "of the server"
        assert count_by_code(canary, "enginewright_shadow_requests_total")["200"] > 0
        before = serial(canary.port)
        sidecar.shadow("")
        write_secret(tmp_path / "r2" / VOLUME, **authority.issue().files)
        until(lambda: serial(canary.port) != before, "the canary has another certificate")
        time.sleep(1.0)  # the sidecar closes its connections to canaries
        compared = counts(sidecar)[:3]
        copied = count_by_code(canary, "enginewright_shadow_requests_total")
        sidecar.shadow(order())

        def is_dropped() -> bool:
            serving.send(request(serving, [[1.0] * 8]))
            comparison = read_comparison(sidecar)
            return comparison is not None and comparison.dropped_by.get("CanaryNotReady", 0) > 0

        sidecar.until(is_dropped, "they are dropped")
        assert counts(sidecar)[:3] == compared
        assert count_by_code(canary, "enginewright_shadow_requests_total") == copied
