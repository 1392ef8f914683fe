"""Clients' requests that a canary answers as well: what is measured, and that no client ever notices."""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import pytest
from enginewright.manifests.serving_pod import sidecar_memory
from enginewright_contract.measurements import Measurements, ShadowComparison, ShadowOutput
from enginewright_contract.shadow import SHADOW_SECONDS
from enginewright_contract.task import ServeTask

from tests.support.broken_models import initializer, parse_text
from tests.support.optional import present
from tests.support.ports import free_port
from tests.support.process_memory import forget_peak, memory_of
from tests.support.serving import (
    COPY,
    SHADOW_TOKEN,
    Answer,
    Server,
    Wire,
    binary_inputs,
    json_inputs,
    linear_model,
    scale_linear,
    slow_model,
)
from tests.support.shared import share_server
from tests.support.sidecar import Sidecar, artifact, share_token
from tests.support.turns import queue_depth, slow_request
from tests.support.waiting import until

CANARY: Final = "r2"
HERE: Final = "127.0.0.1"
SAMPLES = [{"x": np.full((rows, 8), rows / 2, np.float32)} for rows in (1, 3)]
ROW: Final = [[0.5] * 8]
MIB: Final = 1 << 20
PATIENCE: Final = 10.0  # seconds for which a sidecar waits for a canary's answer
NOTICED: Final = (
    2.0  # seconds of one request, far above what any takes and far below what canaries wait
)


def start_watching(
    root: Path, task: ServeTask, server: int, canary: int, *, fresh: bool = False
) -> Sidecar:
    return Sidecar(
        root,
        task,
        server,
        pace=0.2,
        fresh=fresh,
        release_interval=0.1,
        shadow_interval=0.05,
        measurements_age=0.1,
        shadow_port=canary,
        shadow_seconds=PATIENCE,
    )


def order(
    share: float = 1.0, seconds: float = 100.0, to: str = HERE, revision: str = CANARY
) -> str:
    return f"{share:g} {int(time.time() + seconds)} {revision} {SHADOW_TOKEN} {to}"


def read_comparison(sidecar: Sidecar) -> ShadowComparison | None:
    answer = sidecar.get("/measurements")
    return Measurements.model_validate_json(answer.body).shadow if answer.status == 200 else None


def counts(sidecar: Sidecar) -> tuple[int, int, int, int]:
    shadow = read_comparison(sidecar) or ShadowComparison(revision="")
    return shadow.compared, shadow.rejected, shadow.failed, shadow.dropped


def outputs(sidecar: Sidecar) -> dict[str, ShadowOutput]:
    return {output.name: output for output in present(read_comparison(sidecar)).outputs}


def request(server: Server, rows: list[list[float]], *, binary: bool = False) -> bytes:
    x = np.array(rows, np.float32)
    return server.infer_request(*(binary_inputs(x=x) if binary else (json_inputs(x=x),)))


def send(server: Server, sent: bytes, count: int, pause: float = 0.0) -> float:
    """Send `count` requests, each answered with 200; return the longest time of one."""
    longest = 0.0
    with server.wire() as wire:
        for _ in range(count):
            began = time.monotonic()
            wire.send(sent)
            assert wire.receive().status == 200
            longest = max(longest, time.monotonic() - began)
            time.sleep(pause)
    return longest


def start(sidecar: Sidecar, revision: str = CANARY, share: float = 1.0) -> None:
    """Order copies from a pod once it is ready."""
    sidecar.until_ready()
    sidecar.shadow(order(share, revision=revision))

    def is_read() -> bool:
        comparison = read_comparison(sidecar)
        return comparison is not None and comparison.revision == revision

    sidecar.until(is_read, "the order is read")


def compare_requests(server: Server, sidecar: Sidecar, *sent: bytes) -> int:
    """Have at least three of each request compared; return how many were sent."""
    start(sidecar)
    count = 0

    def enough() -> bool:
        nonlocal count
        for data in sent:
            send(server, data, 1, pause=0.1)
        count += len(sent)
        return counts(sidecar)[0] >= 3 * len(sent)

    sidecar.until(enough, "they are compared")
    assert counts(sidecar)[1:3] == (0, 0)
    return count


def count_by_code(server: Server, name: str) -> dict[str, int]:
    """Return a counter's values that are not 0, by status code."""
    numbers = {}
    for line in server.get("/metrics").body.decode().splitlines():
        if line.startswith(f"{name}{{"):
            labels, _, number = line.rpartition(" ")
            numbers[labels.split('code="')[1].split('"')[0]] = int(float(number))
    return {code: number for code, number in numbers.items() if number}


