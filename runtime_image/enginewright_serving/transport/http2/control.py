"""Frames about a whole connection, or its windows, and its graceful shutdown (RFC 9113 6.3, 6.5 to 6.9)."""

from collections.abc import Callable, Mapping
from typing import Final

from enginewright_serving.transport.http2 import frames
from enginewright_serving.transport.http2.budget import FrameBudget
from enginewright_serving.transport.http2.errors import (
    ConnectionFaultError,
    ErrorCode,
    StreamFaultError,
)
from enginewright_serving.transport.http2.sender import Sender
from enginewright_serving.transport.http2.streams import Going, Streams

HEAVY: Final = 10  # what SETTINGS and CONTINUATION count

_SETTINGS_BYTES: Final = 32 * frames.SETTING.size  # each may change the window of every stream
_GOAWAY_BYTES: Final = 8  # at least
_DRAIN: Final = b"draining"  # PING after whose acknowledgement no new stream is under way


class ControlFrames:
    """Takes them; an error of the client raises ConnectionFaultError or StreamFaultError."""

    __slots__ = ("_frames", "_sender", "_streams")

    def __init__(self, streams: Streams, sender: Sender, budget: FrameBudget) -> None:
        self._streams = streams
        self._sender = sender
        self._frames = budget

    def go_away(self) -> None:
        """Have the client open its next streams on another connection (6.8)."""
        self._streams.going = Going.ANNOUNCED
        self._sender.write(frames.goaway(frames.LARGEST, ErrorCode.NO_ERROR))
        self._sender.write(frames.ping(_DRAIN))

    def refuse_new_streams(self) -> None:
        """Have the client open no more streams."""
        self._streams.going = Going.FINAL
        self._sender.write(frames.goaway(self._streams.last, ErrorCode.NO_ERROR))

    def take_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Send data that the larger window admits (6.9)."""
        del flags
        self._frames.spend()
        stream = self._streams.open.get(stream_id)
        if stream_id and stream is None:
            self._streams.refuse_idle(stream_id)
            return
        increment = frames.number(payload)
        if not increment:
            if stream is None:
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a window grows by 0")
            raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
        self._sender.widen(stream, increment)
        self._sender.pump()

    def take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Acknowledge it (6.7)."""
        del stream_id
        self._frames.spend()
        if not flags & frames.ACK:
            self._sender.write(frames.ping(payload, frames.ACK))
        elif payload == _DRAIN and self._streams.going is Going.ANNOUNCED:
            self.refuse_new_streams()

    def take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Apply the client's settings (6.5)."""
        del stream_id
        self._frames.spend(HEAVY)
        if len(payload) % frames.SETTING.size or (flags & frames.ACK and payload):
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS has the wrong size")
        if len(payload) > _SETTINGS_BYTES:
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, "SETTINGS is too large")
        if flags & frames.ACK:
            return
        for name, value in frames.SETTING.iter_unpack(payload):
            self._set(name, value)
        self._sender.write(frames.head(frames.SETTINGS, frames.ACK, 0, 0))
        self._sender.pump()

    def take_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Ignore it (5.3.2), unless RFC 7540 5.3.1 forbids it."""
        del flags
        self._frames.spend()
        if frames.number(payload) == stream_id:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")

    def take_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Finish the client's streams (6.8)."""
        del flags, stream_id
        if len(payload) < _GOAWAY_BYTES:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is too small")
        self._frames.spend()
        if self._streams.going is not Going.FINAL:
            self.refuse_new_streams()

    def _set(self, name: int, value: int) -> None:
        if name == frames.INITIAL_WINDOW_SIZE:
            if value > frames.LARGEST:
                raise ConnectionFaultError(
                    ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE exceeds 2^31-1"
                )
            self._sender.set_initial_window(value, self._streams.open.values())
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
                raise ConnectionFaultError(
                    ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of range"
                )
            self._sender.frame = value
        elif name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFaultError(
                ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1"
            )


TAKE: Final[Mapping[int, Callable[[ControlFrames, int, int, bytes], None]]] = {
    frames.PRIORITY: ControlFrames.take_priority,
    frames.SETTINGS: ControlFrames.take_settings,
    frames.PING: ControlFrames.take_ping,
    frames.GOAWAY: ControlFrames.take_goaway,
    frames.WINDOW_UPDATE: ControlFrames.take_window_update,
}
