"""Several server processes in one pod: they share its requests, and are one server to everybody else."""

import gzip
import json
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from enginewright.contract.reasons import ExitCode, Reason
from enginewright.contract.report import read_termination_message
from enginewright.contract.task import ServeTask
from enginewright.contract.verdict import Check
from enginewright_runtime.serve import lanes
from enginewright_runtime.serve.exchanges import HEADER, ExchangeHead
from enginewright_runtime.serve.server.grpc.messages import InferRequest, Statistics
from enginewright_runtime.serve.server.grpc.status import Code
from enginewright_runtime.serve.server.http2 import frames

from tests.support import http2
from tests.support.certificates import Authority
from tests.support.secret_volumes import write_secret
from tests.support.serving import Server, Wire, linear_model, slow_model, write_artifact
from tests.support.sidecar import Sidecar, artifact

MODEL = 'model="m",revision="r1"'
OK = f'enginewright_requests_total{{code="200",{MODEL}}}'
SAMPLE = {"x": np.ones((2, 8), np.float32)}
CONNECTIONS = 32  # of which each process gets some, but for one time in billions
DOCUMENT = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1.0] * 8}]}


def started_with(code: str) -> str:
    """Return code for `Server(before=...)` after which further processes run `code` first."""
    program = (
        f"{code}\nimport sys\nfrom enginewright_runtime.serve.server.processes.follower import main"
        "\nmain(*map(int, sys.argv[1:]))"
    )
    return (
        "from enginewright_runtime.serve.server.processes import child\n"
        f"child._PROGRAM = ('-c', {program!r})"
    )


def runs_wrong(when: str) -> str:
    """Return code after which the model gives wrong outputs: in its `proofs`, or once they are `done`."""
    wrong = "model.runner.run = lambda *given: [2 * each for each in run(*given)]"
    if when == "proofs":
        return (
            "from enginewright_runtime.session.runner import Runner\nrun = Runner.run\n"
            "Runner.run = lambda self, *given: [2 * each for each in run(self, *given)]"
        )
    return (
        "from enginewright_runtime.serve.server.endpoints import Endpoints\n"
        "serve = Endpoints.serve_model\n"
        f"def drift(self, model):\n    run = model.runner.run\n    {wrong}\n    serve(self, model)\n"
        "Endpoints.serve_model = drift"
    )


def several(root: Path, processes: int = 2) -> ServeTask:
    task = write_artifact(root, linear_model(), [SAMPLE])
    return task.model_copy(update={"processes": processes})


def others(server: Server) -> list[int]:
    """Return the processes that the first one has started."""
    pid = server.process.pid
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def open_connections(pid: int, port: int) -> int:
    """Return how many connections to a port a process holds."""
    established = {
        fields[9]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:])
        if fields[3] == "01" and int(fields[1].rpartition(":")[2], 16) == port
    }
    held = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            held += os.readlink(each).removeprefix("socket:[").removesuffix("]") in established
    return held


def series(server: Server, name: str = OK) -> float:
    text = server.get("/metrics").body.decode()
    (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found)


def call_grpc(server: Server, method: str, request: bytes) -> bytes:
    with grpc.insecure_channel(
        f"127.0.0.1:{server.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        answer: bytes = call(request, timeout=20)
        return answer


def infer_by_grpc(server: Server) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 8]}
    request = InferRequest(model_name="m", inputs=[tensor], raw_input_contents=[b"\0" * 32])
    assert call_grpc(server, "ModelInfer", request.SerializeToString())


def lane(server: Server, process: int) -> Wire:
    """Return a connection to one process, as the sidecar opens it."""
    token = server.probe_header()["Enginewright-Probe"]
    wire = Wire.__new__(Wire)
    wire._socket, wire._rest = lanes.connect(token, process), b""
    wire._socket.settimeout(20)
    return wire


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("pair")
    with Server(root, several(root)) as server:
        until(lambda: serving(server) == 2, "both serve")
        assert serving(server) == 2, "and the other has answered after it was asked to accept"
        yield server


def serving(server: Server) -> int:
    found: int = server.get("/v2/models/m/execution").json()["details"]["processes"]
    return found


