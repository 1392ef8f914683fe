"""The receiving side of a TLS connection: decrypts records, and judges what they carry.

Records are decrypted in the event loop, and one that updates the keys (RFC 8446 4.6.3) costs as much as many
kilobytes of data. So a connection whose records carry little is read little by little from then on, when it
is its turn, and one whose records carry nothing is closed.
"""

import ssl
from typing import Any, Final, cast

from typing_extensions import override

from enginewright_serving.server.input_turns import InputTurns
from enginewright_serving.server.tls_transport import TlsTransport

RECORD_BYTES: Final = 1 << 14  # the largest one
POOR_READ: Final = 1024  # bytes that are read from a connection with such records, in a millisecond

_FED_BYTES: Final = 8 * 1024  # that are decrypted before what they carried is looked at
_FEW_BYTES: Final = 2048  # about which nothing is concluded
_POOR: Final = 1 / 4  # data in what has arrived: below, records cost more than their data does
_EMPTY_BYTES: Final = 2 * RECORD_BYTES  # without any data; a record that is not complete is shorter
_UNREAD_REPLIES: Final = 64 * 1024  # bytes: to updates of keys, which the client does not read


class TlsReading(TlsTransport):
    """Hands what the client sends over to the protocol inside, as long as that takes it."""

    __slots__ = (
        "_carried",
        "_empty",
        "_is_poor",
        "_raw_paused",
        "_read_scheduled",
        "_reading_paused",
        "_turns",
        "_unread",
        "_view",
        "_waits_for_turn",
    )

    def __init__(self, turns: InputTurns, buffer: bytearray) -> None:
        """Create it; ciphertext is read into the buffer, which is shared, since no callback leaves data in it."""
        super().__init__()
        self._turns = turns
        self._view = memoryview(buffer)
        self._reading_paused = False
        self._raw_paused = False  # reading of the socket
        self._read_scheduled = False
        self._empty = 0  # bytes of records that have arrived since data was seen
        self._carried = 0  # bytes of data in them
        self._is_poor = False  # its records carry little
        self._waits_for_turn = False  # to be read
        self._unread = 0  # bytes of replies since the kernel's buffer was full

    def _feed(self, nbytes: int) -> None:
        """Decrypt what has arrived, and judge what it carried."""
        for at in range(0, nbytes, _FED_BYTES):
            part = self._view[at : min(nbytes, at + _FED_BYTES)]
            self._in.write(part)
            self._empty += len(part)
            self._decrypt()
            if self._discarding or self.is_closing():
                return
            if self._empty > _EMPTY_BYTES and not self._reading_paused:
                self.abort()
                return
        if self._is_poor and not self._waits_for_turn:
            self._waits_for_turn = True
            self._pause_raw()
            self._turns.take(self._take_turn)

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        self._resume_raw()

    def _decrypt(self) -> None:
        """Hand over what has arrived, as long as the protocol inside takes it."""
        while (inside := self._inside) is not None and not self._reading_paused:
            if self._discarding or self._closing:
                return
            buffer = cast("memoryview", inside.get_buffer(-1))
            size, ended = self._fill(buffer)
            if size:
                self._carried += size
                inside.buffer_updated(size)
            if ended:
                if self._raw is not None and not self._closing:
                    self.close()
                return
            if not size:
                self._judge()
                break
        if self._raw is not None and self._out.pending:  # such as an acknowledged update of keys
            self._unread += self._out.pending if self._full else 0
            self._write_encrypted(self._raw)
            if self._unread > _UNREAD_REPLIES:
                self.abort()

    def _judge(self) -> None:
        """Look at what all that has arrived has carried."""
        if self._carried:
            if self._empty > _FEW_BYTES and self._carried < self._empty * _POOR:
                self._is_poor = True
            self._carried = self._empty = 0

    def _fill(self, buffer: memoryview) -> tuple[int, bool]:
        """Decrypt records into `buffer`; return the bytes, and whether no more will come."""
        tls, size = self._tls, 0
        assert tls is not None  # noqa: S101 - the handshake is complete
        ended = False
        while size < len(buffer) and not ended:
            try:
                read = tls.read(len(buffer) - size, cast("Any", buffer[size:]))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError:  # such as a close_notify
                ended = True
            else:
                ended = not read
                size += cast("int", read)
        return size, ended

    @override
    def pause_reading(self) -> None:
        self._reading_paused = True
        self._pause_raw()

    def _pause_raw(self) -> None:
        if self._raw is not None and not self._raw_paused and not self._raw.is_closing():
            self._raw_paused = True
            self._raw.pause_reading()

    @override
    def resume_reading(self) -> None:
        self._reading_paused = False
        if not self._read_scheduled:
            self._read_scheduled = True
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Hand over what has been read, then read on."""
        self._read_scheduled = False
        if self._raw is None or self._reading_paused:
            return
        self._decrypt()
        self._resume_raw()

    def _resume_raw(self) -> None:
        raw = self._raw
        is_paused = self._reading_paused or self._waits_for_turn
        if self._raw_paused and not is_paused and raw and not raw.is_closing():
            self._raw_paused = False
            raw.resume_reading()

    @override
    def is_reading(self) -> bool:
        return not self._reading_paused
