"""Heads that are repeated, of which the parser keeps the requests."""

import contextlib
from typing import Any

import pytest
from enginewright_serving.transport import head as module
from enginewright_serving.transport.call import InferenceCall
from enginewright_serving.transport.head import HeadError, HeadParser
from enginewright_serving.transport.message import HttpRequest

LINES = {
    "plain": b"",
    "body": b"Content-Length: 12\r\nInference-Header-Content-Length: 5\r\n",
    "chunked": b"Transfer-Encoding: chunked\r\n",
    "expecting": b"Content-Length: 1\r\nExpect: 100-continue\r\n",
    "compressed": b"Content-Encoding: gzip\r\nAccept-Encoding: gzip\r\nAccept-Encoding: deflate\r\n",
    "authorized": b"Authorization: Bearer t\r\n",
    "probe": b"Enginewright-Probe: p\r\nEnginewright-Defer: 1500\r\n",
    "copy": b"Enginewright-Shadow: 1\r\n",
    "closing": b"Connection: close\r\n",
}


def _head(lines: bytes, target: bytes = b"/a", version: bytes = b"1.1") -> memoryview:
    return memoryview(b"POST %b HTTP/%b\r\nHost: h\r\n%b\r\n" % (target, version, lines))


def _state(request: HttpRequest | None) -> dict[str, Any]:
    assert request is not None
    names = (*InferenceCall.__slots__, *HttpRequest.__slots__)
    return {name: getattr(request, name) for name in names}


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("kind", sorted(LINES.keys() - {"chunked"}))
def test_a_repeated_head_is_the_same_request(kind: str, version: bytes) -> None:
    head = _head(LINES[kind], version=version)
    parser = HeadParser(authorization=True)
    expected = _state(HeadParser(authorization=True).parse(head))
    assert [_state(parser.parse(head)) for _ in range(3)] == [expected] * 3


def test_a_repeated_head_of_chunks_is_the_same_request() -> None:
    parser = HeadParser()
    first, second = (_state(parser.parse(_head(LINES["chunked"]))) for _ in range(2))
    assert first == second
    assert second["chunked"]


def test_requests_do_not_change_the_next_one() -> None:
    parser, head = HeadParser(), _head(LINES["probe"])
    expected = _state(HeadParser().parse(head))
    for _ in range(3):
        request = parser.parse(head)
        assert _state(request) == expected
        assert request is not None
        request.abandoned = request.reserved = request.counted = True
        request.length, request.content_encoding, request.route = 99, b"x", "elsewhere"


def test_a_request_with_an_id_is_never_repeated() -> None:
    parser, head = HeadParser(), _head(b"X-Request-Id: a\r\n")
    first, second = parser.parse(head), parser.parse(head)
    assert first is not None
    assert second is not None
    assert first.context is not second.context


def test_an_invalid_head_stays_invalid() -> None:
    parser = HeadParser()
    for _ in range(3):
        with pytest.raises(HeadError):
            parser.parse(_head(b"Content-Length: 1\r\nExpect: nothing\r\n"))
        with pytest.raises(HeadError):
            parser.parse(memoryview(b"GET /a HTTP/1.1\r\n\r\n"))


def test_few_short_heads_are_kept() -> None:
    parser = HeadParser()
    for number in range(3 * module._KEPT_MOST):
        request = parser.parse(_head(b"", target=b"/%d" % number))
        assert request is not None
        assert request.target == b"/%d" % number
        assert len(parser._kept) <= module._KEPT_MOST
    parser.parse(_head(b"A: %b\r\n" % (b"a" * module._KEPT_BYTES)))
    assert max(map(len, parser._kept)) <= module._KEPT_BYTES


@pytest.mark.parametrize("lines", [b"", b"Content-Length: 1\r\nExpect: nothing\r\n"])
def test_parser_keeps_no_bytes_after_a_head(lines: bytes) -> None:
    parser = HeadParser()
    with contextlib.suppress(HeadError):
        parser.parse(_head(lines))
    assert (parser._request, parser._problem) == (None, None)
