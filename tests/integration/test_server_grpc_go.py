"""The real server and grpc-go's client, whose HTTP/2 has flow control, pings and a drain of its own."""

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from enginewright_serving.server.protocol.grpc.messages import InferResponse, Live

from tests.integration.test_server_grpc_inference import (
    LONG,
    batch,
    in_flight,
    parse_message,
    turns,
)
from tests.support.programs import go_program
from tests.support.serving import Server, linear_model, slow_model, write_artifact
from tests.support.shared import share_server
from tests.support.turns import find_long_turns
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(900)  # the program may have to be built

PARALLEL: Final = 64 * 64  # calls of the program, side by side
DRAIN: Final = 200.0  # seconds, on a busy machine
LARGE: Final = 200_000  # rows of 32 bytes, and of 16 in the answer: more than all windows


class GoClient:
    """A run of the program, which prints what it sees as lines of JSON."""

    def __init__(self, program: Path, act: str, server: Server, **messages: Any) -> None:
        given = {
            name: base64.b64encode(message.SerializeToString()).decode()
            for name, message in messages.items()
        }
        self._process = subprocess.Popen(
            [program, act], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        json.dump({"address": f"127.0.0.1:{server.grpc_port}", **given}, self._process.stdin)
        self._process.stdin.close()
        self.seen: dict[str, Any] = {}

    def read_until(self, name: str = "") -> dict[str, Any]:
        """Read what it prints up to `name`, or to its end; return all so far."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            printed = json.loads(line)
            self.seen[printed["name"]] = printed["value"]
            if printed["name"] == name:
                return self.seen
        assert self._process.wait(60) == 0
        assert not name, self.seen
        return self.seen


def outputs(printed: str) -> Any:
    answer = parse_message(InferResponse, base64.b64decode(printed))
    return np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(-1, 4)


def is_live(printed: str) -> bool:
    return bool(parse_message(Live, base64.b64decode(printed)).live)


def multiply(rows: int) -> Any:
    return np.ones((rows, 8), np.float32) @ (np.arange(32, dtype=np.float32).reshape(8, 4) / 8)


@pytest.fixture(scope="module")
def program() -> Path:
    return go_program("tests/support/grpc_go", ".")


server = share_server(linear_model, {"x": np.ones((1, 8), np.float32)})


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Server]:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1], np.int64)}])
    with Server(tmp_path, task, drain_linger=0.1, drain_seconds=DRAIN) as server:
        yield server


def test_calls_of_every_kind(program: Path, server: Server) -> None:
    seen = GoClient(program, "all", server, small=batch(2), large=batch(LARGE)).read_until()
    assert is_live(seen["live"])
    for name, rows in (("small", 2), ("gzip", 2), ("large", LARGE), ("large gzip", LARGE)):
        np.testing.assert_allclose(outputs(seen[name]), multiply(rows), rtol=1e-5)
    assert seen["stream"].startswith("Unimplemented: ")
    assert seen["parallel"] == PARALLEL


def test_keepalive_pings_are_answered_and_no_offence(program: Path, server: Server) -> None:
    seen = GoClient(program, "rest", server).read_until()
    assert is_live(seen["before"])
    assert seen["ended"] is False, "the connection stays"
    assert is_live(seen["after"])


def test_a_client_that_does_not_wait(program: Path, slow: Server) -> None:
    seen = GoClient(program, "give up", slow, slow=turns(LONG)).read_until()
    assert seen["deadline"].startswith("DeadlineExceeded: ")
    assert seen["cancelled"].startswith("Canceled: ")
    assert is_live(seen["afterwards"])


# fault: Servers | a server is stopped while a client has a call whose request it does not end | the client is told to
#   go elsewhere (GOAWAY), and that call ends after seconds | other calls are answered
def test_a_drain_answers_calls_and_ends_those_that_their_client_does_not_end(
    program: Path, slow: Server
) -> None:
    client = GoClient(program, "drain", slow, slow=turns(find_long_turns(slow)))
    client.read_until("running")
    until(lambda: in_flight(slow) == 2, "its calls")
    slow.terminate()
    seen = client.read_until()
    assert slow.wait(DRAIN) == 0
    assert "drained in" in slow.log(), seen
    answer = base64.b64decode(seen["slow"], validate=True)
    assert parse_message(InferResponse, answer).outputs
    assert seen["ended"] is True, "the client leaves the connection"
    assert seen["afterwards"] == "Unavailable"
