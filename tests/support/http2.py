"""A client that sends any bytes over HTTP/2 and reads what comes back, frame by frame."""

import struct
from dataclasses import dataclass

from enginewright_serving.transport.http2 import frames
from hpack import Decoder, Encoder

Headers = list[tuple[str, str]]


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """Return the error code of RST_STREAM or GOAWAY."""
        at = 4 if self.kind == frames.GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")


def split(data: bytes) -> list[Frame]:
    """Return the complete frames in `data`."""
    frames = []
    at = 0
    while at + 9 <= len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        kind, flags, stream = struct.unpack_from(">BBL", data, at + 3)
        frames.append(Frame(kind, flags, stream, data[at + 9 : at + 9 + length]))
        at += 9 + length
    return frames


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return any frame, also one that the protocol forbids."""
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, stream) + payload


def settings(*values: tuple[int, int]) -> bytes:
    """Return SETTINGS with any identifiers and values."""
    return frame(frames.SETTINGS, payload=b"".join(struct.pack(">HL", *value) for value in values))


def message(content: bytes, flag: int = 0) -> bytes:
    """Return a message of gRPC with its prefix."""
    return struct.pack(">BL", flag, len(content)) + content


def call_headers(method: str, *more: tuple[str, str]) -> Headers:
    """Return the headers that gRPC's clients send."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    ]


class Client:
    """Compresses headers and remembers the server's, as one connection does; sends nothing itself."""

    opening = frames.PREFACE + settings()

    def __init__(self) -> None:
        self.encoder = Encoder()
        self.decoder = Decoder()

    def headers(self, stream: int, headers: Headers, flags: int = frames.END_HEADERS) -> bytes:
        return frame(frames.HEADERS, flags, stream, self.block(headers))

    def block(self, headers: Headers) -> bytes:
        return bytes(self.encoder.encode(headers))

    def call(self, stream: int, method: str, content: bytes, *more: tuple[str, str]) -> bytes:
        return self.headers(stream, call_headers(method, *more)) + data(
            stream, message(content), ends=True
        )

    def responses(self, received: bytes) -> dict[int, "Response"]:
        """Return the responses in what the server has sent since its beginning, by stream."""
        by_stream: dict[int, Response] = {}
        for item in split(received):
            if item.kind not in (frames.HEADERS, frames.DATA, frames.RST_STREAM):
                continue
            response = by_stream.setdefault(item.stream, Response())
            if item.kind == frames.HEADERS:
                fields = self.decoder.decode(item.payload, raw=True)
                response.headers |= {name.decode(): value.decode() for name, value in fields}
            elif item.kind == frames.DATA:
                response.body += item.payload
            else:
                response.reset = item.code
            response.ended |= bool(item.flags & frames.END_STREAM) and item.kind in (0, 1)
        return by_stream


class Response:
    """What arrived on one stream."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        self.reset: int | None = None

    @property
    def status(self) -> int:
        """Return grpc-status, which ends every call."""
        return int(self.headers["grpc-status"])

    @property
    def content(self) -> bytes:
        """Return the message, which must be the only one."""
        flag, length = struct.unpack(">BL", self.body[:5])
        assert (flag, length) == (0, len(self.body) - 5)
        return self.body[5:]


def data(stream: int, content: bytes, *, ends: bool = False) -> bytes:
    return frame(frames.DATA, frames.END_STREAM if ends else 0, stream, content)
