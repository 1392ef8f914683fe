"""HTTP on raw sockets: framing, pipelining, limits, times, and clients that behave badly."""

import contextlib
import socket
import time
from typing import Any

import numpy as np
import pytest

from tests.support.broken_models import parse_text
from tests.support.serving import (
    Server,
    Wire,
    binary_inputs,
    json_inputs,
    linear_model,
    slow_model,
)
from tests.support.shared import share_server
from tests.support.turns import slow_request
from tests.support.waiting import until

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
ONE = json_inputs(x=np.ones((1, 8), np.float32))


server = share_server(linear_model, {"x": np.ones((2, 8), np.float32)})


# small limits and short times, on a model that can take long
strict = share_server(
    slow_model,
    {"turns": np.array([1])},
    head_bytes=1024,
    body_bytes=200_000,
    json_bytes=100_000,
    inflight_bytes=1_000_000,
    connections=4,
    reserved_connections=2,
    head_seconds=0.4,
    idle_seconds=0.8,
    transfer_window=0.4,
    transfer_rate=1_000_000,
    connection_age=1.0,
    sweep_seconds=0.05,
    linger_seconds=0.5,
)


# gives back what it gets, as long as one wants
copier = share_server(
    lambda: parse_text("(float[n] x) => (float[n] y) { y = Neg(x) }"),
    {"x": np.ones(3, np.float32)},
    transfer_window=0.5,
    transfer_rate=50_000_000,
    sweep_seconds=0.05,
)


def first_output(answer_json: Any) -> list[float]:
    data: list[float] = answer_json["outputs"][0]["data"]
    return data


def linear_request(server: Server, value: float, **headers: str) -> bytes:
    return server.infer_request(json_inputs(x=np.full((1, 8), value, np.float32)), headers=headers)


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    with server.wire() as wire:
        requests = [linear_request(server, value) for value in range(20)]
        wire.send(b"".join(requests[:10]) + GET + b"".join(requests[10:]))
        answers = [wire.receive() for _ in range(21)]
    assert answers[10].json() == {"live": True}
    values = [first_output(answer.json())[0] for answer in answers[:10] + answers[11:]]
    assert values == [14.0 * value for value in range(20)]


def test_nothing_after_connection_close_is_answered(server: Server) -> None:
    with server.wire() as wire:
        wire.send(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + GET)
        answer = wire.receive()
        assert answer.headers["connection"] == "close"
        assert wire.wait_closed()


def test_http_1_0_closes_unless_asked_not_to(server: Server) -> None:
    with server.wire() as wire:
        wire.send(b"GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        answer = wire.receive()
        assert answer.headers["connection"] == "keep-alive"
        wire.send(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        assert wire.receive().json() == {"live": True}
        assert wire.wait_closed()


def test_head_is_get_without_the_body(server: Server) -> None:
    with server.wire() as wire:
        wire.send(GET.replace(b"GET", b"HEAD") + GET)
        head = wire.receive(head_only=True)
        got = wire.receive()
    assert head.status == got.status == 200
    assert head.headers["content-length"] == got.headers["content-length"]


def test_a_wrong_method_is_answered_with_the_right_one(server: Server) -> None:
    answer = server.get("/v2/models/m/infer")
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"
    assert server.post(ONE, path="/v2/models/m").headers["allow"] == "GET, HEAD"
    assert server.get("/v2", method="OPTIONS").status == 405


def test_an_upgrade_is_ignored(server: Server) -> None:
    # Java's client offers HTTP/2 with its first request, body or not
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AA"}
    with server.wire() as wire:
        wire.send(linear_request(server, 1.0, **headers) + GET)
        assert first_output(wire.receive().json())[0] == 14.0
        assert wire.receive().status == 200


def encode_chunks(body: bytes, *sizes: int) -> bytes:
    pieces = []
    for size in (*sizes, len(body)):
        piece, body = body[:size], body[size:]
        if piece:
            pieces.append(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
    return b"".join(pieces) + b"0\r\nTrailer: t\r\n\r\n"


def in_chunks(request: bytes, *sizes: int) -> bytes:
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    head = b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b""])
    return head + encode_chunks(body, *sizes)


@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_a_body_may_come_in_chunks(server: Server, size: int) -> None:
    two, three = (in_chunks(linear_request(server, value), 1, 20) for value in (2.0, 3.0))
    request = two + GET + three
    with server.wire() as wire:
        for at in range(0, len(request), size):
            wire.send(request[at : at + size])
        assert first_output(wire.receive().json())[0] == 28.0
        assert wire.receive().json() == {"live": True}
        assert first_output(wire.receive().json())[0] == 42.0


def copy_request(server: Server, values: Any, *, binary: bool = True, **headers: str) -> bytes:
    document, tensors = binary_inputs(x=values)
    document["parameters"]["binary_data_output"] = binary
    return server.infer_request(document, tensors, headers=headers)


BROKEN = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "not a valid HTTP request"),
    (b"GET\r\n\r\n", 400, "not a valid HTTP request"),
    (b"GET /v2 HTTP/3.0\r\nHost: h\r\n\r\n", 400, "not a valid HTTP request"),
    (b"GET /v2 HTTP/1.1\r\n\r\n", 400, "the Host header is missing"),
    (b"GET /v2 HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 400, "one Host header"),
    (b"GET /v2 HTTP/1.1\r\nHost: h\r\nBad Name: 1\r\n\r\n", 400, "not a valid HTTP request"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400, "not a valid HTTP"),
    (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "not a"),
    (
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "not a valid HTTP request",
    ),
    (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, "chunked"),
    (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "HTTP/1.0 does not support"),
    (b"GET /v2 HTTP/1.1\r\nHost: h\r\nExpect: cake\r\n\r\n", 417, "100-continue"),
    (
        b"POST / HTTP/1.1\r\nHost: h\r\nInference-Header-Content-Length: x\r\n\r\n",
        400,
        "Inference-Header-Content-Length",
    ),
    (b"GET /v2 HTTP/1.1\nHost: h\n\n\r\n\r\n", 400, "not a valid HTTP request"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "only HTTP/1.0 and HTTP/1.1"),
]


