"""What a request says about itself, also in hostile forms."""

import re

import pytest
from enginewright_serving.transport.head import HeadParser
from enginewright_serving.transport.request_context import (
    REQUEST_ID,
    TRACEPARENT,
    TRACESTATE,
    RequestContext,
    TraceParent,
    context_of,
)
from hypothesis import given
from hypothesis import strategies as st

TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = b"00f067aa0ba902b7"
PARENT = b"00-%b-%b-01" % (TRACE, SPAN)


def request_id(value: bytes) -> bytes:
    context = context_of({REQUEST_ID: value})
    assert context is not None
    return context.request_id


@pytest.mark.parametrize(
    "value",
    [
        b"1",
        b"a" * 128,
        b"7b7c8b8e-6d5f-4d0c-9a41-0a3b6f1d2c3e",
        b"Root=1-67891233-abcdef012345",
        b"a/b+c==",
    ],
)
def test_an_id_is_taken_as_it_is(value: bytes) -> None:
    assert request_id(value) == value
    assert request_id(b" " + value + b"\t") == value


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"a" * 129,
        b"a b",
        b'"',
        b"a\\n",
        b"a,b",
        b"\x00",
        b"\x1b[31m",
        b"gr\xc3\xbcn",
        b"a\rb",
        b"a%0ab",
        b"{}",
    ],
)
def test_an_id_of_another_form_counts_as_absent(value: bytes) -> None:
    assert request_id(value) == b""


@given(st.binary(max_size=200))
def test_no_value_leaves_the_line_or_the_header(value: bytes) -> None:
    taken = request_id(value)
    assert re.fullmatch(rb"[A-Za-z0-9._~:/+=@-]{0,128}", taken)


def test_a_request_without_an_id_gets_one() -> None:
    contexts = [RequestContext() for _ in range(100)]
    for context in contexts:
        context.name()
        assert re.fullmatch(rb"[0-9a-f]{16}", context.request_id)
        assert context.header() == b"X-Request-Id: %b\r\n" % context.request_id
    assert len({context.request_id for context in contexts}) == 100
    named = RequestContext()
    named.read(REQUEST_ID, b"mine")
    named.name()
    assert named.request_id == b"mine"


def test_a_traceparent_is_read() -> None:
    parent = TraceParent.of(PARENT)
    assert parent is not None
    assert (parent.trace_id, parent.span_id, parent.sampled) == (TRACE, SPAN, True)
    unsampled = TraceParent.of(PARENT[:-2] + b"02")
    assert unsampled is not None
    assert not unsampled.sampled
    later = TraceParent.of(b"01" + PARENT[2:] + b"-what-comes-later")
    assert later is not None
    assert later.trace_id == TRACE


@pytest.mark.parametrize(
    "value",
    [
        b"",
        PARENT.upper(),
        PARENT + b"-more",
        b"ff" + PARENT[2:],
        b"00-%b-%b-01" % (b"0" * 32, SPAN),
        b"00-%b-%b-01" % (TRACE, b"0" * 16),
        b"00-%b-%b" % (TRACE, SPAN),
        PARENT.replace(b"-", b"_"),
        PARENT[:-1],
        b"01" + PARENT[2:] + b"more",
        b"01" + PARENT[2:] + b"-" + b"a" * 300,
        b"01" + PARENT[2:] + b"-\x00",
    ],
)
def test_an_invalid_traceparent_counts_as_absent(value: bytes) -> None:
    assert TraceParent.of(value) is None


def test_a_repeated_header_counts_as_absent() -> None:
    for name, value in ((REQUEST_ID, b"a"), (TRACEPARENT, PARENT), (TRACESTATE, b"a=1")):
        context = RequestContext()
        for _ in range(3):
            context.read(name, value)
        assert (context.request_id, context.parent, context.tracestate) == (b"", None, b"")


@pytest.mark.parametrize(
    "name", [b"X-Request-Id", b"x-request-id", b"X-REQUEST-ID", b"X-Request-ID"]
)
def test_the_head_of_http_has_it_in_any_case(name: bytes) -> None:
    head = b"GET / HTTP/1.1\r\nHost: h\r\n%b: abc\r\nTraceparent: %b\r\n\r\n" % (name, PARENT)
    request = HeadParser().parse(memoryview(head))
    assert request is not None
    assert request.context is not None
    assert request.context.request_id == b"abc"
    assert request.context.parent is not None


def test_a_request_without_these_headers_has_no_context() -> None:
    request = HeadParser().parse(memoryview(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"))
    assert request is not None
    assert request.context is None
    assert context_of({b"authorization": b"Bearer a"}) is None
