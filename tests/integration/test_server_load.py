"""Many requests at once: order, backpressure, deadlines, clients that leave, and the drain."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from tests.support.serving import (
    Answer,
    Server,
    Wire,
    slow_model,
    write_artifact,
)
from tests.support.shared import share_server
from tests.support.turns import measure_turns, queue_depth, slow_request, wait_for_loop
from tests.support.waiting import until


def count_computed(server: Server) -> float:
    return server.metric("enginewright_request_compute_seconds_count")


@pytest.fixture(scope="module")
def second(slow: Server) -> int:
    """Turns that take about a second on this machine."""
    turns = 50
    while (took := measure_turns(slow, turns)) < 0.2:
        turns *= 4
    return int(turns / took)


# the model whose time can be chosen, with a queue of two
slow = share_server(
    slow_model,
    {"turns": np.array([1])},
    options={"max_queue": 2},
    stuck_seconds=0.5,
    sweep_seconds=0.05,
)


def test_past_the_queue_requests_are_refused_at_once(slow: Server, second: int) -> None:
    with slow.wire() as running, slow.wire() as first, slow.wire() as next_one, slow.wire() as last:
        running.send(slow_request(slow, second))
        wait_for_loop(slow)
        first.send(slow_request(slow, 1))
        next_one.send(slow_request(slow, 1))
        until(lambda: queue_depth(slow) == 2)
        last.send(slow_request(slow, 1))
        answer = last.receive()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert "the queue is full with 2 requests" in answer.json()["error"]
        last.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n")
        assert last.receive().status == 200  # full is not unready
        assert [wire.receive().status for wire in (running, first, next_one)] == [200] * 3
        last.send(slow_request(slow, 1))
        assert last.receive().status == 200


# fault: Hostile | clients have as many requests due as there may be | one more is refused: 503; new connections
#   replace idle ones | probes and scrapes are answered
def test_beyond_the_requests_that_may_be_due_probes_and_scrapes_are_answered(
    tmp_path: Path, second: int
) -> None:
    due, more = 4, 2
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}], max_queue=100)
    with (
        Server(tmp_path, task, connections=due, reserved_connections=more) as server,
        ExitStack() as stack,
    ):
        waiting = [stack.enter_context(server.wire()) for _ in range(due)]
        for number, wire in enumerate(waiting):
            wire.send(slow_request(server, 1 if number else 5 * second))
            until(lambda: server.metric("enginewright_requests_in_flight") == number + 1)  # noqa: B023 - called at once
        for _ in range(10 * more):
            stack.enter_context(server.wire())  # idle
        answer = server.send(slow_request(server, 1))
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert "too many requests are due" in answer.json()["error"]
        for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
            assert server.get(path).status == 200
        assert [wire.receive().status for wire in waiting] == [200] * due


def test_a_full_queue_gives_up_a_lower_priority_for_a_higher_one(slow: Server, second: int) -> None:
    refused = slow.metric('code="503"')
    with ExitStack() as stack:
        running, low, first, high, equal = (stack.enter_context(slow.wire()) for _ in range(5))
        running.send(slow_request(slow, second))
        wait_for_loop(slow)
        first.send(slow_request(slow, 1))
        low.send(slow_request(slow, 1, priority=4))
        until(lambda: queue_depth(slow) == 2)
        equal.send(slow_request(slow, 1, priority=4))
        assert equal.receive().status == 503
        high.send(slow_request(slow, 1, priority=2))
        answer = low.receive()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert "requests of a higher priority fill the queue" in answer.json()["error"]
        assert queue_depth(slow) == 2
        equal.send(slow_request(slow, 1))  # not above the two that wait
        assert equal.receive().status == 503
        low.send(slow_request(slow, 1, priority=1))  # its connection is still of use
        assert first.receive().status == 503
        assert [wire.receive().status for wire in (running, high, low)] == [200] * 3
    assert slow.metric('code="503"') == refused + 4
    assert queue_depth(slow) == 0


def test_a_client_that_left_gives_up_its_place_without_an_answer(slow: Server, second: int) -> None:
    left = slow.metric('code="499"')
    with slow.wire() as running, slow.wire() as first, slow.wire() as high:
        running.send(slow_request(slow, second))
        wait_for_loop(slow)
        first.send(slow_request(slow, 1))
        with slow.wire() as leaving:
            leaving.send(slow_request(slow, 1, priority=5))
            until(lambda: queue_depth(slow) == 2)
        wait_for_loop(slow)
        high.send(slow_request(slow, 1, priority=1))
        until(lambda: slow.metric('code="499"') == left + 1)
        assert [wire.receive().status for wire in (running, first, high)] == [200] * 3


def test_a_flood_of_the_highest_priority_does_not_stop_the_others(slow: Server) -> None:
    stop = threading.Event()

    def flood() -> None:
        with slow.wire() as wire:
            while not stop.is_set():
                wire.send(slow_request(slow, 100, priority=1))
                assert wire.receive().status == 200

    with ThreadPoolExecutor(2) as pool, slow.wire() as other:
        floods = [pool.submit(flood) for _ in range(2)]
        try:
            until(lambda: queue_depth(slow) >= 1)
            for _ in range(3):
                other.send(slow_request(slow, 1, priority=5))
                assert other.receive().status == 200
        finally:
            stop.set()
        for future in floods:
            future.result()


def test_two_probes_at_a_time_get_past_a_full_queue(slow: Server, second: int) -> None:
    refused, good = slow.metric('code="503"'), slow.metric('code="200"')
    with ExitStack() as stack:
        wires = [stack.enter_context(slow.wire()) for _ in range(6)]
        running, first, next_one, probe, other_probe, third_probe = wires
        running.send(slow_request(slow, second))
        wait_for_loop(slow)
        for wire in (first, next_one):
            wire.send(slow_request(slow, 1))
        until(lambda: queue_depth(slow) == 2)
        for wire in (probe, other_probe):
            wire.send(slow_request(slow, 1, probe=True))
        until(lambda: queue_depth(slow) == 4)
        third_probe.send(slow_request(slow, 1, probe=True))
        assert third_probe.receive().status == 503
        served = (running, first, next_one, probe, other_probe)
        assert [wire.receive().status for wire in served] == [200] * 5
        third_probe.send(slow_request(slow, 1, probe=True))  # the lane is free again
        assert third_probe.receive().status == 200
    assert slow.metric('code="503"') == refused + 1, "past the lane it is one like any other"
    assert slow.metric('code="200"') == good + 3


def test_probes_that_leave_give_their_lane_back(slow: Server, second: int) -> None:
    with slow.wire() as running, slow.wire() as first, slow.wire() as next_one:
        running.send(slow_request(slow, second))
        wait_for_loop(slow)
        for wire in (first, next_one):
            wire.send(slow_request(slow, 1))
        until(lambda: queue_depth(slow) == 2)
        for _ in range(2):
            with slow.wire() as leaving, slow.wire() as half:
                leaving.send(slow_request(slow, second * 100, probe=True))
                half.send(slow_request(slow, 1, probe=True)[:-5])  # its body never ends
                until(lambda: queue_depth(slow) > 2)
            assert [wire.receive().status for wire in (running, first, next_one)] == [200] * 3
            running.send(slow_request(slow, second))
            wait_for_loop(slow)
            for wire in (first, next_one):
                wire.send(slow_request(slow, 1))
            until(lambda: queue_depth(slow) == 2)
        with slow.wire() as probe, slow.wire() as other_probe:
            for wire in (probe, other_probe):
                wire.send(slow_request(slow, 1, probe=True))
            assert [wire.receive().status for wire in (probe, other_probe)] == [200, 200]
        assert [wire.receive().status for wire in (running, first, next_one)] == [200] * 3


def test_deadlines_of_requests_and_of_the_server_are_kept_without_computing(
    tmp_path: Path, second: int
) -> None:
    artifact = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}])
    task = artifact.model_copy(update={"request_seconds": 0.2})
    with Server(tmp_path, task, sweep_seconds=0.05) as server, ExitStack() as stack:
        running, plain, hurried, patient, probe = (
            stack.enter_context(server.wire()) for _ in range(5)
        )
        running.send(slow_request(server, second * 2))
        wait_for_loop(server)
        plain.send(slow_request(server, 1))
        patient.send(slow_request(server, 1, timeout=60_000_000))
        probe.send(slow_request(server, 1, probe=True))
        hurried.send(slow_request(server, 1, timeout=100_000))
        answer = hurried.receive()
        assert answer.status == 504
        assert "longer than its timeout of 0.1 s" in answer.json()["error"]
        answer = plain.receive()
        assert answer.status == 504
        assert "waited longer than 0.2 s" in answer.json()["error"]
        assert count_computed(server) == 0  # the first is still running
        assert [wire.receive().status for wire in (running, patient, probe)] == [200] * 3
        for wire in (plain, hurried):
            wire.send(slow_request(server, 1))  # the connection goes on
            assert wire.receive().status == 200
        assert count_computed(server) == 4, "of the sidecar none is counted"


def test_abandoned_requests_are_not_computed(slow: Server, second: int) -> None:
    before, gone = count_computed(slow), slow.metric('code="499"')
    with slow.wire() as running:
        running.send(slow_request(slow, second))
        wait_for_loop(slow)
        with slow.wire() as leaving:
            leaving.send(slow_request(slow, second * 100))
            until(lambda: queue_depth(slow) == 1)
        assert running.receive().status == 200
    until(lambda: slow.metric('code="499"') == gone + 1)
    assert count_computed(slow) == before + 1


def test_a_run_that_does_not_end_makes_the_server_not_live(slow: Server, second: int) -> None:
    with slow.wire() as running:
        running.send(slow_request(slow, second * 2))
        until(lambda: slow.get("/v2/health/live").status == 503)
        live = slow.get("/v2/health/live").json()
        assert not live["live"]
        assert live["error"].startswith("one run of the model has taken more than 0.")
        assert live["reason"] == "RunsFail"
        assert slow.get("/v2/health/ready").status == 503
        assert running.receive().status == 200
    assert slow.get("/v2/health/live").status == 200


# fault: Requests | a huge request gets the pod restarted as stuck | the server stops the run: 400
#   | 50 s and 15 times the slowest warm-up run
def test_a_request_that_takes_too_long_is_stopped_and_the_server_stays_live(tmp_path: Path) -> None:
    """Else one request of a huge size has the pod restarted, and the next pod after it."""
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}])
    with Server(tmp_path, task, run_seconds=0.5, stuck_seconds=3.0, sweep_seconds=0.05) as server:
        with server.wire() as endless, server.wire() as next_one:
            began = time.monotonic()
            endless.send(slow_request(server, 10**12))
            next_one.send(slow_request(server, 1))
            answer = endless.receive()
            assert answer.status == 400, answer.body
            assert "the run was stopped after 0." in answer.json()["error"]
            assert next_one.receive().status == 200
            assert time.monotonic() - began < 3, "it was stopped before the server counts as stuck"
        assert server.get("/v2/health/live").status == 200
        assert server.metric('code="500"') == 0


class Client(threading.Thread):
    """Asks again and again until the server says it closes."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.asked = 0
        self.answered = 0
        self.start()

    @override
    def run(self) -> None:
        with Wire(self.server.port) as wire:
            while True:
                wire.send(slow_request(self.server, 1))
                self.asked += 1
                answer = wire.receive()
                assert answer.status == 200
                self.answered += 1
                if answer.headers.get("connection") == "close":
                    return


