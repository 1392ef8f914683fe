"""Header compression, header fields, and what gRPC writes into them."""

import contextlib
from urllib.parse import unquote

import hpack
import pytest
from enginewright_serving.transport.grpc.head import CallHead, call_head, parse_timeout
from enginewright_serving.transport.grpc.status import (
    Code,
    Status,
    percent_encode,
    trailers_only,
)
from enginewright_serving.transport.http2.errors import ConnectionFaultError, StreamFaultError
from enginewright_serving.transport.http2.fields import request_head
from enginewright_serving.transport.http2.hpack import (
    BlockDecoder,
    Field,
    literal,
)
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from tests.support.effort import examples

LIMIT = 16384
STRINGS = st.binary(max_size=200)
NAMES = st.sampled_from([b":path", b":status", b"content-type", b"x-a", b"x-b", b"via"])
LISTS = st.lists(st.tuples(NAMES | STRINGS.filter(len), STRINGS), max_size=12)


@given(st.lists(LISTS, min_size=1, max_size=8), st.booleans(), st.sampled_from([0, 100, 4096]))
@effort(deadline=None)
def test_blocks_are_decoded(blocks: list[list[Field]], huffman: bool, table: int) -> None:
    encoder, decoder = hpack.Encoder(), BlockDecoder(2**20)
    encoder.header_table_size = table
    for fields in blocks:
        assert decoder.decode(encoder.encode(fields, huffman=huffman)) == fields


@given(LISTS)
def test_another_decoder_decodes_our_blocks(fields: list[Field]) -> None:
    block = b"".join(literal(*field) for field in fields)
    assert hpack.Decoder().decode(block, raw=True) == fields


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), LISTS, st.data())
@effort(max_examples=examples(300), deadline=None)
def test_any_bytes_decode_or_fail(
    random: list[bytes], fields: list[Field], draw: st.DataObject
) -> None:
    decoder = BlockDecoder(LIMIT)
    mutated = bytearray(hpack.Encoder().encode(fields))
    for _ in range(draw.draw(st.integers(0, 3)) if mutated else 0):
        mutated[draw.draw(st.integers(0, len(mutated) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(ConnectionFaultError):
        for block in (bytes(mutated), *random):
            decoded = decoder.decode(block)
            assert sum(len(name) + len(value) + 32 for name, value in decoded) <= LIMIT


INVALID = {
    "index 0": "80",
    "an index beyond the table": "be",
    "a name beyond the table": "7e0161",
    "a table above the limit": "3fe21f",
    "a change of the table after a field": "8220",
    "a truncated integer": "ff",
    "a large integer": "ffffffffffff7f",
    "a truncated name": "400561",
    "a truncated value": "4001610261",
    "no value": "400161",
    "EOS": "00016184ffffffff",
    "padding of zeros": "0001618100",
    "a byte of padding": "000161821fff",
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_block_is_refused(name: str) -> None:
    with pytest.raises(ConnectionFaultError, match="cannot be decoded"):
        BlockDecoder(LIMIT).decode(bytes.fromhex(INVALID[name]))


def test_entries_are_evicted_from_the_oldest_on() -> None:
    decoder = BlockDecoder(LIMIT)
    first = hpack.Encoder().encode([(b"x", b"1" * 2000)])
    second = hpack.Encoder().encode([(b"y", b"2" * 3000)])
    decoder.decode(first)
    assert decoder.decode(b"\xbe") == [(b"x", b"1" * 2000)]
    decoder.decode(second)
    assert decoder.decode(b"\xbe") == [(b"y", b"2" * 3000)]
    with pytest.raises(ConnectionFaultError, match="cannot be decoded"):
        decoder.decode(b"\xbf")
    assert decoder.decode(b"\x20") == []
    with pytest.raises(ConnectionFaultError, match="cannot be decoded"):
        decoder.decode(b"\xbe")


def test_fields_are_limited_by_their_size_after_decompression() -> None:
    decoder = BlockDecoder(1000)
    decoder.decode(hpack.Encoder().encode([(b"x", b"1" * 900)]))
    with pytest.raises(ConnectionFaultError, match="larger than 1000 bytes"):
        decoder.decode(b"\xbe\xbe")


VALID: list[Field] = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b"content-type", b"application/grpc"),
]


def test_fields_that_repeat_are_joined() -> None:
    head = request_head([*VALID, (b"x", b"1"), (b"content-length", b"12"), (b"x", b"2")])
    assert (head.method, head.path, head.length) == (b"POST", b"/a.B/C", 12)
    assert head.fields[b"x"] == b"1,2"


@pytest.mark.parametrize(
    "fields",
    [
        [],
        VALID[1:],
        [*VALID[:1], *VALID[2:]],
        [*VALID[:2], *VALID[3:]],
        [*VALID[:2], (b":path", b"a"), *VALID[3:]],
        [*VALID[:3], *VALID],
        [*VALID, (b":authority", b"h")],
        [(b":status", b"200"), *VALID],
        *(
            [*VALID, field]
            for field in [
                (b"", b"x"),
                (b"Upper", b"x"),
                (b"a b", b"x"),
                (b"a\nb", b"x"),
                (b"\xff", b"x"),
                (b"x", b"a\rb"),
                (b"x", b"a\nb"),
                (b"x", b"a\0b"),
                (b"x", b" a"),
                (b"x", b"a\t"),
                (b"connection", b"close"),
                (b"transfer-encoding", b"chunked"),
                (b"te", b"gzip"),
                (b"content-length", b"-1"),
                (b"content-length", b"1,1"),
            ]
        ),
        [(b":method", b"PO ST\n"), *VALID[1:]],
    ],
)
def test_a_malformed_request_is_refused(fields: list[Field]) -> None:
    with pytest.raises(StreamFaultError):
        request_head(fields)


def head_of(*more: Field) -> CallHead:
    return call_head(request_head([*VALID, *more]), frozenset({b"wanted"}))


def test_only_the_metadata_that_is_wanted_is_kept() -> None:
    head = head_of((b"wanted", b"1"), (b"other", b"2"))
    assert head.metadata == {b"wanted": b"1"}
    assert head.timeout is None
    assert not head.gzip
    assert head.problem is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"99999999S", 99999999.0),
        (b"1500m", 1.5),
        (b"5u", 5e-6),
        (b"0n", 0.0),
        (b"100000000S", None),
        (b"-1S", None),
        (b"1", None),
        (b"S", None),
        (b"1s", None),
        (b"1S\n", None),
        ("\u0661S".encode(), None),
        (b"", None),
    ],
)
def test_timeouts_have_a_number_and_a_unit(value: bytes, seconds: float | None) -> None:
    assert parse_timeout(value) == (None if seconds is None else pytest.approx(seconds))


@given(st.text(max_size=5000))
def test_a_status_message_can_be_read_whatever_it_contains(text: str) -> None:
    encoded = percent_encode(text).decode("ascii")
    assert encoded.isprintable()
    assert len(encoded) <= 4096 * 4 * 3
    if text.isascii() or len(text) <= 4096:
        assert unquote(encoded) == text[:4096].encode("utf-8", "replace").decode()


def test_trailers_say_status_and_message() -> None:
    block = trailers_only(Status(Code.NOT_FOUND, "größer als 5 %"))
    assert BlockDecoder(LIMIT).decode(block) == [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"5"),
        (b"grpc-message", b"gr%C3%B6%C3%9Fer als 5 %25"),
    ]