def test_both_processes_answer(pair: Server) -> None:
    (other,) = others(pair)
    with ExitStack() as stack:
        wires = [stack.enter_context(pair.wire()) for _ in range(CONNECTIONS)]
        for wire in wires:
            wire.send(pair.infer_request(DOCUMENT))
        assert all(wire.receive().json()["outputs"] for wire in wires)
        held = [open_connections(pid, pair.port) for pid in (pair.process.pid, other)]
        assert min(held) > 0
        assert sum(held) == CONNECTIONS


def test_every_process_expands_and_compresses_over_tls(tmp_path: Path) -> None:
    certificate = Authority(tmp_path / "authority").issue()
    write_secret(tmp_path / "run/enginewright/tls", **certificate.files)
    task = several(tmp_path).model_copy(update={"tls": True})
    rows = 200  # more than a TLS record, and than what is compressed at once
    data = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)
    document = {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [rows, 8], "data": data.ravel().tolist()}
        ],
        "outputs": [{"name": "y"}],
    }
    body = gzip.compress(json.dumps(document).encode())
    coding = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    with Server(tmp_path, task) as server, ExitStack() as stack:
        until(lambda: serving(server) == 2, "both serve")
        wires = [stack.enter_context(server.wire()) for _ in range(CONNECTIONS)]
        for wire in wires:
            wire.send(server.infer_request(body, headers=coding))
        for wire in wires:
            answer = wire.receive()
            assert answer.status == 200, answer.body
            assert answer.headers["content-encoding"] == "gzip"
            (output,) = json.loads(gzip.decompress(answer.body))["outputs"]
            weights = np.arange(32, dtype=np.float32).reshape(8, 4) / 8
            np.testing.assert_allclose(output["data"], (data @ weights).ravel(), rtol=1e-6)
        (other,) = others(server)
        held = [open_connections(pid, server.port) for pid in (server.process.pid, other)]
        assert min(held) > 0


