"""Frames, streams, windows and limits of HTTP/2. No socket: the transport is given."""

import asyncio
import gc
import gzip
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from enginewright_serving.transport.eviction import WaitsFor
from enginewright_serving.transport.grpc.call import GrpcCall
from enginewright_serving.transport.grpc.status import Code, Status
from enginewright_serving.transport.http2 import bodies, budget, frames
from enginewright_serving.transport.http2.bodies import MAX_FRAME
from enginewright_serving.transport.http2.errors import ErrorCode
from enginewright_serving.transport.http2.stream import Stream
from enginewright_serving.transport.http2.streams import MAX_STREAMS
from enginewright_serving.transport.message import ALIGNMENT, JOINED_BYTES
from enginewright_serving.transport.settings import TransportSettings
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from typing_extensions import override

from tests.support.effort import examples
from tests.support.grpc_echo import ECHO, FAIL, LARGE, LATER, METADATA, EchoApp
from tests.support.http2 import (
    Client,
    call_headers,
    data,
    frame,
    message,
    settings,
    split,
)
from tests.support.http2_pipe import DEFAULTS, Peer, Pipe, TlsPipe

pytestmark = pytest.mark.asyncio(loop_factories=["real"])  # turns of the event loop take time

OPEN_ENDED = 2**31 - 1


def find_end(peer: Peer) -> ErrorCode | None:
    goaways = peer.of(frames.GOAWAY)
    return ErrorCode(goaways[-1].code) if goaways and peer.pipe.ended else None


# Calls.


# fault: Servers | closed gRPC connections over TLS are never freed, as their transport refers to them | a closed
#   connection refers to no transport | prevented
@pytest.mark.parametrize("pipe", [Pipe, TlsPipe])
async def test_a_closed_connection_refers_to_no_transport(pipe: type[Pipe]) -> None:
    peer = Peer(pipe=pipe())
    peer.send(peer.client.call(1, ECHO.decode(), b"hello"))
    transport = weakref.ref(peer.pipe)
    gc.disable()  # in a server the oldest generation is hardly ever collected
    try:
        peer.connection.connection_lost(None)
        del peer.pipe
        assert transport() is None
    finally:
        gc.enable()


async def test_a_call_is_answered_with_headers_message_and_trailers() -> None:
    peer = Peer()
    peer.send(peer.client.call(1, ECHO.decode(), b"hello"))
    kinds = [(item.kind, item.flags) for item in peer.frames if item.stream == 1]
    end = frames.END_HEADERS | frames.END_STREAM
    assert kinds == [(frames.HEADERS, frames.END_HEADERS), (frames.DATA, 0), (frames.HEADERS, end)]
    response = peer.responses()[1]
    assert response.content == b"hello"
    assert response.status == Code.OK
    assert response.headers[":status"] == "200"
    assert response.headers["content-type"] == "application/grpc"
    assert peer.app.held == 0


async def test_a_refusal_is_trailers_only_and_its_message_percent_encoded() -> None:
    peer = Peer()
    peer.send(peer.client.call(1, FAIL.decode(), "50% ü\n".encode()))
    headers = [item for item in peer.of(frames.HEADERS) if item.stream == 1]
    assert [header.flags for header in headers] == [frames.END_HEADERS | frames.END_STREAM]
    response = peer.responses()[1]
    assert response.status == Code.INVALID_ARGUMENT
    assert response.headers["grpc-message"] == "50%25 %C3%BC%0A"


CALLS: dict[str, tuple[list[tuple[str, str]], bytes, Code]] = {
    "unknown method": (call_headers("/no/Method"), message(b"x"), Code.UNIMPLEMENTED),
    "no message": (call_headers(ECHO.decode()), b"", Code.UNIMPLEMENTED),
    "two messages": (call_headers(ECHO.decode()), message(b"a") * 2, Code.UNIMPLEMENTED),
    "part of a prefix": (call_headers(ECHO.decode()), b"\0\0\0", Code.INTERNAL),
    "part of a message": (call_headers(ECHO.decode()), message(b"abc")[:-1], Code.INTERNAL),
    "an invalid flag": (call_headers(ECHO.decode()), message(b"a", 2), Code.INTERNAL),
    "compressed, but not said": (call_headers(ECHO.decode()), message(b"a", 1), Code.INTERNAL),
    "no gzip": (
        call_headers(ECHO.decode(), ("grpc-encoding", "gzip")),
        message(bytes(30), 1),
        Code.INTERNAL,
    ),
    "an unknown compression": (
        call_headers(ECHO.decode(), ("grpc-encoding", "snappy")),
        message(b"a", 1),
        Code.UNIMPLEMENTED,
    ),
    "an invalid timeout": (
        call_headers(ECHO.decode(), ("grpc-timeout", "1 s")),
        message(b"a"),
        Code.INTERNAL,
    ),
    "a timeout that has passed": (
        call_headers(ECHO.decode(), ("grpc-timeout", "0n")),
        message(b"a"),
        Code.DEADLINE_EXCEEDED,
    ),
    "too large": (
        call_headers(ECHO.decode()),
        b"\0\xff\xff\xff\xff",
        Code.RESOURCE_EXHAUSTED,
    ),
}


@pytest.mark.parametrize("name", CALLS)
async def test_invalid_call_fails_with_the_specified_status(name: str) -> None:
    headers, body, expected = CALLS[name]
    peer = Peer()
    peer.send(peer.client.headers(1, headers) + data(1, body, ends=True))
    response = peer.responses()[1]
    assert response.status == expected
    if name == "an unknown compression":
        assert response.headers["grpc-accept-encoding"] == "identity,gzip"
    assert peer.app.served == 0
    assert peer.app.held == 0
    peer.send(peer.client.call(3, ECHO.decode(), b"next"))
    assert peer.of(frames.GOAWAY) == []
    assert peer.app.served == 1


