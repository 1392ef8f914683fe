"""HTTP client: resumed downloads, bounded responses, credentials only for the first origin."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import urljoin, urlsplit, urlunsplit

import aiohttp
from yarl import URL

from enginewright_runtime.core.digests import CHUNK, Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.remote.credentials import AUTHORITY, Secret
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.remote.peers import Peers
from enginewright_runtime.remote.retry import PASSING_STATUSES, Unavailable, with_retries
from enginewright_runtime.sources.base import Missing
from enginewright_runtime.sources.quota import DiskQuota
from enginewright_runtime.sources.transfer import Transfer, transfer_file

_log: Final = logging.getLogger(__name__)
_REDIRECTS: Final = 5
_CONNECT_SECONDS: Final = 15.0
_SILENCE_SECONDS: Final = 30.0
_LONGEST_RETRY_AFTER: Final = 15.0
_LARGEST_RESPONSE: Final = 64 << 20  # of a list or a manifest
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_SETTLED: Final = timedelta(seconds=60)
_COMPLETE: Final = frozenset({200, 206})
_GONE: Final = frozenset({404, 410})
_REFUSED: Final = frozenset({401, 403, 407})
# a large body is created for every request
Body: TypeAlias = bytes | Callable[[], AsyncIterator[bytes]]


class Authorization(Protocol):
    """Authenticates requests to a server."""

    def headers(self) -> dict[str, str]:
        """Return the headers to send; redirects to other origins do not get them."""

    async def renew(self, session: aiohttp.ClientSession, challenge: str) -> bool:
        """Handle a WWW-Authenticate header; return whether to repeat the request."""


@dataclass(frozen=True)
class Constant:
    """Headers that are the same for every request; `repr` does not show them."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def headers(self) -> dict[str, str]:
        """Return the headers."""
        return dict(self.values)

    async def renew(self, session: aiohttp.ClientSession, challenge: str) -> bool:
        """Return False: there are no other headers to send."""
        del session, challenge
        return False


@dataclass(frozen=True)
class WebHead:
    """The response to a HEAD request."""

    headers: Mapping[str, str]
    validator: str | None  # of the content, if the server states a reliable one