def test_figures_are_those_of_all_processes(pair: Server) -> None:
    before, batches = series(pair), series(pair, f"enginewright_batch_size_count{{{MODEL}}}")
    sent = 0
    for _ in range(20):
        assert pair.post(DOCUMENT).status == 200
        infer_by_grpc(pair)
        sent += 2
        assert series(pair) == before + sent  # whichever process answers
    assert series(pair, f"enginewright_batch_size_count{{{MODEL}}}") == batches + sent
    headers = "".join(f"{key}: {value}\r\n" for key, value in pair.probe_header().items())
    for _ in range(8):
        with pair.wire() as wire:
            wire.send(
                f"GET /v2/models/m/measurements HTTP/1.1\r\nHost: h\r\n{headers}\r\n".encode()
            )
            found = wire.receive().json()
        assert found["responses"] == {"200": before + sent}
        assert sum(each["count"] for each in found["latencies"]) <= before + sent
        execution = pair.get("/v2/models/m/execution").json()
        assert (
            sum(each["count"] + each["untimed"] for each in execution["buckets"]) == before + sent
        )
        assert execution["details"]["processes"] == 2
        assert execution["details"]["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
        (counted,) = pair.get("/v2/models/m/stats").json()["model_stats"]
        assert counted["inference_count"] == before + sent
        assert sum(each["compute_infer"]["count"] for each in counted["batch_stats"]) > 0
        reply = Statistics.FromString(call_grpc(pair, "ModelStatistics", b""))
        assert reply.model_stats[0].inference_stats.success.count == before + sent
    for path in ("/v2/models/m/measurements", "/v2/models/m/shadow?share=1"):
        assert {pair.get(path).status for _ in range(8)} == {403}


# fault: Servers | clients ask for statistics over gRPC, which several processes gather, without end |
#   few calls wait for them, so that connections can be closed for others | UNAVAILABLE
def test_few_calls_wait_for_the_statistics_of_all_processes(pair: Server) -> None:
    client, count = http2.Client(), 100
    path = "/inference.GRPCInferenceService/ModelStatistics"
    calls = [client.call(number, path, b"") for number in range(1, 2 * count, 2)]
    with socket.create_connection(("127.0.0.1", pair.grpc_port), timeout=20) as wire:
        wire.sendall(client.opening + b"".join(calls))
        received = b""
        answers: dict[int, http2.Response] = {}
        while len(answers) < count:
            part = wire.recv(65536)
            assert part, "all calls are answered"
            received += part
            ended = [
                each
                for each in http2.split(received)
                if each.kind == frames.HEADERS and each.flags & frames.END_STREAM
            ]
            if len(ended) == count:
                answers = client.responses(received)
    statuses = Counter(each.status for each in answers.values())
    assert statuses.keys() == {Code.OK, Code.UNAVAILABLE}, statuses
    refused = next(each for each in answers.values() if each.status == Code.UNAVAILABLE)
    assert "try again later" in refused.headers["grpc-message"].replace("%20", " ")
    assert call_grpc(pair, "ModelStatistics", b"")


def test_heads_of_figures_are_answered(pair: Server) -> None:
    for _ in range(8):
        with pair.wire() as wire:
            for method in ("HEAD", "GET"):  # on one connection
                wire.send(f"{method} /metrics HTTP/1.1\r\nHost: h\r\n\r\n".encode())
                answer = wire.receive(head_only=method == "HEAD")
                assert answer.status == 200
                assert answer.headers["content-type"].startswith("text/plain")


def test_every_process_can_be_reached_by_itself(pair: Server) -> None:
    for process in (0, 1):
        with lane(pair, process) as wire:
            wire.send(pair.infer_request(DOCUMENT, headers=pair.probe_header()))
            answer = wire.receive()
            assert answer.status == 200
            assert "server-timing" in answer.headers
    with pytest.raises(OSError, match="refused"):
        lane(pair, 2)


def test_copies_for_the_sidecar_come_from_all_processes(pair: Server) -> None:
    """Most are dropped, since 8 are kept in each process, and all of those count."""
    headers = "".join(f"{key}: {value}\r\n" for key, value in pair.probe_header().items())
    ask = f"GET /v2/models/m/shadow?share=1 HTTP/1.1\r\nHost: h\r\n{headers}\r\n".encode()

    def take() -> ExchangeHead:
        with pair.wire() as wire:
            wire.send(ask)
            return ExchangeHead.read(wire.receive().headers[HEADER.lower()].encode())

    for _ in range(4):
        take()
    for _ in range(3 * CONNECTIONS):
        assert pair.post(DOCUMENT).status == 200
    taken = 0
    while (head := take()).request:
        taken += 1
    assert taken == 16, "all that both keep"
    assert head.dropped == 3 * CONNECTIONS - taken


# fault: Requests | one of several server processes crashes | the first process accepts its connections and starts another
#   | at once; the requests that it was answering fail
def test_a_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with Server(tmp_path, several(tmp_path)) as server, ExitStack() as stack:
        (other,) = others(server)
        stop = threading.Event()
        failed: list[int] = []
        ready: set[int] = set()
        counts: list[float] = []

        def use(number: int) -> None:
            wire = stack.enter_context(server.wire())
            while not stop.is_set():
                try:
                    wire.send(server.infer_request(DOCUMENT))
                    assert wire.receive().status == 200
                except (EOFError, OSError):
                    failed.append(number)
                    wire = stack.enter_context(server.wire())

        users = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for each in users:
            each.start()
        until(lambda: series(server) > 100, "requests are answered")
        held = open_connections(other, server.port)
        os.kill(other, signal.SIGKILL)

        def is_replaced() -> bool:
            ready.add(server.get("/v2/health/ready").status)
            counts.append(series(server))
            running = server.get("/v2/models/m/execution").json()["details"]["processes"]
            return running == 2 and others(server) != [other]

        until(is_replaced, "another process serves")
        stop.set()
        for each in users:
            each.join()
        assert len(failed) <= held, "only connections of the process that was killed"
        assert len(set(failed)) == len(failed), "no client fails twice"
        assert counts == sorted(counts)
        assert ready == {200}
        assert "server process 2 was ended by SIGKILL; another one replaces it" in server.log()


def test_a_drain_fails_no_request(tmp_path: Path) -> None:
    with Server(tmp_path, several(tmp_path, 3), drain_linger=1.0) as server:
        pids = others(server)
        assert len(pids) == 2
        with ExitStack() as stack:
            wires = [stack.enter_context(server.wire()) for _ in range(CONNECTIONS)]
            server.terminate()
            until(lambda: "draining" in server.log(), "it drains")
            late = [stack.enter_context(server.wire()) for _ in range(CONNECTIONS)]
            for wire in (*wires, *late):
                wire.send(server.infer_request(DOCUMENT))
            assert {wire.receive().status for wire in (*wires, *late)} == {200}
        assert server.wait() == ExitCode.OK
        assert not any(map(is_running, pids))
        assert (tmp_path / "dev/termination-log").read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_first(tmp_path: Path, number: signal.Signals) -> None:
    """However it ends: killed, or by a second signal while it drains."""
    with Server(tmp_path, several(tmp_path, 3)) as server:
        pids = others(server)
        if number == signal.SIGTERM:
            server.terminate()
            until(lambda: "draining" in server.log(), "it drains")
        server.process.send_signal(number)
        expected = -number if number == signal.SIGKILL else 128 + number
        assert server.wait() == expected
        until(lambda: not any(map(is_running, pids)), "all have ended")


def test_a_process_that_does_not_respond_is_replaced(tmp_path: Path) -> None:
    with Server(tmp_path, several(tmp_path), process_seconds=0.5) as server:
        (other,) = others(server)
        os.kill(other, signal.SIGSTOP)
        until(lambda: others(server) not in ([other], []), "it is replaced")
        assert not is_running(other)
        for _ in range(8):
            assert server.post(DOCUMENT).status == 200
        assert "server process 2 has not responded for 0.5 s" in server.log()


def test_a_process_whose_run_does_not_end_is_replaced(tmp_path: Path) -> None:
    """The pod stays ready and live: the others serve."""
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}])
    task = task.model_copy(update={"processes": 2})
    turning = {"name": "turns", "datatype": "INT64", "shape": [1], "data": [10**12]}
    with Server(tmp_path, task, stuck_seconds=0.3, sweep_seconds=0.1) as server:
        (other,) = others(server)
        with lane(server, 1) as wire:
            wire.send(server.infer_request({"inputs": [turning]}))
            until(lambda: others(server) not in ([other], []), "it is replaced")
        assert "server process 2 is not live: one run of the model has taken more" in server.log()
        assert server.get("/v2/health/live").status == 200


