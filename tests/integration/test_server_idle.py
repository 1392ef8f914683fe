"""Golden inferences wait for a moment in which they delay no request, but not for ever."""

import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support.serving import Answer, Server, Wire, slow_model, write_artifact
from tests.support.shared import share_server
from tests.support.turns import find_long_turns, queue_depth, slow_request, wait_for_loop
from tests.support.waiting import until

slow = share_server(slow_model, {"turns": np.array([1])}, options={"max_queue": 8})


@pytest.fixture(scope="module")
def turns(slow: Server) -> int:
    """Long enough to read what is sent meanwhile."""
    return find_long_turns(slow)


def occupy(server: Server, wire: Wire, turns: int) -> None:
    """Send a request, and return when it runs."""
    wire.send(slow_request(server, turns))
    wait_for_loop(server)
    until(lambda: not queue_depth(server))


def order(wires: dict[str, Wire]) -> list[str]:
    """Return the names in the order in which answers came."""
    names: list[str] = []

    def wait(name: str, wire: Wire) -> None:
        assert wire.receive().status == 200
        names.append(name)

    threads = [threading.Thread(target=wait, args=pair) for pair in wires.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return names


LONG = 400  # turns, some ten milliseconds at least: two such answers are never read at once


# fault: Latency | a golden inference goes before waiting requests | the server defers it to an
#   idle moment | prevented
def test_a_golden_inference_lets_all_that_wait_go_first(slow: Server, turns: int) -> None:
    with slow.wire() as running, slow.wire() as probe, slow.wire() as first, slow.wire() as second:
        occupy(slow, running, turns)
        probe.send(slow_request(slow, LONG, defer=60))
        wait_for_loop(slow)
        assert queue_depth(slow) == 0  # it is not in the queue
        for wire in (first, second):
            wire.send(slow_request(slow, LONG))
            wait_for_loop(slow)
        wires = {"running": running, "probe": probe, "first": first, "second": second}
        assert order(wires) == ["running", "first", "second", "probe"]


# fault: Latency | never an idle moment, so nothing is verified | the golden inference goes next
#   after its deferral | four intervals
def test_one_that_would_be_too_late_goes_next(slow: Server, turns: int) -> None:
    with slow.wire() as running, slow.wire() as probe, slow.wire() as first, slow.wire() as second:
        occupy(slow, running, turns)
        for wire in (first, second):
            wire.send(slow_request(slow, LONG))
            wait_for_loop(slow)
        probe.send(slow_request(slow, LONG, defer=0.001))
        wires = {"running": running, "probe": probe, "first": first, "second": second}
        assert order(wires) == ["running", "probe", "first", "second"]


def test_an_idle_server_answers_it_at_once_and_says_where_the_time_went(slow: Server) -> None:
    assert "server-timing" not in slow.send(slow_request(slow, 1)).headers
    for _ in range(2):
        took = timing(slow.send(slow_request(slow, LONG, defer=600.0)))
        assert took["compute"] > 1
        assert took["queue"] < 60_000


def timing(answer: Answer) -> dict[str, float]:
    parts = answer.headers["server-timing"].split(", ")
    return {
        name: float(text.removeprefix("dur=")) for name, text in (part.split(";") for part in parts)
    }


def test_the_end_does_not_wait_for_an_idle_moment(tmp_path: Path, turns: int) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}])
    with (
        Server(tmp_path, task, drain_linger=0.1) as server,
        server.wire() as running,
        server.wire() as probe,
    ):
        occupy(server, running, turns)
        probe.send(slow_request(server, 1, defer=3600))
        wait_for_loop(server)
        server.terminate()
        assert running.receive().status == 200
        assert probe.receive().status == 200
        assert server.wait() == 0


def is_in_lane(server: Server) -> bool:
    return "server-timing" in server.send(slow_request(server, 1, defer=0.5)).headers


def test_an_abandoned_golden_inference_frees_its_lane(slow: Server, turns: int) -> None:
    with slow.wire() as running:
        occupy(slow, running, turns)
        for _ in range(2):
            with slow.wire() as leaving:
                leaving.send(slow_request(slow, 1, defer=3600))
                wait_for_loop(slow)
        assert running.receive().status == 200
    # the thread takes out those that have left once it has time
    until(lambda: is_in_lane(slow), "a place in the lane: two have left it")


@pytest.mark.parametrize("text", ["-1", "1.5", "soon", "99999999"])
def test_a_deferral_that_is_no_number_is_refused(slow: Server, text: str) -> None:
    assert slow.post({"inputs": []}, headers={"Enginewright-Defer": text}).status == 400
