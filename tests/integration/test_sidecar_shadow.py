"""Clients' requests that a canary answers as well: what is measured, and that no client ever notices."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import numpy as np
import onnx
import pytest
from enginewright.manifests.serving_pod import sidecar_memory
from enginewright_contract.measurements import Measurements, ShadowComparison, ShadowOutput
from enginewright_contract.shadow import SHADOW_SECONDS
from enginewright_contract.task import ServeTask

from tests.support.broken_models import initializer, parse_text
from tests.support.optional import present
from tests.support.ports import free_port
from tests.support.process_memory import memory_of
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
from tests.support.sidecar import Sidecar, artifact
from tests.support.turns import queue_depth
from tests.support.waiting import until

CANARY: Final = "r2"
HERE: Final = "127.0.0.1"
SAMPLES = [{"x": np.full((rows, 8), rows / 2, np.float32)} for rows in (1, 3)]
MIB: Final = 1 << 20
NOTICED: Final = (
    2.0  # seconds of one request, far above what any takes and far below what canaries wait
)


def canary_task(root: Path, new: onnx.ModelProto) -> ServeTask:
    root.mkdir()
    return artifact(root, new, SAMPLES).model_copy(update={"revision": CANARY})


def start_watching(
    root: Path,
    task: ServeTask,
    server: int,
    canary: int,
    seconds: float = 20.0,
    *,
    fresh: bool = False,
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
        shadow_seconds=seconds,
    )


def order(share: float = 1.0, seconds: float = 100.0, to: str = HERE) -> str:
    return f"{share:g} {int(time.time() + seconds)} {CANARY} {SHADOW_TOKEN} {to}"


def read_comparison(sidecar: Sidecar) -> ShadowComparison | None:
    answer = sidecar.get("/measurements")
    return Measurements.model_validate_json(answer.body).shadow if answer.status == 200 else None


def counts(sidecar: Sidecar) -> tuple[int, int, int, int]:
    shadow = read_comparison(sidecar) or ShadowComparison(revision="")
    return shadow.compared, shadow.rejected, shadow.failed, shadow.dropped


def outputs(sidecar: Sidecar) -> dict[str, ShadowOutput]:
    shadow = present(read_comparison(sidecar))
    assert shadow.revision == CANARY
    return {output.name: output for output in shadow.outputs}


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


def start(sidecar: Sidecar) -> None:
    """Order copies from a pod once it is ready."""
    sidecar.until_ready()
    sidecar.shadow(order())
    sidecar.until(lambda: read_comparison(sidecar) is not None, "the order is read")


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


@contextlib.contextmanager
def pair(root: Path, new: onnx.ModelProto) -> Iterator[tuple[Server, Sidecar, Server, Sidecar]]:
    """Serve the linear model, and `new` as its canary, each with its sidecar."""
    task = artifact(root, linear_model(), SAMPLES)
    beside = root / "canary"
    theirs = canary_task(beside, new)
    with (
        Server(root, task) as server,
        Server(beside, theirs) as canary,
        start_watching(root, task, server.port, canary.port) as sidecar,
        start_watching(beside, theirs, canary.port, free_port()) as other,
    ):
        sidecar.until_ready()
        other.until_ready()
        yield server, sidecar, canary, other


def test_a_changed_model_differs_by_its_change(tmp_path: Path) -> None:
    with pair(tmp_path, scale_linear(1.5)) as (server, sidecar, canary, other):
        small, large = [[0.5] * 8], [[-1.0] * 8, [2.0] * 8]
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
        assert count_by_code(server, "enginewright_requests_total") == {"200": sent}
        assert count_by_code(server, "enginewright_shadow_requests_total") == {}
        assert count_by_code(canary, "enginewright_requests_total") == {}
        copies = count_by_code(canary, "enginewright_shadow_requests_total")
        assert 6 <= copies.pop("200") <= sent
        assert not copies.keys() - {"503"}
        report = Measurements.model_validate_json(other.get("/measurements").body)
        assert report.responses == {}, "none is a client's of the canary"
        assert not [latency for latency in report.latencies if latency.source == "requests"]
        assert report.shadow is None


def test_only_the_share_is_sent(tmp_path: Path) -> None:
    with pair(tmp_path, scale_linear(1.5)) as (server, sidecar, canary, _):
        sidecar.shadow(order(share=0.25))
        sidecar.until(lambda: read_comparison(sidecar) is not None, "the order is read")
        send(server, request(server, [[0.5] * 8]), 200)
        time.sleep(1.0)
        # 50 are expected; beyond 6 standard deviations
        assert 13 < sum(counts(sidecar)) < 87
        assert count_by_code(server, "enginewright_requests_total") == {"200": 200}
        assert sum(count_by_code(canary, "enginewright_shadow_requests_total").values()) < 87


class Impostor:
    """What answers at the canary's address; it has the revision, and does `mode` to requests."""

    def __init__(self, mode: str, *, revision: str = CANARY) -> None:
        self.mode = mode
        self.revision = revision
        self.port = free_port()
        self.bodies = 0  # requests of which a byte of the body arrived
        self.connections = 0
        self._socket = socket.create_server((HERE, self.port))
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        for item in self._open:
            item.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            file = connection.makefile("rb")
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
                time.sleep(1.0)
                connection.sendall(_response(500, b"{}"))
            case "resets":
                linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                connection.close()
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
def test_a_large_answer_of_a_canary_is_read_within_the_limit(mode: str, tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), SAMPLES)
    with (
        Server(tmp_path, task) as server,
        Impostor(mode) as canary,
        start_watching(tmp_path, task, server.port, canary.port, fresh=True) as sidecar,
    ):
        start(sidecar)
        send(server, request(server, [[0.5] * 8]), 2)
        sidecar.until(lambda: counts(sidecar)[0] > 0, "compared")
        assert all(output.incomparable == output.answers for output in outputs(sidecar).values())
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
    with (
        Server(tmp_path, task) as server,
        Server(tmp_path, task.model_copy(update={"revision": CANARY})) as canary,
        start_watching(tmp_path, task, server.port, canary.port, fresh=True) as sidecar,
    ):
        start(sidecar)
        send(server, server.infer_request(json_inputs(x=np.array([3], np.float32))), 1)
        sidecar.until(lambda: counts(sidecar)[0] == 1, "compared")
        assert (outputs(sidecar)["y"].worst, outputs(sidecar)["y"].incomparable) == (0.0, 0)
        assert peak(sidecar) < sidecar_memory(None)


