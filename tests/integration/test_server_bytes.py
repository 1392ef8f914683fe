"""Bytes that nobody has written yet: chunk framing, request JSON and tensors, by property."""

import asyncio
import contextlib
import itertools
import json
import socket
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import uvloop
from enginewright_contract.task import ServeTask
from enginewright_runtime.session.datatypes import BY_ONNX
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import Signature, Tensor
from enginewright_serving.server.api.app import ServerApp
from enginewright_serving.server.protocol.decode import Decoder
from enginewright_serving.server.startup.prepare import prepare
from enginewright_serving.transport.chunked import ChunkedDecoder, ChunkedError
from enginewright_serving.transport.connection import RECEIVE_BYTES, Connection
from enginewright_serving.transport.head import HeadError, HeadParser
from enginewright_serving.transport.message import ALIGNMENT, Body, HttpRequest, HttpResponse
from enginewright_serving.transport.settings import MIB, TransportSettings
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from tests.support.effort import examples
from tests.support.serving import binary_inputs, linear_model, write_artifact

FP32 = BY_ONNX["tensor(float)"]
INT8 = BY_ONNX["tensor(int8)"]
STRING = BY_ONNX["tensor(string)"]
FREE = (0, 2**31 - 1)


def signature(*tensors: Tensor) -> Signature:
    return Signature(
        {tensor.name: tensor for tensor in tensors}, {"y": Tensor("y", FP32, (), ())}, ()
    )


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[low:high] for low, high in itertools.pairwise(edges)]


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.lists(st.integers(0, 10**6)),
    st.binary(max_size=9),
)
def test_chunks_are_joined_however_they_are_cut(
    chunks: list[bytes], cuts: list[int], after: bytes
) -> None:
    framed = b"".join(b"%X;a=b\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    framed += b"00\r\nX-Trailer: 1\r\n\r\n"
    decoder = ChunkedDecoder()
    taken = 0
    for piece in pieces(framed + after, cuts):
        if not decoder.done:
            taken += decoder.feed(memoryview(piece))
    assert decoder.done
    assert taken == len(framed)
    assert bytes(decoder.data) == b"".join(chunks)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=3))
def test_any_bytes_are_chunks_or_an_error_whichever_way_they_are_cut(
    data: bytes, cuts: list[int]
) -> None:
    def outcome(parts: list[bytes]) -> object:
        decoder = ChunkedDecoder()
        try:
            for part in parts:
                if not decoder.done:
                    decoder.feed(memoryview(part))
        except ChunkedError:
            return "refused"
        return decoder.done, bytes(decoder.data)

    assert outcome([data]) == outcome(pieces(data, cuts))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_an_error(data: bytes) -> None:
    with contextlib.suppress(HeadError):
        request = HeadParser().parse(memoryview(data + b"\r\n\r\n"))
        assert request is None or request.method


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_a_body_is_aligned_where_its_tensors_begin(length: int, header: int) -> None:
    body = Body(length + header, header)
    address = body.memory.__array_interface__["data"][0] + body.start + header
    assert address % ALIGNMENT == 0
    assert len(body.view()) == length + header


@given(st.integers(4 * MIB - 2, 6 * MIB), st.integers(0, 3000))
@settings(max_examples=examples(20))
def test_a_large_body_grows_as_it_arrives(length: int, header: int) -> None:
    content = np.random.default_rng(length).bytes(length)
    body = Body(length, header, arrives=True)
    view = body.view()
    filled = 0
    while filled < length:
        if filled == len(view):
            view = body.grow()
        end = min(filled + 100_000, len(view))
        view[filled:end] = content[filled:end]
        filled = end
    assert body.view() == content
    address = body.memory.__array_interface__["data"][0] + body.start + header
    assert address % ALIGNMENT == 0


def request_of(**arrays: np.ndarray[Any, Any]) -> tuple[bytes, bytes]:
    document, tensors = binary_inputs(**arrays)
    return json.dumps(document).encode(), tensors


@pytest.mark.parametrize(("odd", "copied"), [(4, False), (3, True)])
def test_tensors_are_views_of_the_body_unless_that_would_misalign_them(
    odd: int, copied: bool
) -> None:
    decoder = Decoder(
        signature(Tensor("i", INT8, (-1,), (FREE,)), Tensor("x", FP32, (-1, -1), (FREE, FREE)))
    )
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "i": np.arange(odd, dtype=np.int8),
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    }
    header, tensors = request_of(**arrays)
    for _ in range(2):  # the second time from memory
        body = Body(len(header) + len(tensors), len(header))
        body.view()[:] = header + tensors
        _, feeds = decoder.decode(body, len(header))
        for name, array in arrays.items():
            np.testing.assert_array_equal(feeds[name], array)
            assert feeds[name].flags.aligned
        assert np.shares_memory(feeds["i"], body.memory)
        assert np.shares_memory(feeds["x"], body.memory) is not copied


class Watching(ServerApp):
    """Keeps what its requests were read into."""

    bodies: list[Any]

    @override
    def serve(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        assert request.body is not None
        self.bodies.append(request.body.memory)
        return super().serve(connection, request)


async def _serve_one(root: Path, task: ServeTask, request: bytes) -> tuple[Watching, list[Any]]:
    session = ort.InferenceSession(root / "artifact/model.onnx")
    served = prepare(task, root / "artifact", lambda _: None)
    fed: list[Any] = []

    class Recording(Runner):
        @override
        def run(self, outputs: list[str], feeds: dict[str, Any]) -> list[Any]:
            fed.append(feeds["x"])
            return super().run(outputs, feeds)

    app = Watching(task, TransportSettings(), "0")
    app.bodies = []
    app.serve_model(replace(served, runner=Recording(session, served.signature)))
    buffer = bytearray(RECEIVE_BYTES)
    heads = HeadParser()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(app, heads, buffer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def ask() -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            for at in range(0, len(request), 300_000):
                client.sendall(request[at : at + 300_000])
                time.sleep(0.001)  # so that it comes in more than one read
            return client.recv(100)

    assert (await asyncio.to_thread(ask)).startswith(b"HTTP/1.1 200")
    server.close()
    return app, fed


def test_tensors_of_a_compressed_body_are_aligned_too(tmp_path: Path) -> None:
    values = np.tile(np.arange(8, dtype=np.float32), (50_000, 1))
    task = write_artifact(tmp_path, linear_model(), [{"x": values[:2]}])
    header, tensors = request_of(x=values)
    body = zlib.compress(header + tensors)
    head = (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n"
        b"Content-Encoding: deflate\r\nInference-Header-Content-Length: %d\r\n\r\n"
        % (len(body), len(header))
    )
    _, fed = uvloop.run(_serve_one(tmp_path, task, head + body))
    assert fed[0].__array_interface__["data"][0] % ALIGNMENT == 0
    np.testing.assert_array_equal(fed[0], values)


def test_the_session_reads_the_memory_that_the_socket_was_read_into(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((50_000, 8), np.float32)  # 1.6 MB
    task = write_artifact(tmp_path, linear_model(), [{"x": values[:2]}])
    header, tensors = request_of(x=values)
    head = (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n"
        b"Inference-Header-Content-Length: %d\r\n\r\n" % (len(header) + len(tensors), len(header))
    )
    app, fed = uvloop.run(_serve_one(tmp_path, task, head + header + tensors))
    assert np.shares_memory(fed[0], app.bodies[0])
    assert fed[0].__array_interface__["data"][0] % ALIGNMENT == 0
    np.testing.assert_array_equal(fed[0], values)