@dataclass(frozen=True)
class WebResponse:
    """A response, completely read."""

    headers: Mapping[str, str]
    body: bytes = b""

    def json(self, what: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return the parsed body; raises StageFailure, SourceUnreachable, if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise unreachable(f"{what} did not answer with JSON") from None


class Web:
    """A client of one kind of server, which trusts the Secret's `ca.crt`; `remedy` is for responses that deny access.

    It connects only to `peers`, or to all if there are none: an address of the administrator is trusted.
    """

    def __init__(
        self, secret: Secret, authorization: Authorization, remedy: str, peers: Peers | None
    ) -> None:
        self._trust = secret.trust()
        self._peers = peers
        self._authorization = authorization
        self._remedy = remedy

    def download(
        self,
        url: str,
        target: Path,
        quota: DiskQuota,
        *,
        name: str | None = None,
    ) -> Copied:
        """Download a file, shown as `name`, and resume it if it is unchanged; raises Missing, or StageFailure."""

        async def attempt(transfer: Transfer) -> None:
            headers = {}
            if transfer.resumes() and transfer.validator:
                headers = {
                    "Range": f"bytes={transfer.size}-",
                    "If-Range": transfer.validator,
                }
            async with (
                self._exchange(url, lambda: transfer.size) as session,
                self._request(session, "GET", url, headers) as response,
            ):
                _check_download(response, url, transfer)
                self._check(response)
                await _receive(response, url, transfer)

        display_name = name or Path(urlsplit(url).path).name or show_url(url)
        return asyncio.run(transfer_file(show_url(url), display_name, target, quota, attempt))

    def read(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        post: bytes | None = None,
    ) -> WebResponse:
        """Return a response of bounded size; raises Missing, or StageFailure: SourceUnreachable."""

        async def attempt() -> WebResponse:
            method = "GET" if post is None else "POST"
            async with (
                self._exchange(url) as session,
                self._request(session, method, url, headers or {}, post) as got,
            ):
                self._check(got)
                return WebResponse(got.headers, await read_body(got, url))

        return asyncio.run(with_retries(f"read {show_url(url)}", attempt))

    def head(self, url: str, headers: Mapping[str, str] | None = None) -> WebHead | None:
        """Return the response to one HEAD request, without retries, or None unless its status is 200."""

        async def attempt() -> WebHead | None:
            async with (
                self._session() as session,
                self._request(session, "HEAD", url, headers or {}) as response,
            ):
                if response.status != 200:
                    return None
                return WebHead(response.headers, _head_validator(response, url, 0))

        try:
            return asyncio.run(attempt())
        except (aiohttp.ClientError, TimeoutError, StageFailure, Unavailable) as error:
            _log.info("HEAD %s failed (%s)", show_url(url), type(error).__name__)
            return None

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[aiohttp.ClientSession]:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
        )
        # compressed downloads cannot be resumed, and models hardly compress
        headers = {"Accept-Encoding": "identity", "User-Agent": "enginewright"}
        open_socket = self._peers.open_socket if self._peers else None
        connector = aiohttp.TCPConnector(ssl=self._trust, socket_factory=open_socket)
        async with aiohttp.ClientSession(
            timeout=timeout,
            headers=headers,
            trust_env=True,
            auto_decompress=False,
            connector=connector,
        ) as session:
            yield session

    @asynccontextmanager
    async def _exchange(
        self, url: str, moved: Callable[[], int] = lambda: 0
    ) -> AsyncIterator[aiohttp.ClientSession]:
        async with self._session() as session:
            try:
                yield session
            except (aiohttp.ClientError, TimeoutError) as error:
                refusal = self._peers.refusal if self._peers else None
                if refusal and isinstance(error, aiohttp.ClientConnectorError):
                    raise refusal from None
                raise _failure_of(url, error, moved()) from error

    @asynccontextmanager
    async def _request(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body | None = None,
        *,
        encoded: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response after redirects; `encoded` if the URL is as a server has sent it."""

        async def follow() -> aiohttp.ClientResponse:
            return await self._follow(session, method, url, headers, body, encoded=encoded)

        response = await follow()
        challenge = response.headers.get("WWW-Authenticate", "")
        if response.status == 401 and await self._authorization.renew(session, challenge):
            response.release()
            response = await follow()
        try:
            yield response
        finally:
            response.close()

    async def _follow(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body | None,
        *,
        encoded: bool,
    ) -> aiohttp.ClientResponse:
        """Follow redirects here, so that only the first origin gets the credentials."""
        at = url
        for _ in range(_REDIRECTS + 1):
            try:
                # the URL of a redirect is already encoded, and may be signed in that form
                as_sent = encoded or at != url
                target = URL(at, encoded=as_sent and at.isascii() and " " not in at)
                credentials = self._authorization.headers() if _origin(at) == _origin(url) else {}
            except ValueError:
                raise _invalid_url(url, at) from None
            try:
                response = await session.request(
                    method,
                    target,
                    headers={**headers, **credentials},
                    data=body() if callable(body) else body,
                    allow_redirects=False,
                )
            except aiohttp.InvalidURL:
                raise _invalid_url(url, at) from None
            location = response.headers.get("Location")
            if response.status not in _MOVED or location is None:
                return response
            response.release()
            at = _resolve_redirect(at, location, url)
        raise unreachable(
            f"cannot fetch {show_url(url)}: it redirects more than {_REDIRECTS} times"
        )

    def _check(
        self, response: aiohttp.ClientResponse, expected: frozenset[int] = _COMPLETE
    ) -> None:
        status = response.status
        if status in expected:
            return
        answer = f"{show_url(str(response.url))} answered {status} {response.reason or ''}".rstrip()
        if status in PASSING_STATUSES:
            raise Unavailable(answer, _retry_after(response))
        if status in _GONE:
            raise Missing(answer)
        detail = response.headers.get("X-Error-Message", "")[:200]  # of the Hugging Face hub
        raise unreachable(
            f"{answer}: {detail}" if detail else answer,
            self._remedy if status in _REFUSED else None,
        )


def _invalid_url(url: str, at: str) -> StageFailure:
    return unreachable(f"cannot fetch {show_url(url)}: {show_url(at)} is no URL")


def _resolve_redirect(at: str, location: str, url: str) -> str:
    try:
        target = urljoin(at, location)
        scheme = urlsplit(target).scheme
    except ValueError:
        raise _invalid_url(url, location) from None
    if scheme not in {"http", "https"}:
        raise unreachable(f"cannot fetch {show_url(url)}: it redirects to {scheme}:, not to http")
    if scheme == "http" and urlsplit(at).scheme == "https":
        raise unreachable(
            f"cannot fetch {show_url(url)}: it redirects from https to {show_url(target)},"
            " which others on the way can change"
        )
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _check_download(response: aiohttp.ClientResponse, url: str, transfer: Transfer) -> None:
    if response.status == 416:  # the file is now shorter than what was received
        problem = f"416 {response.reason}"
    elif response.status != 206:
        return
    elif _range_start(response) != transfer.size:
        problem = "with another range than requested"
    elif (validator := _head_validator(response, url, transfer.size)) and (
        validator == transfer.head_validator
    ):
        return
    else:  # some servers ignore If-Range
        problem = "with a range of other content"
    transfer.validator = None
    raise Unavailable(f"{show_url(str(response.url))} answered {problem}")


async def _receive(response: aiohttp.ClientResponse, url: str, transfer: Transfer) -> None:
    if response.status == 200 and transfer.size:
        transfer.start_over()
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        where = show_url(str(response.url))
        raise unreachable(f"cannot fetch {where}: it insists on Content-Encoding {encoding}")
    transfer.validator = _validator(response)
    transfer.version = _version(response)
    transfer.head_validator = _head_validator(response, url, transfer.size)
    transfer.expect(response.content_length)
    async for chunk in response.content.iter_chunked(CHUNK):
        transfer.receive(chunk)


async def read_body(
    response: aiohttp.ClientResponse, url: str, largest: int = _LARGEST_RESPONSE
) -> bytes:
    """Return a whole body; raises StageFailure, SourceUnreachable, for a larger one."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK):
        body += chunk
        if len(body) > largest:
            raise unreachable(f"{show_url(url)} answers with more than {format_bytes(largest)}")
    return bytes(body)


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    try:
        seconds = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return None
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER)