def test_an_answer_that_would_take_too_much_memory_is_counted_and_not_compared(
    tmp_path: Path,
) -> None:
    repeating = parse_text("(string[1] x, int64[1] n) => (string[count] y) { y = Expand(x, n) }")
    sample = {"x": np.array(["a"], object), "n": np.array([2])}
    task = artifact(tmp_path, repeating, [sample])
    request = json_inputs(x=sample["x"], n=np.array([500_000]))
    with (
        Server(tmp_path, task) as server,
        Server(tmp_path, task.model_copy(update={"revision": CANARY})) as canary,
        start_watching(tmp_path, task, server.port, canary.port, fresh=True) as sidecar,
    ):
        start(sidecar)
        send(server, server.infer_request(request), 1)
        sidecar.until(lambda: counts(sidecar)[3] == 1, "counted")
        shadow = present(read_comparison(sidecar))
        assert shadow.dropped_by == {"TooLarge": 1}
        assert "is not compared with the canary's" in sidecar.log()
        assert peak(sidecar) < sidecar_memory(None)


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
def test_clients_notice_no_fault_of_a_canary(mode: str, place: int, tmp_path: Path) -> None:
    """`place`: which count rises: compared, rejected, failed, dropped."""
    task = artifact(tmp_path, linear_model(), SAMPLES)
    answers = mode.isdigit() or mode in ("resets", "answers nonsense")
    with (
        Server(tmp_path, task) as server,
        Impostor(mode) as canary,
        start_watching(
            tmp_path, task, server.port, canary.port, 20.0 if answers else 0.5
        ) as sidecar,
    ):
        start(sidecar)
        sent = request(server, [[0.5] * 8])
        assert send(server, sent, 50, pause=0.01) < NOTICED
        sidecar.until(lambda: counts(sidecar)[place] > 0, f"counted as {place}")
        assert canary.bodies > 0
        assert send(server, sent, 50, pause=0.01) < NOTICED
        assert sidecar.is_ready()
        counters = counts(sidecar)
        dropped = 3
        assert {index for index, counter in enumerate(counters) if counter} <= {place, dropped}
        assert count_by_code(server, "enginewright_requests_total") == {"200": 100}
        if mode == "answers nonsense":
            assert all(
                output.incomparable == output.answers for output in outputs(sidecar).values()
            )
        if mode == "hangs":
            sidecar.until(lambda: counts(sidecar)[dropped] > 0, "more than the queue has space for")
        if mode == "sends without end":
            assert memory_of(sidecar.process.pid, "VmRSS") < 256 * 1024 * 1024


