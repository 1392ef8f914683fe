"""`GET /measurements` of real sidecars beside real servers: counts, medians, resets, and a higher rate on request."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.measurements import (
    PROBE_QUERY,
    LatencySeries,
    Measurements,
    ServerMeasurements,
)
from enginewright_contract.verdict import Check

from tests.support.pods import Pod, run_pod
from tests.support.process_memory import memory_of
from tests.support.serving import Feeds, Server, json_inputs, linear_model, slow_model
from tests.support.shared import share_server
from tests.support.sidecar import Sidecar, artifact, share_token
from tests.support.turns import slow_request

QUICK = 0.2
IDLE = 5.0  # seconds: longer than a busy node delays requests
PATH = "/v2/models/m/measurements"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    root = tmp_path_factory.mktemp("pod")
    samples = [{"x": np.full((rows, 8), 0.5, np.float32)} for rows in (1, 3)]
    task = artifact(root, linear_model(), samples)
    with run_pod(root, task, pace=QUICK, measurements_age=0.1, memory_interval=0.3) as pod:
        yield pod


@pytest.fixture
def pod(served: Pod) -> Pod:
    return served.mend()


slow = share_server(slow_model, {"turns": np.array([1])})


def turns(count: int) -> Feeds:
    return {"turns": np.array([count])}


def slow_sidecar(server: Server, root: Path, *counts: int, idle_seconds: float) -> Sidecar:
    """Start another sidecar of the slow model's server, with golden samples of so many turns."""
    share_token(server, root)
    task = artifact(root, slow_model(), [turns(count) for count in counts])
    return Sidecar(root, task, server.port, measurements_age=0.1, idle_seconds=idle_seconds)


def request_of(server: Server, rows: int, **changes: Any) -> bytes:
    document = json_inputs(x=np.ones((rows, 8), np.float32))
    document["inputs"][0] |= changes
    return server.infer_request(document)


def send(server: Server, request: bytes, count: int) -> list[int]:
    with server.wire() as wire:
        statuses = []
        for _ in range(count):
            wire.send(request)
            statuses.append(wire.receive().status)
    return statuses


def read_measurements(sidecar: Sidecar, *, probe: bool = False) -> Measurements:
    """Return measurements that include everything that was answered before this call."""
    time.sleep(0.15)  # the server's report may be 0.1 s old
    answer = sidecar.get("/measurements" + (f"?{PROBE_QUERY}=1" if probe else ""))
    assert answer.status == 200
    return Measurements.model_validate_json(answer.body)


def read_creation(server: Server) -> float:
    """Return when the artefact was written, before the server's start."""
    return (server.root / "artifact/manifest.json").stat().st_mtime


def series(report: Measurements, source: str) -> dict[str, LatencySeries]:
    return {latency.name: latency for latency in report.latencies if latency.source == source}


def test_requests_are_counted_exactly_and_golden_inferences_apart(pod: Pod) -> None:
    server, sidecar, began = pod.server, pod.sidecar, time.time()
    before = read_measurements(sidecar)
    assert (before.model, before.revision) == ("m", "r1")
    assert read_creation(server) <= before.since <= began
    assert before.responses == {}
    assert series(before, "requests") == {}
    assert before.answers is None
    assert send(server, request_of(server, 1), 25) == [200] * 25  # a golden sample's shape
    assert send(server, request_of(server, 2), 25) == [200] * 25  # the first one is not timed
    assert send(server, request_of(server, 1, shape=[9, 9]), 3) == [400] * 3
    after = read_measurements(sidecar)
    assert after.responses == {"200": 50, "400": 3}
    sizes = series(after, "requests")
    assert {name: size.count for name, size in sizes.items()} == {"8": 25, "16": 24}
    for size in sizes.values():
        assert len(size.windows) == 2
        assert all(began < at <= time.time() for at, _ in size.windows)
        assert all(0 < seconds < 0.05 for _, seconds in size.windows)
    assert sidecar.check(Check.GOLDEN).state == "ok"
    golden = series(after, "golden")
    assert set(golden) == {"s0", "s1"}
    assert len({latency_series.inputs for latency_series in golden.values()} - {""}) == 2
    assert {size.inputs for size in sizes.values()} == {""}
    later = read_measurements(sidecar)
    assert later.responses == after.responses
    assert later.since == before.since