@dataclass(frozen=True)
class Pod:
    """A server of the linear model, its sidecar, and the port at which that looks for canaries."""

    server: Server
    sidecar: Sidecar
    canary_port: int


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    root, port = tmp_path_factory.mktemp("serving"), free_port()
    task = artifact(root, linear_model(), SAMPLES)
    with (
        Server(root, task) as server,
        start_watching(root, task, server.port, port, fresh=True) as sidecar,
    ):
        yield Pod(server, sidecar, port)


@pytest.fixture
def pod(serving: Pod) -> Iterator[Pod]:
    """Yield the pod, ready and without an order."""
    serving.sidecar.until_ready()
    forget_peak(serving.sidecar.process.pid)
    yield serving
    serving.sidecar.shadow("")


def test_a_changed_model_differs_by_its_change(pod: Pod, tmp_path: Path) -> None:
    server, roots = pod.server, [tmp_path / "serving", tmp_path / "canary"]
    for root in roots:
        root.mkdir()
    task = artifact(roots[0], linear_model(), SAMPLES)
    share_token(server, roots[0])
    theirs = artifact(roots[1], scale_linear(1.5), SAMPLES).model_copy(update={"revision": CANARY})
    answered = count_by_code(server, "enginewright_requests_total").get("200", 0)
    with (
        Server(roots[1], theirs) as canary,
        start_watching(roots[0], task, server.port, canary.port) as sidecar,
        start_watching(roots[1], theirs, canary.port, free_port()) as other,
    ):
        other.until_ready()
        small, large = ROW, [[-1.0] * 8, [2.0] * 8]
        sent = compare_requests(
            server, sidecar, request(server, small), request(server, large, binary=True)
        )
        sidecar.shadow("")
        weights = np.arange(32, dtype=np.float32).reshape(8, 4) / 8
        answers = [np.array(row, np.float32) @ weights for row in (small, large)]
        by_output = outputs(sidecar)
        for output in by_output.values():
            assert (output.answers >= 6, output.incomparable) == (True, 0)
            assert output.worst == pytest.approx(0.5, rel=1e-5)
            assert output.mean == pytest.approx(0.5, rel=1e-5)
        largest = max(float(np.abs(answer).max()) for answer in answers)
        assert by_output["y"].max_abs == pytest.approx(0.5 * largest, rel=1e-5)
        total = max(abs(float(answer.sum())) for answer in answers)
        assert by_output["total"].max_abs == pytest.approx(0.5 * total, rel=1e-5)
        assert (by_output["y"].top1, by_output["total"].top1) == (1.0, None)
        assert count_by_code(server, "enginewright_requests_total") == {"200": answered + sent}
        assert count_by_code(server, "enginewright_shadow_requests_total") == {}
        assert count_by_code(canary, "enginewright_requests_total") == {}
        copies = count_by_code(canary, "enginewright_shadow_requests_total")
        assert 6 <= copies.pop("200") <= sent
        assert not copies.keys() - {"503"}
        report = Measurements.model_validate_json(other.get("/measurements").body)
        assert report.responses == {}, "none is a client's of the canary"
        assert not [latency for latency in report.latencies if latency.source == "requests"]
        assert report.shadow is None


_numbers: Final = itertools.count()


