"""Header compression (RFC 7541): hpack's decoder, and an encoder of literals, which needs no table."""

from typing import Final

import hpack

from enginewright_serving.transport.http2.errors import ConnectionFaultError, ErrorCode

Field = tuple[bytes, bytes]

NO_TABLE: Final = b"\x20"  # sets the size of the encoder's table to 0; at the beginning of a block


class BlockDecoder:
    """Decodes the blocks of one connection, in their order."""

    __slots__ = ("_decoder", "changes")

    def __init__(self, list_bytes: int) -> None:
        """Limit a block's fields to `list_bytes`, as SETTINGS_MAX_HEADER_LIST_SIZE counts them.

        One byte can refer to an entry of 4 KiB, so the block's size is no limit (CVE-2016-6581).
        """
        self._decoder = hpack.Decoder(list_bytes)
        self.changes = 0  # of the table: until it changes, a block's bytes determine its fields

    def decode(self, block: bytes) -> list[Field]:
        """Decode a block; raise ConnectionFaultError if it is invalid or its fields exceed the limit."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before, first = (len(entries), table.maxsize), entries[0] if entries else None
        try:
            fields = [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except hpack.OversizedHeaderListError as error:
            limit = self._decoder.max_header_list_size
            raise ConnectionFaultError(
                ErrorCode.ENHANCE_YOUR_CALM, f"header fields are larger than {limit} bytes"
            ) from error
        except hpack.HPACKError as error:
            raise ConnectionFaultError(
                ErrorCode.COMPRESSION_ERROR, "a header block cannot be decoded"
            ) from error
        entries = table.dynamic_entries
        same = (len(entries), table.maxsize) == before
        if not (same and (entries[0] if entries else None) is first):
            self.changes += 1
        return fields


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
