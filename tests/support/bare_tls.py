"""Clients of TLS that no library is: OpenSSL's own functions, and TLS without a socket."""

import ctypes
import ssl
from contextlib import suppress
from ctypes.util import find_library
from socket import create_connection
from typing import Any, Final, Self

from tests.support.serving import any_certificate

_NO_ANSWER: Final = 0  # SSL_KEY_UPDATE_NOT_REQUESTED


def send_key_updates(port: int, most: int) -> int:
    """Send up to `most` updates of keys (RFC 8446 4.6.3), and nothing else; return how many the server took."""
    openssl = ctypes.CDLL(find_library("ssl"))
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(openssl, name).restype = ctypes.c_void_p
    with create_connection(("127.0.0.1", port)) as connection:
        context = ctypes.c_void_p(openssl.SSL_CTX_new(ctypes.c_void_p(openssl.TLS_client_method())))
        session = ctypes.c_void_p(openssl.SSL_new(context))
        try:
            openssl.SSL_set_fd(session, connection.fileno())
            assert openssl.SSL_connect(session) == 1
            for count in range(most):
                openssl.SSL_key_update(session, _NO_ANSWER)
                if openssl.SSL_do_handshake(session) != 1:
                    return count
        finally:
            openssl.SSL_free(session)
            openssl.SSL_CTX_free(context)
    return most


class HalfClosing:
    """A client that closes its sending side, and reads on."""

    def __init__(self, port: int) -> None:
        self._socket = create_connection(("127.0.0.1", port), 60.0)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = any_certificate().wrap_bio(self._incoming, self._outgoing)
        self._do(self._tls.do_handshake)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send_last(self, data: bytes) -> None:
        """Send `data`, and at the same time that no more follows (`close_notify`, RFC 8446 6.1)."""
        self._tls.write(data)
        with suppress(ssl.SSLWantReadError):  # the server's own end is awaited by `receive_all`
            self._tls.unwrap()
        self._send()

    def receive_all(self) -> bytes:
        """Read until the server ends the connection."""
        parts: list[bytes] = []
        while True:
            try:
                part = self._do(lambda: self._tls.read(1 << 16))
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError, ConnectionError):
                part = b""
            if not part:
                return b"".join(parts)
            parts.append(part)

    def _do(self, act: Any) -> Any:
        while True:
            try:
                done = act()
            except ssl.SSLWantReadError:
                self._send()
                if data := self._socket.recv(1 << 16):
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            else:
                self._send()
                return done

    def _send(self) -> None:
        if data := self._outgoing.read():
            self._socket.sendall(data)
