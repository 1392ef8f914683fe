"""Header compression (RFC 7541): a strict decoder, and an encoder without state.

Of the ready-made decoders, h2's takes several times as long and jh2's, compiled, panics on a
truncated string and accepts invalid padding. A block that repeats, as clients send them, is only a
few lookups here.

The encoder writes literals without indexing, and so follows whatever table the client allows.
"""

from collections import deque
from typing import Final

from enginewright_runtime.serve.server.http2 import huffman

Field = tuple[bytes, bytes]

TABLE_BYTES: Final = 4096  # SETTINGS_HEADER_TABLE_SIZE of both sides by default
FIELD_OVERHEAD: Final = 32  # what an entry counts beside its strings (4.1), in lists too
_INTEGER_SHIFT: Final = 21  # of an integer's last octet: at most 2**28, above every limit

_STATIC: Final[tuple[Field, ...]] = tuple(
    (name.encode(), value.encode())
    for name, _, value in (
        line.partition(" ")
        for line in [
            ":authority",
            ":method GET",
            ":method POST",
            ":path /",
            ":path /index.html",
            ":scheme http",
            ":scheme https",
            ":status 200",
            ":status 204",
            ":status 206",
            ":status 304",
            ":status 400",
            ":status 404",
            ":status 500",
            "accept-charset",
            "accept-encoding gzip, deflate",
            "accept-language",
            "accept-ranges",
            "accept",
            "access-control-allow-origin",
            "age",
            "allow",
            "authorization",
            "cache-control",
            "content-disposition",
            "content-encoding",
            "content-language",
            "content-length",
            "content-location",
            "content-range",
            "content-type",
            "cookie",
            "date",
            "etag",
            "expect",
            "expires",
            "from",
            "host",
            "if-match",
            "if-modified-since",
            "if-none-match",
            "if-range",
            "if-unmodified-since",
            "last-modified",
            "link",
            "location",
            "max-forwards",
            "proxy-authenticate",
            "proxy-authorization",
            "range",
            "referer",
            "refresh",
            "retry-after",
            "server",
            "set-cookie",
            "strict-transport-security",
            "transfer-encoding",
            "user-agent",
            "vary",
            "via",
            "www-authenticate",
        ]
    )
)
_FIRST_DYNAMIC: Final = len(_STATIC) + 1

NO_TABLE: Final = b"\x20"  # sets the size of the encoder's table to 0; at the beginning of a block


class HpackError(Exception):
    """A block is invalid, so the state that the next ones need is unknown."""


class ListTooLargeError(Exception):
    """A block's fields exceed the limit; likewise."""


class Decoder:
    """Decodes the blocks of one connection, in their order."""

    __slots__ = ("_dynamic", "_limit", "_list_bytes", "_size", "changes")

    def __init__(self, list_bytes: int) -> None:
        """Limit a block's fields to `list_bytes`, as SETTINGS_MAX_HEADER_LIST_SIZE counts them.

        One byte can refer to an entry of 4 KiB, so the block's own size limits nothing
        (CVE-2016-6581).
        """
        self._list_bytes = list_bytes
        self._dynamic: deque[Field] = deque()
        self._size = 0
        self._limit = TABLE_BYTES
        self.changes = 0  # of the table: until it changes, a block's bytes determine its fields

    def decode(self, block: bytes) -> list[Field]:
        """Decode a block.

        Raises:
            HpackError: it is invalid.
            ListTooLargeError: its fields are too large.
        """
        fields: list[Field] = []
        size, at, end = 0, 0, len(block)
        try:
            while at < end:
                first = block[at]
                if first & 0x80:
                    index, at = _integer(block, at, 7)
                    field = self._entry(index)
                elif first & 0xE0 == 0x20:
                    if fields:
                        raise HpackError("the table's size changes within a block")
                    limit, at = _integer(block, at, 5)
                    self._resize(limit)
                    continue
                else:
                    indexed = first & 0x40
                    index, at = _integer(block, at, 6 if indexed else 4)
                    if index:
                        name = self._entry(index)[0]
                    else:
                        name, at = _string(block, at)
                    value, at = _string(block, at)
                    field = name, value
                    if indexed:
                        self._insert(field)
                size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
                if size > self._list_bytes:
                    raise ListTooLargeError
                fields.append(field)
        except (IndexError, huffman.HuffmanError) as error:
            raise HpackError("a field is truncated or refers to no entry") from error
        return fields

    def _entry(self, index: int) -> Field:
        if index >= _FIRST_DYNAMIC:
            return self._dynamic[index - _FIRST_DYNAMIC]
        if not index:
            raise HpackError("index 0")
        return _STATIC[index - 1]

    def _insert(self, field: Field) -> None:
        self.changes += 1
        self._dynamic.appendleft(field)
        self._size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
        self._evict()

    def _resize(self, limit: int) -> None:
        if limit > TABLE_BYTES:
            raise HpackError("the table is larger than SETTINGS_HEADER_TABLE_SIZE")
        self.changes += 1
        self._limit = limit
        self._evict()

    def _evict(self) -> None:
        while self._size > self._limit:
            name, value = self._dynamic.pop()
            self._size -= len(name) + len(value) + FIELD_OVERHEAD


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field that no table will contain (6.2.2), with strings as they are."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(length: int) -> bytes:
    """Return the length of a string without Huffman code."""
    if length < 0x7F:
        return bytes([length])
    rest = length - 0x7F
    out = bytearray(b"\x7f")
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return an integer and what follows it (5.1)."""
    mask = (1 << bits) - 1
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        octet = block[at]
        at += 1
        value += (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
        if shift == _INTEGER_SHIFT:
            raise HpackError("an integer is too large")
        shift += 7


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a string and what follows it (5.2)."""
    coded = block[at] & 0x80
    length, at = _integer(block, at, 7)
    end = at + length
    if end > len(block):
        raise HpackError("a string is truncated")
    text = block[at:end]
    return huffman.decode(text) if coded else text, end