def test_a_drain_loses_no_answer(tmp_path: Path, second: int) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}])
    with Server(tmp_path, task, drain_linger=0.5) as server:
        clients = [Client(server) for _ in range(8)]
        with server.wire() as running, server.wire() as queued, server.wire() as idle:
            idle.send(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
            assert idle.receive().status == 200
            until(lambda: all(client.answered > 5 for client in clients))
            running.send(slow_request(server, second))
            queued.send(slow_request(server, second // 2))
            until(lambda: queue_depth(server) > 0)
            server.terminate()
            until(lambda: server.get("/v2/health/ready").status == 503)
            assert server.get("/v2/health/ready").json()["error"] == "draining"
            assert server.get("/v2/health/live").status == 200
            late = server.send(slow_request(server, 1))  # its endpoint is still listed somewhere
            assert (late.status, late.headers["connection"]) == (200, "close")
            answers: list[Answer] = [running.receive(), queued.receive()]
            assert [answer.status for answer in answers] == [200, 200]
            assert json.loads(answers[1].body)["outputs"][0]["data"] == [second // 2]
            assert idle.wait_closed()
        for client in clients:
            client.join(20)
            assert not client.is_alive()
            assert client.asked == client.answered
        assert server.wait(20) == 0
        assert "drained in" in server.log()


@pytest.mark.parametrize("by_task", [False, True])
def test_a_drain_ends_even_if_a_run_does_not(tmp_path: Path, second: int, by_task: bool) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}])
    if by_task:  # as of a model with a terminationGracePeriod
        task = task.model_copy(update={"drain_seconds": 0.5})
    with (
        Server(tmp_path, task, drain_linger=0.1, drain_seconds=20 if by_task else 0.5) as server,
        server.wire() as wire,
    ):
        wire.send(slow_request(server, second * 100))
        with server.wire() as queued:
            queued.send(slow_request(server, 1))
            until(lambda: queue_depth(server) > 0)
            began = time.monotonic()
            server.terminate()
            assert server.wait(10) == 0
            assert time.monotonic() - began < 5
        assert "were aborted" in server.log()


def test_a_second_signal_ends_it_at_once(tmp_path: Path, second: int) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}])
    with Server(tmp_path, task) as server, server.wire() as wire:
        wire.send(slow_request(server, second * 100))
        with server.wire() as queued:
            queued.send(slow_request(server, 1))
            until(lambda: queue_depth(server) > 0)
        server.terminate()
        until(lambda: server.get("/v2/health/ready").status == 503)
        server.terminate()
        assert server.wait(5) == 128 + 15