def test_the_pod_is_ready_once_all_have_proved_their_copies(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = f"""
import time
from pathlib import Path
from enginewright_runtime.serve.server.processes import follower
def prepare(task, artifact, progress, **given):
    progress("waiting")
    while not Path({str(gate)!r}).exists():
        time.sleep(0.02)
    return original(task, artifact, progress, **given)
original, follower.prepare = follower.prepare, prepare
"""
    server = Server(tmp_path, several(tmp_path), before=started_with(waits))
    try:
        until(lambda: _says(server, "server process 2: waiting"), "users see what it waits for")
        assert server.get("/v2/health/live").status == 200
        assert server.post(DOCUMENT).status == 503
        with pytest.raises(OSError, match="refused"):
            lane(server, 1)
        gate.touch()
        server.wait_until_ready()
        assert server.post(DOCUMENT).status == 200
    finally:
        server.stop()


def test_the_pod_is_ready_once_all_accept_connections(tmp_path: Path) -> None:
    reached, gate = tmp_path / "reached", tmp_path / "gate"
    waits = f"""
import time
from pathlib import Path
from enginewright_runtime.serve.server.processes import follower
def start_listening(socket):
    Path({str(reached)!r}).touch()
    while not Path({str(gate)!r}).exists():
        time.sleep(0.02)
    original(socket)
original, follower.start_listening = follower.start_listening, start_listening
"""
    server = Server(tmp_path, several(tmp_path), before=started_with(waits))
    try:
        until(reached.exists, "the other process is to accept connections")
        ready = server.get("/v2/health/ready")
        assert (ready.status, server.get("/v2/health/live").status) == (503, 200)
        assert "server process 2 does not accept connections yet" in ready.body.decode()
        gate.touch()
        server.wait_until_ready()
        for _ in range(CONNECTIONS):  # of both processes
            until(lambda: server.get("/v2/health/ready").status == 200, "each says so")
            assert server.post(DOCUMENT).status == 200
    finally:
        server.stop()


def _says(server: Server, text: str) -> bool:
    with suppress(OSError):
        return text in server.get("/v2/health/ready").body.decode()
    return False


def test_a_signal_ends_the_server_before_it_is_ready(tmp_path: Path) -> None:
    waits = """
import time
from enginewright_runtime.serve.server.processes import follower
follower.prepare = lambda *given, **more: (given[2]("waiting"), time.sleep(600))
"""
    server = Server(tmp_path, several(tmp_path), before=started_with(waits))
    try:
        until(lambda: _says(server, "server process 2: waiting"), "the other one loads")
        pids = others(server)
        server.terminate()
        assert server.wait() == ExitCode.OK
        until(lambda: not any(map(is_running, pids)), "all have ended")
        assert (tmp_path / "dev/termination-log").read_text() == ""
    finally:
        server.stop()


CRASHES = """
import os, signal
from enginewright_runtime.serve.server.processes import follower
follower.prepare = lambda *given, **more: os.kill(os.getpid(), signal.%s)
"""


@pytest.mark.parametrize(
    ("code", "reason", "cause"),
    [
        (runs_wrong("proofs"), Reason.PARITY_FAILED, "golden sample 's0'"),
        (
            CRASHES % "SIGSEGV",
            Reason.BACKEND_CRASHED,
            "server process 2 was ended by SIGSEGV while it was loading or proving the model",
        ),
        (CRASHES % "SIGKILL", Reason.OUT_OF_MEMORY, "usually out of memory"),
    ],
)
def test_a_process_that_proves_nothing_ends_the_server(
    tmp_path: Path, code: str, reason: Reason, cause: str
) -> None:
    server = Server(tmp_path, several(tmp_path), before=started_with(code))
    try:
        code_of_reason = {Reason.OUT_OF_MEMORY: ExitCode.TRANSIENT}.get(reason, ExitCode.PERMANENT)
        assert server.wait() == code_of_reason
        found = read_termination_message((tmp_path / "dev/termination-log").read_text())
        assert found is not None
        assert found.reason is reason
        assert cause in found.outcome
        assert server.log().count("ready,") == 0
    finally:
        server.stop()


def test_the_server_ends_when_no_replacement_proves_the_model(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        f"if Path({str(tmp_path / 'broken')!r}).exists():\n    "
        + runs_wrong("proofs").replace("\n", "\n    ")
    )
    with Server(tmp_path, several(tmp_path), before=started_with(code)) as server:
        (tmp_path / "broken").touch()
        os.kill(others(server)[0], signal.SIGKILL)
        assert server.wait() == ExitCode.PERMANENT
        found = read_termination_message((tmp_path / "dev/termination-log").read_text())
        assert found is not None
        assert found.reason is Reason.PARITY_FAILED


def test_backends_with_a_device_are_refused(tmp_path: Path) -> None:
    task = several(tmp_path).model_copy(update={"backend": "cuda"})
    server = Server(tmp_path, task)
    try:
        assert server.wait() == ExitCode.PERMANENT
        assert (
            "backend cuda serves with one process, and spec.serving.processes is 2" in server.log()
        )
        assert "set spec.serving.processes to 1, or choose cpu or openvino" in server.log()
    finally:
        server.stop()


def test_one_process_has_no_others(tmp_path: Path) -> None:
    with Server(tmp_path, several(tmp_path, 1)) as server:
        assert others(server) == []
        with pytest.raises(OSError, match="refused"):
            lane(server, 0)
        with (
            pytest.raises(OSError, match="in use"),
            socket.create_server(("", server.port), reuse_port=True),
        ):
            pass


def test_a_sidecar_proves_every_process(tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), [SAMPLE])
    task = task.model_copy(update={"processes": 2})
    with Server(tmp_path, task) as server, Sidecar(tmp_path, task, server.port) as sidecar:
        sidecar.until_ready()
        for name in ("SERVER", "PROVIDER", "PLACEMENT", "DISTRIBUTION", "VERSIONS", "GOLDEN"):
            sidecar.until_state(Check[name], "ok")
        assert series(server) == 0, "golden inferences are no requests"
        os.kill(others(server)[0], signal.SIGKILL)
        until(lambda: "another one replaces it" in server.log(), "it is replaced")
        assert sidecar.is_ready()


# fault: Outputs | one of several server processes gives wrong outputs | golden inferences in every process
#   | 1 s
def test_a_process_that_drifts_is_found(tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), [SAMPLE])
    task = task.model_copy(update={"processes": 2})
    with (
        Server(tmp_path, task, before=started_with(runs_wrong("done"))) as server,
        Sidecar(tmp_path, task, server.port) as sidecar,
    ):
        found = sidecar.until_state(Check.GOLDEN, "failed")
        assert found.reason is Reason.PARITY_FAILED
        assert not sidecar.is_ready()
        with lane(server, 0) as wire:
            wire.send(server.infer_request(DOCUMENT))
            assert wire.receive().status == 200
