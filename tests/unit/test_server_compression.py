"""What clients say about compression, and what is compressed and decompressed, without a server."""

import gzip
import json
import zlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from enginewright_serving.server.api.compressed_responses import CompressedResponses
from enginewright_serving.server.api.content_coding import choose_coding
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.transport.compression import (
    LARGEST_RATIO,
    Coding,
    CompressionError,
    Decompression,
    ExpandedTooLargeError,
)
from enginewright_serving.transport.head import HeadParser
from enginewright_serving.transport.message import (
    BINARY_TYPE,
    JSON_TYPE,
    HttpRequest,
    HttpResponse,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile import costly_deflate

GZIP, DEFLATE = Coding.GZIP, Coding.DEFLATE


@pytest.mark.parametrize(
    ("value", "coding"),
    [
        # what clients send by default
        (b"gzip, deflate", GZIP),  # requests, httpx, aiohttp
        (b"gzip, deflate, br, zstd", GZIP),
        (b"deflate, gzip, br, zstd", GZIP),  # curl --compressed
        (b"*", GZIP),
        # what Triton's clients send when they are asked to
        (b"gzip", GZIP),
        (b"deflate", DEFLATE),
        (b"GZip", GZIP),
        (b"x-gzip", GZIP),
        # weights
        (b"gzip;q=0.4, deflate;q=0.5", DEFLATE),
        (b"deflate ; q=0.5 ,\tgzip\t;\tq=0.5", GZIP),
        (b"gzip;q=0, *", DEFLATE),
        (b"*;q=0.1, deflate", DEFLATE),
        (b"gzip;q=0", None),
        (b"gzip;q=0.000, deflate;q=0.0", None),
        (b"gzip;q=0.001", GZIP),
        # what is said about no compression
        (b"identity", None),
        (b"gzip;q=0.5, identity", None),
        (b"gzip, identity", GZIP),
        (b"gzip, deflate, identity;q=0.5", GZIP),
        (b"gzip, identity;q=0", GZIP),
        (b"deflate, *;q=0", DEFLATE),
        (b"identity;q=0", None),  # nothing that is left is known
        (b"*;q=0", None),
        # others, and what is no Accept-Encoding
        (b"br", None),
        (b"", None),
        (b",,", None),
        (b"gzip;q=2", None),
        (b"gzip;q=0.1234", None),
        (b"gzip;q=nan, deflate", DEFLATE),
        (b"gzip;level=9", None),
        (b"g zip", None),
        (b"\xff\x00", None),
    ],
)
def test_accept_encoding_is_read_as_the_rfc_has_it(value: bytes, coding: Coding | None) -> None:
    assert choose_coding(value) is coding


@given(st.binary(max_size=60) | st.text("gzipdeflate*identity;q=01., \t", max_size=60))
def test_any_bytes_are_an_accept_encoding(value: bytes | str) -> None:
    choose_coding(value.encode() if isinstance(value, str) else value)


def parse(*fields: bytes) -> HttpRequest:
    request = HeadParser().parse(
        memoryview(b"\r\n".join([b"POST / HTTP/1.1", b"Host: h", *fields]) + b"\r\n\r\n")
    )
    assert request is not None
    return request


def test_heads_say_how_bodies_are_and_may_be_compressed() -> None:
    request = parse(b"Content-Encoding:  GZIP ", b"accept-encoding: gzip", b"Accept-Encoding: br")
    assert request.content_encoding == b"gzip"
    assert choose_coding(request.accept_encoding) is GZIP
    assert parse(b"Content-Encoding: identity").content_encoding == b""
    twice = parse(b"Content-Encoding: gzip", b"Content-Encoding: gzip")
    assert twice.content_encoding == b"gzip, gzip", "not decompressed only once"
    absent = parse()
    assert (absent.content_encoding, absent.accept_encoding) == (b"", b"")


def test_a_long_list_of_codings_is_not_read() -> None:
    assert choose_coding(b"gzip," * 100) is GZIP
    assert choose_coding(b"gzip," * 1000) is None


def compress(data: bytes, coding: Coding) -> bytes:
    return gzip.compress(data) if coding is GZIP else zlib.compress(data)


def decompress(message: bytes, size: int, coding: Coding, step: int) -> bytes:
    out = bytearray(size)
    work = Decompression(memoryview(message), memoryview(out), coding)
    while not work.step(step):
        pass
    return bytes(out[: work.filled])


@given(st.binary(max_size=2000), st.sampled_from(Coding), st.integers(1, 3000))
def test_compressed_data_comes_back(data: bytes, coding: Coding, step: int) -> None:
    assert decompress(compress(data, coding), len(data), coding, step) == data


def test_a_step_is_limited_in_time_also_if_nothing_comes_out() -> None:
    message, out = costly_deflate(b"data", 8000), bytearray(4)
    work = Decompression(memoryview(message), memoryview(out), Coding.DEFLATE)
    steps = 1
    while not work.step(100, 0.0):
        steps += 1
    assert steps > 20, "of a few kilobytes each"
    assert out == b"data"


@given(
    st.binary(min_size=1, max_size=300),
    st.sampled_from(Coding),
    st.integers(0, 400),
    st.binary(max_size=3),
)
def test_changed_message_is_refused_or_equal(
    data: bytes, coding: Coding, at: int, put: bytes
) -> None:
    message = compress(data, coding)
    at %= len(message) + 1
    changed = message[:at] + put + message[at + 1 :]
    try:
        content = decompress(changed, len(data), coding, 64)
    except CompressionError:
        return
    assert content == data  # such as another time in gzip's header


def test_a_result_is_never_larger_than_the_memory_for_it() -> None:
    message = zlib.compress(bytes(1001))
    with pytest.raises(ExpandedTooLargeError):
        decompress(message, 1000, DEFLATE, 300)
    assert decompress(message, 1001, DEFLATE, 300) == bytes(1001)
    zeros = 1 << 20
    assert zeros < len(zlib.compress(bytes(zeros), 9)) * LARGEST_RATIO


def response(*parts: bytes, kind: bytes = JSON_TYPE) -> HttpResponse:
    return HttpResponse(200, kind, [*parts], sum(map(len, parts)))


def compress_response(sent: HttpResponse, accept: bytes, content: bytes = b"") -> HttpResponse:
    """Return what is sent to a client with these headers; the response is small."""
    request = HttpRequest(b"/")
    request.accept_encoding, request.content_encoding = accept, content

    def later(_: object) -> None:
        raise AssertionError("in the thread")

    result = CompressedResponses(RequestThreads("codec", 1, 1, "requests", "for a turn")).compress(
        request, sent, later
    )
    assert result is not None
    return result


TEXT = json.dumps({"data": [n / 7 for n in range(200)]}).encode()


@pytest.mark.parametrize(
    ("accept", "content", "coding"),
    [
        (b"gzip", b"", b"gzip"),
        (b"deflate", b"", b"deflate"),
        (b"gzip, deflate", b"", b"gzip"),
        (b"gzip, deflate", b"deflate", b"gzip"),
        (b"gzip;q=0.5, identity", b"gzip", None),
        (b"br", b"gzip", None),
        (b"", b"gzip", None),
    ],
)
def test_response_is_compressed_on_request(
    accept: bytes, content: bytes, coding: bytes | None
) -> None:
    plain = response(TEXT[:50], TEXT[50:])
    sent = compress_response(plain, accept, content)
    if coding is None:
        assert sent is plain
        return
    body = b"".join(sent.parts)
    assert len(body) == sent.length < plain.length / 2
    assert (gzip if coding == b"gzip" else zlib).decompress(body) == TEXT
    assert sent.headers == JSON_TYPE + (
        b"Content-Encoding: %b\r\nVary: Accept-Encoding\r\n" % coding
    )
    assert b"".join(plain.parts) == TEXT, "which others may need"


@pytest.mark.parametrize("body", [b"", b"{}", np.random.default_rng(1).bytes(3000)])
def test_incompressible_response_is_compressed_too(body: bytes) -> None:
    sent = compress_response(response(body, kind=BINARY_TYPE), b"gzip")
    assert gzip.decompress(b"".join(sent.parts)) == body


def test_parts_of_any_size_are_compressed() -> None:
    edges = [0, 0, 1, 2, 100, *range(1000, 12_000, 997), 12_000]
    text = (TEXT * 10)[:12_000]
    parts: list[Any] = [memoryview(text)[low:high] for low, high in pairwise(edges)]
    sent = compress_response(response(*parts), b"gzip")
    assert gzip.decompress(b"".join(sent.parts)) == text