def _range_start(response: aiohttp.ClientResponse) -> int | None:
    """Return START of `Content-Range: bytes START-END/TOTAL`."""
    unit, _, span = response.headers.get("Content-Range", "").partition(" ")
    start = span.partition("-")[0]
    return int(start) if unit == "bytes" and start.isdigit() else None


def _validator(response: aiohttp.ClientResponse) -> str | None:
    """Return the validator for If-Range: a strong ETag, else a settled date (RFC 9110, 13.1.5)."""
    etag = response.headers.get("ETag")
    if etag and not etag.startswith("W/"):
        return etag
    return _find_settled_date(response)


def _version(response: aiohttp.ClientResponse) -> str | None:
    if etag := response.headers.get("ETag"):
        return f"etag {etag}"
    date = response.headers.get("Last-Modified")
    return f"of {date}" if date else None


def _head_validator(response: aiohttp.ClientResponse, url: str, before: int) -> str | None:
    """Return what reliably identifies the content in a later response, if anything does.

    Versions are those of one address (RFC 9110, 8.8.3), so it names the one that `url` redirects to,
    without its query, which may be a signature. A date is used only with the size, which includes the
    bytes `before` a range.
    """
    at = show_url(str(response.url))
    place = "" if at == show_url(str(URL(url))) else f" at {at}"
    if etag := response.headers.get("ETag"):
        return f"etag {etag}{place}"
    modified = _find_settled_date(response)
    length = response.content_length
    if modified is None or length is None:
        return None
    return f"of {modified}, {before + length} bytes{place}"


def _find_settled_date(response: aiohttp.ClientResponse) -> str | None:
    """Return Last-Modified if the content was older than a minute when it was sent (RFC 9110, 8.8.2.2)."""
    modified = _date(response, "Last-Modified")
    sent = _date(response, "Date") or datetime.now(UTC)
    if modified is None or sent - modified < _SETTLED:
        return None
    return response.headers["Last-Modified"]


def _date(response: aiohttp.ClientResponse, header: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(response.headers.get(header, ""))
    except ValueError:
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date


def _failure_of(url: str, error: Exception, received: int) -> Exception:
    answer = _describe_error(error, received)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):  # permanent
        remedy = f"put the authority that signed it into the Secret in secretRef (key {AUTHORITY})"
        return unreachable(f"cannot fetch {show_url(url)}: {answer}", remedy)
    return Unavailable(answer)


def _describe_error(error: Exception, received: int) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host} cannot be resolved"
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate of {error.host} is not trusted: {_cause(error)}"
        case aiohttp.ClientConnectorError():
            cause = error.os_error.strerror or str(error.os_error)
            return f"cannot connect to {error.host}:{error.port}: {cause.lower()}"
        case TimeoutError():
            return f"no answer for {_SILENCE_SECONDS:.0f} s after {format_bytes(received)}"
        case (
            aiohttp.ClientPayloadError()
            | aiohttp.ServerDisconnectedError()
            | aiohttp.ClientOSError()
        ):
            return f"the connection broke off after {format_bytes(received)}"
        case _:  # the exception's text may contain a signed URL
            return f"it does not answer as a web server should ({type(error).__name__})"


def _cause(error: aiohttp.ClientConnectorCertificateError) -> str:
    cause = error.certificate_error
    return getattr(cause, "verify_message", "") or str(cause)


def show_url(url: str) -> str:
    """Return the URL for messages: without its query, which contains the secret of signed URLs."""
    try:
        parts = urlsplit(url)
    except ValueError:  # secret parts cannot be identified
        return "the address"
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=place, query="", fragment=""))