@pytest.mark.parametrize(("request_bytes", "status", "message"), BROKEN)
def test_an_invalid_request_closes_the_connection(
    server: Server, request_bytes: bytes, status: int, message: str
) -> None:
    with server.wire() as wire:
        wire.send(request_bytes + GET)
        answer = wire.receive()
        assert answer.status == status
        assert message in answer.json()["error"]
        assert answer.headers["connection"] == "close"
        wire.finish()
        assert wire.wait_closed()


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"5\r\nabcdefg\r\n",
        b"5\nabcde\n",
        b"fffffffff\r\n",
        b"5" + b";" * 2000,
    ],
)
def test_a_broken_chunk_is_refused(server: Server, body: bytes) -> None:
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    with server.wire() as wire:
        wire.send(head + body)
        answer = wire.receive()
        assert answer.status == 400
        assert "not a valid chunked body" in answer.json()["error"]
        wire.finish()
        assert wire.wait_closed()


def test_continue_comes_before_the_body_and_only_when_it_is_wanted(server: Server) -> None:
    request = linear_request(server, 1.0, Expect="100-continue")
    head, _, body = request.partition(b"\r\n\r\n")
    with server.wire() as wire:
        wire.send(head + b"\r\n\r\n")
        assert wire.receive(head_only=True).status == 100
        wire.send(body)
        assert first_output(wire.receive().json())[0] == 14.0
        wire.send(request)  # the body came with the head: no 100
        assert wire.receive().status == 200
        wire.send(head.replace(b"models/m/", b"models/z/") + b"\r\n\r\n")
        assert wire.receive().status == 404  # instead of 100
        wire.finish()
        assert wire.wait_closed()


@pytest.mark.parametrize("rows", [1, 1_000_000])
def test_a_client_that_closes_its_side_with_its_request_reads_the_answer(
    copier: Server, rows: int
) -> None:
    request = copier.infer_request(*binary_inputs(x=np.ones(rows, np.float32)))

    def is_answered() -> bool:
        with copier.wire() as wire:
            wire.send(request)
            wire.finish()  # if this process is interrupted before, it comes as late as that of one that leaves
            try:
                status = wire.receive().status
            except EOFError:
                return False
            return status == 200 and wire.wait_closed()

    until(is_answered, "an answer to a request that ends with its side of the connection")


def test_a_small_refused_body_does_not_cost_the_connection(server: Server) -> None:
    with server.wire() as wire:
        wire.send(linear_request(server, 1.0).replace(b"models/m/", b"models/z/"))
        assert wire.receive().status == 404
        wire.send(linear_request(server, 1.0))
        assert wire.receive().status == 200