class Impostor:
    """What answers at the canary's address; it has the revision, and does `mode` to requests."""

    def __init__(self, mode: str, port: int) -> None:
        self.mode, self.port = mode, port
        self.revision = f"c{next(_numbers)}"  # one that no sidecar has compared with
        self.bodies = 0  # requests of which a byte of the body arrived
        self.connections = 0
        self._socket = socket.create_server((HERE, port))
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for item in (self._socket, *self._open):
            with contextlib.suppress(OSError):  # it is closed
                item.shutdown(socket.SHUT_RDWR)  # ends what a thread waits for
            item.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection.makefile("rb") as file:
            while line := file.readline():
                length = 0
                while (header := file.readline().strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                if line.startswith(b"GET"):
                    status = 200 if f"/versions/{self.revision}/ready".encode() in line else 404
                    connection.sendall(_response(status, b"{}"))
                    continue
                self.bodies += bool(file.read(length))
                self._respond(connection)

    def _respond(self, connection: socket.socket) -> None:
        match self.mode:
            case "hangs":
                time.sleep(60)
            case "is slow":
                time.sleep(PATIENCE + 1.0)
                connection.sendall(_response(500, b"{}"))
            case "resets":
                linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                connection.close()
                raise EOFError  # closes its file too
            case "answers nonsense":
                connection.sendall(_response(200, b"\x00not JSON"))
            case "answers many numbers":
                connection.sendall(_response(200, _many(b"0.5")))
            case "answers many objects":
                connection.sendall(_response(200, _many(b"{}")))
            case "sends without end":
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n")
                endless = bytes(1 << 20)
                while True:
                    connection.sendall(endless)
            case status:
                connection.sendall(_response(int(status), b"{}"))


def _response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def _many(element: bytes) -> bytes:
    """Return an answer that is a little less than the largest that is read."""
    data = b",".join([element] * (15 * MIB // (len(element) + 1)))
    head = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,4],"data":['
    return b"%b%b]}]}" % (head, data)


def peak(sidecar: Sidecar) -> int:
    """Return the most bytes of memory that it has had so far."""
    return memory_of(sidecar.process.pid, "VmHWM")


# fault: Devices | answers to copied requests of millions of numbers in JSON exceed the sidecar's
#   memory | numbers are converted in pieces, and the memory for the rest is limited | prevented
@pytest.mark.parametrize("mode", ["answers many numbers", "answers many objects"])
def test_a_large_answer_of_a_canary_is_read_within_the_limit(mode: str, pod: Pod) -> None:
    with Impostor(mode, pod.canary_port) as canary:
        start(pod.sidecar, canary.revision)
        send(pod.server, request(pod.server, ROW), 2)
        pod.sidecar.until(lambda: counts(pod.sidecar)[0] > 0, "compared")
        assert all(
            output.incomparable == output.answers for output in outputs(pod.sidecar).values()
        )
        assert peak(pod.sidecar) < sidecar_memory(None)


@contextlib.contextmanager
def compare_with_itself(root: Path, task: ServeTask) -> Iterator[tuple[Server, Sidecar]]:
    """Run a server whose sidecar sends copies of its requests to itself."""
    with (
        Server(root, task) as server,
        start_watching(root, task, server.port, server.port, fresh=True) as sidecar,
    ):
        start(sidecar, task.revision)
        yield server, sidecar
        assert peak(sidecar) < sidecar_memory(None)


# fault: Devices | answers to copied requests of millions of numbers in JSON exceed the sidecar's
#   memory
def test_large_answers_in_json_are_compared_within_the_limit(tmp_path: Path) -> None:
    count = 1_900_000
    wide = parse_text(
        f"(float[1] x) => (float[{count}] y) {{ wide = Expand(x, shape) y = Add(wide, one) }}",
        initializer("shape", np.array([count]), None),
        initializer("one", np.ones(1, np.float32)),
    )
    task = artifact(tmp_path, wide, [{"x": np.array([2], np.float32)}])
    with compare_with_itself(tmp_path, task) as (server, sidecar):
        send(server, server.infer_request(json_inputs(x=np.array([3], np.float32))), 1)
        sidecar.until(lambda: counts(sidecar)[0] == 1, "compared")
        assert (outputs(sidecar)["y"].worst, outputs(sidecar)["y"].incomparable) == (0.0, 0)


def test_an_answer_that_would_take_too_much_memory_is_counted_and_not_compared(
    tmp_path: Path,
) -> None:
    repeating = parse_text("(string[1] x, int64[1] n) => (string[count] y) { y = Expand(x, n) }")
    sample = {"x": np.array(["a"], object), "n": np.array([2])}
    task = artifact(tmp_path, repeating, [sample])
    with compare_with_itself(tmp_path, task) as (server, sidecar):
        send(server, server.infer_request(json_inputs(x=sample["x"], n=np.array([500_000]))), 1)
        sidecar.until(lambda: counts(sidecar)[3] == 1, "counted")
        assert present(read_comparison(sidecar)).dropped_by == {"TooLarge": 1}
        assert "is not compared with the canary's" in sidecar.log()


@pytest.mark.parametrize(
    ("mode", "place"),
    [
        ("hangs", 2),
        ("is slow", 2),
        ("resets", 2),
        ("500", 2),
        ("sends without end", 2),
        ("400", 1),
        ("404", 1),
        ("503", 3),
        ("429", 3),
        ("answers nonsense", 0),
    ],
)
def test_clients_notice_no_fault_of_a_canary(mode: str, place: int, pod: Pod) -> None:
    """`place`: which count rises: compared, rejected, failed, dropped."""
    server, sidecar = pod.server, pod.sidecar
    with Impostor(mode, pod.canary_port) as canary:
        start(sidecar, canary.revision)
        answered = count_by_code(server, "enginewright_requests_total")
        sent = request(server, ROW)
        assert send(server, sent, 50, pause=0.01) < NOTICED
        if mode == "hangs":
            time.sleep(PATIENCE)  # polls meanwhile would delay the next copy, as the sidecar's work
        sidecar.until(lambda: counts(sidecar)[place] > 0, f"counted as {place}")
        assert canary.bodies > 0
        assert send(server, sent, 50, pause=0.01) < NOTICED
        assert sidecar.is_ready()
        counters = counts(sidecar)
        dropped = 3
        assert {index for index, counter in enumerate(counters) if counter} <= {place, dropped}
        assert count_by_code(server, "enginewright_requests_total") == {
            "200": answered.get("200", 0) + 100
        }
        if mode == "answers nonsense":
            assert all(
                output.incomparable == output.answers for output in outputs(sidecar).values()
            )
        if mode == "hangs":
            sidecar.until(lambda: counts(sidecar)[dropped] > 0, "more than the queue has space for")
        if mode == "sends without end":
            assert memory_of(sidecar.process.pid, "VmRSS") < 256 * MIB


def test_another_pod_that_has_the_address_now_gets_no_request(pod: Pod) -> None:
    with Impostor("500", pod.canary_port) as other:
        start(pod.sidecar, f"{other.revision}-before")
        sent = request(pod.server, ROW)

        def is_dropped() -> bool:
            send(pod.server, sent, 1)
            return counts(pod.sidecar)[3] > 2

        pod.sidecar.until(is_dropped, "none is sent")
        assert counts(pod.sidecar)[:3] == (0, 0, 0)
        assert other.connections > 0
        assert other.bodies == 0


def test_an_order_ends_by_itself_and_when_it_is_withdrawn(pod: Pod) -> None:
    sent = request(pod.server, ROW)
    with Impostor("500", pod.canary_port) as canary:
        for withdrawn in (False, True):
            seconds = 100 if withdrawn else 3
            pod.sidecar.shadow(order(seconds=seconds, revision=canary.revision))
            before = canary.bodies
            while canary.bodies == before:
                send(pod.server, sent, 1, pause=0.05)
            if withdrawn:
                pod.sidecar.shadow("")
            time.sleep(1.0 if withdrawn else 3.2)
            ended = canary.bodies
            send(pod.server, sent, 20, pause=0.05)
            assert canary.bodies == ended


def test_forged_orders_send_nothing_anywhere(pod: Pod) -> None:
    sent = request(pod.server, ROW)
    with Impostor("500", pod.canary_port) as canary, Impostor("500", free_port()) as stranger:
        for forged in (
            order(to=f"{HERE}:{stranger.port}"),
            order(to=f"{HERE}:{canary.port}"),
            order(to="localhost"),
            order(to=f"{HERE} localhost"),
            order(seconds=SHADOW_SECONDS + 120),
            order(share=2.0),
            order(revision="../../x"),
        ):
            pod.sidecar.shadow(forged)
            send(pod.server, sent, 8, pause=0.05)
        assert (canary.connections, stranger.connections) == (0, 0)
        comparison = read_comparison(pod.sidecar)
        assert comparison is None or comparison.revision.startswith("c"), "of an earlier order"


slow = share_server(slow_model, {"turns": np.array([1])})


def test_only_the_sidecar_takes_copies(slow: Server) -> None:
    assert slow.get("/v2/models/m/shadow?share=1").status == 403
    sent = slow_request(slow, 1)
    send(slow, sent, 1)

    def own(share: str) -> Answer:
        return slow.get(f"/v2/models/m/shadow?share={share}", headers=slow.probe_header())

    for share in ("", "0", "-1", "1.1", "nan", "x"):
        assert own(share).status == 400
    empty = own("1")
    assert (empty.status, empty.body) == (200, b"")
    assert empty.headers["enginewright-shadow"] == "0 0 - -"
    send(slow, sent, 1)
    copy = own("1")
    assert copy.headers["enginewright-shadow"].startswith("0 ")
    body = sent.split(b"\r\n\r\n", 1)[1]
    assert copy.body.startswith(body)
    assert json.loads(copy.body[len(body) :])["outputs"][0]["name"] == "done"
    send(slow, sent, 30)
    assert own("1").headers["enginewright-shadow"].startswith("22 "), "eight are kept"


def test_a_copy_is_refused_where_clients_wait_and_counts_for_itself_only(slow: Server) -> None:
    answered = count_by_code(slow, "enginewright_requests_total").get("200", 0)
    document = json_inputs(turns=np.array([1500]))
    clients, copied = slow.infer_request(document), slow.infer_request(document, headers=COPY)
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(slow.port, timeout=60)) for _ in range(5)]
        for wire in wires[:4]:
            wire.send(clients)
        until(lambda: queue_depth(slow) == 3)
        wires[4].send(copied)
        assert wires[4].receive().status == 503
        assert [wire.receive().status for wire in wires[:4]] == [200] * 4
        wires[4].send(copied)
        assert wires[4].receive().status == 200
    assert count_by_code(slow, "enginewright_requests_total") == {"200": answered + 4}
    assert count_by_code(slow, "enginewright_shadow_requests_total") == {"200": 1, "503": 1}
