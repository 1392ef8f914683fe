"""Bearer tokens against the real server: who is let in, when that changes, and what is kept from everybody."""

import contextlib
import json
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.reasons import ExitCode
from enginewright_contract.serving_options import AccessLogTask
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_serving.mounted_secret import MountedSecret
from enginewright_serving.server.api.authentication import Authentication

from tests.integration.test_server_grpc_inference import CHECK, INFER, SERVICE, Client, batch
from tests.integration.test_sidecar_shadow import (
    compare_requests,
    counts,
    order,
    read_comparison,
    request,
    start_watching,
)
from tests.support.secret_volumes import write_secret
from tests.support.serving import (
    COPY,
    Server,
    json_inputs,
    linear_model,
    read_report,
    write_artifact,
)
from tests.support.sidecar import Sidecar, artifact
from tests.support.waiting import until

TOKEN = "t0ken-of-the-shop"
OTHER = "t0ken-of-search"
X = [[1.0] * 8]
DOCUMENT = json_inputs(x=np.ones((1, 8), np.float32))
INFER_PATH = "/v2/models/m/infer"
SAMPLES = [{"x": np.ones((1, 8), np.float32)}]
SECONDS = 20.0


def guard_task(root: Path, **tokens: str) -> ServeTask:
    """Return a task that requires one of `tokens`."""
    write_secret(root / "run/enginewright/tokens", **tokens)
    return write_artifact(root, linear_model(), SAMPLES, auth=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("guarded")
    with Server(root, guard_task(root, shop=f"{TOKEN}\n", search=OTHER)) as server:
        yield server


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("token", [TOKEN, OTHER])
def test_a_client_with_a_token_is_answered(server: Server, token: str) -> None:
    assert server.post(DOCUMENT, headers=bearer(token)).status == 200
    for path in ("/v2", "/v2/models/m", "/v2/models/m/ready", "/v2/models/m/execution", "/metrics"):
        assert server.get(path, headers=bearer(token)).status == 200
    assert server.get("/v2/models/other", headers=bearer(token)).status == 404


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_kubelets_need_no_token(server: Server, path: str) -> None:
    assert server.get(path).status == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/v2", "/v2/models/m", "/v2/models/m/ready", "/v2/models/m/execution", "/metrics"),
        *("/v2/models/m/measurements", "/v2/models/other", "/", "/v2/health/live/../../models/m"),
        "http://h/v2/models/m",
    ],
)
def test_all_else_needs_one(server: Server, path: str) -> None:
    answer = server.get(path)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="enginewright"'
    assert "send Authorization: Bearer TOKEN" in answer.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        bearer("wrong"),
        bearer(TOKEN + "x"),
        bearer(""),
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Enginewright-Probe": "0" * 64},
        COPY,
    ],
)
def test_an_inference_without_a_valid_token_is_refused(
    server: Server, headers: dict[str, str]
) -> None:
    answer = server.post(DOCUMENT, headers=headers)
    assert answer.status == 401
    invalid = "Authorization" in headers
    assert ('error="invalid_token"' in answer.headers["www-authenticate"]) is invalid
    assert TOKEN not in json.dumps([answer.headers, answer.body.decode()])


def test_two_tokens_are_ambiguous(server: Server) -> None:
    lines = f"Authorization: Bearer {TOKEN}\r\n" * 2
    assert server.send(f"GET /v2 HTTP/1.1\r\nHost: h\r\n{lines}\r\n".encode()).status == 400


def test_a_body_is_refused_before_it_is_sent(server: Server) -> None:
    head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: h\r\nContent-Length: 60000000\r\n"
    answer = server.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert (answer.status, answer.headers["connection"]) == (401, "close")


