"""Requests that are changed in any way are answered or refused as the protocol says, by property.

The server's time limits are short, so that it answers what is cut off soon. An incomplete request is
refused for its time; nothing is a server's error, takes memory, or changes the next request's answer.
"""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from enginewright_serving.transport.http2 import frames
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support import http2, mirror
from tests.support.effort import examples
from tests.support.process_memory import memory_of
from tests.support.serving import Server, Wire, write_artifact

MIB = 1 << 20
# beside what the server takes when it is ready; 128 MiB of it the allocator keeps
MEMORY = 160 * MIB
INFER = "/inference.GRPCInferenceService/ModelInfer"
NAMES = ("INT32", "FP32", "BYTES")
SECONDS = 20.0
BEGUN = len(http2.Client.opening)  # bytes; a connection that has not begun is closed
_DEEPEST = 6  # place of a document that is changed
DEEP = "deep"  # becomes a list in lists in lists
# HTTP's for what a server does not implement: a transfer coding, a version
NOT_IMPLEMENTED = {501, 505}
INTERNAL = grpc.StatusCode.INTERNAL.value[0]
# gRPC's specification has INTERNAL for these
FRAMING = ("truncated", "compressed", "decompressed")
SERVERS_FAULTS = {grpc.StatusCode.UNKNOWN.value[0], grpc.StatusCode.DATA_LOSS.value[0]}
some = settings(max_examples=examples(120), derandomize=True)
few = settings(max_examples=examples(40), derandomize=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("malformed")
    task = write_artifact(root, mirror.mirror_model(NAMES), [mirror.sample(NAMES)])
    with Server(
        root,
        task,
        transfer_window=0.2,
        head_seconds=0.2,
        idle_seconds=1.0,
        linger_seconds=0.1,
        sweep_seconds=0.02,
    ) as it:
        before = memory_of(it.process.pid)
        yield it
        assert memory_of(it.process.pid) - before < MEMORY
        assert "Traceback" not in it.log()
        assert "unexpected" not in it.log()
        assert it.process.poll() is None


def well(server: Server) -> None:
    """A valid request is answered."""
    given = mirror.sample(NAMES)
    document, tensors = mirror.http_document(given, binary=NAMES, nested=False)
    answer = server.post(document, tensors)
    assert answer.status == 200
    assert mirror.http_outputs(answer)["INT32_out"][2] == [1, 1]


# Mutations.


# as JSON, so that what is changed later is never the same list
hostile_values = st.sampled_from(
    [
        *("null", "true", "-1", "0", "2147483648", "4294967296", "1e300", "0.5", "[2147483648, 0]"),
        *(str(2**62), str(2**63), str(2**64), str(-(2**63)), f"[{2**62}, 4]", "[[2]]", '{"a": {}}'),
        *('""', '"FP32"', '"INT32"', f'"{"x" * 5000}"', '"\\u0000"', '"\\ud800"', "{}", "[]"),
        *("[" * 100 + "1" + "]" * 100, f'"{DEEP}"', str([1] * 40), str(list(range(3000)))),
    ]
).map(json.loads)


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in a document."""
    paths = [at] if at else []
    items: Any = ()
    if len(at) > _DEEPEST:
        return paths
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        paths += places(value, (*at, key))
    return paths


@st.composite
def change_documents(draw: st.DrawFn, document: Any) -> Any:
    """Return a document with up to three values replaced, removed, repeated or renamed."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        paths = places(document)
        if not paths:
            break
        *way, last = draw(st.sampled_from(paths))
        inside = document
        for key in way:
            inside = inside[key]
        how = draw(st.sampled_from(["replace", "remove", "repeat", "rename"]))
        if how == "replace":
            inside[last] = draw(hostile_values)
        elif how == "remove":
            del inside[last]
        elif isinstance(inside, list):
            inside.append(inside[last])
        else:
            inside[draw(st.sampled_from(["name", "data", "parameters", "é", "x"]))] = inside[last]
    return document


@st.composite
def change_bytes(draw: st.DrawFn, data: bytes, keep: int = 0) -> bytes:
    """Return bytes with some flipped, removed, repeated or inserted, after the first `keep`."""
    for _ in range(draw(st.integers(1, 3))):
        if len(data) <= keep:
            break
        at = draw(st.integers(keep, len(data) - 1))
        size = draw(st.integers(1, 20))
        how = draw(st.sampled_from(["flip", "cut", "remove", "repeat", "insert"]))
        if how == "flip":
            data = data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
        elif how == "cut":
            data = data[:at]
        elif how == "remove":
            data = data[:at] + data[at + size :]
        elif how == "repeat":
            data = data[: at + size] + data[at:]
        else:
            data = data[:at] + draw(st.binary(min_size=1, max_size=size)) + data[at:]
    return data


# HTTP.


def http_answer(server: Server, data: bytes) -> int:
    """Send bytes; return the status of the first answer, which must come and be right."""
    with Wire(server.port, timeout=SECONDS) as wire:
        wire.send(data)
        answer = wire.receive()
    assert answer.status < 500 or answer.status in NOT_IMPLEMENTED, answer.body
    if answer.status >= 400:
        assert isinstance(answer.json()["error"], str)
        assert len(answer.body) < 2000
    return answer.status


def http_body(*, binary: bool) -> tuple[dict[str, Any], bytes]:
    document, tensors = mirror.http_document(
        mirror.sample(NAMES), binary=NAMES if binary else (), nested=True
    )
    parameters = {"binary_data_output": binary, "timeout": 10_000_000}
    document |= {"id": "1", "outputs": [{"name": "INT32_out"}], "parameters": parameters}
    return document, tensors


@given(st.data(), st.booleans())
@some
def test_changed_json_is_answered_or_refused(
    server: Server, data: st.DataObject, binary: bool
) -> None:
    document, tensors = http_body(binary=binary)
    changed = data.draw(change_documents(document))
    body = json.dumps(changed).encode().replace(f'"{DEEP}"'.encode(), b"[" * 5000 + b"]" * 5000)
    assert http_answer(server, server.infer_request(body, tensors)) < 500
    well(server)


@given(st.data(), st.booleans())
@some
def test_changed_requests_are_answered_or_refused(
    server: Server, data: st.DataObject, binary: bool
) -> None:
    document, tensors = http_body(binary=binary)
    request = data.draw(change_bytes(server.infer_request(document, tensors)))
    assume(request.strip(b"\r\n"))
    http_answer(server, request)
    well(server)


LENGTHS = ("0", "1", "00", "-1", "+5", "9" * 12, "9" * 30, "18446744073709551616", "5, 5", "x", "")


@given(st.sampled_from(LENGTHS), st.sampled_from((*LENGTHS, None)), st.booleans())
@few
def test_any_lengths_are_refused_or_kept(
    server: Server, length: str, header: str | None, again: bool
) -> None:
    lines = [f"Content-Length: {length}"] * (1 + again)
    if header is not None:
        lines.append(f"{mirror.BINARY_LENGTH}: {header}")
    head = "".join(f"{line}\r\n" for line in lines)
    request = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n{head}\r\n"
    assert 400 <= http_answer(server, request.encode()) < 500
    well(server)


# gRPC.


class Call:
    """One connection of HTTP/2 and what came back."""

    def __init__(self, server: Server, data: bytes) -> None:
        self.received = b""
        self.closed = False
        with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=SECONDS) as it:
            it.sendall(data)
            until = time.monotonic() + SECONDS
            while not self._is_answered():
                assert time.monotonic() < until, "no answer"
                try:
                    part = it.recv(1 << 16)
                except ConnectionResetError:
                    part = b""
                self.received += part
                if not part:
                    self.closed = True
                    break

    @property
    def frames(self) -> list[http2.Frame]:
        return http2.split(self.received)

    def _is_answered(self) -> bool:
        return any(
            frame.kind in (frames.RST_STREAM, frames.GOAWAY)
            or (frame.kind == frames.HEADERS and frame.flags & frames.END_STREAM)
            for frame in self.frames
        )

    def check(self) -> None:
        """Check that there is a status, or an error of the stream or the connection."""
        assert self._is_answered(), "closed without a reason"
        for response in http2.Client().responses(self.received).values():
            status = int(response.headers.get("grpc-status", 0))
            assert status not in SERVERS_FAULTS
            if status == INTERNAL:
                message = response.headers["grpc-message"]
                assert any(item in message for item in FRAMING), message