@pytest.mark.parametrize(
    ("method", "content_type", "status"),
    [
        ("GET", None, "405"),
        ("POST", None, "415"),
        ("POST", "application/json", "415"),
        ("POST", "application/grpc-web", "415"),
        ("POST", "application/grpc+json", "415"),
    ],
)
async def test_other_requests_get_an_http_response(
    method: str, content_type: str | None, status: str
) -> None:
    peer = Peer()
    headers = [(":method", method), (":scheme", "http"), (":path", "/"), (":authority", "h")]
    if content_type:
        headers.append(("content-type", content_type))
    peer.send(peer.client.headers(1, headers, frames.END_HEADERS | frames.END_STREAM))
    response = peer.responses()[1]
    assert response.headers[":status"] == status
    assert response.body.startswith(b"this port speaks gRPC")
    assert response.headers["content-length"] == str(len(response.body))


async def test_a_compressed_message_is_decompressed_in_turns() -> None:
    peer = Peer()
    content = bytes(range(256)) * 8192
    peer.send(
        peer.client.headers(1, call_headers(ECHO.decode(), ("grpc-encoding", "gzip")))
        + data(1, message(gzip.compress(content), 1), ends=True)
    )
    peer.send(
        frame(frames.WINDOW_UPDATE, 0, 0, b"\0\x7f\0\0")
        + frame(frames.WINDOW_UPDATE, 0, 1, b"\0\x7f\0\0")
    )
    assert peer.app.served == 0
    for _ in range(5000):
        await asyncio.sleep(0.001)
        if peer.app.served:
            break
    assert peer.responses()[1].content == content
    assert peer.app.held == 0


@pytest.mark.parametrize(
    ("content", "claimed", "expected"),
    [
        (b"a" * 1000, 10, Code.INTERNAL),
        (b"a" * 1000, 2000, Code.INTERNAL),
        (b"", 2**32 - 1, Code.RESOURCE_EXHAUSTED),
    ],
)
async def test_compressed_message_has_its_stated_size(
    content: bytes, claimed: int, expected: Code
) -> None:
    peer = Peer()
    lie = gzip.compress(content)[:-4] + claimed.to_bytes(4, "little")
    headers = call_headers(ECHO.decode(), ("grpc-encoding", "gzip"))
    peer.send(peer.client.headers(1, headers) + data(1, message(lie, 1), ends=True))
    for _ in range(5):
        await asyncio.sleep(0)
    assert peer.responses()[1].status == expected
    assert peer.app.held == 0


async def test_a_compressed_message_is_charged_as_it_is_decompressed() -> None:
    """However large its stated size."""
    peer = Peer()
    stated = 60 * 1024 * 1024
    content = gzip.compress(bytes(300_000))[:-4] + stated.to_bytes(4, "little")
    headers = call_headers(ECHO.decode(), ("grpc-encoding", "gzip"))
    peer.send(peer.client.headers(1, headers) + data(1, message(content + content, 1), ends=True))
    assert peer.app.held < 4 * 1024 * 1024
    for _ in range(5000):
        await asyncio.sleep(0.001)
        if not peer.app.held:
            break
    assert peer.responses()[1].status == Code.INTERNAL
    assert peer.app.held == 0


async def test_an_uncompressed_message_may_be_in_a_call_with_compression() -> None:
    peer = Peer()
    peer.send(peer.client.call(1, ECHO.decode(), b"plain", ("grpc-encoding", "gzip")))
    assert peer.responses()[1].content == b"plain"


UNENDED: dict[str, tuple[list[tuple[str, str]], bytes, Code]] = {
    name: (headers, body, status)
    for name, (headers, body, status) in CALLS.items()
    if name
    in {
        "unknown method",
        "two messages",
        "an invalid flag",
        "compressed, but not said",
        "an unknown compression",
        "an invalid timeout",
        "too large",
    }
}


@pytest.mark.parametrize("name", UNENDED)
async def test_refused_call_is_answered_soon_although_its_client_goes_on_sending(name: str) -> None:
    headers, body, expected = UNENDED[name]
    peer = Peer()
    peer.send(peer.client.headers(1, headers) + data(1, body))
    await asyncio.sleep(0.2)
    kinds = [(item.kind, item.flags) for item in peer.frames if item.stream == 1]
    end = frames.END_HEADERS | frames.END_STREAM
    assert kinds == [(frames.HEADERS, end), (frames.RST_STREAM, 0)]
    response = peer.responses()[1]
    assert (response.status, response.reset) == (expected, ErrorCode.NO_ERROR)
    assert peer.app.held == 0
    peer.send(data(1, bytes(16384)) * 9 + data(1, b"", ends=True))  # was under way
    peer.send(peer.client.call(3, ECHO.decode(), b"next"))
    assert len(peer.of(frames.RST_STREAM)) == 1
    assert not peer.of(frames.GOAWAY)
    assert peer.app.served == 1


async def test_a_refused_call_that_ends_is_answered_at_once_and_not_reset() -> None:
    peer = Peer()
    peer.send(peer.client.headers(1, call_headers("/no/Method")))
    assert not [item for item in peer.frames if item.stream == 1]
    peer.send(data(1, message(b"x"), ends=True))
    await asyncio.sleep(0.2)
    response = peer.responses()[1]
    assert (response.status, response.reset) == (Code.UNIMPLEMENTED, None)


