"""Models behind http:// and https://.

Gigabytes over a network break off, so a download that was cut goes on where it stopped, as long as
the server says that it still is the same file. How often it is tried is bounded: the Job's own
backoff is the longer breath.
"""

import asyncio
import hashlib
import logging
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import aiohttp
from enginewright.contract.reasons import Reason

from enginewright_runtime.digests import CHUNK, Copied
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.logs import Progress, in_words
from enginewright_runtime.sources.base import no_room

if TYPE_CHECKING:
    from enginewright_runtime.sources.credentials import Credentials

_log: Final = logging.getLogger(__name__)
_REDIRECTS: Final = 5
_FRUITLESS_TRIES: Final = 4  # in a row without a byte of progress
_TRIES: Final = 20  # altogether
_FIRST_PAUSE: Final = 0.5  # seconds, doubled with every fruitless try
_CONNECT_SECONDS: Final = 15.0
_SILENCE_SECONDS: Final = 30.0
_LONGEST_RETRY_AFTER: Final = 15.0
_GONE: Final = frozenset({404, 410})
_MAY_PASS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass
class _Download:
    """What is on the disk so far."""

    url: str
    target: Path
    writer: BinaryIO
    progress: Progress
    size: int = 0
    validator: str | None = None  # ETag or date by which the server knows its file again
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def start_over(self) -> None:
        self.writer.seek(0)
        self.writer.truncate()
        self.size = 0
        self.digest = hashlib.sha256()
        self.progress.restart()


class _Unavailable(Exception):  # noqa: N818 - not an error yet: it is tried again
    """A try failed in a way that can pass; `after` is when the server wants the next, in seconds."""

    def __init__(self, cause: str, after: float | None = None) -> None:
        super().__init__(cause)
        self.after = after


class HttpSource:
    """A file behind a URL; external data lies at relative URLs beside it."""

    def __init__(self, url: str, credentials: "Credentials") -> None:
        self._url = url
        self._credentials = credentials

    def copy_to(self, target: Path) -> Copied:
        """Download the file."""
        try:
            return asyncio.run(self._download(self._url, target))
        except _NotFound as missing:
            raise StageFailure(Reason.SOURCE_UNREACHABLE, str(missing)) from None

    def copy_beside(self, location: str, target: Path) -> Copied:
        """Download the file at the relative URL `location`, with the same query string."""
        parts = urlsplit(self._url)
        beside = urlsplit(urljoin(self._url, "./" + quote(location)))
        url = urlunsplit(beside._replace(query=parts.query))
        try:
            return asyncio.run(self._download(url, target))
        except _NotFound as missing:
            raise StageFailure(
                Reason.EXTERNAL_DATA_MISSING,
                f"the model names the external data file {location!r}, and {missing}",
            ) from None

    async def _download(self, url: str, target: Path) -> Copied:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
        )
        # compressed bodies could not be resumed, and models do not compress
        headers = {"Accept-Encoding": "identity", "User-Agent": "enginewright"}
        async with aiohttp.ClientSession(
            timeout=timeout, headers=headers, trust_env=True, auto_decompress=False
        ) as session:
            with target.open("wb") as writer:
                name = Path(urlsplit(url).path).name or url
                progress = Progress(_log, f"downloading {name}", None)
                download = _Download(url, target, writer, progress)
                await self._until_whole(session, download)
                return Copied(download.digest.hexdigest(), download.size)

    async def _until_whole(self, session: aiohttp.ClientSession, download: _Download) -> None:
        fruitless = 0
        for attempt in range(1, _TRIES + 1):
            before = download.size
            try:
                await self._try(session, download)
            except _Unavailable as unavailable:
                fruitless = 0 if download.size > before else fruitless + 1
                if fruitless >= _FRUITLESS_TRIES or attempt == _TRIES:
                    raise _unreachable(download.url, f"{unavailable} ({attempt} tries)") from None
                pause = unavailable.after or _FIRST_PAUSE * 2**fruitless * random.uniform(0.5, 1)  # noqa: S311 - jitter
                _log.warning(
                    "%s; trying again in %.1f s from %s",
                    unavailable,
                    pause,
                    in_words(download.size),
                )
                await asyncio.sleep(pause)
            else:
                return

    async def _try(self, session: aiohttp.ClientSession, download: _Download) -> None:
        headers = self._authorization()
        if download.size and download.validator:
            headers |= {"Range": f"bytes={download.size}-", "If-Range": download.validator}
        else:
            download.start_over()
        try:
            async with session.get(
                download.url, headers=headers, max_redirects=_REDIRECTS
            ) as response:
                _check_status(response, download)
                await _receive(response, download)
        except aiohttp.TooManyRedirects:
            raise _unreachable(download.url, f"it redirects more than {_REDIRECTS} times") from None
        except aiohttp.InvalidURL as error:
            raise _unreachable(download.url, f"{error} is no URL") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _Unavailable(_in_words(error, download.size)) from error

    def _authorization(self) -> dict[str, str]:
        """Return the header that authenticates; aiohttp drops it when a redirect leaves the origin."""
        known = self._credentials
        if known.token is not None:
            return {"Authorization": f"Bearer {known.token}"}
        if known.username is not None and known.password is not None:
            return {"Authorization": aiohttp.encode_basic_auth(known.username, known.password)}
        return {}


