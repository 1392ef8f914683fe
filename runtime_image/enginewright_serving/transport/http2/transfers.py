"""How fast requests and responses of one connection are, and the memory of responses that wait for the client."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from enginewright_serving.transport.account import ByteAccount, Holding
from enginewright_serving.transport.http2 import frames
from enginewright_serving.transport.http2.errors import ErrorCode
from enginewright_serving.transport.http2.sender import Sender
from enginewright_serving.transport.http2.stream import Stream, do_nothing
from enginewright_serving.transport.http2.streams import Streams
from enginewright_serving.transport.pace import TransferPace
from enginewright_serving.transport.settings import SLOW_RATE, TransportSettings

_QUIET_SECONDS: Final = 1.0  # without a new call, until a connection of slow ones counts as slow


class Transfers:
    """What one connection's client sends or reads."""

    def __init__(
        self,
        streams: Streams,
        sender: Sender,
        settings: TransportSettings,
        account: ByteAccount,
        *,
        due: Callable[[], None],
        abort: Callable[[], None],
    ) -> None:
        """Begin without one. `due` is called after a response was ended, `abort` closes the connection."""
        self._streams = streams
        self._sender = sender
        self._settings = settings
        self._account = account
        self._due = due
        self._abort = abort
        self._acknowledged = 0  # bytes of the connection, when it was checked
        self._slow_until = -1  # the last stream when all were found to be slow
        self.read: list[Holding] = []  # of responses that are written, maybe not yet by the kernel

    def close(self) -> None:
        """Drop the references to the connection."""
        self._due = self._abort = do_nothing

    # How fast they are.

    def check(self, now: float) -> None:
        """End requests and responses at their time limits; those in progress share the rate."""
        streams = tuple(self._streams.open.values())
        requests = sum(stream.receiving for stream in streams)
        responses = sum(stream.unsent is not None for stream in streams)
        if responses:
            self._count_read(streams)
        for stream in streams:
            if stream.unsent is not None:
                if not self.pace(stream).update(now, stream.read, responses):
                    self._end(stream)
            elif stream.receiving and not self.pace(stream).update(now, stream.received, requests):
                stream.handler.expire()
        slow, still_open = SLOW_RATE, self._streams.open
        are_slow = all(stream.pace and stream.pace.rate < slow for stream in still_open.values())
        is_quiet = now > self._streams.opened_at + _QUIET_SECONDS
        self._slow_until = self._streams.last if are_slow and is_quiet else -1

    def _count_read(self, streams: Iterable[Stream]) -> None:
        """Count what the client has received of each response."""
        acknowledged = self._sender.count_acknowledged()
        added, self._acknowledged = acknowledged - self._acknowledged, acknowledged
        for stream in streams:
            if acknowledged >= stream.end_of_written:
                stream.read = stream.written
            else:
                stream.read = min(stream.written, stream.read + added)

    def pace(self, stream: Stream) -> TransferPace:
        """Return the pace of what a stream transfers, since its beginning."""
        if stream.pace is None:
            stream.pace = TransferPace(stream.started, self._settings)
        return stream.pace

    @property
    def hardly_move(self) -> bool:
        """Whether all that the client sends or reads was slow when it was checked, and no call is new."""
        return bool(self._streams.open) and self._slow_until == self._streams.last

    # Responses that wait for the client.

    def charge(self, stream: Stream, length: int) -> bool:
        """Charge a response of `length` bytes that must wait; return False if there is no space for it."""
        account = self._account
        holding = Holding(partial(self._give_up, stream))
        holding.is_exempt = stream.handler.reserved
        if not account.hold(holding, account.limit_response(length)):
            return False
        stream.outgoing = holding
        stream.pace = TransferPace(time.monotonic(), self._settings)
        self._slow_until = -1
        account.begin(holding, stream.pace)
        return True

    def release_read(self) -> None:
        """Release responses that are written completely."""
        read, self.read = self.read, []
        for holding in read:
            self._account.release(holding)

    def drop(self, stream: Stream) -> None:
        """Drop a stream's response, if one waits."""
        self._sender.drop(stream)
        holding, stream.outgoing = stream.outgoing, None
        if holding is not None:
            self._account.release(holding)

    def cancel(self, streams: Iterable[Stream]) -> None:
        """Drop requests and responses of closed streams."""
        for stream in streams:
            self.drop(stream)
            stream.handler.cancel()
            del stream.handler
        self.release_read()

    def _give_up(self, stream: Stream) -> None:
        """End a response, since others need its memory."""
        if self._streams.open.get(stream.id) is stream and not self._sender.paused:
            self._end(stream)
            self._due()
        else:  # parts of it are in the transport's buffer
            self._abort()

    def _end(self, stream: Stream) -> None:
        self._sender.write(frames.reset(stream.id, ErrorCode.CANCEL))
        self.drop(stream)
        stream.handler.cancel()
        self._streams.close(stream.id, by_server=True)


def transfer_seconds(settings: TransportSettings, size: int) -> float:
    """Return how long a transfer of `size` bytes may take."""
    return settings.transfer_window + size / settings.transfer_rate
