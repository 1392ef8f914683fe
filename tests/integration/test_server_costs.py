"""What one request may cost the server: its memory, and the time in which it answers no other client."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import orjson
import pytest
from enginewright_serving.server.protocol.json_cost import VALUES
from enginewright_serving.server.protocol.request_checks import STRINGS

from tests.support.broken_models import parse_text
from tests.support.cpu import processor_seconds
from tests.support.process_memory import forget_peak, memory_of
from tests.support.serving import Server
from tests.support.shared import share_server
from tests.support.waiting import until

MIB = 1024 * 1024
STALL_SECONDS = 0.5  # the bodies below took 0.6 to 5 s; a busy machine takes some of this, too


server = share_server(
    lambda: parse_text("""(float[n] x, string[k] s) => (float[n] y, string[k] t) {
        y = Identity(x) t = Identity(s) }"""),
    {"x": np.ones(2, np.float32), "s": np.array(["a"], object)},
    options={"max_queue": 4},
)


@contextmanager
def asking(server: Server) -> Iterator[list[float]]:
    """Ask for the server's health without pause; the list is of the seconds that the server worked until each answer.

    Those on a clock are more, where other processes run too.
    """
    took: list[float] = []
    end = threading.Event()

    def ask() -> None:
        with server.wire() as wire:
            while not end.is_set():
                before = processor_seconds(server.process.pid)
                wire.send(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
                assert wire.receive().status == 200
                took.append(processor_seconds(server.process.pid) - before)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    until(lambda: took, "an answer", interval=0.001)
    try:
        yield took
    finally:
        end.set()
        thread.join(30)


def document(x: bytes, n: int, s: bytes = b'["a"]', k: int = 1, rest: bytes = b"") -> bytes:
    return (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d],"data":%b},'
        b'{"name":"s","datatype":"BYTES","shape":[%d],"data":%b}]%b}' % (n, x, k, s, rest)
    )


def numbers(count: int) -> bytes:
    return b"[" + b"1," * (count - 1) + b"1]"


def binary(server: Server, strings: bytes, count: int) -> bytes:
    """Return a request with these strings in binary, that wants one number back."""
    header = (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]},{"name":"s",'
        b'"datatype":"BYTES","shape":[%d],"parameters":{"binary_data_size":%d}}],'
        b'"outputs":[{"name":"y"}]}' % (count, len(strings))
    )
    return server.infer_request(header, strings)


WIDE = orjson.dumps(["a" * 7000] + ["b"] * 14_000)
EMPTIES = b"[" + b"[]," * (4 * MIB // 3) + b"[]]"
REFUSED = {
    "text where numbers are expected": (document(WIDE, 14_001), 400),
    "empty lists": (document(EMPTIES, 4 * MIB // 3 + 1), 413),
    "as many empty lists as allowed": (
        document(b"[" + b"[]," * (VALUES // 2 - 20) + b"[]]", 1),
        400,
    ),
    "names": (b"{" + b",".join(b'"%07d":0' % index for index in range(600_000)) + b"}", 413),
    "strings": (document(b"[1]", 1, b"[" + b'"",' * (VALUES - 99) + b'""]', VALUES - 98), 400),
    "an identifier": (document(b"[1]", 1, rest=b',"id":"%b"' % (b"\xf0\x9f\x98\x80" * MIB)), 400),
}


# fault: Hostile | a small JSON body takes gigabytes or stops all answers for seconds | refused: 400
#   or 413 | count, nesting and types are checked on the parsed lists, values before parsing
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_body_takes_little_memory_and_stops_nobody(server: Server, name: str) -> None:
    body, status = REFUSED[name]
    before = memory_of(server.process.pid, "VmRSS")
    forget_peak(server.process.pid)  # forgets the peak
    with asking(server) as took:
        answer = server.post(body)
    assert answer.status == status
    assert len(answer.body) < 500
    assert memory_of(server.process.pid, "VmHWM") - before < 16 * len(body) + 64 * MIB
    assert max(took) < STALL_SECONDS


def test_a_large_header_of_a_binary_request_is_json_too(server: Server) -> None:
    header = document(numbers(5 * MIB), 5 * MIB)
    request = server.infer_request(header, b"1234")
    answer = server.send(request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    assert answer.status == 413
    assert answer.json()["error"].startswith("the JSON exceeds 8388608 bytes")


def test_large_requests_and_answers_are_exact_and_stop_nobody(server: Server) -> None:
    values = np.arange(VALUES - 20_100, dtype=np.float32)
    strings = [f"{index} \u00e9" for index in range(20_000)]
    body = document(
        orjson.dumps(values.astype(np.int64).tolist()), len(values), orjson.dumps(strings), 20_000
    )
    with asking(server) as took, server.wire() as wire:
        live = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
        wire.send(server.infer_request(body) + live)
        outputs = {
            item["name"]: item["data"] for item in orjson.loads(wire.receive().body)["outputs"]
        }
        assert wire.receive().json() == {"live": True}, "the next request waits for its turn"
    assert max(took) < STALL_SECONDS
    np.testing.assert_array_equal(outputs["y"], values)
    assert outputs["t"] == strings


def test_as_many_strings_as_allowed_in_binary_stop_nobody(server: Server) -> None:
    with asking(server) as took, server.wire() as wire:
        wire.send(binary(server, b"\0\0\0\0" * STRINGS, STRINGS))
        assert wire.receive().status == 200
        wire.send(binary(server, b"\0\0\0\0" * (STRINGS + 1), STRINGS + 1))
        answer = wire.receive()
    assert answer.status == 400
    assert answer.json()["error"] == "the request has 100001 strings, more than 100,000"
    assert max(took) < STALL_SECONDS


def test_a_large_request_keeps_its_timeout(server: Server) -> None:
    asked = document(numbers(900_000), 900_000, rest=b',"parameters":{"timeout":10000}')
    answer = server.post(asked)
    assert answer.status == 504
    assert "its timeout of 0.01 s" in answer.json()["error"]


def test_abandoned_large_requests_are_counted_and_released(server: Server) -> None:
    gone, good = server.metric('code="499"'), server.metric('code="200"')
    request = server.infer_request(document(numbers(900_000), 900_000))
    wires = [server.wire() for _ in range(4)]
    for wire in wires:
        wire.send(request)
    for wire in wires:
        wire.__exit__()
    until(
        lambda: server.metric('code="499"') + server.metric('code="200"') >= gone + good + 4,
        "all are counted",
    )
    assert server.metric('code="499"') > gone
    assert server.post(document(b"[1]", 1)).status == 200


def test_large_requests_that_wait_to_be_read_are_limited(server: Server) -> None:
    request = server.infer_request(
        document(numbers(900_000), 900_000, rest=b',"outputs":[{"name":"t"}]')
    )

    def ask(_: int) -> tuple[int, bytes]:
        answer = server.send(request)
        return answer.status, answer.body

    with asking(server) as took, ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, range(24)))
    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 4, "those that the queue takes are answered"
    assert any(b"4 large requests wait to be read" in body for _, body in answers)
    assert max(took) < 2 * STALL_SECONDS, "of several in a row"


def test_the_server_is_still_well(server: Server) -> None:
    assert "Traceback" not in server.log()
    assert server.process.poll() is None
