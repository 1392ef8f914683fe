"""Error codes of HTTP/2, and the two scopes that an error has (RFC 9113 5.4, 7)."""

import enum


class ErrorCode(enum.IntEnum):
    """Why a stream or a connection ends (RFC 9113 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class ConnectionFaultError(Exception):
    """The peer violates the protocol or a limit such that the connection ends (RFC 9113 5.4.1)."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message  # for the peer's log, in GOAWAY


class StreamFaultError(Exception):
    """The peer violates the protocol on one stream, which alone ends (RFC 9113 5.4.2)."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code