async def test_a_refused_call_that_is_abandoned_is_not_answered() -> None:
    peer = Peer()
    peer.send(peer.client.headers(1, call_headers("/no/Method")))
    peer.send(frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    await asyncio.sleep(0.2)
    assert not [item for item in peer.frames if item.stream == 1]


@pytest.mark.parametrize("is_call", [True, False])
async def test_a_large_refused_request_is_answered_before_its_end(is_call: bool) -> None:
    peer = Peer()
    headers = call_headers("/no/Method")
    if not is_call:
        headers.remove(("content-type", "application/grpc"))
    peer.send(peer.client.headers(1, headers))
    part = data(1, bytes(16384))
    for _ in range(DEFAULTS.drained_body_bytes // 16384):
        peer.send(part)
    assert not peer.of(frames.RST_STREAM)
    peer.send(part)
    (reset,) = peer.of(frames.RST_STREAM)
    assert reset.code == ErrorCode.NO_ERROR
    assert peer.responses()[1].headers[":status"] == ("200" if is_call else "415")
    peer.send(part * 3 + data(1, b"", ends=True))  # was under way
    assert len(peer.of(frames.RST_STREAM)) == 1
    assert not peer.of(frames.GOAWAY)


@pytest.mark.parametrize("spaces", [0, 3, 64, 101])
async def test_a_message_is_aligned_where_the_application_wants_it(spaces: int) -> None:
    peer = Peer()
    message = b" " * spaces + b"1000" + b" " * JOINED_BYTES
    peer.send(peer.client.call(1, LATER.decode(), message))
    (call,) = peer.app.waiting
    assert call.message is not None
    address = call.message.memory.__array_interface__["data"][0] + call.message.start
    assert (address + spaces) % ALIGNMENT == 0


# Abandoned calls.


@pytest.mark.parametrize("how", ["reset", "disconnected"])
async def test_abandoned_call_is_not_answered(how: str) -> None:
    peer = Peer()
    peer.send(peer.client.call(1, LATER.decode(), b"1000"))
    (call,) = peer.app.waiting
    if how == "reset":
        peer.send(frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    else:
        peer.connection.connection_lost(None)
    assert call.abandoned
    assert peer.app.held == 4  # until the application drops it
    written = bytes(peer.pipe.written)
    peer.app.answer(call)
    await asyncio.sleep(0)
    assert peer.app.held == 0
    assert peer.app.dropped == 1
    assert peer.pipe.written == written


async def test_a_connection_on_which_a_call_cannot_begin_ends_with_its_other_calls() -> None:
    class ForgetfulApp(EchoApp):
        @override
        def admit(self, call: GrpcCall) -> Status | None:
            if call.method == ECHO:
                raise MemoryError("no space")
            return super().admit(call)

    peer = Peer(ForgetfulApp(DEFAULTS))
    peer.send(peer.client.call(1, LATER.decode(), b"1000"))
    (call,) = peer.app.waiting
    with pytest.raises(MemoryError):  # for which the event loop closes the connection
        peer.send(peer.client.call(3, ECHO.decode(), b"hello"))
    peer.connection.connection_lost(None)
    assert call.abandoned
    assert not peer.app.connections


@pytest.mark.parametrize("how", ["reset", "disconnected"])
async def test_incomplete_message_is_released(how: str) -> None:
    peer = Peer()
    peer.send(peer.client.headers(1, call_headers(ECHO.decode())) + data(1, message(b"a" * 99)[:9]))
    assert peer.app.held == 99, "all of a message in one page"
    if how == "reset":
        peer.send(frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    else:
        peer.connection.connection_lost(None)
    assert peer.app.held == 0


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refill no budget with time: on a busy machine a flood lasts for seconds."""
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (frames.RST_STREAM, b"\0\0\0\x08"),  # rapid reset, CVE-2023-44487
        (frames.WINDOW_UPDATE, bytes(4)),  # MadeYouReset, CVE-2025-8671
    ],
)
@pytest.mark.usefixtures("frozen")
async def test_a_client_whose_calls_are_all_reset_is_disconnected(
    kind: int, payload: bytes
) -> None:
    peer = Peer()
    for number in range(1, 8001, 2):
        call = peer.client.call(number, LATER.decode(), b"1000")
        peer.send(call + frame(kind, 0, number, payload))
        if find_end(peer):
            break
    assert find_end(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert len(peer.app.waiting) < 1500
    assert all(call.abandoned for call in peer.app.waiting)


async def test_client_with_answered_calls_may_cancel_as_many() -> None:
    peer = Peer()
    for number in range(1, 12001, 4):
        peer.send(
            peer.client.call(number, ECHO.decode(), b"")
            + peer.client.call(number + 2, LATER.decode(), b"1000")
            + frame(frames.RST_STREAM, 0, number + 2, b"\0\0\0\x08")
        )
    assert peer.app.served == 6000
    assert not peer.of(frames.GOAWAY)


async def test_a_stream_beyond_the_limit_is_refused() -> None:
    peer = Peer()
    for number in range(1, 2 * MAX_STREAMS + 2, 2):
        peer.send(peer.client.call(number, LATER.decode(), b"1000"))
    (refused,) = peer.of(frames.RST_STREAM)
    assert refused.stream == 2 * MAX_STREAMS + 1
    assert refused.code == ErrorCode.REFUSED_STREAM
    assert len(peer.app.waiting) == MAX_STREAMS


# Floods.

EMPTY_BLOCK = frame(frames.HEADERS, 0, 1, b"")
FLOODS = {
    "PING": frame(frames.PING, payload=b"12345678"),  # CVE-2019-9512
    "acknowledgements of PING": frame(frames.PING, frames.ACK, payload=b"12345678"),
    "SETTINGS": settings(),  # CVE-2019-9515
    "acknowledgements of SETTINGS": frame(frames.SETTINGS, frames.ACK),
    "PRIORITY": frame(frames.PRIORITY, 0, 1, b"\0\0\0\x05\x10"),  # CVE-2019-9513
    "WINDOW_UPDATE": frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\x01"),
    "unknown frames": frame(0xEE, 0, 1, b"x"),
    "empty DATA": data(1, b""),  # CVE-2019-9518
    "tiny DATA": data(1, b"x"),
    "padding": frame(frames.DATA, frames.PADDED, 1, b"\x05\0\0\0\0\0"),
    "RST_STREAM": frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"),
    "GOAWAY": frame(frames.GOAWAY, payload=bytes(8)),
}


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.usefixtures("frozen")
async def test_a_flood_of_frames_without_use_ends_the_connection(name: str) -> None:
    peer = Peer()
    headers = call_headers(ECHO.decode(), ("content-length", "100000"))
    peer.send(peer.client.headers(1, headers) + data(1, message(bytes(99_995))[:300]))
    flood = FLOODS[name] * 100
    for _ in range(30):
        peer.send(flood)
        await peer.turns()
        if peer.pipe.ended:
            break
    assert find_end(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.app.held == 0
    assert len(peer.frames) < 1200


async def test_a_header_block_in_many_frames_ends_the_connection() -> None:
    """CONTINUATION flood, CVE-2024-27316."""
    peer = Peer()
    peer.send(EMPTY_BLOCK)
    for _ in range(1000):
        peer.send(frame(frames.CONTINUATION, 0, 1))
        if peer.pipe.ended:
            break
    assert find_end(peer) is ErrorCode.ENHANCE_YOUR_CALM
    peer = Peer()
    peer.send(EMPTY_BLOCK)
    for _ in range(3):
        peer.send(frame(frames.CONTINUATION, 0, 1, bytes(8000)))
    assert find_end(peer) is ErrorCode.ENHANCE_YOUR_CALM


async def test_references_to_a_large_entry_end_the_connection() -> None:
    """HPACK bomb, CVE-2016-6581: a byte for each 4000."""
    peer = Peer()
    block = peer.client.block(call_headers(ECHO.decode(), ("x-bomb", "b" * 3000)))
    peer.send(frame(frames.HEADERS, frames.END_HEADERS, 1, block + b"\xbe" * 50))
    assert find_end(peer) is ErrorCode.ENHANCE_YOUR_CALM


async def test_a_client_that_does_not_read_is_not_read_either() -> None:
    """CVE-2019-9512, 9515 and 9517: answers would pile up."""
    peer = Peer()
    peer.pipe.room = 0
    peer.send(frame(frames.PING, payload=b"12345678") * 10)
    assert not peer.pipe.reading
    now = time.monotonic()
    aborted = []
    for later in (DEFAULTS.transfer_window - 1, DEFAULTS.transfer_window + 5):
        peer.connection.check(now + later)
        aborted.append(peer.pipe.aborted)
    assert aborted == [False, True]


async def test_a_client_that_reads_again_is_read_again() -> None:
    peer = Peer()
    peer.pipe.room = 0
    peer.send(frame(frames.PING, payload=b"12345678") * 10)
    peer.pipe.accept(10_000)
    assert peer.pipe.reading
    assert len(peer.of(frames.PING)) == 10
    peer.connection.check(time.monotonic() + DEFAULTS.transfer_window + 5)
    assert not peer.pipe.aborted


async def test_of_many_frames_a_part_is_processed_in_a_turn() -> None:
    peer = Peer()
    calls = [peer.client.call(number, ECHO.decode(), b"x") for number in range(1, 1001, 2)]
    peer.send(b"".join(calls))
    assert peer.app.served < 100
    assert not peer.pipe.reading
    await peer.turns()
    assert peer.app.served == 500
    assert [*peer.responses()] == list(range(1, 1001, 2))


# Windows.


def grant(number: int, size: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, number, size.to_bytes(4, "big"))


async def test_a_response_keeps_within_both_windows() -> None:
    peer = Peer()
    peer.send(peer.client.call(1, LARGE.decode(), b"200000"))
    assert sum(len(item.payload) for item in peer.of(frames.DATA)) == frames.DEFAULT_WINDOW
    peer.send(grant(1, 300_000))
    assert sum(len(item.payload) for item in peer.of(frames.DATA)) == frames.DEFAULT_WINDOW
    peer.send(grant(0, 10))
    assert sum(len(item.payload) for item in peer.of(frames.DATA)) == frames.DEFAULT_WINDOW + 10
    peer.send(grant(0, 300_000))
    assert max(len(item.payload) for item in peer.of(frames.DATA)) == frames.DEFAULT_FRAME
    response = peer.responses()[1]
    assert response.content == bytes(200_000)
    assert response.status == Code.OK


async def test_responses_take_turns_in_a_small_window() -> None:
    peer = Peer()
    peer.send(settings((frames.INITIAL_WINDOW_SIZE, OPEN_ENDED)))
    peer.send(peer.client.call(1, LARGE.decode(), b"1000000"))
    peer.send(peer.client.call(3, LARGE.decode(), b"1000000"))
    peer.send(grant(0, 600_000))
    sent = {
        number: sum(len(item.payload) for item in peer.of(frames.DATA) if item.stream == number)
        for number in (1, 3)
    }
    assert sum(sent.values()) == frames.DEFAULT_WINDOW + 600_000
    assert sent[3] > 200_000


async def test_a_response_that_a_window_holds_ends_at_its_time_limit() -> None:
    """CVE-2019-9517; small and zero windows."""
    peer = Peer()
    peer.send(settings((frames.INITIAL_WINDOW_SIZE, 0)))
    peer.send(peer.client.call(1, LARGE.decode(), b"16384"))
    assert peer.app.held > 16384
    now = time.monotonic()
    peer.connection.check(now + DEFAULTS.transfer_window - 1)
    assert not peer.of(frames.RST_STREAM)
    peer.connection.check(now + DEFAULTS.transfer_window)
    assert peer.app.held == 0
    (reset,) = peer.of(frames.RST_STREAM)
    assert reset.code == ErrorCode.CANCEL


@pytest.mark.usefixtures("frozen")
async def test_a_window_that_grows_byte_by_byte_ends_the_connection() -> None:
    """CVE-2019-9511: a frame for each byte."""
    peer = Peer()
    peer.send(settings((frames.INITIAL_WINDOW_SIZE, 0)))
    peer.send(peer.client.call(1, LARGE.decode(), b"16384"))
    for _ in range(3000):
        peer.send(grant(1, 1))
        if peer.pipe.ended:
            break
    assert find_end(peer) is ErrorCode.ENHANCE_YOUR_CALM
    assert len(peer.of(frames.DATA)) < 1500


async def test_a_client_that_reads_a_large_response_in_small_steps_is_served() -> None:
    peer = Peer()
    peer.send(peer.client.call(1, LARGE.decode(), b"20000000"))
    seen = received = 0
    while received < 20_000_005:
        parts = [
            item for item in split(bytes(peer.pipe.written[seen:])) if item.kind == frames.DATA
        ]
        assert parts, "the server has stopped"
        seen = len(peer.pipe.written)
        for part in parts:
            size = len(part.payload)
            received += size
            peer.send(grant(0, size) + grant(1, size))
        await peer.turns()
    assert not peer.of(frames.GOAWAY)


# Messages of any size, in any pieces.


async def test_a_message_in_a_large_frame_is_read_into_its_own_memory() -> None:
    peer = Peer()
    content = b"1000".ljust(MAX_FRAME - 5)
    peer.send(settings((frames.INITIAL_WINDOW_SIZE, OPEN_ENDED)) + grant(0, 2**24))
    sent = peer.client.headers(1, call_headers(LATER.decode())) + data(
        1, message(content), ends=True
    )
    peer.send(sent[:1000])
    memory = peer.connection.get_buffer(-1)
    assert len(memory) == len(sent) - 1000
    peer.send(sent[1000:], 100_000)
    (call,) = peer.app.waiting
    assert call.message is not None
    assert call.message.view() == content
    assert call.message.memory.__array_interface__["data"][0] + call.message.start & 63 == 0


@pytest.mark.parametrize("pieces", [20_001, 40_000, 200_003])
async def test_a_message_in_small_frames_is_read_into_its_own_memory(pieces: int) -> None:
    peer = Peer()
    content = number_of(400_000)
    sent = in_frames(peer, 1, message(content), [frames.DEFAULT_FRAME])
    peer.send(sent[:1000])
    assert len(peer.connection.get_buffer(-1)) > 2 * frames.DEFAULT_FRAME
    peer.send(sent[1000:], pieces)
    (call,) = peer.app.waiting
    assert call.message is not None
    assert call.message.view() == content
    assert call.message.memory.__array_interface__["data"][0] + call.message.start & 63 == 0


def number_of(size: int) -> bytes:
    """Return a thousand with so many decimals that no two parts are equal."""
    return b"1000." + b"".join(b"%06d" % number for number in range(size // 6))


def in_frames(peer: Peer, number: int, body: bytes, sizes: list[int], *more: bytes) -> bytes:
    """Return a call whose body has frames of `sizes` in turn, each followed by one of `more` in turn."""
    sent = peer.client.headers(number, call_headers(LATER.decode()))
    at = index = 0
    while at < len(body):
        size = sizes[index % len(sizes)]
        sent += data(number, body[at : at + size], ends=at + size >= len(body))
        at += size
        if more and at < len(body):
            sent += more[index % len(more)]
        index += 1
    return sent


BETWEEN: list[bytes] = [
    b"",
    frame(frames.PING, payload=b"between."),
    data(1, b""),
    frame(frames.DATA, frames.PADDED, 1, b"\x03" + bytes(3)),
    frame(frames.DATA, frames.PADDED, 1, b"\xff" + bytes(255)),
    frame(0xFF, payload=bytes(40_000)),
]


@given(
    st.lists(st.sampled_from([1, 300, 1023, 1024, 9000, 16_384, 40_000]), min_size=3, max_size=9),
    st.lists(st.sampled_from(BETWEEN), max_size=3),
    st.lists(st.integers(1, 100_000), min_size=3, max_size=9),
)
@effort(max_examples=examples(60), deadline=None)
async def test_frames_of_any_size_make_the_same_message(
    sizes: list[int], between: list[bytes], pieces: list[int]
) -> None:
    peer = Peer()
    content = number_of(150_000)
    sizes.append(16_384)
    sent = in_frames(peer, 1, message(content), sizes, *between)
    at = index = 0
    while at < len(sent):
        size = pieces[index % len(pieces)] + 500
        peer.send(sent[at : at + size])
        at += size
        index += 1
        if not peer.pipe.reading:
            await peer.turns()
    (call,) = peer.app.waiting
    assert call.message is not None
    assert call.message.view() == content


async def test_a_run_of_frames_is_checked_as_a_single_one_is() -> None:
    body = message(bytes(100_000))
    begun, more, rest = body[:20_000], body[20_000:40_000], body[40_000:]
    too_long = data(1, more) + data(1, rest + b"1")
    ended = data(1, more, ends=True) + data(1, rest)
    other = data(1, more) + data(3, rest)
    too_large = data(1, more) + data(1, bytes(MAX_FRAME + 1))
    for length, sent, end in (
        ("100005", too_long, ErrorCode.PROTOCOL_ERROR),
        ("100005", ended, ErrorCode.PROTOCOL_ERROR),
        ("", ended, ErrorCode.STREAM_CLOSED),
        ("", other, None),
        ("", too_large, None),
    ):
        headers = call_headers(ECHO.decode(), *[("content-length", length)] * bool(length))
        peer = Peer()
        part = peer.client.headers(1, headers) + data(1, begun)
        peer.send(part[:10_000])
        peer.send(part[10_000:] + sent)
        resets = [reset.code for reset in peer.of(frames.RST_STREAM)]
        assert resets == ([end] if end else []), sent[20_009:20_018]
        assert peer.pipe.ended is (end is None)
        assert peer.app.served == 0
        assert peer.app.held == 0


async def test_nothing_follows_the_last_frame_of_a_call() -> None:
    peer = Peer()
    body = message(bytes(200_000))
    sent = peer.client.headers(1, call_headers(ECHO.decode())) + data(1, body[:60_000], ends=True)
    peer.send(sent[:1000])
    peer.send(sent[1000:] + data(1, body[60_000:80_000]))
    assert peer.responses()[1].status == Code.INTERNAL, "truncated"
    assert [reset.code for reset in peer.of(frames.RST_STREAM)] == [ErrorCode.STREAM_CLOSED]


async def test_frames_that_arrive_while_reading_is_paused_are_taken_later() -> None:
    """TLS passes on what it has decrypted."""
    peer = Peer()
    content = number_of(100_000)
    first = peer.client.call(1, LATER.decode(), b"1000")
    body = in_frames(peer, 3, message(content), [frames.DEFAULT_FRAME])
    third = peer.client.call(5, LATER.decode(), b"1000")
    at = body.index(data(3, message(content)[16_384:32_768]))
    peer.send(first + body[:1000])
    peer.pipe.room = 0
    peer.app.answer(peer.app.waiting[0])
    await asyncio.sleep(0.001)
    assert not peer.pipe.reading
    peer.send(body[1000:at] + third)
    peer.send(body[at:])
    assert not peer.app.waiting
    peer.pipe.accept(float("inf"))
    messages = [call.message.view().tobytes() for call in peer.app.waiting if call.message]
    assert messages == [b"1000", content]


async def test_padding_that_looks_like_a_frame_is_padding() -> None:
    peer = Peer()
    content = number_of(120_000)
    body = message(content)
    padding = (data(1, bytes(1024))[:9] * 29)[:255]
    sent = peer.client.headers(1, call_headers(LATER.decode()))
    sent += frame(frames.DATA, frames.PADDED, 1, b"\xff" + body[:60_000] + padding)
    sent += data(1, body[60_000:], ends=True)
    peer.send(sent[:1000])
    peer.send(sent[1000:])
    (call,) = peer.app.waiting
    assert call.message is not None
    assert call.message.view() == content


async def test_the_window_of_the_connection_is_renewed_within_a_run_of_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "_UPDATE_BYTES", 100_000)
    peer = Peer()
    body = message(number_of(400_000))
    peer.send(in_frames(peer, 1, body, [frames.DEFAULT_FRAME]))
    grants = peer.of(frames.WINDOW_UPDATE)[1:]
    assert len(grants) == len(body) // 114_688
    assert all(int.from_bytes(grant.payload) == 114_688 for grant in grants)


async def test_bytes_after_the_message_refuse_the_call() -> None:
    peer = Peer()
    sent = in_frames(peer, 1, message(bytes(100_000)) + b"more", [16_384])
    peer.send(sent)
    assert peer.responses()[1].status == Code.UNIMPLEMENTED
    assert not peer.app.waiting
    assert peer.app.held == 0


@pytest.mark.parametrize("pieces", [40_000, 65_536, 200_003])
async def test_the_memory_of_a_large_message_grows_as_it_arrives(pieces: int) -> None:
    peer = Peer()
    peer.send(settings((frames.INITIAL_WINDOW_SIZE, OPEN_ENDED)) + grant(0, 2**24))
    content = bytes(range(256)) * 20_000
    body = message(content)
    sent = peer.client.headers(1, call_headers(ECHO.decode()))
    for at in range(0, len(body), MAX_FRAME):
        sent += data(1, body[at : at + MAX_FRAME], ends=at + MAX_FRAME >= len(body))
    peer.send(sent[:1000])
    assert peer.app.held == 64 * 1024
    for at in range(1000, len(sent), pieces):
        peer.send(sent[at : at + pieces])
        await peer.turns()
    assert peer.responses()[1].content == content


SOME_CALLS = st.lists(
    st.tuples(
        st.sampled_from([ECHO, FAIL, METADATA, b"/no/Method"]),
        st.binary(max_size=300).filter(lambda content: content.isascii()),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def conversation(calls: list[tuple[bytes, bytes, bool]]) -> bytes:
    client = Client()
    sent = client.opening
    for index, (method, content, padded) in enumerate(calls):
        number = 2 * index + 1
        headers = call_headers(method.decode(), ("x-test", content.hex()))
        block = client.block(headers)
        sent += frame(frames.HEADERS, 0, number, block[:5])
        sent += frame(frames.CONTINUATION, frames.END_HEADERS, number, block[5:])
        body = message(content)
        half = len(body) // 2
        if padded:
            sent += frame(frames.DATA, frames.PADDED, number, b"\x03" + body[:half] + bytes(3))
        else:
            sent += data(number, body[:half])
        sent += frame(frames.PING, payload=b"between.")
        sent += data(number, body[half:], ends=True)
    return sent


@given(SOME_CALLS, st.lists(st.integers(1, 60), min_size=1, max_size=20))
@effort(max_examples=examples(150), deadline=None)
async def test_pieces_make_no_difference(
    calls: list[tuple[bytes, bytes, bool]], sizes: list[int]
) -> None:
    sent = conversation(calls)
    whole = Peer(opened=False)
    whole.send(sent)
    pieces = Peer(opened=False)
    at = index = 0
    while at < len(sent):
        size = sizes[index % len(sizes)]
        pieces.send(sent[at : at + size])
        at += size
        index += 1
    assert pieces.pipe.written == whole.pipe.written
    assert [*whole.responses()] == [2 * index + 1 for index in range(len(calls))]
    assert whole.app.held == 0


@given(SOME_CALLS, st.data())
@effort(max_examples=examples(400), deadline=None)
async def test_any_bytes_are_answered_or_end_it(
    calls: list[tuple[bytes, bytes, bool]], draw: st.DataObject
) -> None:
    sent = bytearray(conversation(calls))
    for _ in range(draw.draw(st.integers(1, 6))):
        at = draw.draw(st.integers(24, len(sent) - 1))
        change = draw.draw(st.sampled_from(["set", "insert", "remove"]))
        if change == "set":
            sent[at] = draw.draw(st.integers(0, 255))
        elif change == "insert":
            sent[at:at] = draw.draw(st.binary(min_size=1, max_size=20))
        else:
            del sent[at : at + draw.draw(st.integers(1, 20))]
    peer = Peer(opened=False)
    peer.send(bytes(sent), draw.draw(st.integers(1, 500)))
    await peer.turns()
    peer.connection.check(time.monotonic() + 1000)
    peer.connection.connection_lost(None)
    assert peer.app.held == 0


# Time limits and the end.


async def test_ended_connections_are_freed_without_the_garbage_collector() -> None:
    """A collection over a thousand connections would stop all answers."""
    app = EchoApp(DEFAULTS)

    def converse() -> None:
        peer = Peer(app)
        peer.send(peer.client.call(1, ECHO.decode(), b"whole"))
        peer.send(peer.client.call(3, LARGE.decode(), b"100000"))
        peer.send(peer.client.headers(5, call_headers(ECHO.decode())) + data(5, bytes(4)))
        peer.send(frame(frames.RST_STREAM, 0, 5, b"\0\0\0\x08"))
        peer.send(peer.client.headers(7, call_headers(ECHO.decode())))
        peer.send(data(7, message(bytes(100))[:50]))
        peer.connection.connection_lost(None)
        peer.pipe.protocol = None  # as a transport does

    converse()
    gc.collect()
    gc.disable()
    try:
        converse()
        assert app.held == 0
        assert gc.collect() == 0
    finally:
        gc.enable()


async def test_a_body_that_does_not_arrive_ends_its_call_alone() -> None:
    peer = Peer()
    peer.send(peer.client.headers(1, call_headers(ECHO.decode())) + data(1, message(b"a" * 99)[:9]))
    now = time.monotonic()
    peer.connection.check(now + DEFAULTS.transfer_window - 1)
    assert not peer.of(frames.RST_STREAM)
    peer.connection.check(now + DEFAULTS.transfer_window + 1)
    assert peer.responses()[1].status == Code.DEADLINE_EXCEEDED
    assert peer.app.held == 0
    assert not peer.of(frames.GOAWAY)


async def test_refused_call_is_answered_though_its_body_does_not_arrive() -> None:
    peer = Peer()
    peer.send(peer.client.headers(1, call_headers("/no/Method")))
    peer.send(peer.client.headers(3, [*call_headers("/")[:5], ("content-type", "text/plain")]))
    peer.connection.check(time.monotonic() + DEFAULTS.transfer_window + 1)
    responses = peer.responses()
    assert responses[1].status == Code.UNIMPLEMENTED
    assert responses[3].headers[":status"] == "415"


async def test_bodies_that_arrive_at_once_share_the_rate() -> None:
    peer = Peer()
    size = int(DEFAULTS.transfer_rate * DEFAULTS.transfer_window)
    now = time.monotonic()
    for number in (1, 3):
        peer.send(peer.client.headers(number, call_headers(ECHO.decode())))
        peer.send(data(number, message(bytes(20 * size))[:5]))
    ended: list[int] = []
    for half in range(1, 13):  # of the window
        for number, share in ((1, 0.2), (3, 0.3)):
            if number not in ended:
                peer.send(data(number, bytes(int(share * size))))
        peer.connection.check(now + half * DEFAULTS.transfer_window / 2)
        ended = [item.stream for item in peer.of(frames.RST_STREAM)]
        if half == 8:
            assert not ended, "it is behind by less than the window"
    assert ended == [1]


async def test_a_fast_beginning_of_a_body_earns_no_time() -> None:
    peer = Peer()
    size = int(10 * DEFAULTS.transfer_rate * DEFAULTS.transfer_window)
    now = time.monotonic()
    peer.send(peer.client.headers(1, call_headers(ECHO.decode())))
    peer.send(data(1, message(bytes(2 * size))[: size // 2]) + data(1, bytes(size // 2)))
    for part in range(1, 5):
        peer.connection.check(now + DEFAULTS.transfer_window * part / 2)
    assert peer.responses()[1].status == Code.DEADLINE_EXCEEDED
    assert peer.app.held == 0


async def test_a_client_that_reads_slowly_but_steadily_is_served() -> None:
    peer = Peer()
    peer.pipe.room = 0
    peer.send(peer.client.call(1, LARGE.decode(), b"60000"))
    now = time.monotonic()
    peer.pipe.accept(59_000)
    peer.connection.check(now + DEFAULTS.transfer_window + 3)
    assert not peer.pipe.aborted
    peer.pipe.accept(2_000)
    assert peer.responses()[1].status == Code.OK


@pytest.mark.parametrize("sent", [b"", frames.PREFACE[:7], frames.PREFACE, frames.PREFACE + b"\0"])
async def test_a_client_that_does_not_begin_is_disconnected(sent: bytes) -> None:
    peer = Peer(opened=False)
    peer.send(sent)
    now = time.monotonic()
    peer.connection.check(now + DEFAULTS.head_seconds - 1)
    assert not peer.pipe.aborted
    peer.connection.check(now + DEFAULTS.head_seconds + 1)
    assert peer.pipe.aborted


@pytest.mark.parametrize(
    "part", [b"\0\0\x08", frame(frames.PING, payload=b"12345678")[:-1], EMPTY_BLOCK]
)
async def test_part_of_a_frame_or_header_block_must_continue(part: bytes) -> None:
    peer = Peer()
    peer.send(part)
    now = time.monotonic()
    peer.connection.check(now + DEFAULTS.head_seconds - 1)
    assert find_end(peer) is None
    peer.connection.check(now + DEFAULTS.head_seconds + 1)
    assert find_end(peer) is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("why", ["idle", "age", "draining"])
async def test_a_connection_goes_away_such_that_no_call_is_lost(why: str) -> None:
    app = EchoApp(TransportSettings(connection_age=1.0 if why == "age" else 1e9))
    peer = Peer(app)
    if why != "idle":
        peer.send(peer.client.call(1, LATER.decode(), b"1000"))
    app.draining = why == "draining"
    now = time.monotonic() + (DEFAULTS.idle_seconds + 1 if why == "idle" else 1.2)
    peer.connection.check(now)
    (announced,) = peer.of(frames.GOAWAY)
    assert announced.payload == bytes.fromhex("7fffffff00000000")
    ping = peer.of(frames.PING)[-1]
    peer.send(peer.client.call(3, ECHO.decode(), b"under way"))
    peer.send(frame(frames.PING, frames.ACK, payload=ping.payload))
    final = peer.of(frames.GOAWAY)[-1]
    assert final.payload == bytes.fromhex("0000000300000000")
    peer.send(peer.client.call(5, ECHO.decode(), b"too late"))
    assert peer.app.served == (1 if why == "idle" else 2)
    if why != "idle":
        assert not peer.pipe.ended
        app.answer(app.waiting[0])
        await asyncio.sleep(0)
    assert peer.pipe.ended
    responses = peer.responses()
    assert responses.pop(3).content == b"under way"
    assert {number: response.content for number, response in responses.items()} == (
        {} if why == "idle" else {1: b"1000"}
    )


async def test_a_client_that_does_not_acknowledge_is_refused_new_streams_all_the_same() -> None:
    peer = Peer()
    peer.connection.close_idle()
    peer.connection.check(time.monotonic() + DEFAULTS.linger_seconds + 1)
    assert len(peer.of(frames.GOAWAY)) == 2
    assert peer.pipe.ended
    peer.connection.check(time.monotonic() + DEFAULTS.linger_seconds + 1)
    assert peer.pipe.aborted


async def test_a_connection_beyond_the_limit_is_refused() -> None:
    app = EchoApp(TransportSettings(connections=1))
    first, second = Peer(app), Peer(app, opened=False)
    assert find_end(first) is None
    assert find_end(second) is ErrorCode.ENHANCE_YOUR_CALM


async def test_connections_are_closed_in_the_order_of_their_waits() -> None:
    silent, part, sends, owed, reads, leaves = (Peer() for _ in range(6))
    part.send(EMPTY_BLOCK)
    sends.send(sends.client.headers(1, call_headers(ECHO.decode())))
    owed.send(owed.client.call(1, LATER.decode(), b"1000"))
    reads.send(reads.client.call(1, LARGE.decode(), b"200000"))
    leaves.send(frame(frames.GOAWAY, payload=bytes(8)))
    peers = [silent, part, sends, owed, reads, leaves]

    now = time.monotonic()
    waits = [peer.connection.waits(now) for peer in peers]
    ranks = [wait[0] if wait else None for wait in waits]
    assert ranks[:2] == [WaitsFor.ACTIVE, WaitsFor.NEW]
    assert ranks[2:] == [WaitsFor.ACTIVE, None, WaitsFor.ACTIVE, WaitsFor.LINGERS]
    for peer in (sends, reads):
        peer.connection.check(now + 2)
    later = [peer.connection.waits(now + 2) for peer in (silent, part, sends, reads)]
    ranks = [pair[0] if pair else None for pair in later]
    assert ranks[:2] == [WaitsFor.IDLE, WaitsFor.SILENT]
    assert ranks[2:] == [WaitsFor.STALLED, WaitsFor.STALLED]


class CountedStreams(dict[int, Stream]):
    """Streams that count how often one is looked at in a walk."""

    visits = 0

    @override
    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            self.visits += 1
            yield number

    @override
    def values(self) -> Any:
        for stream in super().values():
            self.visits += 1
            yield stream


async def test_waits_are_known_without_a_walk_over_the_streams() -> None:
    peer = Peer()
    sent = b""
    for number in range(1, 2 * MAX_STREAMS, 2):
        sent += peer.client.headers(number, call_headers(ECHO.decode()))
        sent += data(number, message(bytes(100))[:50])
    peer.send(sent)
    await peer.turns()
    streams = peer.connection._streams
    streams.open = counted = CountedStreams(streams.open)
    assert len(counted) == MAX_STREAMS
    wait = peer.connection.waits(time.monotonic())
    assert wait is not None
    assert wait[0] is WaitsFor.ACTIVE
    peer.connection.check(time.monotonic() + 2)
    counted.visits = 0
    wait = peer.connection.waits(time.monotonic() + 2)
    assert wait is not None
    assert wait[0] is WaitsFor.STALLED
    assert counted.visits <= 1


RESPONSES_OWED: dict[str, tuple[Callable[[Peer], bytes], int]] = {
    "answered at once": (lambda peer: peer.client.call(1, ECHO.decode(), b"a"), 0),
    "answered later": (lambda peer: peer.client.call(1, LATER.decode(), b"1000"), 1),
    "waits for a window": (lambda peer: peer.client.call(1, LARGE.decode(), b"200000"), 0),
    "two later": (
        lambda peer: (
            peer.client.call(1, LATER.decode(), b"1000")
            + peer.client.call(3, LATER.decode(), b"1000")
        ),
        2,
    ),
    "refused before its end": (
        lambda peer: (
            peer.client.headers(1, call_headers("/no/Method")) + data(1, bytes(16000)) * 10
        ),
        0,
    ),
    "reset while it is awaited": (
        lambda peer: (
            peer.client.call(1, LATER.decode(), b"1000") + frame(frames.RST_STREAM, 0, 1, bytes(4))
        ),
        0,
    ),
    "data after its end": (
        lambda peer: peer.client.call(1, LATER.decode(), b"1000") + data(1, b"more"),
        0,
    ),
    "shorter than its length": (
        lambda peer: (
            peer.client.headers(1, call_headers(ECHO.decode(), ("content-length", "9")))
            + data(1, message(b"a"), ends=True)
        ),
        0,
    ),
}


@pytest.mark.parametrize("name", RESPONSES_OWED)
async def test_the_responses_that_are_owed_are_counted(name: str) -> None:
    build, expected = RESPONSES_OWED[name]
    peer = Peer()
    peer.send(build(peer))
    assert find_end(peer) is None
    streams = peer.connection._streams
    assert streams.owed == expected
    walked = [
        stream for stream in streams.open.values() if not stream.receiving and stream.unsent is None
    ]
    assert len(walked) == expected
    peer.connection.connection_lost(None)
    assert streams.owed == 0


# fault: Hostile | a message that hardly moves stops where its memory grows | what is allocated is charged |
#   the account holds
async def test_memory_for_a_large_message_is_charged_when_it_is_allocated() -> None:
    app = EchoApp(DEFAULTS)
    peer = Peer(app)
    peer.send(peer.client.headers(1, call_headers(ECHO.decode())))
    peer.send(data(1, message(bytes(60_000_000))[: 5 + 256 * 1024]))
    assert app.held == 2 * 1024 * 1024


class CountingApp(EchoApp):
    """Counts the calls that are released."""

    released = 0

    @override
    def release(self, call: GrpcCall) -> None:
        self.released += 1
        super().release(call)


def begin(app: EchoApp, calls: int) -> Peer:
    peer = Peer(app)
    sent = b""
    for number in range(1, 2 * calls, 2):
        sent += peer.client.headers(number, call_headers(ECHO.decode()))
        sent += data(number, message(bytes(1000))[:500])
    peer.send(sent)
    return peer


# fault: Hostile | hundreds of clients with a hundred calls each leave at once | their calls are dropped in
#   turns of the event loop | other clients are answered meanwhile
async def test_calls_of_many_clients_that_leave_are_dropped_in_turns() -> None:
    app = CountingApp(DEFAULTS)
    few, *many = begin(app, 3), *(begin(app, MAX_STREAMS) for _ in range(40))
    for peer in many:
        await peer.turns()
    few.connection.connection_lost(None)
    assert app.released == 3
    for peer in many:
        peer.connection.connection_lost(None)
    assert app.released == 3
    assert not app.connections
    everything = 3 + 40 * MAX_STREAMS
    before, most = app.released, 0
    while app.released < everything:
        await asyncio.sleep(0)
        most = max(most, app.released - before)
        before = app.released
    assert most <= 16 * MAX_STREAMS
    assert app.held == 0
    assert many[0].connection._session.streams.open == {}
