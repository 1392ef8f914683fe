"""Parses request heads with httptools and refuses ambiguous ones.

httptools parses only heads, because it copies bodies, and loses a message's state when the next one begins.
Creating a parser takes less than a microsecond, so every head gets a new one. Clients mostly repeat their heads,
byte by byte, so the requests of recent ones are cached.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import httptools

from enginewright_serving.transport.message import HttpRequest
from enginewright_serving.transport.request_context import NAMES, RequestContext

_FIELDS_MOST: Final = 128  # each is a call from the parser
_LONG_BYTES: Final = 1024  # a head with more fields is at least as long
_VERSIONS: Final = ("1.0", "1.1")
_KEPT_BYTES: Final = 1024  # of a head
_KEPT_MOST: Final = 64  # heads
_LENGTH_DIGITS: Final = 12
_DEFER_DIGITS: Final = 7  # milliseconds: hours at most


class HeadError(Exception):
    """An invalid head, after which the connection must close; the message is for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.context: RequestContext | None = None  # of the request, as far as it was read


class HeadParser:
    """Parses one complete head at a time, for any number of connections in one thread."""

    __slots__ = ("_fields", "_kept", "_parser", "_problem", "_request")

    def __init__(self, *, authorization: bool = False) -> None:
        self._fields = _FIELDS | _AUTHORIZATION if authorization else _FIELDS
        self._kept: dict[bytes, HttpRequest] = {}  # by head
        self._parser: httptools.HttpRequestParser | None = None
        self._request: HttpRequest | None = None
        self._problem: HeadError | None = None

    def parse(self, head: memoryview) -> HttpRequest | None:
        """Return the request of `head`, which ends with an empty line, or None for only blank lines; raise HeadError."""
        if len(head) > _KEPT_BYTES:
            return self._parse(head)
        text = bytes(head)
        kept = self._kept.get(text)
        if kept is not None:
            return kept.repeat()
        request = self._parse(head)
        # one with a context has an ID, so its head is not repeated
        if request is not None and request.context is None:
            if len(self._kept) >= _KEPT_MOST:
                self._kept.clear()
            self._kept[text] = request.repeat()
        return request

    def _parse(self, head: memoryview) -> HttpRequest | None:
        if len(head) > _LONG_BYTES and head.tobytes().count(b"\n") > _FIELDS_MOST:
            raise HeadError(431, f"there are more than {_FIELDS_MOST} header fields")
        parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass  # upgrades are not supported: the header is ignored (RFC 9110, 7.8)
        except httptools.HttpParserError as error:
            raise HeadError(400, f"not a valid HTTP request: {error}") from None
        finally:
            self._parser = None
            request, problem = self._request, self._problem
            self._request = self._problem = None  # otherwise its body would stay in memory
        if request is not None:
            try:
                if problem is not None:
                    raise problem
                _check(request)
            except HeadError as error:
                error.context = request.context
                raise
        return request

    # Called by the parser.

    def on_url(self, url: bytes) -> None:
        """Begin a request."""
        self._request = HttpRequest(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read a header field if the server uses it."""
        take = self._fields.get(name) or self._fields.get(name.lower())
        if take is not None and self._request is not None:
            try:
                take(self._request, value)
            except HeadError as problem:  # raised once the parser has finished
                self._problem = self._problem or problem

    def on_headers_complete(self) -> None:
        """Read attributes that the parser discards when the message is complete."""
        request, parser = self._request, self._parser
        if request is not None and parser is not None:
            request.method = parser.get_method()
            request.version = parser.get_http_version()
            request.keep_alive = parser.should_keep_alive()


def _check(request: HttpRequest) -> None:
    if not request.method or request.version not in _VERSIONS:  # no method: HTTP/2's preface
        raise HeadError(505, "only HTTP/1.0 and HTTP/1.1 are supported")
    if request.version == "1.0":
        if request.chunked:
            raise HeadError(400, "HTTP/1.0 does not support Transfer-Encoding")
        request.expects_continue = False
    elif not request.has_host:
        raise HeadError(400, "the Host header is missing")


def _content_length(request: HttpRequest, value: bytes) -> None:
    request.length = int(value)  # the parser validates the digits and rejects duplicates


def _transfer_encoding(request: HttpRequest, value: bytes) -> None:
    if request.chunked or value.strip().lower() != b"chunked":
        raise HeadError(501, "the only supported Transfer-Encoding is a single 'chunked'")
    request.chunked = True


def _json_length(request: HttpRequest, value: bytes) -> None:
    digits = value.strip()
    if request.json_length is not None or not digits.isdigit() or len(digits) > _LENGTH_DIGITS:
        raise HeadError(400, "Inference-Header-Content-Length must be one number of bytes")
    request.json_length = int(digits)


def _expect(request: HttpRequest, value: bytes) -> None:
    if value.strip().lower() != b"100-continue":
        raise HeadError(417, "the only supported Expect is 100-continue")
    request.expects_continue = True


def _host(request: HttpRequest, _: bytes) -> None:
    if request.has_host:
        raise HeadError(400, "there is more than one Host header")
    request.has_host = True


def _probe(request: HttpRequest, value: bytes) -> None:
    request.probe = value.strip()


def _defer(request: HttpRequest, value: bytes) -> None:
    digits = value.strip()
    if not digits.isdigit() or len(digits) > _DEFER_DIGITS:
        raise HeadError(400, "Enginewright-Defer must be one number of milliseconds")
    request.defer = int(digits) / 1000


def _shadow(request: HttpRequest, value: bytes) -> None:
    request.shadow = value.strip()


def _content_encoding(request: HttpRequest, value: bytes) -> None:
    coding = value.strip().lower()
    if request.content_encoding:
        coding = request.content_encoding + b", " + coding
    request.content_encoding = b"" if coding == b"identity" else coding


def _accept_encoding(request: HttpRequest, value: bytes) -> None:
    request.accept_encoding += (b"," if request.accept_encoding else b"") + value


def _authorization(request: HttpRequest, value: bytes) -> None:
    if request.authorization:
        raise HeadError(400, "there is more than one Authorization header")
    request.authorization = value.strip()


def _context(name: bytes, request: HttpRequest, value: bytes) -> None:
    if request.context is None:
        request.context = RequestContext()
    request.context.read(name, value)


_AUTHORIZATION: Final[dict[bytes, Callable[[HttpRequest, bytes], None]]] = {
    b"authorization": _authorization,
    b"Authorization": _authorization,
}
_FIELDS: Final[dict[bytes, Callable[[HttpRequest, bytes], None]]] = {
    b"content-length": _content_length,
    b"transfer-encoding": _transfer_encoding,
    b"inference-header-content-length": _json_length,
    b"expect": _expect,
    b"host": _host,
    b"content-encoding": _content_encoding,
    b"accept-encoding": _accept_encoding,
    b"enginewright-probe": _probe,
    b"enginewright-defer": _defer,
    b"enginewright-shadow": _shadow,
    **{name: partial(_context, name) for name in NAMES},
}
for _name in tuple(_FIELDS):  # the common capitalization too, to avoid lower() for every field
    _FIELDS[_name.title()] = _FIELDS[_name]
