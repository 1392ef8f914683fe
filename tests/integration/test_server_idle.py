"""Golden inferences wait for a moment in which they delay nobody, and not for ever.

What of it starts something: the rest is in tests/unit.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.serving import Answer, Server, Wire, slow_model, write_artifact
from tests.support.waiting import until


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("idle")
    task = write_artifact(root, slow_model(), [{"turns": np.array([1])}], max_queue=8)
    with Server(root, task) as server:
        yield server


@pytest.fixture(scope="module")
def occupied(slow: Server) -> int:
    """Return turns that take a second or more on this processor: long enough to read what is sent meanwhile."""
    turns = 500
    while min(seconds(slow, turns) for _ in range(2)) < 1:  # one alone may have been kept waiting
        turns *= 2
    return turns


def seconds(server: Server, turns: int) -> float:
    began = time.monotonic()
    with server.wire() as wire:
        wire.send(turning(server, turns))
        assert wire.receive().status == 200
    return time.monotonic() - began


def turning(server: Server, turns: int, *, defer: float | None = None) -> bytes:
    """Return a request that takes as long as `turns` says; with `defer` seconds, the sidecar's."""
    given = {"name": "turns", "datatype": "INT64", "shape": [1], "data": [turns]}
    headers = {}
    if defer is not None:
        headers = server.probe_header() | {"Enginewright-Defer": f"{defer * 1000:.0f}"}
    return server.infer_request({"inputs": [given]}, headers=headers)


def depth(server: Server) -> float:
    lines = server.get("/metrics").body.decode().splitlines()
    return float(
        next(each for each in lines if each.startswith("enginewright_queue_depth")).split()[1]
    )


def arrived(server: Server) -> None:
    """Return when whatever was sent before has been read: the loop has gone round since then."""
    for _ in range(2):
        server.get("/v2/health/live")


def occupy(server: Server, wire: Wire, turns: int) -> None:
    """Send a request, and return when it runs."""
    wire.send(turning(server, turns))
    arrived(server)
    while depth(server):
        time.sleep(0.01)


def order(wires: dict[str, Wire]) -> list[str]:
    """Return the names in the order in which answers came."""
    names: list[str] = []

    def wait(name: str, wire: Wire) -> None:
        assert wire.receive().status == 200
        names.append(name)

    threads = [threading.Thread(target=wait, args=each) for each in wires.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return names


LONG = 400  # turns, some ten milliseconds at least: two such answers are never read at once


# fault: Latency | a golden inference goes before waiting requests | the server defers it to an
#   idle moment | prevented
def test_a_golden_inference_lets_all_that_wait_go_first(slow: Server, occupied: int) -> None:
    with slow.wire() as running, slow.wire() as probe, slow.wire() as first, slow.wire() as second:
        occupy(slow, running, occupied)
        probe.send(turning(slow, LONG, defer=60))
        arrived(slow)
        assert depth(slow) == 0  # it is not in the queue
        for wire in (first, second):
            wire.send(turning(slow, LONG))
            arrived(slow)
        wires = {"running": running, "probe": probe, "first": first, "second": second}
        assert order(wires) == ["running", "first", "second", "probe"]


def test_one_that_would_be_too_late_goes_next(slow: Server, occupied: int) -> None:
    with slow.wire() as running, slow.wire() as probe, slow.wire() as first, slow.wire() as second:
        occupy(slow, running, occupied)
        for wire in (first, second):
            wire.send(turning(slow, LONG))
            arrived(slow)
        probe.send(turning(slow, LONG, defer=0.001))
        wires = {"running": running, "probe": probe, "first": first, "second": second}
        assert order(wires) == ["running", "probe", "first", "second"]


# fault: Latency | never an idle moment, so nothing is verified | the golden inference goes next
#   after its deferral | four intervals
def test_a_queue_that_is_never_empty_is_let_alone_until_the_deadline(
    slow: Server, occupied: int
) -> None:
    stop = threading.Event()

    def press() -> None:
        with slow.wire() as wire:
            while not stop.is_set():
                wire.send(turning(slow, occupied // 8))
                assert wire.receive().status == 200

    # while one client's request runs, those of three wait: each has long enough to send its next
    clients = [threading.Thread(target=press) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        while not depth(slow):
            time.sleep(0.01)
        with slow.wire() as probe:
            probe.send(turning(slow, 20, defer=2.0))
            answer = probe.receive()
            assert answer.status == 200
            assert timing(answer)["queue"] > 1900
    finally:
        stop.set()
        for client in clients:
            client.join()


def test_an_idle_server_answers_it_at_once_and_says_where_the_time_went(slow: Server) -> None:
    with slow.wire() as wire:
        wire.send(turning(slow, 1))
        assert "server-timing" not in wire.receive().headers
        wire.send(turning(slow, LONG, defer=600.0))
        took = timing(wire.receive())
        wire.send(turning(slow, LONG, defer=600.0))
        again = timing(wire.receive())
    assert took["compute"] > 1
    assert max(took["queue"], again["queue"]) < 60_000


def timing(answer: Answer) -> dict[str, float]:
    parts = answer.headers["server-timing"].split(", ")
    return {
        name: float(text.removeprefix("dur=")) for name, text in (each.split(";") for each in parts)
    }


def test_the_end_does_not_wait_for_an_idle_moment(tmp_path: Path, occupied: int) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}])
    with (
        Server(tmp_path, task, drain_linger=0.1) as server,
        server.wire() as running,
        server.wire() as probe,
    ):
        occupy(server, running, occupied)
        probe.send(turning(server, 1, defer=3600))
        arrived(server)
        server.terminate()
        assert running.receive().status == 200
        assert probe.receive().status == 200
        assert server.wait() == 0


def is_in_lane(server: Server) -> bool:
    with server.wire() as probe:
        probe.send(turning(server, 1, defer=0.5))
        return "server-timing" in probe.receive().headers


def test_a_golden_inference_that_nobody_waits_for_gives_its_lane_back(
    slow: Server, occupied: int
) -> None:
    with slow.wire() as running:
        occupy(slow, running, occupied)
        for _ in range(2):
            with slow.wire() as leaving:
                leaving.send(turning(slow, 1, defer=3600))
                arrived(slow)
        assert running.receive().status == 200
    # the thread takes out those that have left once it has time
    until(lambda: is_in_lane(slow), "a place in the lane: two have left it")


@pytest.mark.parametrize("text", ["-1", "1.5", "soon", "99999999"])
def test_a_deferral_that_is_no_number_is_refused(slow: Server, text: str) -> None:
    with slow.wire() as wire:
        wire.send(slow.infer_request({"inputs": []}, headers={"Enginewright-Defer": text}))
        assert wire.receive().status == 400
