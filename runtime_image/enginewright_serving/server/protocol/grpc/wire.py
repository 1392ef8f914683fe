"""Splits a serialized ModelInferRequest, so that protobuf's parser does not copy tensors.

Limits are those of that parser (upb), except that groups, which proto3 does not have, and messages with very many
fields are refused.
"""

from dataclasses import dataclass
from typing import Final

from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.server.protocol.grpc.messages import (
    INPUT_CONTENTS,
    RAW_INPUT_CONTENTS,
    REQUEST_ID,
    REQUEST_INPUTS,
)

_BYTES: Final = 2  # wire type of strings, bytes, messages and packed numbers
_SHORT: Final = 0x87  # wire type, and whether the tag has more bytes
_FIXED: Final = {1: 8, 5: 4}  # bytes of the wire types with a fixed size
_RAW: Final = RAW_INPUT_CONTENTS << 3 | _BYTES
_ID: Final = REQUEST_ID << 3 | _BYTES
_INPUT: Final = REQUEST_INPUTS << 3 | _BYTES
_CONTENTS: Final = INPUT_CONTENTS << 3 | _BYTES
_MOST_FIELDS: Final = 4096  # on one level: reading them blocks the event loop
_LONGEST_TAG: Final = 5  # bytes, as of lengths; a number has up to 10
_LONGEST_NUMBER: Final = 10

_Field = tuple[int, int, int, int]  # tag; where the field starts, where its value does, its end


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """The parts of a request.

    `head` is the serialized request without identifier and tensors. `raw` has begin and end of each
    raw tensor in the message. `typed` has, for each input, its serialized typed contents, or None
    where the input has none; it is () if there are raw tensors, and `head` is whole then.
    """

    head: bytes
    identifier: bytes
    raw: tuple[tuple[int, int], ...]
    typed: tuple[bytes | None, ...]


def split(message: memoryview) -> SplitRequest:
    """Split a serialized ModelInferRequest; raise RequestError 400 for invalid or too many fields."""
    kept: list[memoryview | bytes] = []
    begin = 0  # of bytes that are kept and not yet in `kept`
    identifier = b""
    raw: list[tuple[int, int]] = []
    fields = _fields(message, 0, len(message))
    for tag, start, value, end in fields:
        if tag == _RAW:
            raw.append((value, end))
        elif tag == _ID:
            identifier = bytes(message[value:end])
        else:
            continue
        if start > begin:
            kept.append(message[begin:start])
        begin = end
    if begin < len(message):
        kept.append(message[begin:])
    if raw or not any(field[0] == _INPUT for field in fields):
        return SplitRequest(b"".join(kept), identifier, tuple(raw), ())
    head, typed = _split_inputs(message, fields)
    return SplitRequest(head, identifier, (), typed)


def _split_inputs(
    message: memoryview, fields: list[_Field]
) -> tuple[bytes, tuple[bytes | None, ...]]:
    kept: list[memoryview | bytes] = []
    typed: list[bytes | None] = []
    for tag, start, value, end in fields:
        if tag == _ID:
            continue
        if tag != _INPUT:
            kept.append(message[start:end])
            continue
        parts = _fields(message, value, end)
        rest = b"".join(message[low:high] for part, low, _, high in parts if part != _CONTENTS)
        contents = [message[low:high] for part, _, low, high in parts if part == _CONTENTS]
        kept.append(length_delimited(_INPUT, len(rest)) + rest)
        # messages are merged by joining them
        typed.append(b"".join(contents) if contents else None)
    return b"".join(kept), tuple(typed)


def first_raw_tensor(beginning: memoryview) -> int | None:
    """Return where the first raw tensor begins, if the `beginning` of a message shows it."""
    at = 0
    try:
        while at < len(beginning):
            tag, value = _varint(beginning, at, len(beginning), _LONGEST_TAG)
            if tag == _RAW:
                return _varint(beginning, value, len(beginning), _LONGEST_TAG)[1]
            at = _end(beginning, tag, value, len(beginning))[1]
    except RequestError:
        pass
    return None


def length_delimited(tag: int, length: int) -> bytes:
    """Return the bytes before a value of `length` bytes: `tag`, below 128, and the length."""
    out = bytearray((tag,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


def _fields(message: memoryview, start: int, end: int) -> list[_Field]:
    fields: list[_Field] = []
    at = start
    while at < end:
        begin = at
        tag = message[at]
        at += 1
        # the usual field first: below number 16, of fewer than 128 bytes
        if tag & _SHORT == _BYTES and tag > _BYTES and at < end and message[at] < 0x80:
            value = at + 1
            at = value + message[at]
        else:
            tag, at = _varint(message, begin, end, _LONGEST_TAG)
            value, at = _end(message, tag, at, end)
        if at > end:
            raise _invalid("a field exceeds it")
        fields.append((tag, begin, value, at))
        if len(fields) > _MOST_FIELDS:
            raise _invalid(f"it has more than {_MOST_FIELDS} fields")
    return fields


def _end(message: memoryview, tag: int, at: int, end: int) -> tuple[int, int]:
    """Return where the value of the field with `tag` begins and ends; its length may exceed `end`."""
    if not 0 < tag >> 3 < 1 << 29:
        raise _invalid("a field has no valid number")
    kind = tag & 7
    if kind == _BYTES:
        length, at = _varint(message, at, end, _LONGEST_TAG)
        return at, at + length
    if kind in _FIXED:
        return at, at + _FIXED[kind]
    if kind == 0:
        return at, _varint(message, at, end, _LONGEST_NUMBER)[1]
    raise _invalid(f"a field has wire type {kind}")


def _varint(message: memoryview, at: int, end: int, longest: int) -> tuple[int, int]:
    """Return a number in groups of 7 bits, the lowest first, and where it ends."""
    number = 0
    for shift in range(0, 7 * longest, 7):
        if at >= end:
            raise _invalid("a field exceeds it")
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _invalid(f"a number has more than {longest} bytes")


def _invalid(what: str) -> RequestError:
    return RequestError(400, f"the message is not a valid ModelInferRequest: {what}")