def test_another_pod_that_has_the_address_now_gets_no_request(tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), SAMPLES)
    with (
        Server(tmp_path, task) as server,
        Impostor("500", revision="r3") as other,
        start_watching(tmp_path, task, server.port, other.port) as sidecar,
    ):
        start(sidecar)
        sent = request(server, [[0.5] * 8])

        def is_dropped() -> bool:
            send(server, sent, 1)
            return counts(sidecar)[3] > 2

        sidecar.until(is_dropped, "none is sent")
        assert counts(sidecar)[:3] == (0, 0, 0)
        assert other.connections > 0
        assert other.bodies == 0


def test_an_order_ends_by_itself_and_when_it_is_withdrawn(tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), SAMPLES)
    with (
        Server(tmp_path, task) as server,
        Impostor("500") as canary,
        start_watching(tmp_path, task, server.port, canary.port) as sidecar,
    ):
        sidecar.until_ready()
        sent = request(server, [[0.5] * 8])
        for withdrawn in (False, True):
            sidecar.shadow(order(seconds=100 if withdrawn else 3))
            before = canary.bodies
            while canary.bodies == before:
                send(server, sent, 1, pause=0.05)
            if withdrawn:
                sidecar.shadow("")
            time.sleep(1.0 if withdrawn else 3.2)
            ended = canary.bodies
            send(server, sent, 20, pause=0.05)
            assert canary.bodies == ended


def test_forged_orders_send_nothing_anywhere(tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), SAMPLES)
    with (
        Server(tmp_path, task) as server,
        Impostor("500") as canary,
        Impostor("500") as stranger,
        start_watching(tmp_path, task, server.port, canary.port) as sidecar,
    ):
        sidecar.until_ready()
        sent = request(server, [[0.5] * 8])
        for forged in (
            order(to=f"{HERE}:{stranger.port}"),
            order(to=f"{HERE}:{canary.port}"),
            order(to="localhost"),
            order(to=f"{HERE} localhost"),
            order(seconds=SHADOW_SECONDS + 120),
            order(share=2.0),
            order().replace(CANARY, "../../x"),
        ):
            sidecar.shadow(forged)
            send(server, sent, 8, pause=0.05)
        assert (canary.connections, stranger.connections) == (0, 0)
        assert read_comparison(sidecar) is None


def test_only_the_sidecar_takes_copies(tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), SAMPLES)
    with Server(tmp_path, task) as server:
        path = "/v2/models/m/shadow?share=1"
        assert server.get(path).status == 403
        sent = request(server, [[0.5] * 8])
        send(server, sent, 1)

        def own(share: str) -> Answer:
            return server.get(f"/v2/models/m/shadow?share={share}", headers=server.probe_header())

        for share in ("", "0", "-1", "1.1", "nan", "x"):
            assert own(share).status == 400
        empty = own("1")
        assert (empty.status, empty.body) == (200, b"")
        assert empty.headers["enginewright-shadow"] == "0 0 - -"
        send(server, sent, 1)
        copy = own("1")
        assert copy.headers["enginewright-shadow"].startswith("0 ")
        body = sent.split(b"\r\n\r\n", 1)[1]
        assert copy.body.startswith(body)
        assert json.loads(copy.body[len(body) :])["outputs"][0]["name"] == "y"
        send(server, sent, 30)
        assert own("1").headers["enginewright-shadow"].startswith("22 "), "eight are kept"


def test_a_copy_is_refused_where_clients_wait_and_counts_for_itself_only(tmp_path: Path) -> None:
    task = artifact(tmp_path, slow_model(), [{"turns": np.array([1], np.int64)}])
    with Server(tmp_path, task) as server:
        document = json_inputs(turns=np.array([1500]))
        clients = server.infer_request(document)
        copied = server.infer_request(document, headers=COPY)
        with contextlib.ExitStack() as stack:
            wires = [stack.enter_context(Wire(server.port, timeout=60)) for _ in range(5)]
            for wire in wires[:4]:
                wire.send(clients)
            until(lambda: queue_depth(server) == 3)
            wires[4].send(copied)
            assert wires[4].receive().status == 503
            assert [wire.receive().status for wire in wires[:4]] == [200] * 4
            wires[4].send(copied)
            assert wires[4].receive().status == 200
        assert count_by_code(server, "enginewright_requests_total") == {"200": 4}
        assert count_by_code(server, "enginewright_shadow_requests_total") == {"200": 1, "503": 1}