class _NotFound(Exception):  # noqa: N818 - the caller knows what it means
    """The server says that there is no such file."""


def _check_status(response: aiohttp.ClientResponse, download: _Download) -> None:
    status = response.status
    if status in {200, 206}:
        return
    words = f"{_shown(str(response.url))} answered {status} {response.reason or ''}".rstrip()
    if status == 416:  # the file shrank: nothing of it is left to ask for
        download.validator = None
        raise _Unavailable(words)
    if status in _MAY_PASS:
        raise _Unavailable(words, _retry_after(response))
    if status in _GONE:
        raise _NotFound(words)
    raise StageFailure(
        Reason.SOURCE_UNREACHABLE,
        words,
        remedy=(
            "check the credentials in spec.source.secretRef (keys token, or username and password)"
            if status in {401, 403, 407}
            else None
        ),
    )


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    try:
        seconds = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return None
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER)


async def _receive(response: aiohttp.ClientResponse, download: _Download) -> None:
    if response.status == 206 and _range_start(response) != download.size:
        download.validator = None
        raise _Unavailable(f"{_shown(download.url)} answered with another range than asked for")
    if response.status == 200:
        download.start_over()
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise _unreachable(download.url, f"it insists on Content-Encoding {encoding}")
    download.validator = _validator(response)
    download.progress.expect(download.size + (response.content_length or 0))
    _check_room(download, response.content_length)
    async for chunk in response.content.iter_chunked(CHUNK):
        try:
            download.writer.write(chunk)
            download.writer.flush()
        except OSError as error:
            free = shutil.disk_usage(download.target.parent).free
            raise no_room(_shown(download.url), None, free) from error
        download.digest.update(chunk)
        download.size += len(chunk)
        download.progress.add(len(chunk))


def _check_room(download: _Download, wanted: int | None) -> None:
    free = shutil.disk_usage(download.target.parent).free
    if wanted is not None and wanted > free:
        raise no_room(_shown(download.url), wanted, free)


def _range_start(response: aiohttp.ClientResponse) -> int | None:
    """Return where the part begins, of `Content-Range: bytes START-END/TOTAL`."""
    unit, _, span = response.headers.get("Content-Range", "").partition(" ")
    start = span.partition("-")[0]
    return int(start) if unit == "bytes" and start.isdigit() else None


def _validator(response: aiohttp.ClientResponse) -> str | None:
    """Return what If-Range takes: a strong ETag, else a date (RFC 9110, 13.1.5)."""
    etag = response.headers.get("ETag")
    if etag and not etag.startswith("W/"):
        return etag
    return response.headers.get("Last-Modified")


def _in_words(error: Exception, received: int) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host} cannot be resolved"
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate of {error.host} is not trusted: {error.certificate_error}"
        case aiohttp.ClientConnectorError():
            cause = error.os_error.strerror or str(error.os_error)
            return f"cannot connect to {error.host}:{error.port}: {cause.lower()}"
        case TimeoutError():
            return f"no answer for {_SILENCE_SECONDS:.0f} s after {in_words(received)}"
        case (
            aiohttp.ClientPayloadError()
            | aiohttp.ServerDisconnectedError()
            | aiohttp.ClientOSError()
        ):
            return f"the connection broke off after {in_words(received)}"
        case _:
            return f"{type(error).__name__}: {error}"


def _unreachable(url: str, cause: str) -> StageFailure:
    return StageFailure(Reason.SOURCE_UNREACHABLE, f"cannot download {_shown(url)}: {cause}")


def _shown(url: str) -> str:
    """Return the URL for a message: without its query, where signed URLs carry their secret."""
    return urlunsplit(urlsplit(url)._replace(query="", fragment=""))
