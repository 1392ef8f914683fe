"""Server and sidecar beside a thousand connections of each kind that takes what it can.

A kubelet's probe is a new connection with a timeout, a scrape likewise; a client keeps its connection. Their times are
those in which the server works: that the flood, and whatever else the machine does, take processors is not its fault.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Self

import numpy as np
import onnx
import pytest

from tests.support.broken_models import initializer, parse_text
from tests.support.cpu import processor_seconds
from tests.support.floods import flood_with
from tests.support.process_memory import memory_of
from tests.support.serving import Server, Wire, binary_inputs, json_inputs, linear_model
from tests.support.shared import share_server
from tests.support.sidecar import Sidecar, artifact
from tests.support.waiting import until

COUNT = 1200  # connections: more than the server's 1,056 and the sidecar's 256
SECONDS = 1.5
ANSWERS = 5  # of which the median counts
ANSWER_SECONDS = 60.0  # in which they come on a machine that is busy
PROBE_SECONDS = 3.0  # as a pod's probes have
PROBE_FAILURES = 3  # in a row, after which a kubelet acts: `failureThreshold`, by default
MIB = 1 << 20
# beside the usual memory of the process: 256 MiB are for bytes in flight
MEMORY = 256 * MIB + 128 * MIB
SIDECAR_MEMORY = 32 * MIB  # beside its usual memory
ONE = json_inputs(x=np.ones((1, 8), np.float32))

KINDS = (
    "idle",
    "heads",
    "slow heads",
    "header floods",
    "bodies",
    "slow bodies",
    "fast bodies",
    "expecting",
    "tiny chunks",
    "pipelines",
    "metrics",
    "refused",
    "storm",
    "connects",
)


server = share_server(linear_model, {"x": np.full((1, 8), 0.5, np.float32)})


@pytest.fixture(scope="module")
def sidecar(server: Server) -> Iterator[Sidecar]:
    with Sidecar(server.root, server.task, server.port) as sidecar:
        sidecar.until_ready()
        yield sidecar


class Repeated:
    """Something that is done again and again meanwhile; any failure fails the test."""

    def __init__(self, act: Callable[[], None], pause: float) -> None:
        self.times: list[float] = []
        self._act = act
        self._pause = pause
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * ANSWER_SECONDS)
        if self._failure is not None:
            raise self._failure
        assert self.times

    def _run(self) -> None:
        while not self._ended.is_set() and self._failure is None:
            began = time.monotonic()
            try:
                self._act()
            except Exception as error:  # noqa: BLE001 - raised in the test's thread
                self._failure = error
            self.times.append(time.monotonic() - began)
            time.sleep(self._pause)


def probes(asked: Server | Sidecar, *paths: str) -> Repeated:
    def probe(path: str) -> None:
        before = processor_seconds(asked.process.pid)
        with Wire(asked.port, timeout=ANSWER_SECONDS) as wire:
            wire.send(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            assert wire.receive().status == 200
        if processor_seconds(asked.process.pid) - before > PROBE_SECONDS:
            raise TimeoutError(f"{path} took longer than a kubelet waits")

    def act() -> None:
        for path in paths:
            # in a storm of connections the kernel may drop two attempts of one to connect
            for _ in range(PROBE_FAILURES - 1):
                with contextlib.suppress(OSError, EOFError):
                    probe(path)
                    break
            else:
                probe(path)

    return Repeated(act, 0.05)


class Client:
    """Sends inferences on a connection that it keeps for as long as the server does."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._request = server.infer_request(ONE)
        self._wire: Wire | None = None
        # processor seconds of the server, whatever else the machine does
        self.waits: list[float] = []

    def ask(self) -> None:
        wire = self._wire = self._wire or Wire(self._server.port, timeout=30.0)
        before = processor_seconds(self._server.process.pid)
        wire.send(self._request)
        answer = wire.receive()
        self.waits.append(processor_seconds(self._server.process.pid) - before)
        assert answer.status == 200
        assert answer.json()["outputs"][0]["data"] == [14.0, 15.0, 16.0, 17.0]
        if answer.headers.get("connection") == "close":
            self._wire = None


# fault: Hostile | clients hold or flood the server's connections: idle, partial heads, slow or unread
#   bodies, tiny chunks, pipelined requests, many new connections | what moves least, and longest, is closed
#   first; floods take turns | probes, scrapes and other clients are answered
@pytest.mark.parametrize("kind", KINDS)
def test_the_server_answers_probes_and_clients_beside(server: Server, kind: str) -> None:
    before = memory_of(server.process.pid)
    with flood_with(server.port, kind, COUNT):
        paths = ("/v2/health/live", "/v2/health/ready", "/metrics")
        client = Client(server)
        with probes(server, *paths), Repeated(client.ask, 0.01):
            time.sleep(SECONDS)
            most = memory_of(server.process.pid)
            end = time.monotonic() + ANSWER_SECONDS
            while len(client.waits) < ANSWERS and time.monotonic() < end:
                time.sleep(0.05)
    assert most - before < MEMORY
    assert len(client.waits) >= ANSWERS
    assert median(client.waits) < 0.1
    assert "Traceback" not in server.log()