def test_refusals_are_counted_and_reveal_no_token(server: Server) -> None:
    def count_refused() -> float:
        text = server.get("/metrics", headers=bearer(TOKEN)).body.decode()
        match = re.search(r'enginewright_requests_total\{code="401".*\} ([0-9.e+]+)', text)
        return float(match[1]) if match else 0.0

    before = count_refused()
    assert server.post(DOCUMENT, headers=bearer("almost-" + TOKEN)).status == 401
    with Client(server) as client:
        assert client.call_refused(INFER, batch(1))[0] == "UNAUTHENTICATED"
    assert count_refused() == before + 2
    log = server.log()
    assert "requests need a token of one of these clients: search, shop" in log
    for secret in (TOKEN, OTHER):
        assert secret not in log
        assert secret not in server.get("/metrics", headers=bearer(TOKEN)).body.decode()
        assert secret not in server.task.to_json()


def test_refusals_are_in_the_access_log_and_in_the_time_to_the_response(tmp_path: Path) -> None:
    options = AccessLogTask(share=0.0, failed="All")
    task = guard_task(tmp_path, shop=TOKEN).model_copy(update={"access_log": options})
    with Server(tmp_path, task) as server, Client(server) as client:
        assert server.post(DOCUMENT).status == 401
        assert client.call_refused(INFER, batch(1))[0] == "UNAUTHENTICATED"
        assert client.call_refused(f"/{SERVICE}/ServerMetadata")[0] == "UNAUTHENTICATED"
        assert server.get("/v2").status == 401
        until(lambda: server.log().count(" code=401 ") == 2, "both inferences are logged")
        text = server.get("/metrics", headers=bearer(TOKEN)).body.decode()
    (number,) = re.findall(r'_duration_seconds_count\{code="4xx",.*\} (\S+)', text)
    assert float(number) == 2


def test_grpc_reads_the_token_from_the_calls_metadata(server: Server) -> None:
    with Client(server) as client:
        assert client.health() == 1
        for method in ("ServerLive", "ServerReady"):
            client.call(f"/{SERVICE}/{method}")
        client.call(INFER, batch(2), metadata=[("authorization", f"Bearer {TOKEN}")])
        refused = [
            client.call_refused(INFER, batch(2)),
            client.call_refused(INFER, batch(2), metadata=[("authorization", "Bearer wrong")]),
            client.call_refused(f"/{SERVICE}/ServerMetadata"),
            client.call_refused("/mine/Method"),
            client.call_unended(INFER, batch(2)),
        ]
        assert {code for code, _ in refused} == {"UNAUTHENTICATED"}
        assert "a bearer token is required" in refused[0][1]
        assert "is not valid" in refused[1][1]
        client.call(CHECK)