def test_outcomes_of_golden_inferences_are_counted(pod: Pod) -> None:
    def until_counted(name: str, count: int) -> Measurements:
        before: int = getattr(read_measurements(pod.sidecar), name)
        pod.sidecar.until(
            lambda: getattr(read_measurements(pod.sidecar), name) >= before + count, name
        )
        return read_measurements(pod.sidecar)

    agreed = until_counted("golden_ok", 2)
    assert (agreed.golden_wrong, agreed.golden_failed) == (0, 0)
    pod.proxy.refusing["/infer"] = 500
    assert until_counted("golden_failed", 2).golden_wrong == 0
    del pod.proxy.refusing["/infer"]
    pod.proxy.inference = lambda answer: (answer[0], answer[1][:-4] + b"\x7f" * 4)
    until_counted("golden_wrong", 1)


def test_memory_is_sampled_and_grows_with_the_servers(pod: Pod) -> None:
    pod.sidecar.until(lambda: len(read_measurements(pod.sidecar).memory) >= 5, "memory is sampled")
    report = read_measurements(pod.sidecar)
    resident = memory_of(pod.server.process.pid)
    assert report.memory[-1].bytes == pytest.approx(resident, rel=0.2)
    assert [sample.at for sample in report.memory] == sorted(sample.at for sample in report.memory)


def test_only_the_sidecar_reads_the_servers_part(pod: Pod) -> None:
    server = pod.server
    assert server.get(PATH).status == 403
    (token,) = server.probe_header().values()

    def read(claimed: str) -> tuple[int, Any]:
        answer = server.get(PATH, headers={"Enginewright-Probe": claimed})
        return answer.status, answer.json()

    assert read(token[:-1])[0] == 403
    status, document = read(token)
    assert status == 200
    reported = ServerMeasurements.model_validate(document)
    assert read_creation(server) <= reported.started <= time.time()
    assert reported.memory_bytes > 10_000_000
    assert json.loads(server.get("/v2/models/m").body)["name"] == "m"


@contextlib.contextmanager
def keep_requesting(server: Server, request: bytes) -> Iterator[None]:
    """Send requests, one every 20 ms, while the caller continues."""
    ended = threading.Event()

    def sending() -> None:
        with server.wire() as wire:
            while not ended.wait(0.02):
                wire.send(request)
                assert wire.receive().status == 200

    with ThreadPoolExecutor(1) as pool:
        sender = pool.submit(sending)
        try:
            yield
        finally:
            ended.set()
            sender.result()


def test_large_samples_run_at_a_higher_rate_too_or_are_named(slow: Server, tmp_path: Path) -> None:
    with slow_sidecar(slow, tmp_path, 1, 40, idle_seconds=IDLE) as sidecar:
        sidecar.until_ready()

        def counts() -> list[int]:
            golden = series(read_measurements(sidecar, probe=True), "golden")
            return [golden[name].count if name in golden else 0 for name in ("s0", "s1")]

        small, large = counts()
        sidecar.until(lambda: counts()[1] >= large + 3, "the large one runs beside the higher rate")
        assert counts()[0] - small > 3
        assert read_measurements(sidecar).golden_left_out == ()

        with keep_requesting(slow, slow_request(slow, 1)):
            sidecar.until(
                lambda: read_measurements(sidecar, probe=True).golden_left_out == ("s1",),
                "clients send requests",
            )
            assert "golden sample 's1' takes longer than requests" in sidecar.log()
            small, large = counts()
            ends = time.monotonic() + 1.5 * IDLE
            while time.monotonic() < ends:
                assert counts()[1] == large
            sidecar.until(lambda: counts()[0] > small, "the small one runs beside requests")
            assert counts()[1] == large
        sidecar.until(lambda: counts()[1] > large, "the pod is idle again")
        assert read_measurements(sidecar).golden_left_out == ()