def conversation(message: bytes, flag: int = 0, *more: tuple[str, str]) -> bytes:
    client = http2.Client()
    headers = client.headers(1, http2.call_headers(INFER, *more))
    return http2.Client.opening + headers + http2.data(1, http2.message(message, flag), ends=True)


def grpc_message() -> bytes:
    parameters = [mirror.parameter("binary_data_output", True)]
    request = mirror.grpc_request(mirror.sample(NAMES), id="1", outputs=[{"name": "INT32_out"}])
    request.MergeFrom(type(request)(parameters=parameters))
    serialized: bytes = request.SerializeToString()
    return serialized


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), st.sampled_from(NAMES))
@some
def test_any_declared_shape_is_refused_or_kept(server: Server, shape: list[int], name: str) -> None:
    given = mirror.sample(NAMES)
    request = mirror.grpc_request(given)
    for item in request.inputs:
        if item.name == name:
            del item.shape[:]
            item.shape.extend(shape)
    call = Call(server, conversation(request.SerializeToString()))
    call.check()
    response = http2.Client().responses(call.received)[1]
    assert response.status in {0, grpc.StatusCode.INVALID_ARGUMENT.value[0]}
    well(server)


@given(st.data())
@some
def test_changed_frames_have_a_status_or_an_error(server: Server, data: st.DataObject) -> None:
    call = Call(server, data.draw(change_bytes(conversation(grpc_message()), keep=BEGUN)))
    call.check()
    well(server)


@pytest.mark.parametrize("target", ["/" + "%41" * 5000, "/v2/models/" + "%6d" * 3000])
def test_a_long_path_is_not_decoded(server: Server, target: str) -> None:
    answer = server.get(target)
    assert answer.status == 404
    assert len(answer.body) < 400
    assert "%" in answer.json()["error"]