def test_an_empty_body_is_refused(server: Server) -> None:
    answer = server.send(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n\r\n")
    assert "the body is empty" in answer.json()["error"]
    answer = server.post(b"{}", headers={"Inference-Header-Content-Length": "3"})
    assert "but the body has 2 bytes" in answer.json()["error"]


def test_a_huge_head_is_refused(strict: Server) -> None:
    for end in (b"", b"\r\n\r\n"):
        head = b"GET /v2 HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 2000 + end
        assert strict.send(head).status == 431


def test_a_huge_body_is_refused_before_it_is_sent(strict: Server) -> None:
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n%bContent-Length: %d\r\n\r\n"
    for fields, size, message in (
        (b"Inference-Header-Content-Length: 9\r\n", 10**9, "exceeds the limit of 200000 bytes"),
        (b"", 150_000, "send tensors in binary"),
    ):
        answer = strict.send(head % (fields, size))
        assert answer.status == 413
        assert message in answer.json()["error"]
    assert strict.metric('code="413"') == 2


def test_a_client_that_sends_on_after_a_refusal_still_reads_it(server: Server) -> None:
    # closing with unread bytes would reset the connection and lose the answer
    head = (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n"
        b"Inference-Header-Content-Length: 9\r\nContent-Length: %d\r\n\r\n" % 10**9
    )
    with server.wire() as wire:
        wire.send(head)
        for _ in range(40):
            wire.send(b"\0" * 100_000)
        assert wire.receive().status == 413


def test_chunks_past_the_limit_are_refused(strict: Server) -> None:
    head = (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n"
        b"Inference-Header-Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with strict.wire() as wire:
        wire.send(head)
        for _ in range(3):
            wire.send(b"186a0\r\n" + b"\0" * 100_000 + b"\r\n")
        assert wire.receive().status == 413


def test_a_slow_head_a_slow_body_and_idling_are_cut_off(strict: Server) -> None:
    began = time.monotonic()
    with strict.wire() as head, strict.wire() as body, strict.wire() as idle:
        head.send(GET[:20])
        body.send(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n123")
        idle.send(GET)
        assert idle.receive().status == 200
        assert head.receive().status == 408
        assert body.receive().status == 408
        assert idle.wait_closed()
    assert time.monotonic() - began < 9  # the least of the usual limits is 10 s


def test_a_dripping_client_gets_no_more_time(strict: Server) -> None:
    with strict.wire() as wire, pytest.raises((AssertionError, OSError)):  # noqa: PT012 - a loop of one step
        for byte in GET * 20:
            wire.send(bytes([byte]) if byte not in b"\r\n" else b"x")
            time.sleep(0.05)
        pytest.fail("a head may take for ever")


def test_an_answer_too_large_for_json_is_refused_with_the_remedy(copier: Server) -> None:
    values = np.zeros(4_000_001, np.float32)
    answer = copier.send(copy_request(copier, values, binary=False))
    assert answer.status == 400
    assert "too many for JSON; set its parameter 'binary_data'" in answer.json()["error"]


def test_past_the_limit_of_requests_health_is_still_answered(strict: Server) -> None:
    def request(turns: int) -> bytes:
        return slow_request(strict, turns)

    with contextlib.ExitStack() as held:
        wires = [held.enter_context(strict.wire()) for _ in range(4)]
        for wire in wires:
            wire.send(request(10_000 if wire is wires[0] else 1))  # the others wait
        with strict.wire() as extra:
            extra.send(GET)
            assert extra.receive().status == 200
            extra.send(request(1))
            answer = extra.receive()
            assert answer.status == 503
            assert "too many requests" in answer.json()["error"]
            assert answer.headers["retry-after"] == "1"
            extra.send(GET)
            assert extra.receive().status == 200
        assert [wire.receive().status for wire in wires] == [200] * 4


# fault: Hostile | idle connections exhaust the limit, so probes fail | the longest idle one is
#   closed | prevented
def test_idle_connections_never_keep_health_from_being_asked(strict: Server) -> None:
    """Else kubelet restarts the pod for clients that only hold connections."""
    with contextlib.ExitStack() as held:
        wires = [held.enter_context(strict.wire()) for _ in range(40)]
        for wire in wires[-3:]:
            wire.send(b"GET /v2 HTTP")  # no whole request either
        for _ in range(10):
            assert strict.send(GET).status == 200


LARGE_HEAD = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
    b"Inference-Header-Content-Length: 9\r\nContent-Length: 60000000\r\n\r\n"
)


# fault: Hostile | clients announce large bodies and do not send them | bytes are charged when they
#   arrive | prevented
def test_announced_bodies_take_no_memory_from_others(server: Server) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(20):  # of 256 MiB, 60 MB each
            wire = held.enter_context(server.wire())
            wire.send(LARGE_HEAD)
            assert wire.receive().status == 100
            wire.send(b"{")
        assert server.post(ONE).status == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_ipv6_is_served_too(server: Server) -> None:
    with Wire(server.port, host="::1") as wire:
        wire.send(GET)
        assert wire.receive().json() == {"live": True}


def test_blank_lines_before_a_request_are_skipped(server: Server) -> None:
    with server.wire() as wire:
        wire.send(b"\r\n\r\n" + GET + b"\r\n" + GET)
        assert wire.receive().status == 200
        assert wire.receive().status == 200


def test_the_server_is_still_well(server: Server, strict: Server, copier: Server) -> None:
    for item in (server, strict, copier):
        assert "Traceback" not in item.log()
        assert item.process.poll() is None