@pytest.fixture(scope="module")
def renewing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server that soon sees a changed Secret."""
    root = tmp_path_factory.mktemp("renewing")
    with Server(root, guard_task(root, shop=TOKEN), sweep_seconds=0.05) as server:
        yield server


def write_tokens(server: Server, **tokens: str) -> None:
    write_secret(server.root / "run/enginewright/tokens", **tokens)


def test_tokens_change_without_a_restart(renewing: Server) -> None:
    with Client(renewing) as client:

        def status(token: str) -> int:
            return renewing.post(DOCUMENT, headers=bearer(token)).status

        def calls(token: str) -> bool:
            with contextlib.suppress(Exception):
                client.call(INFER, batch(1), metadata=[("authorization", f"Bearer {token}")])
                return True
            return False

        assert (status(TOKEN), status(OTHER)) == (200, 401)
        assert (calls(TOKEN), calls(OTHER)) == (True, False)
        write_tokens(renewing, shop=OTHER)
        until(lambda: (status(TOKEN), status(OTHER)) == (401, 200), "the new token counts")
        assert (calls(TOKEN), calls(OTHER)) == (False, True), "on an open connection too"
        write_tokens(renewing)
        until(lambda: status(OTHER) == 401, "with an empty Secret all tokens are refused")
        assert "every request is refused until it is corrected" in renewing.log()
        assert renewing.get("/v2/health/ready").status == 200
        write_tokens(renewing, shop="not a token")
        text = "key 'shop' has a line that is no bearer token"
        until(lambda: text in renewing.log(), "is logged")
        assert status("not a token") == status("not") == 401
        write_tokens(renewing, shop=TOKEN)
        until(lambda: status(TOKEN) == 200, "it is corrected")


# fault: Servers | the Secret of tokens changes while no file can be opened, such as in a flood of connections |
#   the earlier tokens stay in force, and it is read again | the pod
def test_tokens_that_cannot_be_read_change_nothing(renewing: Server) -> None:
    pid = renewing.process.pid
    with renewing.wire() as wire:

        def status(token: str) -> int:
            wire.send(renewing.infer_request(DOCUMENT, headers=bearer(token)))
            return wire.receive().status

        assert status(TOKEN) == 200
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            write_tokens(renewing, shop=OTHER)
            until(lambda: "the earlier tokens stay in force" in renewing.log(), "is logged")
            assert (status(TOKEN), status(OTHER)) == (200, 401)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        until(lambda: (status(TOKEN), status(OTHER)) == (401, 200), "the new token counts")
        assert renewing.log().count("cannot be read") == 1
        write_tokens(renewing, shop=TOKEN)
        until(lambda: status(TOKEN) == 200, "the first one counts again")


LACKING = "the Secret of spec.serving.auth.secretRef does not exist or has no"


@pytest.mark.parametrize("tokens", [{}, {"shop": " \n"}, {"shop": "two words"}])
def test_a_secret_without_a_token_is_refused(tmp_path: Path, tokens: dict[str, str]) -> None:
    write_secret(tmp_path, **tokens)
    with pytest.raises(StageFailure, match=LACKING):
        Authentication(MountedSecret(tmp_path), "r1")


def test_without_a_secret_the_server_does_not_start(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, linear_model(), SAMPLES, auth=True)
    server = Server(tmp_path, task)
    assert server.wait() == ExitCode.TRANSIENT
    report = read_report(tmp_path)
    assert report.reason == "SecretUnusable"
    assert LACKING in report.outcome
    assert "create or correct the Secret" in report.outcome
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), 1).close()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[tuple[Server, Sidecar, Server, Path]]:
    """Yield server and sidecar of a serving pod, a canary's server and its Secret, with the same tokens."""
    roots = tmp_path / "serving", tmp_path / "canary"
    tasks = []
    for root, revision in zip(roots, ("r1", "r2"), strict=True):
        root.mkdir()
        write_secret(root / "run/enginewright/tokens", shop=TOKEN)
        update: dict[str, Any] = {"auth": True, "revision": revision}
        tasks.append(artifact(root, linear_model(), SAMPLES).model_copy(update=update))
    with (
        Server(roots[0], tasks[0]) as serving,
        Server(roots[1], tasks[1], sweep_seconds=0.05) as canary,
        start_watching(roots[0], tasks[0], serving.port, canary.port) as sidecar,
    ):
        sidecar.until_ready()
        yield serving, sidecar, canary, roots[1] / "run/enginewright/tokens"


def test_the_sidecar_verifies_its_server_and_canaries_take_copies(
    pods: tuple[Server, Sidecar, Server, Path],
) -> None:
    serving, sidecar, canary, secret = pods
    assert {check.state for check in sidecar.verdict().checks} <= {"ok", "unknown"}
    assert b"enginewright_requests_total" in sidecar.get("/metrics").body, "of the server"
    authorized = request(serving, X).replace(
        b"\r\n", f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode(), 1
    )
    compare_requests(serving, sidecar, authorized)
    write_secret(secret, shop=OTHER)
    until(lambda: canary.post(DOCUMENT, headers=bearer(OTHER)).status == 200, "it is renewed")
    sidecar.shadow(order())

    def count_refused() -> bool:
        serving.send(authorized)
        comparison = read_comparison(sidecar)
        return comparison is not None and comparison.dropped_by.get("CanaryRefused", 0) > 0

    sidecar.until(count_refused, "copies are refused")
    assert counts(sidecar)[1:3] == (0, 0), "which says nothing about the revision"
