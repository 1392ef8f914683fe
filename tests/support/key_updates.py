"""A TLS 1.3 client that updates keys as often as it likes, which Python's does not offer."""

import ctypes
import ctypes.util
import socket
import struct
from typing import Any, Self

_REQUESTED = 1  # SSL_KEY_UPDATE_REQUESTED: the server updates its keys, too
_POINTER = ctypes.c_void_p


def _openssl() -> Any:
    library = ctypes.CDLL(ctypes.util.find_library("ssl"))
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, name).restype = _POINTER
    for name in ("SSL_CTX_new", "SSL_new", "SSL_free", "SSL_CTX_free", "SSL_connect"):
        getattr(library, name).argtypes = [_POINTER]
    for name in ("SSL_set_fd", "SSL_key_update"):
        getattr(library, name).argtypes = [_POINTER, ctypes.c_int]
    library.SSL_do_handshake.argtypes = [_POINTER]
    for name in ("SSL_write", "SSL_read"):
        getattr(library, name).argtypes = [_POINTER, ctypes.c_char_p, ctypes.c_int]
    return library


class KeyUpdater:
    """One connection, which verifies no certificate."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self._ssl = _openssl()
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.connect(("127.0.0.1", port))
        for limit in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", 20, 0))
        self._context = self._ssl.SSL_CTX_new(self._ssl.TLS_client_method())
        self._tls = self._ssl.SSL_new(self._context)
        self._ssl.SSL_set_fd(self._tls, self._socket.fileno())
        assert self._ssl.SSL_connect(self._tls) == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ssl.SSL_free(self._tls)
        self._ssl.SSL_CTX_free(self._context)
        self._socket.close()

    def update(self, times: int) -> int:
        """Send updates; return how many, less than `times` if the server has closed the connection."""
        for count in range(times):
            self._ssl.SSL_key_update(self._tls, _REQUESTED)
            if self._ssl.SSL_do_handshake(self._tls) != 1:
                return count
        return times

    def send(self, data: bytes) -> bool:
        """Send data; return whether that was possible."""
        return bool(self._ssl.SSL_write(self._tls, data, len(data)) == len(data))

    def receive(self) -> bytes:
        """Receive some data; b"": the server has closed the connection."""
        buffer = ctypes.create_string_buffer(1 << 16)
        size = self._ssl.SSL_read(self._tls, buffer, len(buffer))
        return buffer.raw[: max(size, 0)]