# fault: Hostile | clients hold or flood the sidecar's connections: idle, partial heads, pipelined
#   requests, unread responses, many new connections | as of the server | the pod stays ready
# fault: Hostile | clients hold all connections of the sidecar with heads that do not end, or bodies
#   that do not come | a body is refused at once, and a new connection replaces one that waits | the
#   pod stays ready
@pytest.mark.parametrize(
    "kind",
    [
        *("idle", "heads", "pipelines", "metrics", "refused", "storm", "connects"),
        # bodies, which it refuses, and what it closes at once
        *("slow heads", "header floods", "bodies", "fast bodies", "expecting", "tiny chunks"),
        "half hellos",
    ],
)
def test_the_sidecar_answers_probes_and_scrapes_beside(sidecar: Sidecar, kind: str) -> None:
    before = memory_of(sidecar.process.pid)
    with (
        flood_with(sidecar.port, kind, COUNT),
        probes(sidecar, "/readyz", "/healthz", "/verdict"),
        probes(sidecar, "/metrics"),
    ):
        time.sleep(SECONDS)
        most = memory_of(sidecar.process.pid)
    assert most - before < SIDECAR_MEMORY


# fault: Hostile | hundreds of clients begin to send large bodies, slowly | each is charged for what has
#   arrived | none is refused, memory is limited
def test_hundreds_of_large_bodies_may_begin(tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), [{"x": np.full((1, 8), 0.5, np.float32)}])
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 60000000\r\n"
    with Server(tmp_path, task, transfer_window=60) as server, ExitStack() as stack:
        before = memory_of(server.process.pid)
        wires = [stack.enter_context(server.wire()) for _ in range(500)]
        for wire in wires:
            wire.send(head + b"Inference-Header-Content-Length: 9\r\n\r\n")
        for _ in range(10):
            for wire in wires:
                wire.send(bytes(10_000))
        Client(server).ask()
        until(lambda: memory_of(server.process.pid) - before > 450 * 100_000)
        assert memory_of(server.process.pid) - before < 500 * 300_000
        assert not any(wire.is_readable() for wire in wires)


SOON = "from enginewright_serving.server.startup import arena; arena._PAUSE = 0.5"


def spread_model(size: int) -> onnx.ModelProto:
    """Return a model whose outputs have `size` bytes, for inputs of a few."""
    return parse_text(
        f"(float[1] x) => (float[{size // 4}] y) {{ y = Expand(x, shape) }}",
        initializer("shape", np.array([size // 4]), None),
    )


def spread_out(root: Path, size: int, inflight_bytes: int, before: str = "") -> Server:
    """Return a server whose responses have `size` bytes, for requests of a few."""
    task = artifact(root, spread_model(size), [{"x": np.array([2], np.float32)}])
    return Server(root, task, before=before, inflight_bytes=inflight_bytes)


def leave_unread(server: Server, count: int) -> None:
    """Ask for `count` responses of 16 MB, of `spread_model`, and read none: memory is limited, others are answered."""
    request = server.infer_request(*binary_inputs(x=np.ones(1, np.float32)))
    before = memory_of(server.process.pid)
    with ExitStack() as stack:
        for number in range(count):
            wire = stack.enter_context(server.wire())
            wire.shrink(4096)
            wire.send(request)
            if number % 5 == 4:
                time.sleep(0.3)
                assert memory_of(server.process.pid) - before < 384 * MIB

        def is_answered() -> bool:
            answer = server.send(request)
            assert answer.status in {200, 503}
            return len(answer.body) > 16_000_000

        until(is_answered, "space, once the others are known to be slow,")


# fault: Hostile | clients do not read large responses | responses are charged until they are written,
#   and what is not read in 10 s is closed, under pressure first | prevented
def test_responses_that_nobody_reads_take_limited_memory(tmp_path: Path) -> None:
    with spread_out(tmp_path, 16_000_000, 128 * MIB, before=SOON) as server:
        request = server.infer_request(*binary_inputs(x=np.ones(1, np.float32)))
        server.send(request)
        before = memory_of(server.process.pid)
        leave_unread(server, 60)
        assert memory_of(server.process.pid) > before + 96 * MIB, "the arena has had many at once"
        time.sleep(1)  # the pause

        def is_given_back() -> bool:
            server.send(request)
            return memory_of(server.process.pid) < before + 48 * MIB

        until(is_given_back, "the arena's memory is given back", seconds=20)


def test_few_files_limit_the_connections_and_not_the_probes(tmp_path: Path) -> None:
    task = artifact(tmp_path, linear_model(), [{"x": np.full((1, 8), 0.5, np.float32)}])
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))"
    with Server(tmp_path, task, before=few) as server:
        assert "only 160 connections are allowed" in server.log()
        with flood_with(server.port, "idle", 400), probes(server, "/v2/health/live"):
            time.sleep(SECONDS)
        assert "cannot accept" not in server.log()
