"""A client whose requests fill what may wait for the steps of spec.processing leaves places and turns to others."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_server_load import arrived, metric
from tests.integration.test_server_processing import ONE_PROCESS, doubling, looping, with_steps
from tests.support.serving import Server, Wire
from tests.support.waiting import until

WAITING = 8  # requests, by maxQueue
PRINTING = """
from enginewright_runtime.session.processing.process import StepProcess
start, run = StepProcess._start, StepProcess.run
def starting(self):
    facts = start(self)
    print("process:", self._child.pid, flush=True)
    return facts
def running(self, steps, feeds, *rest):
    print("turns:", *feeds["turns"], flush=True)
    return run(self, steps, feeds, *rest)
StepProcess._start, StepProcess.run = starting, running
"""
GREEDY, MODEST = "127.0.0.2", "127.0.0.3"


def printed(server: Server, word: str) -> list[int]:
    lines = server.log().splitlines()
    return [int(line.removeprefix(word)) for line in lines if line.startswith(word)]


@contextmanager
def stopped_steps(server: Server) -> Iterator[None]:
    """Let no step run: stop their only process."""
    (pid,) = printed(server, "process: ")
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("steps")
    task = with_steps(root, [looping()], doubling(), [], [{"x": np.ones(1, np.float32)}])
    task = task.model_copy(update={"max_queue": WAITING})
    with Server(root, task, step_seconds=60.0, before=ONE_PROCESS + PRINTING) as found:
        yield found


def in_flight(server: Server) -> float:
    return metric(server, "enginewright_requests_in_flight")


def turns(server: Server, count: int = 1, **parameters: int) -> bytes:
    one = {"name": "turns", "datatype": "INT64", "shape": [1], "data": [count]}
    return server.infer_request({"inputs": [one], "parameters": parameters})


class Clients:
    """Connections from several addresses."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        self._server = server
        self._stack = stack

    def send(self, source: str, count: int = 1, **parameters: int) -> Wire:
        """Send a request, which is in the server on return."""
        wire = self._stack.enter_context(Wire(self._server.port, source=source))
        wire.send(turns(self._server, count, **parameters))
        arrived(self._server)
        return wire

    def fill(self, source: str) -> list[Wire]:
        """Fill the step's process and the places of those that wait for it."""
        found = [self.send(source) for _ in range(1 + WAITING)]
        until(lambda: in_flight(self._server) == 1 + WAITING)
        return found


def refusal(wire: Wire) -> str:
    answer = wire.receive()
    assert answer.status == 503, answer.body
    assert answer.headers["retry-after"] == "1"
    return str(answer.json()["error"])


# fault: Requests | one client fills what may wait for the steps of spec.processing | the client with the
#   most requests gives up its newest one for another's: 503 | when no more may wait
def test_a_client_that_fills_what_waits_for_the_steps_gives_up_places(server: Server) -> None:
    refused = metric(server, 'code="503"')
    with ExitStack() as stack:
        clients = Clients(server, stack)
        with stopped_steps(server):
            greedy = clients.fill(GREEDY)
            assert "8 requests wait for a step of spec.processing; try again" in refusal(
                clients.send(GREEDY)
            )
            modest = [clients.send(MODEST) for _ in range(3)]
            assert "8 requests wait for a step of spec.processing; try again" in refusal(
                modest.pop()
            )
            for _ in modest:  # the newest one first
                assert "and other clients have fewer" in refusal(greedy.pop())
            urgent = clients.send(GREEDY, priority=1)  # priorities come first, as in the queue
            assert "requests of a higher priority wait for a step" in refusal(greedy.pop())
        for each in (urgent, *modest, *greedy):
            answer = each.receive()
            assert answer.status == 200, answer.body
            assert answer.json()["outputs"][0]["data"] == [2.0]
        assert metric(server, 'code="503"') - refused == 5
        assert in_flight(server) == 0


# fault: Requests | one client keeps all processes of the steps busy | clients take turns | with the next
#   process that is free
def test_a_client_with_one_request_waits_for_one_of_another_at_most(server: Server) -> None:
    with ExitStack() as stack:
        clients = Clients(server, stack)
        with stopped_steps(server):
            greedy = clients.fill(GREEDY)
            modest = clients.send(MODEST, count=3)
            assert "and other clients have fewer" in refusal(greedy.pop())
        answers = [each.receive() for each in (modest, *greedy)]
    assert {each.status for each in answers} == {200}
    assert printed(server, "turns: ")[-9:] == [1, 1, 3, *[1] * 6]
