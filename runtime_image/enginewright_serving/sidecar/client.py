"""An HTTP client for servers like the pod's own: one keep-alive connection, a timeout for every request.

A client library would use more memory than the rest of the sidecar, so httptools, which the server needs
anyway, parses the responses.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Final

import httptools

_RECEIVE_BYTES: Final = 256 * 1024
_SEND_BYTES: Final = 1024 * 1024  # of a body at a time
RESPONSE_BYTES: Final = 16 * 1024 * 1024  # limit of a response that has no outputs
_HERE: Final = "127.0.0.1"


_Parts = Sequence[bytes | memoryview]


class UnreachableError(Exception):
    """There was no response; the message continues "the server ..."."""

    def __init__(
        self, message: str, *, unreachable: bool = False, late: bool = False, sent: bool = True
    ) -> None:
        super().__init__(message)
        self.unreachable = unreachable  # connection refused: the process has ended or is starting
        self.late = late  # the request timed out
        self.sent = sent  # whether a part of the request may have reached the server


class ServerResponse:
    """Status, headers (names in lower case) and body."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body: bytes | bytearray = b""


class Client:
    """One connection; one request at a time."""

    def __init__(
        self,
        port: int,
        *,
        host: str = _HERE,
        response_bytes: int = RESPONSE_BYTES,
        tls: bool = False,
        expected: Callable[[], bytes] | None = None,
    ) -> None:
        """Connect on first use, to the IP address `host`.

        With `tls` the server's certificate is for other names than the address. `expected` returns the
        certificate (DER) that it must have; without it any is accepted, as the connection stays in the pod.
        """
        self._tls = _any_certificate() if tls else None
        self._expected = expected
        self.certificate = b""  # the server's (DER), once connected
        self._port = port
        self._host = host
        self._authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._response_bytes = response_bytes
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._sent = False  # whether a part of the current request was written

    @property
    def uses_tls(self) -> bool:
        """Whether the server speaks TLS."""
        return self._tls is not None

    async def get(self, path: str, seconds: float, headers: str = "") -> ServerResponse:
        """GET `path` within `seconds`, with extra header lines, each with its CRLF; may raise UnreachableError."""
        head = f"GET {path} HTTP/1.1\r\nHost: {self._authority}\r\n{headers}\r\n"
        return await self._ask((head.encode(),), seconds)

    async def post(
        self, path: str, headers: str, body: Sequence[bytes | memoryview], seconds: float
    ) -> ServerResponse:
        """POST a body in parts to `path`; likewise."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._authority}\r\n{headers}"
            f"Content-Length: {sum(map(len, body))}\r\n\r\n"
        )
        return await self._ask((head.encode(), *body), seconds)

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _ask(self, request: _Parts, seconds: float) -> ServerResponse:
        async with self._lock:
            self._sent = False
            try:
                async with asyncio.timeout(seconds):
                    return await self._exchange(request)
            except TimeoutError:
                self.close()
                why = f"did not respond within {seconds:g} s"
                raise UnreachableError(why, late=True, sent=self._sent) from None
            except ConnectionRefusedError:
                why = "does not listen"
                raise UnreachableError(why, unreachable=True, sent=self._sent) from None
            except _TooLongError:
                self.close()
                most = self._response_bytes >> 20
                raise UnreachableError(f"sends a response of more than {most} MiB") from None
            except OSError as error:
                self.close()
                why = f"closed the connection ({error.strerror or error})"
                raise UnreachableError(why, sent=self._sent) from None
            except httptools.HttpParserError:
                self.close()
                raise UnreachableError("does not speak HTTP") from None

    async def _exchange(self, request: _Parts) -> ServerResponse:
        """Send on the open connection; retry on a new one if the server had closed it."""
        if self._streams is not None:
            reader, writer = self._streams
            if not (reader.at_eof() or writer.is_closing()):
                with contextlib.suppress(_StaleError, ConnectionError):
                    return await self._once(reader, writer, request)
            self.close()
        reader, writer = await self._open()
        self._streams = reader, writer
        try:
            return await self._once(reader, writer, request)
        except _StaleError:
            raise ConnectionResetError("closed before it responded") from None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(
            self._host, self._port, limit=_RECEIVE_BYTES, ssl=self._tls
        )
        if self._tls is not None:
            self._check_certificate(writer)
        return reader, writer

    def _check_certificate(self, writer: asyncio.StreamWriter) -> None:
        own: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.certificate = own or b""
        if self._expected is not None and self._expected() != self.certificate:
            writer.close()
            raise UnreachableError("has another certificate than the pod", sent=False)

    async def _once(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: _Parts
    ) -> ServerResponse:
        self._sent = True
        for part in request:
            for at in range(0, len(part), _SEND_BYTES):
                writer.write(memoryview(part)[at : at + _SEND_BYTES])  # what waits is copied
                await writer.drain()
        receiver = _Receiver(self._response_bytes)
        while not receiver.done:
            data = await reader.read(_RECEIVE_BYTES)
            if data:
                receiver.feed(data)
            elif not receiver.size:
                raise _StaleError
            elif receiver.ends_with_connection:
                receiver.on_message_complete()
            else:
                raise ConnectionAbortedError("the response was truncated")
        if not receiver.keep_alive:
            self.close()
        return receiver.finish()


def _any_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class _StaleError(Exception):
    """The connection was closed before the first byte of the response."""


class _TooLongError(Exception):
    """The response is longer than its limit, which unlike a lost connection is not retried."""


class _Receiver:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.response = ServerResponse()
        self.size = 0
        self.done = False
        self.keep_alive = False
        self._headed = False
        self._body = bytearray()  # grows in place; joining a list of parts would copy them
        self._parser = httptools.HttpResponseParser(self)

    @property
    def ends_with_connection(self) -> bool:
        """Whether the response declares no length."""
        headers = self.response.headers
        return self._headed and not (
            b"content-length" in headers or b"transfer-encoding" in headers
        )

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._limit:
            raise _TooLongError
        self._parser.feed_data(data)

    def finish(self) -> ServerResponse:
        """Return the response; break the cycle with the parser, which would keep large bodies."""
        response, self.response = self.response, ServerResponse()
        del self._parser
        return response

    def on_header(self, name: bytes, value: bytes) -> None:
        self.response.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._headed = True

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.done = True
        # after this call the parser discards both
        self.response.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive() and not self.ends_with_connection
        self.response.body, self._body = self._body, bytearray()
